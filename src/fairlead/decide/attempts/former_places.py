"""Places that members of another tool had before their placement moved or was released.

The scheduler moves a seat, or releases a placement, without knowing the pods; whether a member has
ended well in its seat shows only where that seat was (`decide/adoption/empty_seats.py`). So the
write that takes a place away keeps it in `status.formerPlaces`, however long nobody looks at the
pods, and it is dropped once no member is there any more and those that ended are recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeAlias

from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.jobs.placement import FormerPlaces, Placement

#: (role, index, node)
SeatPlace: TypeAlias = tuple[str, int, str]


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
    return _with(after, {*former_places(job.status), *taken})


def without_places_left(status: JobStatus, occupied: Collection[SeatPlace]) -> JobStatus:
    """Return the status with only those former places where a member still is."""
    return _with(status, (place for place in former_places(status) if place in occupied))


def _places(placement: Placement) -> set[SeatPlace]:
    return {(each.role, i, node) for each in placement.roles for i, node in enumerate(each.nodes)}


def _with(status: JobStatus, places: Iterable[SeatPlace]) -> JobStatus:
    by_role: dict[str, list[SeatPlace]] = {}
    for place in sorted(places):
        by_role.setdefault(place[0], []).append(place)
    kept = tuple(
        FormerPlaces(role, tuple(p[1] for p in found), tuple(p[2] for p in found))
        for role, found in by_role.items()
    )
    return status if kept == status.former_places else replace(status, former_places=kept)
