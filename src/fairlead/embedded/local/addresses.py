"""Loopback addresses for pods: 127.x.y.z, one per pod, so that peers can listen on equal ports.

On Linux all of 127.0.0.0/8 is this machine without any set-up. The address follows from the pod's
uid (and is kept in its directory), so that a restart of the node changes nothing; a taken one
moves on to the next. 127.0.x.y is left to others.
"""

from __future__ import annotations

import zlib

FIRST = 1 << 16  # 127.1.0.0
COUNT = (1 << 24) - FIRST


class Addresses:
    """The addresses in use on this node."""

    def __init__(self, salt: str = "") -> None:
        """`salt` keeps two nodes on one machine apart (mostly: addresses are not reserved)."""
        self._salt = salt
        self._owner: dict[str, str] = {}

    def take(self, uid: str) -> str:
        """Return the pod's address, the same for the same uid unless another pod has it."""
        number = zlib.crc32(f"{self._salt}/{uid}".encode()) % COUNT
        for _ in range(COUNT):
            value = FIRST + number
            address = f"127.{value >> 16}.{value >> 8 & 255}.{value & 255}"
            usable = value & 255 not in (0, 255)
            if usable and self._owner.setdefault(address, uid) == uid:
                return address
            number = (number + 1) % COUNT
        raise AssertionError("16 million pods on one machine")

    def adopt(self, address: str, uid: str) -> None:
        """Note the address of a pod that exists already."""
        self._owner.setdefault(address, uid)

    def give_back(self, address: str, uid: str) -> None:
        """Free it."""
        if self._owner.get(address) == uid:
            del self._owner[address]
