"""Reads of the kernel by netlink: counters of our table, devices, and addresses of the machine.

A read is one dump. Counters are not read with `nft`, which takes 20 ms of CPU for 250 pods: it
reads the whole ruleset first and prints it as text. Formats: include/uapi/linux/netlink.h,
netfilter/nf_tables.h, if_link.h and if_addr.h of the kernel.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.node.traffic.classes import Address

NO_RIGHT = "no right to netfilter: counting traffic needs root, or CAP_NET_ADMIN"
_NO_NETFILTER = "the kernel has no nf_tables, which counting traffic needs"
ROUTE, _NETFILTER = 0, 12
_ERROR, _DONE = 2, 3
_REQUEST, _DUMP, _INTERRUPTED = 0x1, 0x300, 0x10
_GETLINK, _GETADDR = 18, 22
_GETOBJ = 10 << 8 | 19  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETOBJ
_INET = 1  # NFPROTO_INET
_OBJ_TABLE, _OBJ_NAME, _OBJ_TYPE, _OBJ_DATA, _OBJ_USE = 1, 2, 3, 4, 5
_COUNTER = 1  # NFT_OBJECT_COUNTER
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_STATS64, _IFLA_INFO_KIND = 3, 18, 23, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_ATTRIBUTE = struct.Struct("=HH")
_HEADER = struct.Struct("=IHHII")
_COUNTED = struct.Struct(">4xQ4xQ")  # NFTA_COUNTER_BYTES and NFTA_COUNTER_PACKETS, nested
#: Type, handle, use and data of a counter: their headers, and the numbers of the last two.
_TAIL = struct.Struct(">4s16x4sI8sQ4xQ")
_TAIL_HEADS = tuple(
    b"".join(_ATTRIBUTE.pack(*each) for each in heads)
    for heads in (((8, _OBJ_TYPE),), ((8, _OBJ_USE),), ((28, _OBJ_DATA), (12, 1)))
)
_RECEIVE_BYTES = 1 << 17
_TIMEOUT_SECONDS = 10.0
#: A dump during which the ruleset was changed is made again.
_TRIES = 5


class Counted(NamedTuple):
    """What a counter of the kernel has, and how many elements and rules use it."""

    packets: int
    size: int
    uses: int


@dataclass(frozen=True, slots=True)
class NetworkDevice:
    """A network device with the bytes and packets that it has received and sent."""

    name: str
    kind: str
    packets: int
    size: int


def counters(table: str) -> dict[str, Counted]:
    """Return the counters of a table of the family inet, none without it; OSError."""
    body = struct.pack("=BBH", _INET, 0, 0)
    body += _attribute(_OBJ_TABLE, table.encode() + b"\0")
    body += _attribute(_OBJ_TYPE, struct.pack(">I", _COUNTER))
    try:
        return dict(_counter(message, at) for message, at in dump(_NETFILTER, _GETOBJ, body))
    except OSError as error:
        known = {errno.EPERM: NO_RIGHT, errno.EINVAL: _NO_NETFILTER}
        if error.errno in known:
            raise OSError(known[error.errno]) from error
        raise


def _counter(message: bytes, at: int) -> tuple[str, Counted]:
    """Return name and value.

    There are thousands in a dump, and all kernels send their attributes in one order: table, name,
    and a tail of one size. It is read at once where it has that order, else by attribute.
    """
    length, _ = _ATTRIBUTE.unpack_from(message, at + 4)
    start = at + 4 + (length + 3 & ~3)
    length, kind = _ATTRIBUTE.unpack_from(message, start)
    tail = start + (length + 3 & ~3)
    if kind == _OBJ_NAME and len(message) == tail + _TAIL.size:
        head, use, uses, data, size, packets = _TAIL.unpack_from(message, tail)
        if (head, use, data) == _TAIL_HEADS:
            name = message[start + 4 : start + length - 1].decode("ascii", "replace")
            return name, Counted(packets, size, uses)
    return _counter_by_attribute(message, at)


def _counter_by_attribute(message: bytes, at: int) -> tuple[str, Counted]:
    name, packets, size, uses = "", 0, 0, 0
    for kind, start, end in attributes(message, at + 4):
        if kind == _OBJ_NAME:
            name = message[start : end - 1].decode("ascii", "replace")
        elif kind == _OBJ_DATA:
            size, packets = _COUNTED.unpack_from(message, start)
        elif kind == _OBJ_USE:
            uses = int.from_bytes(message[start:end], "big")
    return name, Counted(packets, size, uses)


def links() -> list[NetworkDevice]:
    """Return all devices; OSError."""
    return [_link(*each) for each in dump(ROUTE, _GETLINK, bytes(16))]


def _link(message: bytes, at: int) -> NetworkDevice:
    name, kind, packets, size = "", "", 0, 0
    for attribute, start, end in attributes(message, at + 16):
        if attribute == _IFLA_IFNAME:
            name = message[start : end - 1].decode("utf-8", "replace")
        elif attribute == _IFLA_LINKINFO:
            for inner, first, last in attributes(message[start:end], 0):
                if inner == _IFLA_INFO_KIND:
                    kind = message[start + first : start + last].rstrip(b"\0").decode("ascii")
        elif attribute == _IFLA_STATS64:
            received, sent, received_bytes, sent_bytes = struct.unpack_from("=4Q", message, start)
            packets, size = received + sent, received_bytes + sent_bytes
    return NetworkDevice(name, kind, packets, size)


def addresses() -> frozenset[Address]:
    """Return the machine's own addresses, loopback and link-local ones too; OSError."""
    found: set[Address] = set()
    for message, at in dump(ROUTE, _GETADDR, bytes(8)):
        by_kind = {kind: message[start:end] for kind, start, end in attributes(message, at + 8)}
        data = by_kind.get(_IFA_LOCAL) or by_kind.get(_IFA_ADDRESS)
        if data:
            found.add(ipaddress.ip_address(data))
    return frozenset(found)


def _attribute(kind: int, data: bytes) -> bytes:
    return _ATTRIBUTE.pack(4 + len(data), kind) + data + bytes(-len(data) % 4)


def attributes(message: bytes, at: int) -> Iterator[tuple[int, int, int]]:
    """Yield (type, start, end) of each attribute of a message from an offset on."""
    while at + 4 <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < 4:  # the header alone
            return
        yield kind & _TYPE_MASK, at + 4, at + length
        at += (length + 3) & ~3


def dump(protocol: int, kind: int, body: bytes) -> list[tuple[bytes, int]]:
    """Return each message of a dump, and where its payload starts; OSError."""
    request = _HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _DUMP, 1, 0) + body
    for _ in range(_TRIES):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
            kernel.settimeout(_TIMEOUT_SECONDS)
            kernel.bind((0, 0))
            kernel.send(request)
            found, was_interrupted = _received(kernel)
        if not was_interrupted:
            return found
    raise OSError("the kernel's tables change faster than they can be read")


def _received(kernel: socket.socket) -> tuple[list[tuple[bytes, int]], bool]:
    found: list[tuple[bytes, int]] = []
    was_interrupted = False
    while True:
        data = kernel.recv(_RECEIVE_BYTES)
        at = 0
        while at < len(data):
            length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
            was_interrupted |= bool(flags & _INTERRUPTED)
            payload = at + _HEADER.size
            if kind in (_ERROR, _DONE):
                number = -int(struct.unpack_from("=i", data, payload)[0])
                if number:
                    raise OSError(number, os.strerror(number))
                return found, was_interrupted
            found.append((data[at : at + length], _HEADER.size))
            at += (length + 3) & ~3
