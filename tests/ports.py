"""Ports that stay free until a test uses them."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

#: This process' own, below those that the kernel gives away: what is free is so until it is used.
_FIRST = 10_000 + os.getpid() % 110 * 200
_PORTS = itertools.cycle(range(_FIRST, _FIRST + 200))


def free_ports(count: int) -> list[int]:
    """Return ports that nothing holds at any address of this machine."""
    found: list[int] = []
    while len(found) < count:
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port := next(_PORTS)))
            found.append(port)
    return found


def free_port() -> int:
    """Return one of them."""
    return free_ports(1)[0]
