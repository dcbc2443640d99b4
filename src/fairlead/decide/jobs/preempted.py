"""A job that the scheduler has asked to give its place back for one of higher priority.

`status.preemption` is the request. A gang that reports checkpoints has some time to save one more,
if one can be expected in that time: a checkpoint after the request is the answer to it. Then the
attempt ends, for a reason that counts against no limit, and with the same write the job is no
longer Admitted: that is what lets the scheduler take the place back. Taking it back ends the
request, and the job queues again.
"""

from __future__ import annotations

from fairlead.api.jobs.job import JobState, Progress
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.status import StatusDraft, preempted_verdict
from fairlead.decide.jobs.following.progress import fold_progress
from fairlead.decide.jobs.view import JobView
from fairlead.decide.reasons import Reason


def ends_at(view: JobView) -> float | None:
    """Return when the open attempt ends for another job; None when it is not asked to."""
    status, request = view.job.status, view.job.status.preemption
    if request is None:
        return None
    asked_at = parse_time(request.requested_at) if request.requested_at else view.now
    record, progress = status.current_attempt, fold_progress(status.progress, view.reported)
    if record is None or not record.started_at:
        return asked_at
    if progress is None or progress.checkpoint_step is None:
        return asked_at
    before = request.checkpoint_step
    is_saved = before is None or progress.checkpoint_step > before
    wait = view.policy.checkpoint_wait_seconds
    due_at = _next_checkpoint_at(progress, parse_time(record.started_at))
    is_expected = due_at is None or abs(due_at - asked_at) <= wait
    return asked_at if is_saved or not is_expected else asked_at + wait


def _next_checkpoint_at(progress: Progress, started_at: float) -> float | None:
    """Return when the next checkpoint is due, going by the last two; None where nothing tells.

    With one checkpoint, the time from the start of the attempt to it tells.
    """
    if progress.saved_at is None:
        return None
    saved_at = parse_time(progress.saved_at)
    seconds = progress.checkpoint_seconds
    if seconds is None:
        seconds = saved_at - started_at
        if seconds < 0:
            return None
    return max(saved_at, started_at) + seconds


def message(view: JobView) -> str:
    """Return the job that gets this job's place."""
    verdict = preempted_verdict(view.job.status)
    return verdict.message if verdict is not None else ""


def give_way(view: JobView, draft: StatusDraft) -> StatusDraft:
    """Return the status of a job that has no pods to be stopped and wants its place no more."""
    draft = draft.not_admitted(Reason.PREEMPTED, message(view))
    return draft.state(JobState.WAITING)
