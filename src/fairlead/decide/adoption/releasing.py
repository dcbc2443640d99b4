"""A group that has its place: members are released onto it, and come back to it.

A member is released by one write: the pin to its node, the labels by which the reservation covers
it, and our gate taken off. One that its tool creates again takes its own number's place, or a free
one of its role. Where the node is out, or kube-scheduler refuses for longer than the patience, the
attempt ends and the next one repairs the placement; members that run are not touched by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import find_condition
from fairlead.decide.adoption.actions import Action, EvictMember, ReleaseMember
from fairlead.decide.adoption.empty_seats import places_of, with_empty_seats
from fairlead.decide.adoption.ending import decide_idle, next_attempt, wait_again, with_counts
from fairlead.decide.adoption.group_job import deviations, single_member_job
from fairlead.decide.adoption.members import GroupMember, Seat, fits_members, roles_by_shape
from fairlead.decide.adoption.view import GroupContext
from fairlead.decide.attempts.backoff import last_attempts
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.notes import EventReason, PendingEvent, event
from fairlead.decide.attempts.seats import covers, seats
from fairlead.decide.attempts.status import preempted_verdict
from fairlead.decide.pinning import refusal_of
from fairlead.decide.verdict import Decision, earliest
from fairlead.decide.words import plural
from fairlead.model.gang.phase import is_current

_NODES_NAMED_MAX = 5


def decide_members(group: GroupContext) -> Decision[Action]:
    """Return what is to be done while the record of an attempt is open."""
    job, census, placement = group.job, group.census, group.job.status.placement
    if placement is None or not covers(job, placement):
        return Decision(wait_again(group, EndReason.PLACEMENT_LOST, "its place was taken away"))
    preempted = preempted_verdict(job.status)
    if preempted is not None:
        return Decision(wait_again(group, EndReason.PREEMPTED, f"it {preempted.message}"))
    if not _is_as_admitted(job) and not fits_members(job, census):
        return Decision(wait_again(group, EndReason.PLACEMENT_LOST, "its roles were changed"))
    places = places_of(job)
    wrong = list(_misplaced(group, places))
    if wrong:
        return Decision(tuple(a for member, why in wrong for a in _evict(job, member, why)))
    give_up_at = {m.name: at for m in census.released if (at := _give_up_at(group, m)) is not None}
    due = [m for m in census.released if give_up_at.get(m.name, math.inf) <= group.now]
    if due:
        return Decision(_not_bound(group, due))
    if census.is_empty:
        return decide_idle(group)
    seating = _seat(group, places)
    if seating.out:
        return Decision(_node_lost(group, seating.out, places))
    if seating.homeless and not census.released and not census.leaving:
        text = "members come again for places that were given back"
        return Decision(wait_again(group, EndReason.PLACEMENT_LOST, text))
    if seating.seated and group.view.is_forfeited:
        text = "its place is free for others, as the API server refused every status"
        return Decision(wait_again(group, EndReason.PLACEMENT_LOST, text))
    seated = seats(job, placement) if seating.seated else ()
    ranks = {(seat.role.name, seat.index): seat.rank for seat in seated}
    actions: list[Action] = [
        ReleaseMember(job, m.pod, role=seat[0], index=seat[1], rank=ranks[seat], node=places[seat])
        for m, seat in seating.seated
    ]
    actions += [single_member_job(member) for member in (*seating.extra, *seating.homeless)]
    vacant, vacant_at = _vacant(group, places, seating)
    counted, counted_at = _count(group, vacant)
    return Decision(
        (*counted, *actions), wake_at=earliest(*give_up_at.values(), vacant_at, counted_at)
    )


def _give_up_at(group: GroupContext, member: GroupMember) -> float | None:
    """Return until when a member waits that its scheduler refuses; None: it is not refused."""
    if member.refused_at is None:
        return None
    policy = group.policy
    return member.refused_at + (
        policy.bare_patience_seconds if member.is_bare else policy.bind_patience_seconds
    )


def _vacant(
    group: GroupContext, places: Mapping[Seat, str], seating: _Seating
) -> tuple[dict[Seat, None], float | None]:
    """Return the seats whose nodes are given back, and when the next one is due.

    No quota counts a place without a pod, so none is held for long.
    """
    census, policy, facts = group.census, group.policy, group.facts
    vacant = dict.fromkeys(sorted(group.job.status.vacant))
    has_more = facts is not None and facts.has_more_rounds
    wanted = {seat for _, seat in seating.seated}
    wanted.update(member.seat for member in (*census.released, *census.leaving))
    soon = min(policy.idle_seconds_max, policy.vacant_seconds_max)
    due_at: float | None = None
    for seat, since in group.view.empty_since.items():
        if seat in wanted or seat not in places:
            continue
        is_over = seat in census.done and not has_more
        at = since + (soon if is_over else policy.vacant_seconds_max)
        if at <= group.now:
            vacant[seat] = None
        else:
            due_at = earliest(due_at, at)
    return vacant, due_at


def _is_as_admitted(job: Job) -> bool:
    """True while the spec is the one that was compared with the pods."""
    admitted = find_condition(job.status.conditions, names.ADMITTED)
    return admitted is None or is_current(job, admitted)


def _misplaced(
    group: GroupContext, places: Mapping[Seat, str]
) -> Iterator[tuple[GroupMember, str]]:
    """Yield released members that are not where they should be: the place moved, or is taken."""
    seen: dict[Seat, GroupMember] = {}
    for member in sorted(group.census.released, key=_age):
        node = places.get(member.seat)
        if node is None or member.node != node:
            yield member, f"its place has moved from {member.node or 'no node'} to {node}"
        elif member.seat in seen:
            yield member, f"{seen[member.seat].name} has the same place"
        else:
            seen[member.seat] = member


def _age(member: GroupMember) -> tuple[bool, str, str]:
    """Sorts pods that are bound before others, then the older first."""
    meta = member.pod.metadata
    return (not member.pod.spec.node_name, meta.creation_timestamp or "", meta.name)


def _evict(job: Job, member: GroupMember, why: str) -> tuple[Action, ...]:
    who = "nothing" if member.is_bare else "its tool"
    note = PendingEvent(
        EventReason.MOVED, f"Deleted {member.name}, which {who} creates again: {why}"
    )
    return (EvictMember(job, member.pod), event(job, note))


# Seats


@dataclass(slots=True)
class _Seating:
    """Seats of gated members: on usable nodes, on nodes that are out, and members without one.

    Those of a role that has given places back are `homeless`.
    """

    seated: list[tuple[GroupMember, Seat]] = field(default_factory=list[tuple[GroupMember, Seat]])
    out: list[tuple[GroupMember, Seat]] = field(default_factory=list[tuple[GroupMember, Seat]])
    extra: list[GroupMember] = field(default_factory=list[GroupMember])
    homeless: list[GroupMember] = field(default_factory=list[GroupMember])


def _seat(group: GroupContext, places: Mapping[Seat, str]) -> _Seating:
    """Give each gated member a seat: its own number's if that is free, else a free one of its role.

    A seat whose member is on its way out is not free: both would not fit. Unless its node is out,
    since no kubelet confirms an end there. Members whose seats become free in time wait.
    """
    seating = _Seating()
    if not group.census.gated:
        return seating
    usable = group.view.usable
    leaving = {
        m.seat
        for m in group.census.leaving
        if m.job_uid == group.job.metadata.uid and usable.get(m.node, False)
    }
    free = _free_seats(group, places, leaving)
    roles = roles_by_shape(group.job)
    rest: list[tuple[GroupMember, str]] = []
    for member in group.census.gated:
        if member.is_gated_by_others:
            continue
        role = roles.get((member.membership.role, member.shape))
        index = member.membership.index
        own = (role or "", index if index is not None else -1)
        if role is None:
            seating.extra.append(member)
        elif own in leaving:
            continue
        elif own[1] in free[role]:
            del free[role][own[1]]
            _put(seating, (member, own), usable.get(places[own], False))
        else:
            rest.append((member, role))
    still_leaving = {role for role, _ in leaving}
    shrunk = {role for role, _ in group.job.status.vacant}
    for member, role in rest:
        if free[role]:
            index = next(iter(free[role]))
            del free[role][index]
            seat = (role, index)
            _put(seating, (member, seat), usable.get(places[seat], False))
        elif role not in still_leaving:
            (seating.homeless if role in shrunk else seating.extra).append(member)
    return seating


def _put(seating: _Seating, pair: tuple[GroupMember, Seat], is_usable: object) -> None:
    (seating.seated if is_usable else seating.out).append(pair)


def _free_seats(
    group: GroupContext, places: Iterable[Seat], leaving: set[Seat]
) -> dict[str, dict[int, None]]:
    """Return the free indices of each role; those that no member has had before come first."""
    free: dict[str, dict[int, None]] = {role.name: {} for role in group.job.spec.roles}
    taken = {m.seat for m in group.census.released} | leaving
    had = {m.seat for m in group.census.ended}
    for is_second_choice in (False, True):
        for seat in places:
            if seat not in taken and (seat in had) is is_second_choice:
                free[seat[0]][seat[1]] = None
    return free


# Members that have to move


def _not_bound(group: GroupContext, refused: list[GroupMember]) -> tuple[Action, ...]:
    """Have the refused members moved; after too many times in a row the whole group waits."""
    nodes = sorted({m.node for m in refused if m.node})
    refusal = refusal_of(refused[0].pod)
    why = refusal.message if refusal is not None else ""
    seconds = max(group.now - (m.refused_at or group.now) for m in refused)
    text = (
        f"kube-scheduler refused {plural(len(refused), 'member')} on {_listed(nodes)} for "
        f"{seconds:.0f} s: {why}"
    )
    earlier = last_attempts(group.job.status.attempts[:-1], lambda end: end is EndReason.NOT_BOUND)
    if len(earlier) + 1 >= group.policy.refusals_max:
        return wait_again(group, EndReason.WAITS_AGAIN, text)
    return next_attempt(group, EndReason.NOT_BOUND, text, nodes)


def _node_lost(
    group: GroupContext, out: list[tuple[GroupMember, Seat]], places: Mapping[Seat, str]
) -> tuple[Action, ...]:
    nodes = sorted({places[seat] for _, seat in out})
    text = f"{plural(len(out), 'member')} came back, and {_listed(nodes)} cannot run them"
    return next_attempt(group, EndReason.NODE_LOST, text, nodes)


def _listed(nodes: list[str]) -> str:
    shown = ", ".join(nodes[:_NODES_NAMED_MAX])
    more = len(nodes) - _NODES_NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown or "no node"


def _count(
    group: GroupContext, vacant: Mapping[Seat, None]
) -> tuple[tuple[Action, ...], float | None]:
    """Return the write of the counts and the empty seats, and when it is due if not now."""
    job, policy = group.job, group.policy
    draft = with_empty_seats(with_counts(group), group.census.done, vacant)
    notes: tuple[PendingEvent, ...] = ()
    if not _is_as_admitted(job):
        draft = draft.condition(names.ADMITTED, "True", names.ADMITTED)
        why = deviations(job, group.view.group, group.census)
        notes = (PendingEvent(EventReason.IGNORED, f"Has no effect: {why}"),) if why else ()
    status = draft.status
    if status == job.status:
        return (), None
    is_news = status.state != job.status.state or status.conditions != job.status.conditions
    is_news |= len(vacant) > len(job.status.vacant)
    due = group.view.counts_written_at + policy.count_seconds
    if not is_news and job.member_count > policy.small_gang_members_max and group.now < due:
        return (), due
    if not job.status.started_at and status.started_at:
        notes += (
            PendingEvent(EventReason.STARTED, f"All {plural(job.member_count, 'member')} run"),
        )
    return draft.write(*notes), None
