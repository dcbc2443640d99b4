"""Whether packets still leave the machine: the gateway is asked for its address, by ARP.

The request takes the way of all packets, through the qdisc of the device, and the answer proves
that it went out. It touches no table of neighbours. Where a class is named the request is sent in
it, too. A gateway of IPv6, or on a device without ARP, cannot be asked this way.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import time

from fairlead.node.shaping.devices import Route

SECONDS_MAX = 1.0
TRIES = 2
_ARP, _IPV4 = 0x0806, 0x0800
_ETHERNET, _REQUEST, _ANSWER = 1, 1, 2
_BROADCAST = b"\xff" * 6
#: Hardware, protocol, their lengths, operation, sender, target (RFC 826).
_PACKET = struct.Struct(">HHBBH6s4s6s4s")


def answers(route: Route, priority: int) -> bool:
    """True when the gateway answers within a second; OSError without a right to ask.

    `priority` is that of the request's packet: the handle of a class, or 0.
    """
    try:
        gateway = ipaddress.IPv4Address(route.gateway)
    except ValueError:
        return False
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ARP)) as asking:
        asking.bind((route.device, _ARP))
        own, kind = asking.getsockname()[4], asking.getsockname()[3]
        if kind != _ETHERNET or len(own) != len(_BROADCAST):
            return False
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        packet = _PACKET.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, own, _own_address(gateway),
                              bytes(6), gateway.packed)  # fmt: skip
        for _ in range(TRIES):
            asking.sendto(packet, (route.device, _ARP, 0, 0, _BROADCAST))
            if _has_answered(asking, gateway, time.monotonic() + SECONDS_MAX / TRIES):
                return True
    return False


def _has_answered(asking: socket.socket, gateway: ipaddress.IPv4Address, deadline: float) -> bool:
    while (left := deadline - time.monotonic()) > 0:
        asking.settimeout(left)
        try:
            data = asking.recv(1 << 12)
        except TimeoutError:
            return False
        if len(data) >= _PACKET.size:
            _, _, _, _, operation, _, sender, _, _ = _PACKET.unpack_from(data)
            if operation == _ANSWER and sender == gateway.packed:
                return True
    return False


def _own_address(gateway: ipaddress.IPv4Address) -> bytes:
    """Return the address that the machine talks to the gateway with; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.connect((str(gateway), 9))
        return ipaddress.IPv4Address(other.getsockname()[0]).packed
