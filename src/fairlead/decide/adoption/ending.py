"""How attempts and groups of other tools' pods end."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.job import JobState, JobStatus, MemberCounts
from fairlead.api.meta import Condition, is_true
from fairlead.decide.adoption.actions import Action
from fairlead.decide.adoption.closing import EndReason, closed
from fairlead.decide.adoption.sources import Ended, ends_by_itself
from fairlead.decide.adoption.view import GroupContext
from fairlead.decide.attempts.job_status import (
    EventReason,
    Note,
    earliest,
    plural,
    stamp,
    with_condition,
    with_state,
    write,
)
from fairlead.decide.job_actions import DeleteJob
from fairlead.decide.verdict import Decision
from fairlead.model.grouping import Tool

_DOUBLINGS_MAX = 16
#: Groups that are over with their pods, since nobody else says that they are.
_ENDING_WITH_PODS = (Tool.POD, Tool.NAMED, Tool.POD_GROUP, Tool.VOLCANO)


def next_attempt(
    group: GroupContext, reason: EndReason, text: str, nodes: list[str]
) -> tuple[Action, ...]:
    """End the attempt and queue for the next one; the place stays for those who need not move."""
    job = group.job
    number = job.status.attempt + 1
    new = replace(closed(group, reason, text, *nodes), attempt=number)
    told = EventReason.NOT_BOUND if reason is EndReason.NOT_BOUND else EventReason.RESTARTING
    note = Note(told, f"Moves members as attempt {number}: {text}")
    return write(job, with_state(new, JobState.RESTARTING), note)


def wait_again(group: GroupContext, reason: EndReason, text: str) -> tuple[Action, ...]:
    """End the attempt and give the place back; the group gathers anew, after a while."""
    job, status, policy = group.job, group.job.status, group.policy
    attempt = status.current_attempt
    if attempt is not None and attempt.finished_at is None:
        status = closed(group, reason, text)
    times = sum(a.reason == EndReason.WAITS_AGAIN.value for a in status.attempts)
    pause = policy.again_seconds * 2 ** min(max(times - 1, 0), _DOUBLINGS_MAX)
    until = group.now + min(pause, policy.again_seconds_max)
    condition = Condition(names.ADMITTED, "False", reason.value, text)
    new = with_condition(job, status, group.now, condition)
    new = replace(
        new,
        restart_at=stamp(until) if times else None,
        members=MemberCounts(job.member_count),
    )
    note = Note(EventReason.WAITS_AGAIN, f"Gave its place back and waits for all members: {text}")
    return write(job, with_state(new, JobState.WAITING), note)


# Counting


def with_counts(group: GroupContext) -> JobStatus:
    """Return the status with members counted by seat, and Running once all of them run."""
    job, census = group.job, group.census
    running = sum(m.pod.status.phase == "Running" for m in census.released)
    live = {m.seat for m in census.released}
    good = {m.seat for m in census.ended if m.pod.status.phase == "Succeeded"} - live
    bad = {m.seat for m in census.ended} - live - good
    total = job.member_count
    counts = MemberCounts(
        total=total,
        pending=max(0, total - running - len(good) - len(bad)),
        running=running,
        succeeded=len(good),
        failed=len(bad),
    )
    new = replace(job.status, members=counts)
    if not running or running + len(good) < total:
        return new
    if not is_true(new.conditions, names.RUNNING):
        new = with_condition(job, new, group.now, Condition(names.RUNNING, "True", "Running"))
    attempt = new.current_attempt
    if attempt is not None and attempt.started_at is None:
        started = replace(attempt, started_at=stamp(group.now))
        new = replace(new, attempts=(*new.attempts[:-1], started))
    return with_state(replace(new, started_at=new.started_at or stamp(group.now)), JobState.RUNNING)


# The end


def decide_idle(group: GroupContext) -> Decision[Action]:
    """Nobody is alive. Over, or between two tries of the tool? The pods tell, then the owner."""
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
    if group.tool in _ENDING_WITH_PODS and (len(seats) >= job.member_count or not seats):
        return Decision(_end(group, by_pods, tally))
    give_up_at = since + group.policy.idle_seconds_max
    if group.now >= give_up_at:
        text = f"all its pods have been gone for {group.policy.idle_seconds_max:g} s"
        return Decision(wait_again(group, EndReason.MEMBERS_GONE, text))
    read_at = group.next_read_at
    if read_at is not None and (not is_fresh or group.now >= read_at):
        return Decision(group.read(), wake_at=group.now)
    return Decision(wake_at=earliest(give_up_at, read_at))


_PAST = {Ended.SUCCEEDED: "succeeded", Ended.FAILED: "failed"}


def _end(group: GroupContext, ended: Ended, text: str) -> tuple[Action, ...]:
    is_good = ended is Ended.SUCCEEDED
    status = ended_status(group, EndReason.SUCCEEDED if is_good else EndReason.FAILED, text)
    status = replace(status, members=with_counts(group).members)
    note = Note(EventReason.SUCCEEDED if is_good else EventReason.FAILED, f"{ended.value}: {text}")
    return write(group.job, status, note, record=True)


def finish_gone(group: GroupContext) -> tuple[Action, ...]:
    """End a job that has no place and nobody left; one that never queued is deleted instead."""
    if group.job.status.attempt == 0:
        return (DeleteJob(group.job),)
    is_good = group.facts is not None and group.facts.ended is Ended.SUCCEEDED
    reason = EndReason.SUCCEEDED if is_good else EndReason.MEMBERS_GONE
    status = ended_status(group, reason, f"the pods of {group.owner} are gone")
    return write(group.job, status, record=True)


def ended_status(group: GroupContext, reason: EndReason, text: str) -> JobStatus:
    """Return the status of a job that has ended for good."""
    job, status = group.job, group.job.status
    attempt = status.current_attempt
    if attempt is not None and attempt.finished_at is None:
        status = closed(group, reason, text)
    is_good = reason is EndReason.SUCCEEDED
    kind = names.SUCCEEDED if is_good else names.FAILED
    new = with_condition(job, status, group.now, Condition(kind, "True", reason.value, text))
    new = replace(new, finished_at=stamp(group.now), restart_at=None)
    return with_state(new, JobState.SUCCEEDED if is_good else JobState.FAILED)
