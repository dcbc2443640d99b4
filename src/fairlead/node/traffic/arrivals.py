"""Asks for a look at the pods as soon as one comes, by the kernel's events of network devices.

A pod's device is there before its first program, and a kubelet lists its address a second or two
later. So each second is a look while devices come and go, and for a while after: a new pod is
counted and limited once the kubelet lists it, not at the end of a period. Devices that make no
event on the host (ipvlan, macvlan) leave it at the period. Formats: rtnetlink(7).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from fairlead.model.health.faults import Moment
from fairlead.node.traffic.netlink import ROUTE

#: How long after an event the kubelet may still list a pod without its address.
_SETTLE_SECONDS = 5.0
_LINKS = 1  # RTMGRP_LINK
_EVENT_BYTES = 1 << 16
#: Events that are taken at a time; what is left is taken a second later.
_EVENTS_MAX = 256


class PodArrivals:
    """Events of network devices, from the first question on. Used by one thread, never blocks."""

    def __init__(self, now: Callable[[], Moment]) -> None:
        self._now = now
        self._kernel: socket.socket | None = None
        self._until = 0.0

    def is_early(self) -> bool:
        """Return whether to look before the period is over; False where the kernel says nothing."""
        instant = self._now().uptime_seconds
        try:
            if self._have_come():
                self._until = instant + _SETTLE_SECONDS
        except OSError:  # not permitted: looks come in their period
            self._kernel = None
        return instant < self._until

    def _have_come(self) -> bool:
        """Return whether devices came, went or changed since the last question; OSError."""
        if self._kernel is None:
            self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, ROUTE)
            self._kernel.setblocking(False)
            self._kernel.bind((0, _LINKS))
            return True  # what came before is not known
        found = False
        for _ in range(_EVENTS_MAX):
            try:
                self._kernel.recv(_EVENT_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # there were more than the socket holds
                    raise
            found = True
        return found
