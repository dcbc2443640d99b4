"""How an attempt of our own jobs ends: what ends it, and what is written then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Cause, Job, JobState, RestartPolicy
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.values.times import format_micro_time, parse_time
from fairlead.decide.attempts.backoff import refused_seconds
from fairlead.decide.attempts.end_reason import EndReason, cause_of
from fairlead.decide.attempts.notes import EventReason, PendingEvent
from fairlead.decide.attempts.record import End, template_digest
from fairlead.decide.attempts.seats import Seat, covers, seats
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.jobs import preempted
from fairlead.decide.jobs.actions import Action
from fairlead.decide.jobs.closing import closing, closing_nodes
from fairlead.decide.jobs.following.failure_cause import Settling
from fairlead.decide.jobs.following.member_failure import Failure, is_evicted
from fairlead.decide.jobs.following.pods import MemberPhase
from fairlead.decide.jobs.policy import PeerNaming
from fairlead.decide.jobs.refused import delay_seconds
from fairlead.decide.jobs.rendering import members, native
from fairlead.decide.jobs.restart import (
    Fail,
    backoff_seconds,
    cancel_message,
    is_cancelled,
    next_step,
)
from fairlead.decide.jobs.view import JobView, Refusal
from fairlead.decide.words import duration, plural


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How the attempt ends, and the failure that ends it, if one does."""

    reason: EndReason
    message: str
    failure: Failure | None = None
    #: Nodes that are left beside those of the failure.
    nodes: tuple[str, ...] = ()


def find_end(view: JobView, found: Failure | Settling | None) -> AttemptEnd | None:
    """Return how the attempt ends now; None when it goes on."""
    job = view.job
    if is_cancelled(job):
        return AttemptEnd(EndReason.CANCELLED, cancel_message(job))
    if job.spec.suspend:
        return AttemptEnd(EndReason.SUSPENDED, "held by its user")
    fatal = isinstance(found, Failure) and not _is_single(view, found)
    if fatal:
        assert isinstance(found, Failure)
        return AttemptEnd(found.reason, found.message + _others(view, found), found)
    placement = job.status.placement
    if placement is None or placement.attempt != job.status.attempt:
        return AttemptEnd(EndReason.PLACEMENT_LOST, "its place was taken away while it had pods")
    refused = view.refused
    if refused is not None and view.now >= refused.ends_at(view.policy):
        text = refused.message
        if refused.refusal is Refusal.POD_HELD_BACK:
            text += f" (refused for {duration(view.now - refused.since)})"
        return AttemptEnd(refused.refusal.value, text)
    ended = _preempted(view) or _time_end(view) or _closing(view)
    return ended or _cordoned(view) or _vanished(view)


def _preempted(view: JobView) -> AttemptEnd | None:
    """Return the end of an attempt whose place another job needs, once it may be ended."""
    ends_at = preempted.ends_at(view)
    if ends_at is None or view.now < ends_at:
        return None
    return AttemptEnd(EndReason.PREEMPTED, preempted.message(view))


def _closing(view: JobView) -> AttemptEnd | None:
    """Return the end of an attempt whose node is about to be stopped by its provider."""
    found = closing(view)
    if found is None or view.now < found.ends_at:
        return None
    return AttemptEnd(EndReason.DRAINED, found.words)


def _cordoned(view: JobView) -> AttemptEnd | None:
    """Return the end of an attempt that lacks a pod whose node is cordoned: none is made there."""
    seat = cordoned_seat(view)
    if seat is None:
        return None
    text = f"member {seat.role.name}-{seat.index} (rank {seat.rank}) has no pod, and its node "
    return AttemptEnd(EndReason.DRAINED, text + f"{seat.node} is cordoned")


def requeued(job: Job, attempt: Attempt) -> AttemptEnd | None:
    """Return the end of an attempt that its user wants to begin again; None where he does not.

    It comes before the program's own end: a program that asks for it ends meanwhile, and where that
    is seen first, the write that would end the job is of a version that the job no longer has.
    """
    if job.spec.requeue_attempt != attempt.number:
        return None
    return AttemptEnd(EndReason.REQUEUED, "queued again by its user")


def changed_spec(view: JobView, attempt: Attempt) -> AttemptEnd | None:
    """Return the end of an attempt that would need pods of another spec than it began with.

    Roles are immutable, but not every API server sees to it, and another version of Fairlead makes
    other pods. A gang that is complete goes on as it began and the next attempt is of the new spec;
    one that lacks members or its ConfigMap, or has other roles or counts, cannot: a gang is never
    made of two templates. It counts against no limit.
    """
    job, placement = view.job, view.job.status.placement
    is_other = placement is not None and not covers(job, placement)
    if not is_other:
        has_pods = len(view.current.members) >= job.member_count
        is_running = attempt.started_at or view.current.counts[MemberPhase.PENDING] == 0
        is_complete = has_pods and (is_running or _has_gang_map(view))
        if is_complete or not attempt.template_digest:
            return None
        is_other = template_digest(job) != attempt.template_digest
    if not is_other:
        return None
    text = (
        f"spec.roles, spec.checkpoint or the version of Fairlead was changed while attempt "
        f"{attempt.number} ran; the next one is of the new spec"
    )
    return AttemptEnd(EndReason.SPEC_CHANGED, text)


