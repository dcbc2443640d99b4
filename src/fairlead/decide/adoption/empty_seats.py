"""Seats of a group that have no member now: which of them count as done, and which are given back.

`status.seats` records both, and only Fairlead writes it. A seat is done when a pod has ended well
on the node that the job's placement has for it, or had while the pod was there, asking for what its
role asks: a label alone, which every author of a pod can write, fills no seat. A seat that stays
without a member gives its node back: a placement without pods is in no quota, so it may not be held
for as long as one small member lives. What was given back is another's: a member that comes for
such a seat later is placed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import EmptySeats
from fairlead.decide.adoption.members import (
    GroupMember,
    MemberCensus,
    Seat,
    asks_alike,
    roles_by_shape,
)
from fairlead.decide.attempts.seats import (
    SeatPlace,
    covers,
    former_places,
    seats,
    without_places_left,
)
from fairlead.decide.attempts.status import StatusDraft


def places_of(job: Job) -> dict[Seat, str]:
    """Return the node of each seat that the placement holds, in rank order; {} without one."""
    placement = job.status.placement
    if placement is None or not covers(job, placement):
        return {}
    vacant = job.status.vacant
    found = {(seat.role.name, seat.index): seat.node for seat in seats(job, placement)}
    return {seat: node for seat, node in found.items() if seat not in vacant}


def done_seats(
    job: Job, ended: Iterable[GroupMember], live: Iterable[GroupMember]
) -> dict[Seat, None]:
    """Return the seats that are done: recorded ones, and those that `ended` prove now.

    A seat with a live member is not: its tool has made it again.
    """
    done = dict.fromkeys(sorted(job.status.done))
    done.update((seat, None) for seat in _ended_well(job, ended))
    for member in live:
        done.pop(member.seat, None)
    return done


def waiting_done(job: Job, census: MemberCensus) -> dict[Seat, None]:
    """Return which done seats of a group without live members need no new member.

    Members that are there again take seats first, but for those that a group was scaled up by: the
    job has no seats for these yet. A role that none of them is of must be stated by
    a pod that ended, or it is only the job that says what it asks for.
    """
    roles, coming = roles_by_shape(job), dict[str, list[int | None]]()
    for member in census.gated:
        role = roles.get((member.membership.role, member.shape))
        if role is not None:
            coming.setdefault(role, []).append(member.membership.index)
    out: dict[Seat, None] = {}
    for role in job.spec.roles:
        there = coming.get(role.name, [])
        asked = role.template.spec
        is_stated = any(m.role == role.name and asks_alike(asked, m.pod.spec) for m in census.ended)
        if there or is_stated:
            kept = [s for s in census.done if s[0] == role.name and s[1] not in there]
            seated = [index for index in there if index is None or index < role.count]
            out.update(dict.fromkeys(kept[: max(0, role.count - len(seated))]))
    return out


def _ended_well(job: Job, ended: Iterable[GroupMember]) -> Iterator[Seat]:
    places: Mapping[Seat, str] | None = None
    former = set[SeatPlace]()
    templates = {role.name: role.template.spec for role in job.spec.roles}
    for member in ended:
        if member.pod.status.phase != "Succeeded":
            continue
        if places is None:
            places = places_of(job)
            former = set(former_places(job.status))
        node = member.pod.spec.node_name
        is_there = bool(node) and places.get(member.seat) == node
        if not is_there and (*member.seat, node) not in former:
            continue
        if member.role in templates and asks_alike(templates[member.role], member.pod.spec):
            yield member.seat


def with_done(draft: StatusDraft, census: MemberCensus) -> StatusDraft:
    """Return the status of a job that waits with the place of an earlier attempt, and the seats
    that are done.
    """
    done = done_seats(draft.job, census.ended, (*census.released, *census.leaving))
    return with_empty_seats(draft, done, draft.job.status.vacant)


def with_ends_recorded(
    draft: StatusDraft, census: MemberCensus, *, vacant: Iterable[Seat]
) -> StatusDraft:
    """Return the status as the next attempt begins: what is done is recorded, so that of former
    places only those remain where members still are.
    """
    draft = with_empty_seats(draft, census.done, vacant)
    there = {(*m.seat, m.pod.spec.node_name) for m in (*census.released, *census.leaving)}
    return replace(draft, status=without_places_left(draft.status, there))


def with_empty_seats(
    draft: StatusDraft, done: Iterable[Seat], vacant: Iterable[Seat]
) -> StatusDraft:
    """Return the status with these seats recorded."""
    by_role: dict[str, tuple[list[int], list[int]]] = {}
    for kind, found in enumerate((done, vacant)):
        for role, index in sorted(found):
            by_role.setdefault(role, ([], []))[kind].append(index)
    records = [EmptySeats(role, tuple(d), tuple(v)) for role, (d, v) in sorted(by_role.items())]
    return draft.set(seats=tuple(records))
