"""What a job needs next: `decide_job`, a function of the job and what belongs to it.

Every decision does one of two things. Either it writes down what was learned (an attempt begins,
all members run, the attempt ended for this cause, the job is over); or, once the status says all
there is to say, it changes the world accordingly (pods, peers). So the status is never behind what
was done: pods are deleted only after the end of their attempt and its cause are written, and
created only after the attempt's beginning is. Whoever dies in between finds the status and goes
on from there. The states and every transition: docs/design/jobs.md.

    waiting   no record of the current attempt: not admitted, held, or without a place
    live      the record is open: pods may exist (module `open_attempt`)
    over      the record is closed: pods are on their way out, then fail, hold or retry
    finished  Succeeded or Failed holds: clean up
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.job import Attempt, Cause, JobState, JobStatus, MemberCounts, Progress
from fairlead.api.meta import Condition, find_condition, is_true
from fairlead.api.times import parse_time
from fairlead.decide.attempts.job_status import (
    EventReason,
    Note,
    earliest,
    new_record,
    plural,
    stamp,
    with_attempt,
    with_begun,
    with_condition,
    with_state,
    write,
)
from fairlead.decide.job_actions import DeleteJob, RemoveFinalizer
from fairlead.decide.jobs import admission, failure_cause, open_attempt
from fairlead.decide.jobs.actions import Action, AddFinalizer
from fairlead.decide.jobs.cleanup import delete_pods, duration, force_at, sweep, with_running
from fairlead.decide.jobs.members import covers
from fairlead.decide.jobs.pods import fold_progress
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.refused import REFUSED, wait_refused
from fairlead.decide.jobs.restart import (
    Fail,
    FailReason,
    Hold,
    Retry,
    cancel_message,
    next_step,
)
from fairlead.decide.jobs.view import JobView
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import NOTHING, Decision, Verdict
from fairlead.model.phase import OPEN, Phase, phase_of


def decide_job(view: JobView, policy: JobsPolicy, now: float) -> Decision[Action]:
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
        return _finished(view, policy, now)
    if record is None:
        return _waiting(view, policy, now, phase)
    if phase in OPEN:
        return open_attempt.decide_open_attempt(view, policy, now, record)
    return _over(view, policy, now, record)


# Waiting


def _waiting(view: JobView, policy: JobsPolicy, now: float, phase: Phase) -> Decision[Action]:
    """Before an attempt has begun: no pods exist, only the gate and the scheduler matter."""
    job, status = view.job, view.job.status
    if phase is Phase.CANCELLING:
        return Decision(_fail(view, now, Fail(FailReason.CANCELLED, cancel_message(job))))
    opened = admission.gate(job, view.dependencies)
    match opened:
        case admission.CancelJob(verdict):
            fail = Fail(FailReason.DEPENDENCY_FAILED, verdict.message)
            return Decision(_fail(view, now, fail))
        case admission.Refuse(verdict):
            return _refuse(view, now, verdict)
        case admission.Admit():
            pass
        case _:
            assert_never(opened)
    if phase is Phase.UNADMITTED:
        return Decision(_admit(view, now, max(status.attempt, 1), status))
    actions = (*delete_pods(view, view.pods.all(), policy, now), *sweep(view, keep_attempt=-1))
    placement = status.placement
    if phase is Phase.PLACED and placement is not None and covers(job, placement):
        if view.pods.count:  # of earlier attempts: never two at once
            return Decision(actions, wake_at=force_at(view, view.pods.all(), policy, now))
        begun = with_begun(job, status, new_record(job, now))  # a first one is, with its place
        return Decision((*write(job, begun), *actions))
    again = status.attempt > 1 and placement is not None
    state = JobState.RESTARTING if again else JobState.WAITING
    return Decision((*write(view.job, with_state(status, state)), *actions))


def _refuse(view: JobView, now: float, verdict: Verdict) -> Decision[Action]:
    """Write why the job may not have a place, once."""
    status = view.job.status
    blocked = verdict.reason in (Reason.HELD, Reason.DEPENDENCY_FAILED)
    condition = Condition(names.ADMITTED, "False", verdict.reason.value, verdict.message)
    new = with_condition(view.job, status, now, condition)
    new = with_state(new, JobState.HELD if blocked else JobState.WAITING)
    notes: tuple[Note, ...] = ()
    if blocked and status.state != JobState.HELD.value:
        notes = (Note(EventReason.HELD, f"Held before attempt {max(1, status.attempt)} began"),)
        if verdict.reason is Reason.DEPENDENCY_FAILED:
            notes = (Note(EventReason.HELD, f"Held: {verdict.message}"),)
    return Decision(write(view.job, new, *notes), {view.job.metadata.key: verdict})


def _admit(view: JobView, now: float, attempt: int, status: JobStatus) -> tuple[Action, ...]:
    """Let the job queue for a place for this attempt."""
    job = view.job
    new = with_condition(view.job, status, now, Condition(names.ADMITTED, "True", names.ADMITTED))
    new = replace(new, attempt=attempt, restart_at=None, members=MemberCounts(job.member_count))
    new = with_state(new, JobState.WAITING)
    members = plural(job.member_count, "member")
    if status.state == JobState.HELD.value:
        text = f"Released; waits for a place for {members} as attempt {attempt}"
        return write(view.job, new, Note(EventReason.RELEASED, text + _from_step(status)))
    if find_condition(status.conditions, names.ADMITTED) is None:
        return write(view.job, new)  # it never waited; what happens to it next is told
    text = f"Admitted to the queue with {members}"
    return write(view.job, new, Note(EventReason.ADMITTED, text))


# Over


def _over(view: JobView, policy: JobsPolicy, now: float, ended: Attempt) -> Decision[Action]:
    """The attempt has ended: first its pods go, then comes what follows."""
    job = view.job
    revised = _revise(view, policy, now, ended)
    if revised:
        return Decision(revised)
    progress = fold_progress(job.status.progress, open_attempt.reported(view))
    following = next_step(job, ended, policy)
    # Pods that have ended stay readable after the last attempt; otherwise they make way.
    going = [p for p in view.pods.all() if not (isinstance(following, Fail) and p.is_terminal)]
    if going:
        state = JobState.RESTARTING if isinstance(following, Retry) else JobState.STOPPING
        new = replace(with_state(job.status, state), progress=progress)
        actions = (*write(view.job, new), *delete_pods(view, going, policy, now))
        return Decision(actions, wake_at=force_at(view, going, policy, now))
    status = replace(job.status, progress=progress)
    match following:
        case Fail():
            return Decision(_fail(view, now, following, status))
        case Hold():
            return _hold(view, now, ended, status)
        case Retry():
            return _retry(view, policy, now, ended=ended, status=status)
        case _:
            assert_never(following)


def _revise(view: JobView, policy: JobsPolicy, now: float, ended: Attempt) -> tuple[Action, ...]:
    """Name the node that turns out to be lost as the cause; () when there is none.

    Of causes that were not sure: the user's fault, and members stopped by nobody knows what.
    """
    if ended.cause is not Cause.USER and ended.reason != failure_cause.EndReason.STOPPED.value:
        return ()
    lost = failure_cause.late_evidence(view, policy, now)
    if lost is None or lost.member is None:
        return ()
    status = view.job.status
    revised = replace(
        ended,
        cause=lost.cause,
        reason=lost.reason.value,
        message=lost.message,
        nodes_lost=tuple(sorted({*ended.nodes_lost, lost.member.node})),
    )
    new = with_attempt(status, revised)
    if ended.cause is Cause.USER:
        new = replace(
            new,
            user_failures=max(0, status.user_failures - 1),
            infrastructure_failures=status.infrastructure_failures + 1,
        )
    text = f"Found the cause of the end of attempt {ended.number}: {lost.message}"
    return write(view.job, new, Note(EventReason.CAUSE_REVISED, text))


def _hold(view: JobView, now: float, ended: Attempt, status: JobStatus) -> Decision[Action]:
    """Wait without a place; the attempt's number rises when the job is released."""
    held = admission.HELD
    condition = Condition(names.ADMITTED, "False", held.reason.value, held.message)
    new = replace(with_condition(view.job, status, now, condition), restart_at=None)
    new = replace(with_state(new, JobState.HELD), members=MemberCounts(view.job.member_count))
    notes: tuple[Note, ...] = ()
    if status.state != JobState.HELD.value:
        text = f"Held: attempt {ended.number} has stopped{_at_step(status)}"
        notes = (Note(EventReason.HELD, text),)
    actions = (*write(view.job, new, *notes), *sweep(view, keep_attempt=-1))
    return Decision(actions, {view.job.metadata.key: held})