def _has_gang_map(view: JobView) -> bool:
    return members.gang_map_name(view.job, view.job.status.attempt) in view.config_maps


def _is_single(view: JobView, failure: Failure) -> bool:
    """True when only this member is replaced: policy Member, and its node takes it again."""
    if view.job.spec.restart.policy is not RestartPolicy.MEMBER or failure.reason in MOVES:
        return False  # a new node needs a new placement, and so a new attempt
    return failure.member is None or failure.member.node not in view.cordoned


def _others(view: JobView, culprit: Failure) -> str:
    """Return how many members failed with it, as the tail of a message."""
    failed = view.current.counts[MemberPhase.FAILED]
    if culprit.member is not None and culprit.member.phase is MemberPhase.FAILED:
        failed -= 1
    return f"; {plural(failed, 'other member')} failed as well" if failed > 0 else ""


def _time_end(view: JobView) -> AttemptEnd | None:
    attempt, limit = view.job.status.attempts[-1], view.job.spec.time_limit_seconds
    if attempt.started_at:
        if limit is None or view.now < parse_time(attempt.started_at) + limit:
            return None
        text = f"attempt {attempt.number} ran for its time limit of {duration(limit)}"
        return AttemptEnd(EndReason.TIME_LIMIT, text)
    if not attempt.begun_at:
        return None
    if view.now < parse_time(attempt.begun_at) + view.policy.start_seconds_max:
        return None
    pending = view.member_counts.pending
    text = f"{plural(pending, 'member')} had not started after "
    return AttemptEnd(EndReason.START_TIMEOUT, text + duration(view.policy.start_seconds_max))


def _vanished(view: JobView) -> AttemptEnd | None:
    """Return the end of a gang of which a pod has disappeared.

    Pods were all there once the gang has started or, where peers go by address, once the peers were
    written. Before that a missing pod is one that has not been made yet.
    """
    job, pods = view.job, view.current
    missing = job.member_count - len(pods.members)
    if missing <= 0 or job.spec.restart.policy is RestartPolicy.MEMBER:
        return None
    by_address = view.policy.peer_naming is PeerNaming.ADDRESS
    peers_known = by_address and _has_gang_map(view)
    if not job.status.attempts[-1].started_at and not peers_known:
        return None
    assert job.status.placement is not None
    for seat in seats(job, job.status.placement):
        name = members.member_name(job, job.status.attempt, seat.role.name, seat.index)
        if name not in pods.members:
            text = f"pod {name} (rank {seat.rank}, node {seat.node}) has vanished"
            if missing > 1:
                text += f", and {plural(missing - 1, 'other')}"
            return AttemptEnd(EndReason.POD_VANISHED, text)
    return None


def close_attempt(view: JobView, draft: StatusDraft, end: AttemptEnd) -> tuple[Action, ...]:
    """Write that the attempt has ended, and why, before anything of it is deleted."""
    reason = end.reason
    cause = cause_of(reason, draft.status.attempts[:-1])
    closing = End(
        reason,
        end.message,
        cause,
        exit_code=end.failure.exit_code if end.failure is not None else None,
        member=end.failure.member_name if end.failure is not None else "",
        nodes_lost=tuple(sorted({*nodes_lost(view, reason, end.failure), *end.nodes})),
        pods_version=view.pods.newest_version,
    )
    draft = draft.closed(closing).set(members=view.member_counts).counted(cause)
    if reason.refused is not None:
        wait = delay_seconds(draft.status, view.policy, view.now)
        draft = draft.set(restart_at=format_micro_time(view.now + wait)).state(JobState.STOPPING)
        text = f"The API server refuses pods, so the nodes are given back: {end.message}"
        return draft.write(PendingEvent(EventReason.PODS_REFUSED, text))
    if reason is EndReason.PREEMPTED:
        draft = preempted.give_way(view, draft).state(JobState.STOPPING)
        text = f"Stopping the gang, which {end.message}"
        return draft.write(PendingEvent(EventReason.PREEMPTED, text))
    pause = 0.0
    if reason.refuses_place:
        policy = view.policy
        longest = policy.refused_backoff_seconds_max
        pause = refused_seconds(draft.status.attempts, policy.refusals_max, longest)
    if cause is None:
        draft = draft.set(restart_at=format_micro_time(view.now + pause)) if pause else draft
        text = f"Stopping the gang: {end.message}"
        stopping = EventReason.STOPPING
        if reason is EndReason.PREFLIGHT_FAILED:
            stopping = EventReason.PREFLIGHT_FAILED
        closed = replace(view.job, status=draft.status)
        following = next_step(closed, closed.status.attempts[-1], view.policy)
        if isinstance(following, Fail):
            draft = draft.failing(following.reason.value, following.message)
        return draft.state(JobState.STOPPING).write(PendingEvent(stopping, text))
    wait = max(pause, backoff_seconds(view.job, cause, draft.status.user_failures))
    # Whether it restarts follows from the limits, with the next decision.
    draft = draft.set(restart_at=format_micro_time(view.now + wait)).state(JobState.RESTARTING)
    number = draft.status.attempt
    text = f"Attempt {number} ended: {end.message} (cause: {cause.value})"
    return draft.write(PendingEvent(_event_of(reason, cause), text))


