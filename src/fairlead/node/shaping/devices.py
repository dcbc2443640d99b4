"""The device of the default route, its queues and classes: read by netlink, changed by `tc`.

A qdisc that the kernel gave a device by itself has the handle 0. Any other is somebody's, and is
kept: ours is added, which the kernel refuses where there is one, and never replaces another.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fairlead.node.shaping.classes import HANDLE, LEAVES, MAJOR, ROOT, HtbClass
from fairlead.node.traffic import netlink

_SECONDS_MAX = 20.0
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}
_GETQDISC, _GETCLASS = 38, 42
#: struct tcmsg (linux/rtnetlink.h): family, index of the device, handle, parent, info.
_MESSAGE = struct.Struct("=B3xiIII")
_KIND, _OPTIONS, _STATS = 1, 2, 7
_BASIC, _QUEUE = 1, 3
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
_PARENT_ROOT = 0xFFFFFFFF
#: struct tc_htb_opt: of the two rates, the last field of each.
_HTB = struct.Struct("=8xI8xI")
_LONG, _QUEUED = struct.Struct("=Q"), struct.Struct("=3I")
_NESTED = (_OPTIONS, _STATS)
_UNKNOWN_KIND = "Specified qdisc kind is unknown"


class NoSuchQueue(OSError):
    """The kernel has no queue of this kind."""


class Route(NamedTuple):
    """A default route: its device, and its gateway ("" for none)."""

    device: str
    gateway: str


class ClassUse(NamedTuple):
    """What a class has sent and dropped, and what waits in it."""

    size: int
    drops: int
    backlog: int


@dataclass(frozen=True, slots=True)
class DeviceQueues:
    """What a device has. `root` is the kind of its root qdisc, which is ours if `is_ours`.

    `is_default`: the kernel gave it by itself. `leaves` are kinds of queues below our classes.
    """

    device: str
    root: str = ""
    is_ours: bool = False
    is_default: bool = True
    classes: Mapping[int, HtbClass] = field(default_factory=dict[int, HtbClass])
    uses: Mapping[int, ClassUse] = field(default_factory=dict[int, ClassUse])
    leaves: Mapping[int, str] = field(default_factory=dict[int, str])


class _Hop(msgspec.Struct):
    dev: str = ""
    gateway: str = ""


class _Route(_Hop):
    type: str = "unicast"
    nexthops: tuple[_Hop, ...] = ()


class _Link(msgspec.Struct):
    txqlen: int = 0


#: A VPN leads all traffic elsewhere by two halves, and leaves the default route as it is.
_HALVES = (("0", 1), ("128", 1), ("2000::", 3))
#: What may wait at least of packets without a class, where a device says less: with none, HTB would
#: drop them all.
_DIRECT_PACKETS = 1_000


def default_routes() -> tuple[Route, ...]:
    """Return the routes to the internet of all tables and both families, in order; OSError.

    Those are the default ones, each way of one with several, and those of half the addresses.
    """
    asked = "".join(f"route show table all match {first}/{bits}\n" for first, bits in _HALVES)
    found = run("ip", "-j", "-batch", "-", data=asked.encode())
    try:
        routes = [each for line in found.splitlines() if line.strip()
                  for each in msgspec.json.decode(line, type=list[_Route])]  # fmt: skip
    except ValueError as error:
        raise OSError(f"what ip says of routes is not understood: {error}") from error
    return tuple(sorted({
        Route(way.dev, way.gateway)
        for each in routes if each.type == "unicast"
        for way in (each, *each.nexthops) if way.dev
    }))  # fmt: skip


def read_queues(device: str) -> DeviceQueues:
    """Return the queues of a device, with our classes; OSError."""
    index = socket.if_nametoindex(device)
    body = _MESSAGE.pack(0, index, 0, 0, 0)
    root, handle, leaves = "", 0, dict[int, str]()
    for message, at in netlink.dump(netlink.ROUTE, _GETQDISC, body):
        _, of, number, parent, _ = _MESSAGE.unpack_from(message, at)
        if of != index:
            continue
        kind = _kind(message, at)
        if parent == _PARENT_ROOT:
            root, handle = kind, number
        elif parent >> 16 == MAJOR:
            leaves[parent & 0xFFFF] = kind
    if (root, handle) != ("htb", HANDLE):
        return DeviceQueues(device, root, is_default=not handle)
    classes: dict[int, HtbClass] = {}
    uses: dict[int, ClassUse] = {}
    for message, at in netlink.dump(netlink.ROUTE, _GETCLASS, body):
        _, _, number, parent, _ = _MESSAGE.unpack_from(message, at)
        if number >> 16 == MAJOR:
            above = 0 if parent == _PARENT_ROOT else parent & 0xFFFF
            classes[number & 0xFFFF], uses[number & 0xFFFF] = _class(message, at, above)
    return DeviceQueues(device, root, True, False, classes, uses, leaves)


def our_devices() -> tuple[str, ...]:
    """Return the devices whose root qdisc is ours; OSError."""
    found: list[str] = []
    for message, at in netlink.dump(netlink.ROUTE, _GETQDISC, _MESSAGE.pack(0, 0, 0, 0, 0)):
        _, index, number, parent, _ = _MESSAGE.unpack_from(message, at)
        if (number, parent) == (HANDLE, _PARENT_ROOT) and _kind(message, at) == "htb":
            found.append(socket.if_indextoname(index))
    return tuple(sorted(found))


def _kind(message: bytes, at: int) -> str:
    for kind, start, end in netlink.attributes(message, at + _MESSAGE.size):
        if kind == _KIND:
            return message[start:end].rstrip(b"\0").decode("ascii", "replace")
    return ""


def _class(message: bytes, at: int, parent: int) -> tuple[HtbClass, ClassUse]:
    """Return a class of HTB, and what it has sent. The kernel's rates are in bytes per second."""
    found: dict[tuple[int, int], int] = {}
    for kind, start, end in netlink.attributes(message, at + _MESSAGE.size):
        inner = message[start:end]
        for what, first, _ in netlink.attributes(inner, 0) if kind in _NESTED else ():
            found[kind, what] = start + first
    rate, ceil = _HTB.unpack_from(message, found[_OPTIONS, _HTB_PARMS])
    if wide := found.get((_OPTIONS, _HTB_RATE64)):
        (rate,) = _LONG.unpack_from(message, wide)
    if wide := found.get((_OPTIONS, _HTB_CEIL64)):
        (ceil,) = _LONG.unpack_from(message, wide)
    (size,) = _LONG.unpack_from(message, found[_STATS, _BASIC])
    _, backlog, drops = _QUEUED.unpack_from(message, found[_STATS, _QUEUE])
    return HtbClass(parent, rate * 8, ceil * 8), ClassUse(size, drops, backlog)