def _retry(
    view: JobView, policy: JobsPolicy, now: float, *, ended: Attempt, status: JobStatus
) -> Decision[Action]:
    """Raise the attempt's number once the back-off is over: the scheduler takes it from there."""
    job, number = view.job, ended.number + 1
    if ended.reason in REFUSED:
        waiting = wait_refused(view, policy, now, ended=ended, status=status)
        if waiting is not None:
            return waiting
    wait_until = parse_time(status.restart_at) if status.restart_at else now
    if now < wait_until and is_true(status.conditions, names.ADMITTED):
        seconds = job_backoff(ended, wait_until)
        verdict = Verdict(Reason.BACKING_OFF, {"attempt": number, "backoff_seconds": seconds})
        new = with_state(status, JobState.RESTARTING)
        actions = (*write(view.job, new), *sweep(view, keep_attempt=-1))
        return Decision(actions, {job.metadata.key: verdict}, wake_at=wait_until)
    progress = status.progress
    if progress is not None:
        # What was done since the checkpoint is lost; the next attempt counts from there.
        progress = Progress(progress.checkpoint_step or 0, progress.checkpoint_step, stamp(now))
    if not is_true(status.conditions, names.ADMITTED):
        return Decision(_admit(view, now, number, replace(status, progress=progress)))
    new = replace(
        status,
        attempt=number,
        restart_at=None,
        member_restarts=(),
        members=MemberCounts(job.member_count),
        progress=progress,
    )
    since = now - parse_time(ended.finished_at) if ended.finished_at else 0.0
    text = f"Restarting as attempt {number}{_from_step(new)}, {duration(since)} after: "
    text += ended.message or ended.reason
    note = Note(EventReason.RESTARTING, text)
    return Decision(write(view.job, with_state(new, JobState.RESTARTING), note))


