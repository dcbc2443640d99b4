"""What a job needs next: `decide_job`, a function of the job and what belongs to it.

Every decision does one of two things. Either it writes down what was learned (an attempt begins,
all members run, the attempt ended for this cause, the job is over); or, once the status says all
there is to say, it changes the world accordingly (pods, peers). So the status is never behind what
was done: pods are deleted only after the end of their attempt and its cause are written, and
created only after the attempt's beginning is. After a crash, the status is enough to resume. The
phases (`model/gang/phase.py`) and every step: docs/design/jobs.md.

    no record        the gate, then the scheduler
    record open      module `open_attempt`
    record closed    the pods go, then the job fails, is held or is retried
    Finished         clean up
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Cause, JobState, JobStatus, MemberCounts, Progress
from fairlead.api.meta import find_condition, is_true
from fairlead.api.values.times import format_micro_time, parse_time
from fairlead.decide.attempts.backoff import refusals_in_a_row
from fairlead.decide.attempts.end_reason import EndReason, end_of, refusal_of
from fairlead.decide.attempts.notes import EventReason, PendingEvent
from fairlead.decide.attempts.notices import held_until
from fairlead.decide.attempts.record import new_record, with_attempt
from fairlead.decide.attempts.run_facts import fold_run
from fairlead.decide.attempts.seats import covers
from fairlead.decide.attempts.status import StatusDraft, back_off_verdict, backing_off
from fairlead.decide.job_actions import DeleteJob, RemoveFinalizer
from fairlead.decide.jobs import open_attempt, preempted
from fairlead.decide.jobs.actions import Action, AddFinalizer
from fairlead.decide.jobs.admitting.gate import HELD, CancelJob, MayQueue, Refuse, changes_at, gate
from fairlead.decide.jobs.cleanup import delete_pods, delete_stale_objects, force_at
from fairlead.decide.jobs.following import failure_cause
from fairlead.decide.jobs.following.pods import MemberPod
from fairlead.decide.jobs.following.progress import fold_progress
from fairlead.decide.jobs.following.stragglers import note_stragglers
from fairlead.decide.jobs.refused import wait_refused
from fairlead.decide.jobs.restart import (
    Fail,
    FailReason,
    HoldJob,
    Retry,
    cancel_message,
    next_step,
)
from fairlead.decide.jobs.view import ElementState, JobView
from fairlead.decide.reasons import Reason, Trait
from fairlead.decide.verdict import NOTHING, Decision, Verdict, earliest
from fairlead.decide.words import duration, plural
from fairlead.model.gang.phase import OPEN, Phase, is_failing, phase_of

#: Ends by a decision on the job, and not by what its members did.
_CANCELLED = (
    FailReason.CANCELLED, FailReason.DEPENDENCY_FAILED, FailReason.ELEMENT_ENDED,
    FailReason.DEADLINE_MISSED,
)  # fmt: skip


def decide_job(view: JobView) -> Decision[Action]:
    """Return what is to be done about one job now; `NOTHING` when it is as it should be."""
    job = view.job
    if job.spec.adopts is not None:
        return NOTHING  # pods of another tool: the adoption controller's
    if names.JOB_FINALIZER not in job.metadata.finalizers:
        if view.is_deleted:
            return NOTHING  # released already; its pods go with it
        return Decision((AddFinalizer(job, names.JOB_FINALIZER),))
    phase, record = phase_of(job), job.status.current_attempt
    if phase is Phase.FINISHED:
        return _finished(view)
    if record is None:
        decision, at = _waiting(view, phase), changes_at(job, view.now, view.begun)
        return decision if at is None else replace(decision, wake_at=earliest(decision.wake_at, at))
    if phase in OPEN:
        return open_attempt.decide_open_attempt(view, record)
    return _after_attempt(view, record)


# Waiting


def _waiting(view: JobView, phase: Phase) -> Decision[Action]:
    """Decide before an attempt has begun: no pods exist, the gate and the scheduler decide."""
    job, draft = view.job, view.draft
    if phase is Phase.CANCELLING:
        return Decision(_fail(draft, Fail(FailReason.CANCELLED, cancel_message(job))))
    opened = gate(
        job, view.dependencies, view.element, now=view.now, begun=view.begun, cycle=view.cycle
    )
    match opened:
        case CancelJob(verdict):
            return Decision(_fail(draft, Fail(FailReason(verdict.reason.value), verdict.message)))
        case Refuse(verdict):
            return _refuse(draft, verdict)
        case MayQueue():
            pass
        case _:
            assert_never(opened)
    if job.status.preemption is not None:  # until the scheduler has taken the place back
        return Decision(preempted.give_way(view, draft).write())
    if phase is Phase.UNADMITTED:
        if job.status.placement is not None:
            return NOTHING  # until the scheduler has taken it back: others may count on it
        return Decision(_admit(draft, max(job.status.attempt, 1)))
    actions = (
        *delete_pods(view, view.pods.all()),
        *delete_stale_objects(view, keep_attempt=-1),
    )
    placement = job.status.placement
    if phase is Phase.PLACED and placement is not None and covers(job, placement):
        if view.pods.count:  # of earlier attempts: never two at once
            return Decision(actions, wake_at=force_at(view, view.pods.all()))
        # The record of a first attempt is opened by the scheduler, with its place.
        return Decision((*draft.opened(new_record(job, view.now)).write(), *actions))
    again = job.status.attempt > 1 and placement is not None
    draft = draft.state(JobState.RESTARTING if again else JobState.WAITING)
    return Decision((*draft.write(), *actions))


def _refuse(draft: StatusDraft, verdict: Verdict) -> Decision[Action]:
    """Write why the job may not have a place, once."""
    status = draft.status
    draft = draft.not_admitted(verdict.reason, verdict.message)
    verdicts = {draft.job.metadata.key: verdict}
    if verdict.reason not in (Reason.HELD, Reason.DEPENDENCY_FAILED):
        return Decision(draft.state(JobState.WAITING).write(), verdicts)
    notes: tuple[PendingEvent, ...] = ()
    if status.state != JobState.HELD.value:
        text = f"Held before attempt {max(1, status.attempt)} began"
        if verdict.reason is Reason.DEPENDENCY_FAILED:
            text = f"Held: {verdict.message}"
        notes = (PendingEvent(EventReason.HELD, text),)
    return Decision(draft.state(JobState.HELD).write(*notes), verdicts)


def _admit(draft: StatusDraft, attempt: int) -> tuple[Action, ...]:
    """Let the job queue for a place for this attempt."""
    status, draft = draft.status, draft.admitted(attempt)
    if status.state == JobState.HELD.value:
        members = plural(draft.job.member_count, "member")
        text = f"Released; waits for a place for {members} as attempt {attempt}"
        return draft.write(PendingEvent(EventReason.RELEASED, text + _from_step(status)))
    before = find_condition(status.conditions, names.ADMITTED)
    if before is None:
        return draft.write()  # it never waited: its next event says enough
    reason = Reason.of(before.reason)
    is_again = reason is not None and reason.has(Trait.BACKS_OFF)
    if is_again or before.reason in (Reason.PREEMPTED.value, EndReason.REQUEUED.value):
        text = f"Queues again, for attempt {attempt}{_from_step(status)}"
        return draft.write(PendingEvent(EventReason.ADMITTED, text))
    text = f"Admitted to the queue with {plural(draft.job.member_count, 'member')}"
    return draft.write(PendingEvent(EventReason.ADMITTED, text))


# After an attempt


def _after_attempt(view: JobView, ended: Attempt) -> Decision[Action]:
    """Decide about a closed attempt: first its pods go, then the job fails, waits or restarts."""
    job, draft = view.job, view.draft
    revised = _revise(view, draft, ended)
    if revised:
        return Decision(revised)
    draft = draft.set(progress=fold_progress(job.status.progress, view.reported),
                      run=fold_run(job.status.run, view.run))  # fmt: skip
    slow = note_stragglers(view, draft, ended)
    if slow:
        return Decision(slow)
    following = next_step(job, ended, view.policy)
    # Pods that have ended stay readable after the last attempt; otherwise they make way.
    going = [p for p in view.pods.all() if not (isinstance(following, Fail) and p.is_terminal)]
    if going:
        is_retry = isinstance(following, Retry)
        draft = draft.set(members=view.member_counts)
        draft = draft.state(JobState.RESTARTING if is_retry else JobState.STOPPING)
        if isinstance(following, Fail) and not _may_be_revised(view, ended, going):
            draft = draft.failing(following.reason.value, following.message)
        actions, due_at = open_attempt.write_counts(view, draft)
        wake_at = earliest(due_at, force_at(view, going))
        return Decision((*actions, *delete_pods(view, going)), wake_at=wake_at)
    match following:
        case Fail():
            return Decision(_fail(draft, following))
        case HoldJob():
            return _hold(view, draft, ended)
        case Retry():
            return _retry(view, draft, ended)
        case _:
            assert_never(following)


def _revise(view: JobView, draft: StatusDraft, ended: Attempt) -> tuple[Action, ...]:
    """Name the node that turns out to be lost as the cause; () when there is none.

    Only causes that were not certain: the user's fault, and members stopped for an unknown reason.
    """
    if not _is_uncertain(ended):
        return ()
    lost = failure_cause.late_evidence(view)
    job = view.job
    if lost is None or lost.member is None:
        return ()
    revised = replace(
        ended,
        cause=lost.cause,
        reason=lost.reason.value,
        message=lost.message,
        nodes_lost=tuple(sorted({*ended.nodes_lost, lost.member.node})),
    )
    draft = draft.set(attempts=with_attempt(draft.status, revised).attempts)
    if ended.cause is Cause.USER:
        draft = draft.counted(Cause.USER, -1).counted(Cause.INFRASTRUCTURE)
    if is_failing(job):
        draft = draft.recovered()
    text = f"Found the cause of the end of attempt {ended.number}: {lost.message}"
    return draft.write(PendingEvent(EventReason.CAUSE_REVISED, text))


def _is_uncertain(ended: Attempt) -> bool:
    return ended.cause is Cause.USER or ended.reason == EndReason.STOPPED.value


def _may_be_revised(view: JobView, ended: Attempt, going: Iterable[MemberPod]) -> bool:
    """True while a node that may be lost may turn out to be the cause: the next attempt would keep
    the place.
    """
    return _is_uncertain(ended) and any(pod.node in view.node_troubles for pod in going)


def _hold(view: JobView, draft: StatusDraft, ended: Attempt) -> Decision[Action]:
    """Wait without a place; the attempt's number rises when the job is released."""
    status = draft.status
    notes: tuple[PendingEvent, ...] = ()
    if status.state != JobState.HELD.value:
        text = f"Held: attempt {ended.number} has stopped{_at_step(status)}"
        notes = (PendingEvent(EventReason.HELD, text),)
    counts = MemberCounts(view.job.member_count)
    draft = draft.not_admitted(HELD.reason, HELD.message)
    draft = draft.set(restart_at=None, members=counts).state(JobState.HELD)
    actions = (*draft.write(*notes), *delete_stale_objects(view, keep_attempt=-1))
    return Decision(actions, {view.job.metadata.key: HELD})


