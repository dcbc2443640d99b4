"""An attempt whose record is open: its pods are created, counted, and judged when one fails.

In the steady state of a big gang a decision costs the same whatever its size: it compares counts.
Only what is missing, or in trouble, is walked.
"""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Cause, JobState, JobStatus, MemberRestart, RestartPolicy
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.meta import find_condition
from fairlead.api.values.bounds import MEMBER_RESTARTS_MAX
from fairlead.api.values.outcomes import MachineOutcome
from fairlead.api.values.times import format_micro_time, parse_time
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.notes import EventReason, PendingEvent
from fairlead.decide.attempts.record import is_in_test, with_attempt
from fairlead.decide.attempts.run_facts import fold_run
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.jobs import preempted
from fairlead.decide.jobs.actions import (
    Action,
    CreatePod,
    CreatePodGroup,
    CreateShared,
)
from fairlead.decide.jobs.attempt_end import (
    AttemptEnd,
    changed_spec,
    close_attempt,
    find_end,
    requeued,
    succeed,
)
from fairlead.decide.jobs.cleanup import delete_pods, delete_stale_objects
from fairlead.decide.jobs.closing import closing
from fairlead.decide.jobs.following import failure_cause, stragglers
from fairlead.decide.jobs.following.failure_cause import Settling, failures
from fairlead.decide.jobs.following.member_failure import Failure, start_patience_ends_at
from fairlead.decide.jobs.following.pods import MemberPhase
from fairlead.decide.jobs.following.progress import fold_progress
from fairlead.decide.jobs.policy import PeerNaming
from fairlead.decide.jobs.rendering import members, native, preflight
from fairlead.decide.jobs.restart import backoff_seconds, infrastructure_limit, is_cancelled
from fairlead.decide.jobs.view import ElementState, JobView
from fairlead.decide.verdict import Decision, earliest

#: How long after a try that the API may have refused the job is looked at again.
_LOOK_AGAIN_SECONDS = 1.0
#: A test that leaves for a member is gone within a few seconds.
_YIELD_SECONDS = 0.5


def decide_open_attempt(view: JobView, attempt: Attempt) -> Decision[Action]:
    """Decide about a job whose current attempt has begun and not ended."""
    job, draft = view.job, view.draft
    draft = draft.set(progress=fold_progress(job.status.progress, view.reported),
                      run=fold_run(job.status.run, view.run))  # fmt: skip
    gated = preflight.gate_result(view, attempt)
    if gated is not None:
        return Decision(_gate_judged(view, draft, attempt, gated), wake_at=view.late_until or None)
    slow = stragglers.note_stragglers(view, draft, attempt)
    if slow:
        return Decision(slow)
    changed = requeued(job, attempt) or changed_spec(view, attempt)
    if changed is None and view.current.counts[MemberPhase.SUCCEEDED] >= job.member_count:
        return Decision(succeed(view, draft))
    found = failure_cause.assess(view)
    end = changed if changed is not None and not is_cancelled(job) else None
    end = end or find_end(view, found)
    if end is not None and view.now < view.late_until:
        return Decision(wake_at=view.late_until)  # a late pod needs the place: see "The hand-over"
    if end is not None:
        return Decision(close_attempt(view, draft, end))
    if not attempt.started_at and _all_started(view):
        shown_at = _shown_at(view)
        if view.now < shown_at:
            return Decision(wake_at=earliest(shown_at, _wake_at(view, attempt)))
        return Decision(_started(view, draft, attempt))
    written = _write_held_back(view, draft, attempt)
    if not written and job.spec.restart.policy is RestartPolicy.MEMBER:
        written = note_restarts(view, draft)
    if written:
        return Decision(written)
    counted, count_at = _counts(view, draft, attempt)
    actions = (*counted, *create_missing(view), *delete_replaced(view))
    stale = (
        *delete_pods(view, view.pods.others(attempt.number)),
        *delete_stale_objects(view, keep_attempt=attempt.number),
    )
    settle_at = found.until if isinstance(found, Settling) else None
    wake_at = earliest(count_at, settle_at, _wake_at(view, attempt), _yields_at(view))
    return Decision((*actions, *stale), wake_at=wake_at)