def job_backoff(ended: Attempt, wait_until: float) -> int:
    """Return the length of the back-off in whole seconds."""
    since = parse_time(ended.finished_at) if ended.finished_at else wait_until
    return max(0, round(wait_until - since))


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


def _fail(
    view: JobView, now: float, fail: Fail, status: JobStatus | None = None
) -> tuple[Action, ...]:
    """Record the job and write that it has failed, for good. Its pods have ended."""
    status = view.job.status if status is None else status
    cancelled = fail.reason in (FailReason.CANCELLED, FailReason.DEPENDENCY_FAILED)
    failed = Condition(names.FAILED, "True", fail.reason.value, fail.message)
    new = with_condition(view.job, status, now, failed)
    if any(c.type == names.RUNNING for c in new.conditions):
        new = with_running(view, new, now, fail.reason.value)
    ended = replace(new.members, pending=0, running=0)
    new = replace(new, finished_at=stamp(now), restart_at=None, member_restarts=(), members=ended)
    new = with_state(new, JobState.CANCELLED if cancelled else JobState.FAILED)
    if cancelled:
        note = Note(EventReason.CANCELLED, f"Cancelled: {fail.message}{_at_step(new)}")
    else:
        note = Note(EventReason.FAILED, f"Failed: {fail.message}{_at_step(new)}")
    return write(view.job, new, note, record=True)


def _finished(view: JobView, policy: JobsPolicy, now: float) -> Decision[Action]:
    """Clean up: peers at once, pods when nobody needs to look at them any more, then the job."""
    job = view.job
    actions: list[Action] = list(sweep(view, keep_attempt=0))
    ended_at = parse_time(job.status.finished_at) if job.status.finished_at else now
    keep_until = ended_at + policy.keep_finished_pods_seconds
    keep = not view.is_deleted and now < keep_until
    going = [p for p in view.pods.all() if not (keep and p.is_terminal)]
    actions.extend(delete_pods(view, going, policy, now))
    if view.is_deleted:
        if view.pods.count == 0:
            actions.append(RemoveFinalizer(job, names.JOB_FINALIZER))
        return Decision(tuple(actions), wake_at=force_at(view, going, policy, now))
    wake_at = force_at(view, going, policy, now)
    if view.pods.count and keep:
        wake_at = earliest(wake_at, keep_until)
    ttl = job.spec.ttl_seconds_after_finished
    if ttl is not None:
        if now >= ended_at + ttl:
            actions.append(DeleteJob(job))
        else:
            wake_at = earliest(wake_at, ended_at + ttl)
    return Decision(tuple(actions), wake_at=wake_at)
