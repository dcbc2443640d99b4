"""Who leads: what a candidate does next, given the lease as it was last seen. Pure.

The rules are those of client-go's leader election (tools/leaderelection), since both must be able
to stand beside each other: a lease is over when its record has not changed for its duration *since
we saw it*, by our own clock; what the holder wrote as time is for people only, so clocks of
machines need not agree. Each acquisition raises `leaseTransitions`.

Instants are seconds of a monotonic clock; `wall` is seconds since the epoch, for the record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from fairlead.api.kubernetes.core import Lease
from fairlead.api.values.times import format_micro_time


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. A leader stops at `renew_seconds_max` after the last renewal that it began and that
    succeeded; others wait for `duration_seconds` after the last change that they saw. What lies
    between is the time to stop in.
    """

    duration_seconds: float = 15.0
    renew_seconds_max: float = 10.0
    renew_every_seconds: float = 2.0
    #: How often a candidate looks whether the lease is free.
    look_every_seconds: float = 1.0

    @classmethod
    def of(cls, duration_seconds: float) -> LeaseTimes:
        """Return times in the usual proportions for a lease of this length."""
        return cls(
            duration_seconds=duration_seconds,
            renew_seconds_max=duration_seconds * 2 / 3,
            renew_every_seconds=duration_seconds * 2 / 15,
            look_every_seconds=duration_seconds / 15,
        )

    def __post_init__(self) -> None:
        if not 0 < self.renew_every_seconds < self.renew_seconds_max < self.duration_seconds:
            raise ValueError(
                f"a lease of {self.duration_seconds} s, given up after {self.renew_seconds_max} s, "
                f"renewed every {self.renew_every_seconds} s; accepted: each longer than the next"
            )


@dataclass(frozen=True, slots=True)
class SeenLease:
    """The lease as it was last read, and when this state of it was first seen. None: no lease."""

    lease: Lease | None
    since: float

    @property
    def holder(self) -> str:
        """Who holds it; empty when no replica does."""
        return "" if self.lease is None else self.lease.spec.holder_identity


def see(before: SeenLease | None, lease: Lease | None, now: float) -> SeenLease:
    """Return what is known after a look: an unchanged lease keeps the instant it was first seen."""
    if before is not None and lease is not None and before.lease is not None:
        old, new = before.lease.metadata, lease.metadata
        if (old.uid, old.resource_version) == (new.uid, new.resource_version):
            return before
    return SeenLease(lease, now)


@dataclass(frozen=True, slots=True)
class CreateLease:
    """There is none: create it, held by us. Losing the race is AlreadyExists."""

    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TakeLease:
    """It is free or over: take it, if it is still in the state that we saw."""

    patch: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LeaveLease:
    """Somebody holds it: look again at `until`."""

    until: float


Step: TypeAlias = CreateLease | TakeLease | LeaveLease


def campaign(seen: SeenLease, me: str, times: LeaseTimes, *, now: float, wall: float) -> Step:
    """Return what a candidate does next. A lease in our name that we do not hold is taken at once:
    identities are unique per process, so it is a write of ours whose answer was lost.
    """
    if seen.lease is None:
        return CreateLease({"spec": _spec(me, times, wall, transitions=0)})
    spec = seen.lease.spec
    over_at = seen.since + max(float(spec.lease_duration_seconds), times.duration_seconds)
    if spec.holder_identity not in ("", me) and now < over_at:
        return LeaveLease(min(now + times.look_every_seconds, over_at))
    return TakeLease(_swap(seen.lease, _spec(me, times, wall, spec.lease_transitions + 1)))


def renewal(lease: Lease, wall: float) -> dict[str, Any]:
    """Return the patch that renews a lease of ours."""
    return _swap(lease, {"renewTime": format_micro_time(wall)})


def release(lease: Lease, wall: float) -> dict[str, Any]:
    """Return the patch that gives a lease of ours away: the next candidate takes it at once."""
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": format_micro_time(wall)}
    return _swap(lease, spec)


def _spec(me: str, times: LeaseTimes, wall: float, transitions: int) -> dict[str, Any]:
    instant = format_micro_time(wall)
    return {
        "holderIdentity": me,
        "leaseDurationSeconds": math.ceil(times.duration_seconds),
        "acquireTime": instant,
        "renewTime": instant,
        "leaseTransitions": transitions,
    }


def _swap(lease: Lease, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": lease.metadata.uid,
            "resourceVersion": lease.metadata.resource_version,
        },
        "spec": spec,
    }
