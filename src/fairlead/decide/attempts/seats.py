"""The members' places: one seat for each member of each role, in rank order."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.api.jobs.job import Job, Role
from fairlead.api.jobs.placement import Placement


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