def _event_of(reason: EndReason, cause: Cause) -> EventReason:
    """Return the event for the end of an attempt: what failed, and the member that caused it."""
    if cause is Cause.USER:
        return EventReason.MEMBER_FAILED
    if reason in (EndReason.START_TIMEOUT, EndReason.PLACEMENT_LOST):
        return EventReason.ATTEMPT_FAILED
    return EventReason.MEMBER_LOST


def succeed(view: JobView, draft: StatusDraft) -> tuple[Action, ...]:
    """Record the job and write that every member has succeeded."""
    job, draft = view.job, draft.started(view.start_seen_at)
    took = draft.now - parse_time(draft.status.started_at)
    all_ = "its one member" if job.member_count == 1 else f"all {job.member_count} members"
    text = f"Succeeded: {all_} ended well after {duration(took)}"
    if draft.status.attempt > 1:
        text += f" and {plural(draft.status.attempt, 'attempt')}"
    draft = draft.closed(End(EndReason.SUCCEEDED)).set(members=view.member_counts)
    draft = draft.finished(names.SUCCEEDED, "AllMembersSucceeded", text).released()
    return draft.write(PendingEvent(EventReason.SUCCEEDED, text), record=True)


# Which nodes a gang gives up with the end of an attempt, and which take no new member.
#
# The next attempt keeps the nodes of the members that were well. A node is given up when it is
# lost, when another scheduler refuses the member there, when the member was evicted from it (a node
# under pressure shows its taint seconds later), and when its provider is about to stop it. A
# cordoned node keeps the members that run there and gets no new one, whatever ended the old one
# (docs/design/jobs.md).


#: Ends after which the member needs another node.
MOVES = (EndReason.NODE_LOST, EndReason.NOT_BOUND, EndReason.DRAINED, EndReason.EVICTED)


def nodes_lost(view: JobView, reason: EndReason, failure: Failure | None) -> tuple[str, ...]:
    """Return the nodes that the attempt gives up as it ends for `reason`, sorted."""
    placement = view.job.status.placement
    lost = set(_nodes_given_up(view, reason))
    is_left = reason in MOVES or reason.refuses_place
    if is_left and failure is not None and failure.member:
        lost.add(native.node_for(failure.member, placement))
    seat = cordoned_seat(view) if reason is EndReason.DRAINED else None
    if seat is not None:
        lost.add(seat.node)
    if reason is EndReason.DRAINED:
        lost.update(closing_nodes(view))
    for member in view.current.members.values() if view.node_troubles else ():
        if member.node in view.node_troubles and not member.is_terminal:
            lost.add(member.node)
    return tuple(sorted(lost - {""}))


def _nodes_given_up(view: JobView, reason: EndReason) -> Iterator[str]:
    """Yield the nodes of evicted members, and of those that the other scheduler refuses."""
    pods, placement = view.current, view.job.status.placement
    for name in pods.troubled:
        member = pods.members[name]
        is_refused = reason is EndReason.NOT_BOUND and member.is_refused
        if is_refused or is_evicted(member):
            yield native.node_for(member, placement)


def cordoned_seat(view: JobView) -> Seat | None:
    """Return the first seat without a pod whose node is cordoned, None when there is none.

    Not of a native gang: kube-scheduler finds its nodes, and cordoned ones it leaves out.
    """
    job, pods, placement = view.job, view.current, view.job.status.placement
    attempt = job.status.attempt
    if not view.cordoned or placement is None or len(pods.members) >= job.member_count:
        return None
    nodes = nodes_of(placement)
    is_native = native.group_name(job, attempt) in view.pod_groups
    if is_native or not any(node in view.cordoned for node in nodes):
        return None
    for seat in seats(job, placement):
        name = members.member_name(job, attempt, seat.role.name, seat.index)
        if seat.node in view.cordoned and name not in pods.members:
            return seat
    return None
