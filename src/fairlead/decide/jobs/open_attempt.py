"""An attempt whose record is open: its pods are created, counted, and judged when one fails.

In the steady state of a big gang a decision costs the same whatever its size: it compares counts.
Only what is missing, or in trouble, is walked.
"""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.job import Attempt, JobState, RestartPolicy
from fairlead.api.meta import find_condition
from fairlead.api.times import parse_time
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.notes import EventReason, Note
from fairlead.decide.attempts.status import StatusDraft
from fairlead.decide.jobs import failure_cause, preempted
from fairlead.decide.jobs.actions import Action
from fairlead.decide.jobs.attempt_end import changed_spec, close_attempt, find_end, succeed
from fairlead.decide.jobs.cleanup import delete_pods, delete_stale_objects
from fairlead.decide.jobs.closing import closing
from fairlead.decide.jobs.creation import create_missing
from fairlead.decide.jobs.failure_cause import Settling
from fairlead.decide.jobs.member_failure import start_patience_ends_at
from fairlead.decide.jobs.member_restarts import delete_replaced, note_restarts
from fairlead.decide.jobs.pods import MemberPhase
from fairlead.decide.jobs.progress import fold_progress
from fairlead.decide.jobs.restart import is_cancelled
from fairlead.decide.jobs.view import JobView
from fairlead.decide.verdict import Decision, earliest

#: How long after a try that the API may have refused the job is looked at again.
_LOOK_AGAIN_SECONDS = 1.0


def decide_open_attempt(view: JobView, attempt: Attempt) -> Decision[Action]:
    """Decide about a job whose current attempt has begun and not ended."""
    job, draft = view.job, view.draft
    draft = draft.set(progress=fold_progress(job.status.progress, view.reported))
    changed = changed_spec(view, attempt)
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
    wake_at = earliest(count_at, settle_at, _wake_at(view, attempt))
    return Decision((*actions, *stale), wake_at=wake_at)


def _all_started(view: JobView) -> bool:
    pods = view.current
    return (
        len(pods.members) >= view.job.member_count
        and pods.counts[MemberPhase.PENDING] == 0
        and pods.counts[MemberPhase.FAILED] == 0
    )


def _started(view: JobView, draft: StatusDraft, attempt: Attempt) -> tuple[Action, ...]:
    """Write that all members run. The time limit counts from here."""
    count = view.job.member_count
    all_ = "its one member runs" if count == 1 else f"all {count} members run"
    text = f"Started: {all_} (attempt {attempt.number}"
    if attempt.resumed_from_step is not None:
        text += f", resumed from step {attempt.resumed_from_step}"
    draft = draft.started().set(members=view.member_counts)
    return draft.write(Note(EventReason.STARTED, text + ")"))


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
    """Write counts and progress if it is time, else return when it will be.

    Small gangs' counts are written as they change. Progress always waits its turn: members report
    it every few seconds, for as long as they run.
    """
    counts, old = view.member_counts, view.job.status
    draft = draft.set(members=counts)
    draft = draft.state(JobState.RUNNING if attempt.started_at else JobState.STARTING)
    actions = draft.write()
    if not actions:
        return (), None
    generation = view.job.metadata.generation
    is_urgent = old.state != draft.status.state or old.observed_generation != generation
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
    starts += [closes.ends_at] if closes is not None else []
    back = [parse_time(r.restart_at) for r in view.job.status.member_restarts if r.restart_at]
    return earliest(ends_at, asked, *starts, *lost, *(at for at in back if at > now))