def _retry(view: JobView, draft: StatusDraft, ended: Attempt) -> Decision[Action]:
    """Raise the attempt's number once the back-off is over: the scheduler takes it from there."""
    job = view.job
    if job.status.preemption is not None:  # until the scheduler has taken the place back
        return Decision(preempted.give_way(view, draft).write())
    refused = refusal_of(ended)
    if refused is not None:
        waiting = wait_refused(view, draft, refused, ended.message)
        if waiting is not None:
            return waiting
    status, now, number = draft.status, view.now, ended.number + 1
    is_admitted = is_true(status.conditions, names.ADMITTED)
    wait_until = parse_time(status.restart_at) if status.restart_at else now
    since = parse_time(ended.finished_at) if ended.finished_at else now
    if now < wait_until and (is_admitted or back_off_verdict(status) is not None):
        is_refused = refusals_in_a_row(status.attempts) >= view.policy.refusals_max
        verdict = backing_off(status, Reason.PLACE_REFUSED if is_refused else Reason.BACKING_OFF)
        draft = draft.set(members=MemberCounts(job.member_count))  # of the last look some ended
        if is_refused or wait_until - since > view.policy.backoff_hold_seconds:
            draft = draft.not_admitted(verdict.reason, verdict.message)
        actions = (
            *draft.state(JobState.WAITING if is_refused else JobState.RESTARTING).write(),
            *delete_stale_objects(view, keep_attempt=-1),
        )
        return Decision(actions, {view.job.metadata.key: verdict}, wake_at=wait_until)
    if (done := status.progress) is not None:
        # What was done since the checkpoint is lost; the next attempt counts from there.
        at, step = format_micro_time(now), done.checkpoint_step
        kept = (done.saved_at, done.checkpoint_seconds)
        draft = draft.set(progress=Progress(step or 0, step, at, "", *kept))
    if not is_admitted:
        if job.status.placement is not None:
            return NOTHING  # as before a first attempt
        return Decision(_admit(draft, number))
    if end_of(ended) is EndReason.REQUEUED:
        # With its place kept, a job would be past its time limit as often as it likes.
        draft = draft.not_admitted(EndReason.REQUEUED, ended.message).state(JobState.WAITING)
        return Decision((*draft.write(), *delete_stale_objects(view, keep_attempt=-1)))
    text = f"Restarting as attempt {number}{_from_step(draft.status)}, {duration(now - since)} "
    note = PendingEvent(EventReason.RESTARTING, f"{text}after: {ended.message or ended.reason}")
    return Decision(draft.admitted(number).state(JobState.RESTARTING).write(note))


