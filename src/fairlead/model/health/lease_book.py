"""When each node last renewed its lease, by the clock of this process.

Only that a lease has changed is taken from it, never the time that stands in it: the clock of a
machine may be wrong, and a machine that is taken over writes what it likes.

The nodes are kept in the order of their last renewal, one order for each duration of leases, so a
renewal costs two steps in a dictionary, and to ask who is late looks at the late ones alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: What kubelets ask for unless they are told otherwise; they renew after a quarter of it.
KUBELET_LEASE_SECONDS = 40


@dataclass(slots=True)
class _Lease:
    renewed: str | None
    duration: int
    heard_at: float
    #: It has changed since it was first seen: only then its node lives.
    is_renewed: bool = False


class LeaseBook:
    """The leases of nodes. Instants are of a monotonic clock."""

    def __init__(self, silent_seconds: float) -> None:
        """`silent_seconds`: when a lease of KUBELET_LEASE_SECONDS is late; longer ones later."""
        self._silent_seconds = silent_seconds
        self._leases: dict[str, _Lease] = {}
        #: By duration: names, in the order in which they were last heard.
        self._orders: dict[int, dict[str, None]] = {}
        #: When any lease was last seen to be renewed.
        self.heard_at: float | None = None

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, name: str) -> bool:
        return name in self._leases

    def put(self, name: str, renewed: str | None, duration: int, instant: float) -> None:
        """Take in a lease, new or changed."""
        duration = max(duration, KUBELET_LEASE_SECONDS)
        lease = self._leases.get(name)
        if lease is None:
            self._leases[name] = _Lease(renewed, duration, instant)
            self._orders.setdefault(duration, {})[name] = None
            return
        if lease.renewed == renewed:
            return
        self._leave(name, lease.duration)
        lease.renewed, lease.duration, lease.heard_at = renewed, duration, instant
        lease.is_renewed = True
        self._orders.setdefault(duration, {})[name] = None
        self.heard_at = instant

    def remove(self, name: str) -> None:
        """Take in that a node is gone."""
        lease = self._leases.pop(name, None)
        if lease is not None:
            self._leave(name, lease.duration)

    def _leave(self, name: str, duration: int) -> None:
        order = self._orders[duration]
        del order[name]
        if not order:
            del self._orders[duration]

    def late_seconds(self, name: str) -> float:
        """Return after how long without a renewal a node is silent; KeyError if unknown."""
        return self._late(self._leases[name].duration)

    def _late(self, duration: int) -> float:
        return self._silent_seconds * duration / KUBELET_LEASE_SECONDS

    def heard(self, name: str) -> float:
        """Return when a node was last heard, or first seen; KeyError if unknown."""
        return self._leases[name].heard_at

    def renewed_at(self, name: str) -> float | None:
        """Return when a node was last seen to renew its lease; None: never."""
        lease = self._leases.get(name)
        return lease.heard_at if lease is not None and lease.is_renewed else None

    def text_of(self, name: str) -> str | None:
        """Return the renewal as it stands in the lease, to compare it with a later one."""
        lease = self._leases.get(name)
        return lease.renewed if lease is not None else None

    def silent(self, instant: float) -> Iterator[str]:
        """Yield the nodes whose leases are late."""
        for duration, order in sorted(self._orders.items()):
            latest = instant - self._late(duration)
            for name in order:
                if self._leases[name].heard_at > latest:
                    break
                yield name

    def latest(self) -> Iterator[str]:
        """Yield the nodes of each duration, those that were heard last first."""
        for _, order in sorted(self._orders.items()):
            yield from reversed(order)

    def next_at(self, instant: float) -> float | None:
        """Return when the next lease will be late, unless it is renewed; None: there is none."""
        found = (self._next(duration, instant) for duration in self._orders)
        return min((at for at in found if at is not None), default=None)

    def _next(self, duration: int, instant: float) -> float | None:
        late = self._late(duration)
        for name in self._orders[duration]:
            at = self._leases[name].heard_at + late
            if at > instant:
                return at
        return None