def add_root(device: str) -> None:
    """Give a device our HTB, below which all is sent at once so far; OSError, NoSuchQueue."""
    try:
        links = msgspec.json.decode(run("ip", "-j", "link", "show", "dev", device),
                                    type=list[_Link])  # fmt: skip
    except ValueError as error:
        raise OSError(f"what ip says of {device} is not understood: {error}") from error
    waiting = max([_DIRECT_PACKETS, *(each.txqlen for each in links)])
    change([f"qdisc add dev {device} root handle {ROOT} htb default 0 direct_qlen {waiting}"])


def delete_root(device: str) -> None:
    """Take our HTB away: the kernel gives the device what it had by itself before; OSError."""
    change([f"qdisc del dev {device} root handle {ROOT}"])


def find_leaf(device: str, class_id: str) -> str:
    """Give a class the best queue that the kernel has, and return its kind; OSError."""
    for leaf in LEAVES[:-1]:
        try:
            change([f"qdisc replace dev {device} parent {class_id} {leaf}"])
        except NoSuchQueue:
            continue
        return leaf
    return LEAVES[-1]


def change(lines: Iterable[str]) -> None:
    """Make changes in order, up to the first that is refused; OSError, NoSuchQueue."""
    data = "".join(f"{line}\n" for line in lines)
    if data:
        run("tc", "-batch", "-", data=data.encode())


def run(program: str, *arguments: str, data: bytes = b"") -> bytes:
    """Return what a program of iproute2 writes; OSError, NoSuchQueue."""
    try:
        done = subprocess.run(
            [program, *arguments], input=data, capture_output=True, timeout=_SECONDS_MAX,
            env=_ENVIRONMENT, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise OSError(f"no {program}: shaping by classes needs iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{program} has not ended after {_SECONDS_MAX:g} s") from error
    if done.returncode == 0:
        return done.stdout
    text = done.stderr.decode("utf-8", "replace")
    if _UNKNOWN_KIND in text:
        raise NoSuchQueue("the kernel has no queue of this kind")
    if os.strerror(errno.EPERM) in text:
        raise OSError("no right to queues: shaping needs root, or CAP_NET_ADMIN")
    said = next((line for line in text.splitlines() if "Error" in line), text.strip()[:200])
    raise OSError(f"{program} refuses: {said.partition('Error: ')[2] or said}")