def _from_step(status: JobStatus) -> str:
    step = status.progress.checkpoint_step if status.progress else None
    return "" if step is None else f" from step {step}"


def _at_step(status: JobStatus) -> str:
    if status.progress is None:
        return ""
    saved = status.progress.checkpoint_step
    kept = "no checkpoint yet" if saved is None else f"last checkpoint at step {saved}"
    return f" at step {status.progress.step} ({kept})"


# The end


def _fail(draft: StatusDraft, fail: Fail) -> tuple[Action, ...]:
    """Record the job and write that it has failed, for good. Its pods have ended."""
    reason, ended = fail.reason.value, replace(draft.status.members, pending=0, running=0)
    is_cancelled = fail.reason in _CANCELLED
    if find_condition(draft.status.conditions, names.RUNNING) is not None:
        draft = draft.condition(names.RUNNING, "False", reason)
    draft = draft.finished(names.FAILED, reason, fail.message).released().set(members=ended)
    at = _at_step(draft.status)
    if not is_cancelled:
        note = PendingEvent(EventReason.FAILED, f"Failed: {fail.message}{at}")
        return draft.write(note, record=True)
    note = PendingEvent(EventReason.CANCELLED, f"Cancelled: {fail.message}{at}")
    return draft.state(JobState.CANCELLED).write(note, record=True)