def _gate_judged(
    view: JobView, draft: StatusDraft, attempt: Attempt, gated: preflight.GateResult
) -> tuple[Action, ...]:
    """Write what the test of the nodes says; where it stopped the gang, the attempt has ended."""
    if gated.is_stopped and view.now < view.late_until:
        return ()  # a late pod needs the place: see "The hand-over"
    record = replace(attempt, preflight=gated.record)
    draft = draft.set(attempts=with_attempt(draft.status, record).attempts)
    if not gated.is_stopped:
        is_bad = gated.record.outcome is MachineOutcome.FAILED
        reason = EventReason.PREFLIGHT_FAILED if is_bad else EventReason.PREFLIGHT
        text = f"Goes on, since all pods do: {gated.message}"
        if not is_bad:
            text = gated.message[:1].upper() + gated.message[1:]
        return draft.write(PendingEvent(reason, text))
    is_bad = gated.record.outcome is MachineOutcome.FAILED
    reason = EndReason.PREFLIGHT_FAILED if is_bad else EndReason.PREFLIGHT_ERROR
    return close_attempt(view, draft, AttemptEnd(reason, gated.message, nodes=gated.record.nodes))


def _all_started(view: JobView) -> bool:
    pods = view.current
    return (
        len(pods.members) >= view.job.member_count
        and pods.counts[MemberPhase.PENDING] == 0
        and pods.counts[MemberPhase.FAILED] == 0
    )


def _shown_at(view: JobView) -> float:
    """Return when it is to be written that all members run: of an element of an array that may be
    over soon, somewhat later.
    """
    seen_at, limit = view.start_seen_at, view.job.spec.time_limit_seconds
    if seen_at is None or view.element is ElementState.NONE:
        return view.now
    seconds = view.policy.short_element_seconds
    return seen_at + (seconds if limit is None else min(seconds, limit))


def _started(view: JobView, draft: StatusDraft, attempt: Attempt) -> tuple[Action, ...]:
    """Write that all members run. The time limit counts from here."""
    count = view.job.member_count
    all_ = "its one member runs" if count == 1 else f"all {count} members run"
    text = f"Started: {all_} (attempt {attempt.number}"
    if attempt.resumed_from_step is not None:
        text += f", resumed from step {attempt.resumed_from_step}"
    is_late = view.now < view.late_until
    draft = draft.started(view.start_seen_at, may_have_late_pods=is_late)
    draft = draft.set(members=view.member_counts)
    return draft.write(PendingEvent(EventReason.STARTED, text + ")"))


def _write_held_back(view: JobView, draft: StatusDraft, attempt: Attempt) -> tuple[Action, ...]:
    """Write that the API takes no pods now, in its words, or that it takes them again."""
    running, refused = find_condition(draft.status.conditions, names.RUNNING), view.refused
    is_written = running is not None and running.reason == EndReason.POD_HELD_BACK.value
    if (refused is not None) == is_written:
        return ()
    status, reason = ("True", "AllMembersRun") if attempt.started_at else ("False", "Starting")
    if refused is None:
        return draft.condition(names.RUNNING, status, reason).write()
    reason = EndReason.POD_HELD_BACK.value
    return draft.condition(names.RUNNING, status, reason, refused.message).write()


def _counts(
    view: JobView, draft: StatusDraft, attempt: Attempt
) -> tuple[tuple[Action, ...], float | None]:
    """Write counts and progress if it is time, else return when it will be."""
    state = JobState.RUNNING if attempt.started_at else JobState.STARTING
    return write_counts(view, draft.set(members=view.member_counts).state(state))


