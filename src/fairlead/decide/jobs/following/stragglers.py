"""Members that are slower than the others of their role for long: found, written, and no more.

Nothing is evicted for it. A straggler is written into the record of its attempt, once; where a
setting says so, its node becomes a suspect (`model/holdings/suspects.py`), as a node is that the
test of a gang condemns: jobs of several nodes take it last, and it is tested as soon as it is idle.

What a member reports is its own word, so the node of a straggler is that of the placement, which
the scheduler wrote.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from fairlead.api.jobs.attempt import STRAGGLERS_MAX, Attempt, Straggler
from fairlead.api.jobs.placement import Placement
from fairlead.api.values.times import format_micro_time
from fairlead.decide.attempts.notes import EventReason, PendingEvent
from fairlead.decide.attempts.record import straggler_words, with_attempt
from fairlead.decide.attempts.seats import member_name
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.jobs.actions import Action
from fairlead.decide.jobs.following.own_work import OwnWork, RoleWork
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import JobView

#: From the median distance to the standard deviation of what is normally distributed.
_MAD_TO_DEVIATION = 1.4826
_MICROSECONDS = 1_000_000
#: Of more members of a role at once the program is the cause, not their machines.
_SHARE_MAX = 10


def note_stragglers(view: JobView, draft: StatusDraft, attempt: Attempt) -> tuple[Action, ...]:
    """Write the stragglers of an attempt that are not in its record yet; () without any."""
    known = {each.member for each in attempt.stragglers}
    room = STRAGGLERS_MAX - len(known)
    found = [each for each in _stragglers(view, attempt) if each.member not in known][:room]
    if not found:
        return ()
    record = replace(attempt, stragglers=(*attempt.stragglers, *found))
    draft = draft.set(attempts=with_attempt(draft.status, record).attempts)
    notes = (
        PendingEvent(EventReason.MEMBER_SLOW, f"Slow: {straggler_words(each)}") for each in found
    )
    return draft.write(*notes)


def _stragglers(view: JobView, attempt: Attempt) -> Iterator[Straggler]:
    times, policy = view.own_work, view.policy
    if times is None or not policy.straggler_percent:
        return
    is_over = attempt.finished_at is not None or view.current.all_terminal
    placement = view.job.status.placement
    for role in times.compared() if is_over else times.roles:
        for index, work in slow_members(role, policy):
            node = _node(view, placement, role.role, index)
            yield Straggler(
                member=f"{role.role}-{index}",
                node=node,
                microseconds=round(work.seconds * _MICROSECONDS),
                median_microseconds=round(role.median * _MICROSECONDS),
                compared=role.count,
                found_at=format_micro_time(view.now),
                is_suspected=policy.stragglers_suspect and bool(node),
            )


def slow_members(role: RoleWork, policy: JobsPolicy) -> tuple[tuple[int, OwnWork], ...]:
    """Return the members of a role that are slow by all margins and for long, the slowest first.

    () where so many are beyond the margins that their machines are not the reason.
    """
    by_share = role.median * (1 + policy.straggler_percent / 100)
    spread = policy.straggler_deviations * _MAD_TO_DEVIATION * role.deviation
    limit = max(by_share, role.median + spread)
    beyond = [each for each in role.slowest if each[1].seconds > limit]
    if len(beyond) > min(STRAGGLERS_MAX, max(1, role.count // _SHARE_MAX)):
        return ()
    return tuple(
        (index, work)
        for index, work in beyond
        if work.steps >= policy.straggler_steps_min
        and work.span_seconds >= policy.straggler_seconds_min
    )


def _node(view: JobView, placement: Placement | None, role: str, index: int) -> str:
    """Return the node that the placement has for a member; "" where it is not sure that it ran
    there.
    """
    if placement is None or placement.attempt != view.job.status.attempt:
        return ""
    nodes = next((place.nodes for place in placement.roles if place.role == role), ())
    if not 0 <= index < len(nodes):
        return ""
    member = view.current.members.get(member_name(view.job, placement.attempt, role, index))
    is_elsewhere = member is not None and member.node not in ("", nodes[index])
    return "" if is_elsewhere else nodes[index]
