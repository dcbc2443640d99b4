"""How attempts and groups of other tools' pods end."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job import JobState, MemberCounts
from fairlead.api.values.times import format_micro_time
from fairlead.decide.adoption.actions import Action
from fairlead.decide.adoption.empty_seats import with_empty_seats
from fairlead.decide.adoption.sources import Ended, ends_by_itself
from fairlead.decide.adoption.view import GroupContext
from fairlead.decide.attempts.backoff import doubled
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.notes import EventReason, PendingEvent
from fairlead.decide.attempts.record import member_counts
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.job_actions import DeleteJob
from fairlead.decide.verdict import Decision, earliest
from fairlead.decide.words import plural
from fairlead.model.pools.grouping import Tool

#: Groups that have ended once their pods have, since no other object says so.
_ENDING_WITH_PODS = (Tool.POD, Tool.NAMED, Tool.POD_GROUP, Tool.VOLCANO)


def next_attempt(
    group: GroupContext, reason: EndReason, text: str, nodes: list[str]
) -> tuple[Action, ...]:
    """End the attempt and queue for the next one; members that need not move keep their places."""
    number = group.job.status.attempt + 1
    kind = EventReason.NOT_BOUND if reason is EndReason.NOT_BOUND else EventReason.RESTARTING
    note = PendingEvent(kind, f"Moves members as attempt {number}: {text}")
    draft = group.draft.closed(group.end(reason, text, nodes)).set(attempt=number)
    return draft.state(JobState.RESTARTING).write(note)


def wait_again(group: GroupContext, reason: EndReason, text: str) -> tuple[Action, ...]:
    """End the attempt and release the place; the group gathers again, after a while."""
    # What is given back stays so until the place is gone: others may have it.
    draft = with_empty_seats(group.draft, group.census.done, group.job.status.vacant)
    policy = group.policy
    if group.is_open:
        draft = draft.closed(group.end(reason, text))
    times = sum(a.reason == EndReason.WAITS_AGAIN.value for a in draft.status.attempts)
    until = group.now + doubled(policy.again_seconds, times - 1, policy.again_seconds_max)
    draft = draft.not_admitted(reason, text).set(
        restart_at=format_micro_time(until) if times else None,
        members=MemberCounts(group.job.member_count),
    )
    note = PendingEvent(
        EventReason.WAITS_AGAIN, f"Gave its place back and waits for all members: {text}"
    )
    return draft.state(JobState.WAITING).write(note)


# Counting


def with_counts(group: GroupContext) -> StatusDraft:
    """Return the status with members counted by seat, and Running once all of them run."""
    census, total = group.census, group.job.member_count
    running = sum(m.pod.status.phase == "Running" for m in census.released)
    live = {m.seat for m in census.released}
    good = {m.seat for m in census.ended if m.pod.status.phase == "Succeeded"} - live
    bad = {m.seat for m in census.ended} - live - good
    counts = member_counts(total, running=running, succeeded=len(good), failed=len(bad))
    draft = group.draft.set(members=counts)
    if not running or running + len(good) < total:
        return draft
    return draft.started()


# The end


def decide_idle(group: GroupContext) -> Decision[Action]:
    """Decide about a group without live members: it has ended, or is between two tries of its tool.

    The pods say which; where they do not, the owner does.
    """
    job, facts, reading = group.job, group.facts, group.view.reading
    seats = {m.seat for m in group.census.ended}
    good = {m.seat for m in group.census.ended if m.pod.status.phase == "Succeeded"}
    by_pods = Ended.SUCCEEDED if len(good) >= job.member_count else Ended.FAILED
    tally = f"{len(good)} of {plural(job.member_count, 'member')} succeeded"
    owner_knows = ends_by_itself(group.tool)
    has_more = owner_knows and (facts is None or facts.has_more_rounds)
    if by_pods is Ended.SUCCEEDED and not has_more:
        return Decision(_end(group, Ended.SUCCEEDED, tally))
    since = group.view.idle_since if group.view.idle_since is not None else group.now
    is_fresh = reading is not None and reading.at >= since
    if is_fresh and facts is not None and facts.ended is not None:
        return Decision(_end(group, facts.ended, f"{group.owner} has {_PAST[facts.ended]}"))
    if is_fresh and facts is not None and not facts.exists:
        return Decision(_end(group, by_pods, f"{group.owner} was deleted; {tally}"))
    if is_fresh and facts is not None and facts.is_suspended:
        return Decision(wait_again(group, EndReason.MEMBERS_GONE, f"{group.owner} is suspended"))
    if group.tool in _ENDING_WITH_PODS and (len(seats) >= job.member_count or not seats):
        return Decision(_end(group, by_pods, tally))
    give_up_at = since + group.policy.idle_seconds_max
    if group.now >= give_up_at:
        text = f"all its pods have been gone for {group.policy.idle_seconds_max:g} s"
        return Decision(wait_again(group, EndReason.MEMBERS_GONE, text))
    read_at = group.next_read_at
    if read_at is not None and (not is_fresh or group.now >= read_at):
        return group.read()
    return Decision(wake_at=earliest(give_up_at, read_at))


_PAST = {Ended.SUCCEEDED: "succeeded", Ended.FAILED: "failed"}


def _end(group: GroupContext, ended: Ended, text: str) -> tuple[Action, ...]:
    is_good = ended is Ended.SUCCEEDED
    draft = ended_draft(group, EndReason.SUCCEEDED if is_good else EndReason.FAILED, text)
    note = PendingEvent(
        EventReason.SUCCEEDED if is_good else EventReason.FAILED, f"{ended.value}: {text}"
    )
    return draft.set(members=with_counts(group).status.members).write(note, record=True)


def finish_gone(group: GroupContext) -> tuple[Action, ...]:
    """End a job without place and members; one that never queued is deleted instead."""
    if group.job.status.attempt == 0:
        return (DeleteJob(group.job),)
    is_good = group.facts is not None and group.facts.ended is Ended.SUCCEEDED
    reason = EndReason.SUCCEEDED if is_good else EndReason.MEMBERS_GONE
    return ended_draft(group, reason, f"the pods of {group.owner} are gone").write(record=True)


def ended_draft(group: GroupContext, reason: EndReason, text: str) -> StatusDraft:
    """Return the status of a job that has ended for good."""
    draft = group.draft
    if group.is_open:
        draft = draft.closed(group.end(reason, text))
    type_ = names.SUCCEEDED if reason is EndReason.SUCCEEDED else names.FAILED
    return draft.finished(type_, reason.value, text).released()
