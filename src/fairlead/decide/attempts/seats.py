"""The members' places: one seat for each member of each role, in rank order; and where seats were.

The scheduler moves a seat, or releases a placement, without knowing the pods; whether a member of
another tool has ended well in its seat shows only where that seat was
(`decide/adoption/empty_seats.py`). So the write that takes a place away keeps it in
`status.formerPlaces`, however long no controller runs, and it is dropped once no member is
there any more and those that ended are recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobStatus, Role
from fairlead.api.jobs.placement import FormerPlaces, Placement

#: (role, index, node)
SeatPlace: TypeAlias = tuple[str, int, str]


class Seat(msgspec.Struct, frozen=True, gc=False):
    """One member's place in the gang."""

    role: Role
    index: int
    rank: int
    node: str


def member_name(job: Job, attempt: int, role: str, index: int) -> str:
    """Return the derived name of a member's pod."""
    return f"{job.metadata.name}-{attempt}-{role}-{index}"


def covers(job: Job, placement: Placement) -> bool:
    """True when the placement has nodes for members that may be an attempt of the job."""
    sizes, roles = placement.sizes, job.spec.roles
    if not len(sizes) == len(placement.roles) == len(roles):
        return False
    return all(role.least <= sizes.get(role.name, 0) <= role.count for role in roles)


def seats(job: Job, placement: Placement) -> Iterator[Seat]:
    """Yield all seats in rank order: role order of the spec, then index."""
    nodes = {place.role: place.nodes for place in placement.roles}
    rank = 0
    for role in job.spec.roles:
        for index, node in enumerate(nodes[role.name]):
            yield Seat(role, index, rank, node)
            rank += 1


def former_places(status: JobStatus) -> Iterator[SeatPlace]:
    """Yield the former places of all seats."""
    for each in status.former_places:
        for index, node in zip(each.indices, each.nodes, strict=True):
            yield each.role, index, node


def with_places_left(job: Job, after: JobStatus) -> JobStatus:
    """Return the status that follows on the job's, with the places that it takes from seats kept.

    Jobs of ours keep none, nor does one whose first attempt has not begun: no member is released.
    """
    old, new = job.status.placement, after.placement
    if job.spec.adopts is None or not job.status.attempts or old is None or new == old:
        return after
    left = _places(old) - (_places(new) if new is not None else set[SeatPlace]())
    vacant = job.status.vacant
    taken = (place for place in left if place[:2] not in vacant)
    return _with_former(after, {*former_places(job.status), *taken})


def without_places_left(status: JobStatus, occupied: Collection[SeatPlace]) -> JobStatus:
    """Return the status with only those former places where a member still is."""
    return _with_former(status, (place for place in former_places(status) if place in occupied))


def _places(placement: Placement) -> set[SeatPlace]:
    return {(each.role, i, node) for each in placement.roles for i, node in enumerate(each.nodes)}


def _with_former(status: JobStatus, places: Iterable[SeatPlace]) -> JobStatus:
    by_role: dict[str, list[SeatPlace]] = {}
    for place in sorted(places):
        by_role.setdefault(place[0], []).append(place)
    kept = tuple(
        FormerPlaces(role, tuple(p[1] for p in found), tuple(p[2] for p in found))
        for role, found in by_role.items()
    )
    return status if kept == status.former_places else replace(status, former_places=kept)