def _finished(view: JobView) -> Decision[Action]:
    """Clean up: peers at once, pods after the time for which they are kept, then the job.

    While a creation of a pod is unanswered, pods that have ended keep their names: it would make
    one again, on nodes that the job has given back.
    """
    job = view.job
    actions: list[Action] = list(delete_stale_objects(view, keep_attempt=0))
    ended_at = parse_time(job.status.finished_at) if job.status.finished_at else view.now
    keep_until = ended_at + view.policy.keep_finished_pods_seconds
    is_late = view.now < view.late_until
    keep = is_late or (not view.is_deleted and view.now < keep_until)
    going = [p for p in view.pods.all() if not (keep and p.is_terminal)]
    actions.extend(delete_pods(view, going))
    if view.is_deleted:
        # An element whose end its array does not have yet would be created again.
        if view.pods.count == 0 and view.element is not ElementState.OPEN:
            actions.append(RemoveFinalizer(job, names.JOB_FINALIZER))
        wake_at = earliest(force_at(view, going), view.late_until if is_late else None)
        return Decision(tuple(actions), wake_at=wake_at)
    wake_at = force_at(view, going)
    if view.pods.count and keep:
        wake_at = earliest(wake_at, max(keep_until, view.late_until))
    goes_at = _goes_at(view, ended_at)
    held = held_until(job, ended_at) if goes_at is not None else None
    if goes_at is not None and held is not None:
        goes_at = max(goes_at, held)
    if goes_at is not None and view.now >= goes_at:
        actions.append(DeleteJob(job))
    else:
        wake_at = earliest(wake_at, goes_at)
    return Decision(tuple(actions), wake_at=wake_at)


def _goes_at(view: JobView, ended_at: float) -> float | None:
    """Return when the object of an ended job is deleted; None: it stays.

    What the job says of itself comes first. An owner deletes what it owns, and a job that others
    wait for has not told them all yet. The history has its record since before it ended.
    """
    job, policy = view.job, view.policy
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is not None:
        return ended_at + ttl
    if job.metadata.owner_references or view.is_waited_for:
        return None
    if view.is_surplus:
        return ended_at
    keep = policy.keep_finished_seconds
    return None if keep is None else ended_at + keep