def write_counts(view: JobView, draft: StatusDraft) -> tuple[tuple[Action, ...], float | None]:
    """Write a draft in which counts or progress may be all that is new: if it is time, else return
    when it will be.

    Small gangs' counts are written as they change. Progress always waits its turn: members report
    it every few seconds, for as long as they run.
    """
    counts, old = draft.status.members, view.job.status
    actions = draft.write()
    if not actions:
        return (), None
    generation = view.job.metadata.generation
    is_urgent = old.state != draft.status.state or old.observed_generation != generation
    is_urgent = is_urgent or old.conditions != draft.status.conditions
    is_small = counts.total <= view.policy.small_gang_members_max and old.members != counts
    due_at = view.counts_written_at + view.policy.progress_write_seconds
    return (actions, None) if is_urgent or is_small or view.now >= due_at else ((), due_at)


def _wake_at(view: JobView, attempt: Attempt) -> float | None:
    """Return when time alone will matter: limits, and the patience with nodes and images."""
    policy, now, limit = view.policy, view.now, view.job.spec.time_limit_seconds
    ends_at = None
    if attempt.started_at:
        ends_at = None if limit is None else parse_time(attempt.started_at) + limit
    elif attempt.begun_at:
        ends_at = parse_time(attempt.begun_at) + policy.start_seconds_max
    starts = [
        start_patience_ends_at(pods.members[name], policy, now)
        for pods in (view.current,)
        for name in pods.troubled
    ]
    lost = [t.lost_at(policy) for t in view.node_troubles.values() if not t.is_lost(policy, now)]
    refused = view.refused
    if refused is not None:
        # Tried now: the result is known a little later.
        tried_at = refused.retry_at if refused.retry_at > now else now + _LOOK_AGAIN_SECONDS
        starts += [tried_at, refused.ends_at(policy)]
    asked = preempted.ends_at(view)
    closes = closing(view)
    starts += [preflight.gate_ends_at(view)] if is_in_test(attempt) else []
    starts += [closes.ends_at] if closes is not None else []
    back = [parse_time(r.restart_at) for r in view.job.status.member_restarts if r.restart_at]
    return earliest(ends_at, asked, *starts, *lost, *(at for at in back if at > now))


# What an open attempt lacks: pods, the service and the ConfigMap of the gang, the PodGroup


def create_missing(view: JobView) -> tuple[Action, ...]:
    """Create what is missing; while the API holds it back, one object from time to time."""
    refused = view.refused
    if refused is None:
        return _all_missing(view)
    return _all_missing(view)[:1] if view.now >= refused.retry_at else ()


def _all_missing(view: JobView) -> tuple[Action, ...]:
    """Create what the placement asks for: pods, and after or before them what they share."""
    job, pods = view.job, view.current
    attempt = job.status.attempts[-1]
    actions: list[Action] = []
    uses_dns = view.policy.peer_naming is PeerNaming.DNS
    if members.needs_service(job, view.policy) and members.service_name(job) not in view.services:
        actions.append(CreateShared(job, members.headless_service(job)))
    complete = len(pods.members) >= job.member_count and pods.addressed_count >= job.member_count
    # Containers wait for the ConfigMap: pinned members start once all of them have a node.
    is_settled = view.policy.binding is None or pods.bound_count >= job.member_count
    is_due = members.needs_gang_map(job) and (complete or (uses_dns and is_settled))
    if is_due and members.gang_map_name(job, attempt.number) not in view.config_maps:
        actions.append(CreateShared(job, members.gang_map(job, view.policy, pods)))
    if len(pods.members) >= job.member_count:
        return tuple(actions)
    group = native.group_name(job, attempt.number)
    if group not in view.pod_groups:
        assert job.status.placement is not None
        placement = job.status.placement
        if not pods.members and native.is_native(
            job, placement, view.policy, view.bindings, spares=view.spares
        ):
            return (*actions, CreatePodGroup(job))  # a gang's pods come after its group
        group = ""
    resume_step = attempt.resumed_from_step
    if attempt.started_at and job.status.progress is not None:  # policy Member
        resume_step = job.status.progress.checkpoint_step
    missing = members.missing_pods(
        job, view.policy, pods,
        resume_step=resume_step, absent=absent_members(job.status, view.now),
        bindings=view.bindings, group=group, served=view.served,
    )  # fmt: skip
    actions.extend(
        CreatePod(job, pod) for pod in missing if pod.spec.node_name not in view.yielding
    )
    return tuple(actions)


