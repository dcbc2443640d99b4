"""Changes of the kernel's netfilter by transactions of `nft`, each whole or not at all.

A run is bounded in time. It blocks, so it is made in the thread of its source.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import subprocess
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.node.traffic.classes import FAMILIES, INTERNET
from fairlead.node.traffic.netlink import NO_RIGHT
from fairlead.node.traffic.ruleset import TABLE, Command, KernelTable, map_name, owner_of

PROGRAM = "nft"
_SECONDS_MAX = 20.0
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}
_NEEDS = "counting traffic needs nftables 1.0 or newer"


def apply(commands: Sequence[Command]) -> None:
    """Make one transaction; nothing for no commands; OSError, and then nothing has changed."""
    if commands:
        _run(("-f", "-"), msgspec.json.encode({"nftables": commands}))


def held() -> KernelTable:
    """Return what there is of our table, nothing without one; OSError."""
    try:
        found = _run(("list", "table", "inet", TABLE))
    except FileNotFoundError:
        return KernelTable()
    try:
        items: list[dict[str, Any]] = msgspec.json.decode(found)["nftables"]
        maps = [each["map"] for each in items if "map" in each]
        internet = {map_name(INTERNET, "out", family) for family in FAMILIES}
        owners = {
            ipaddress.ip_address(address): owner
            for each in maps
            if each["name"] in internet
            for address, counter in each.get("elem", ())
            if (owner := owner_of(counter))
        }
        sets = tuple(each["set"]["name"] for each in items if "set" in each)
        chains = tuple(each["chain"]["name"] for each in items if "chain" in each)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise OSError(f"{_NEEDS}: its list of our table is not understood") from error
    return KernelTable(chains, tuple(each["name"] for each in maps), sets, owners)


def _run(arguments: tuple[str, ...], data: bytes = b"") -> bytes:
    """Return what nft writes; FileNotFoundError when the table is not there, OSError."""
    try:
        done = subprocess.run(
            [PROGRAM, "-j", *arguments], input=data, capture_output=True, timeout=_SECONDS_MAX,
            env=_ENVIRONMENT, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise OSError(f"no nft: {_NEEDS} (package nftables)") from error
    except subprocess.TimeoutExpired as error:
        raise OSError(f"nft has not ended after {_SECONDS_MAX:g} s") from error
    if done.returncode == 0:
        return done.stdout
    text = done.stderr.decode("utf-8", "replace")
    said = next((line for line in text.splitlines() if "Error" in line), text.strip()[:200])
    if os.strerror(errno.EPERM) in text:
        raise OSError(NO_RIGHT)
    if not data and os.strerror(errno.ENOENT) in text:
        raise FileNotFoundError(said)
    raise OSError(f"nft refuses: {said.partition('Error: ')[2] or said}")
