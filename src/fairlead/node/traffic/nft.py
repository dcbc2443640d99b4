"""Changes of the kernel's netfilter by transactions of `nft`, each whole or not at all.

A run is bounded in time. It blocks, so it is made in the thread of its source.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.node.traffic.classes import FAMILIES, INTERNET
from fairlead.node.traffic.netlink import NO_RIGHT
from fairlead.node.traffic.ruleset import (
    MARKER,
    TABLE,
    Command,
    CountingRules,
    KernelTable,
    host_map,
    map_name,
    number_of,
    owner_of,
)

PROGRAM = "nft"
_SECONDS_MAX = 20.0
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}
_NEEDS = "counting and shaping traffic need nftables 1.0 or newer"
NOT_UNDERSTOOD = f"{_NEEDS}: its list of our table is not understood"


def apply(commands: Sequence[Command]) -> None:
    """Make one transaction; nothing for no commands; OSError, and then nothing has changed."""
    if commands:
        _run(("-f", "-"), msgspec.json.encode({"nftables": commands}))


def apply_text(text: str) -> None:
    """Make one transaction of nft's own language; OSError, and then nothing has changed."""
    _run(("-f", "-"), text.encode(), is_json=False)


def held() -> KernelTable:
    """Return what there is of our table, nothing without one; OSError."""
    items = listed(TABLE)
    try:
        kinds = ("chain", "map", "set")
        names = [tuple(each[kind]["name"] for each in items if kind in each) for kind in kinds]
        number = _in_force(items, (name for each in names for name in each))
        internet = {map_name(INTERNET, "out", family, number) for family in FAMILIES}
        owners = {
            ipaddress.ip_address(address): owner
            for each in items
            if "map" in each and each["map"]["name"] in internet
            for address, counter in each["map"].get("elem", ())
            if (owner := owner_of(counter))
        }
        hosts = {
            str(cgroup): owner
            for each in items
            if "map" in each and each["map"]["name"] == host_map(INTERNET, "out", number)
            for cgroup, counter in each["map"].get("elem", ())
            if (owner := owner_of(counter))
        }
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(NOT_UNDERSTOOD) from error
    return KernelTable(CountingRules(number, owners, hosts), *names)


def _in_force(items: Iterable[Mapping[str, Any]], names: Iterable[str]) -> int:
    """Return the number of the rules in force; without their marker the highest of the names."""
    markers = [each["counter"]["name"] for each in items if "counter" in each]
    return max(
        (number_of(each) for each in markers if each.startswith(MARKER)),
        default=max(map(number_of, names), default=0),
    )


def listed(table: str) -> list[dict[str, Any]]:
    """Return what nft lists of a table of the family inet, nothing without it; OSError."""
    try:
        items: list[dict[str, Any]] = msgspec.json.decode(_run(("list", "table", "inet", table)))[
            "nftables"
        ]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(NOT_UNDERSTOOD) from error
    return items


def _run(arguments: tuple[str, ...], data: bytes = b"", *, is_json: bool = True) -> bytes:
    """Return what nft writes; FileNotFoundError when the table is not there, OSError."""
    try:
        done = subprocess.run(
            [PROGRAM, *(("-j",) if is_json else ()), *arguments], input=data,
            capture_output=True, timeout=_SECONDS_MAX, env=_ENVIRONMENT, check=False,
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