def _yields_at(view: JobView) -> float | None:
    """Return when to look again for tests that have left nodes where members are missing."""
    placement = view.job.status.placement
    if not view.yielding or placement is None:
        return None
    if len(view.current.members) >= view.job.member_count:
        return None
    waits = any(node in view.yielding for node in nodes_of(placement))
    return view.now + _YIELD_SECONDS if waits else None


# Members that are replaced while the others run (policy Member)


def note_restarts(view: JobView, draft: StatusDraft) -> tuple[Action, ...]:
    """Write which members are being replaced, each failure counted once, before a pod is deleted.

    An entry stays until the member's new pod is there. A failure beyond a limit ends the attempt.
    """
    entries, before = draft.status.member_restarts, draft.status.member_restarts
    if entries:
        uids = {(m.role, m.index): m.uid for m in view.current.members.values()}
        entries = tuple(r for r in entries if uids.get((r.role, r.index), r.pod_uid) == r.pod_uid)
    known = {r.pod_uid for r in entries}
    draft, notes = draft.set(member_restarts=entries), list[PendingEvent]()
    for failure in failures(view):
        member = failure.member
        if member is None or member.uid in known or member.node in view.cordoned:
            continue  # known, or the end of the attempt once its cause has settled
        if len(draft.status.member_restarts) >= MEMBER_RESTARTS_MAX:
            break
        counted = _counted(view, draft, failure)
        if counted is None:
            end = AttemptEnd(failure.reason, failure.message, failure)
            return close_attempt(view, draft, end)
        draft = counted
        text = f"Replacing a member: {failure.message} (cause: {failure.cause.value})"
        notes.append(PendingEvent(EventReason.MEMBER_RESTARTED, text))
    if draft.status.member_restarts == before:
        return ()
    return draft.set(members=view.member_counts).write(*notes)


def _counted(view: JobView, draft: StatusDraft, failure: Failure) -> StatusDraft | None:
    """Return the status with the failure counted and its member noted; None beyond a limit."""
    job, cause, member = view.job, failure.cause, failure.member
    assert member is not None
    counted = draft.counted(cause)
    count, limit = counted.status.infrastructure_failures, infrastructure_limit(job, view.policy)
    if cause is Cause.USER:
        count, limit = counted.status.user_failures, job.spec.restart.limit
    if count > limit:
        return None
    entry = MemberRestart(
        role=member.role,
        index=member.index,
        pod_uid=member.uid,
        cause=cause,
        reason=failure.reason.value,
        restart_at=format_micro_time(view.now + backoff_seconds(job, cause, count)),
    )
    return counted.set(member_restarts=(*counted.status.member_restarts, entry))


def delete_replaced(view: JobView) -> tuple[Action, ...]:
    """Delete the pods of members that are being replaced: a name is free once its pod is gone."""
    restarts = view.job.status.member_restarts
    if not restarts:
        return ()
    uids = {r.pod_uid for r in restarts}
    going = [m for m in view.current.members.values() if m.uid in uids]
    return tuple(delete_pods(view, going))


def absent_members(status: JobStatus, now: float) -> frozenset[tuple[str, int]]:
    """Return the members whose back-off is not over."""
    return frozenset(
        (r.role, r.index)
        for r in status.member_restarts
        if r.restart_at is not None and now < parse_time(r.restart_at)
    )
