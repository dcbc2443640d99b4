"""The transitions of a job's status, whatever makes its pods.

    StatusDraft.of(job, now).opened(new_record(job, now)).write()
    StatusDraft.of(job, now).closed(End(EndReason.DRAINED, text)).state(STOPPING).write(note)

A draft is a value: every step returns another one. `write` returns the actions, none when the
status is as it was.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Self, assert_never

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Cause, Job, JobState, JobStatus, MemberCounts
from fairlead.api.jobs.placement import PreemptionKind
from fairlead.api.meta import Condition, find_condition, is_true, set_condition
from fairlead.api.values.times import format_micro_time, format_time, parse_time
from fairlead.decide.attempts.backoff import refusals_in_a_row
from fairlead.decide.attempts.end_reason import REFUSALS, EndReason
from fairlead.decide.attempts.notes import PendingEvent, event, is_left_to_array
from fairlead.decide.attempts.record import End, closed_record, with_attempt
from fairlead.decide.job_actions import EmitEvent, RecordHistory, WriteJobStatus
from fairlead.decide.reasons import Reason, Trait
from fairlead.decide.verdict import Fact, Verdict
from fairlead.model.gang.phase import Phase, phase_of

#: Of a job in these phases no place is kept any more.
_ENDS_MOVE = (Phase.FINISHED, Phase.STOPPING, Phase.CANCELLING, Phase.HELD)
#: Nodes to be emptied that a verdict names.
_NODES_SHOWN_MAX = 3


class ReleaseCause(Enum):
    """Why a placement is given back when no verdict says it; reason of the condition Placed."""

    FINISHED = "Finished"
    CANCELLED = "Cancelled"
    OUTDATED = "PlacementOutdated"  # other roles were placed, or it was given up already


class StatusDraft(msgspec.Struct, frozen=True):
    """The next status of `job`, which is as it was observed."""

    job: Job
    status: JobStatus
    now: float

    @classmethod
    def of(cls, job: Job, now: float) -> Self:
        """Begin with the status that the job has."""
        return cls(job, job.status, now)

    def set(self, **fields: Any) -> Self:
        """Set fields of the status."""
        return replace(self, status=replace(self.status, **fields))

    def state(self, state: JobState) -> Self:
        """Set the STATE column."""
        return self.set(state=state.value)

    def condition(self, type_: str, status: str, reason: str, message: str = "") -> Self:
        """Set a condition; its instant moves only when its status changes."""
        new = Condition(
            type=type_,
            status=status,
            reason=reason,
            message=message,
            observed_generation=self.job.metadata.generation or None,
            last_transition_time=format_time(self.now),
        )
        return self.set(conditions=set_condition(self.status.conditions, new))

    # Before an attempt

    def admitted(self, attempt: int) -> Self:
        """Let the job queue for the place of this attempt."""
        draft = self.condition(names.ADMITTED, "True", names.ADMITTED)
        counts, state = MemberCounts(self.job.member_count), JobState.WAITING.value
        return draft.set(attempt=attempt, restart_at=None, members=counts, state=state)

    def not_admitted(self, reason: Reason | EndReason, message: str) -> Self:
        """Give up the claim to a place: the scheduler releases the one that there is."""
        return self.condition(names.ADMITTED, "False", reason.value, message)

    # The record of the attempt

    def opened(self, record: Attempt) -> Self:
        """Open the record: pods may exist, and the placement must stay."""
        draft = replace(self, status=with_attempt(self.status, record))
        members = replace(self.job, status=draft.status).member_count
        counts = MemberCounts(members, members)
        if not is_true(self.status.conditions, names.RUNNING):
            draft = draft.condition(names.RUNNING, "False", "Starting")
        return draft.set(members=counts).state(JobState.STARTING)

    def started(self, seen_at: float | None = None, *, may_have_late_pods: bool = False) -> Self:
        """Record that all members run; a record that says so already stays as it is.

        `seen_at` is when the last of them was seen to start; None: now. `may_have_late_pods`: the
        answer to a creation of a pod of the attempt is missing.
        """
        at, draft = format_micro_time(self.now if seen_at is None else seen_at), self
        if not is_true(self.status.conditions, names.RUNNING):
            draft = draft.condition(names.RUNNING, "True", "AllMembersRun")
        record = self.status.current_attempt
        if record is not None and record.started_at is None:
            record = replace(record, started_at=at, may_have_late_pods=may_have_late_pods)
            status = with_attempt(draft.status, record)
            draft = replace(draft, status=status)
        return draft.set(started_at=self.status.started_at or at).state(JobState.RUNNING)

    def closed(self, end: End) -> Self:
        """Close the record of the current attempt, which must be open."""
        record = self.status.current_attempt
        assert record is not None
        status = with_attempt(
            self.status, closed_record(record, end, self.now, self.status.progress)
        )
        draft = replace(self, status=status)
        return draft.set(member_restarts=()).condition(names.RUNNING, "False", end.reason.value)

    def counted(self, cause: Cause | None, failures: int = 1) -> Self:
        """Add failures to the counter of their cause; None is counted nowhere."""
        if cause is None:
            return self
        if cause is Cause.USER:
            return self.set(user_failures=max(0, self.status.user_failures + failures))
        return self.set(infrastructure_failures=self.status.infrastructure_failures + failures)

    # The end of the job

    def failing(self, reason: str, message: str) -> Self:
        """Give the place up for good before the last pod is gone: the job fails once it is."""
        draft = self.condition(names.FAILURE_TARGET, "True", reason, message)
        return draft.set(nomination=None, preemption=None).state(JobState.STOPPING)

    def recovered(self) -> Self:
        """Take `failing` back. The place may be another job's by now, so it is gone."""
        draft = self.condition(names.FAILURE_TARGET, "False", "CauseRevised").set(placement=None)
        return draft.condition(names.PLACED, "False", ReleaseCause.OUTDATED.value)

    def finished(self, type_: str, reason: str, message: str) -> Self:
        """End the job for good; `type_` is Succeeded or Failed. See `released` for its place."""
        at = format_micro_time(self.now)
        draft = self.condition(type_, "True", reason, message)
        draft = draft.set(finished_at=at, restart_at=None, member_restarts=())
        return draft.state(JobState.SUCCEEDED if type_ == names.SUCCEEDED else JobState.FAILED)

    def released(self) -> Self:
        """Give back, with the write that ends the job, the place that it has.

        No capacity depends on it: what a finished job holds counts as free.
        """
        draft, old = self.set(placement=None, nomination=None, preemption=None), self.status
        draft = draft.set(former_places=())
        if old.placement is None and old.verdict is None:
            return draft
        text = "the nodes were given back" if old.placement is not None else ""
        draft = draft.condition(names.PLACED, "False", ReleaseCause.FINISHED.value, text)
        return draft.set(verdict=None)

    def write(
        self, *notes: PendingEvent, record: bool = False
    ) -> tuple[RecordHistory | WriteJobStatus | EmitEvent, ...]:
        """Return the actions that write the status and emit the notes; () when nothing is new.

        With `record`, the history comes first: once the status says that the job has ended,
        nothing looks at it again. The record keeps the last place.
        """
        job = self.job
        status = replace(
            self.status,
            observed_generation=job.metadata.generation,
            submitted_at=self.status.submitted_at or job.metadata.creation_timestamp,
        )
        if status == job.status:
            return ()
        kept = replace(status, placement=job.status.placement)
        recorded = (RecordHistory(replace(job, status=kept)),) if record else ()
        said = [note for note in notes if not is_left_to_array(job, note.reason.value)]
        return (*recorded, WriteJobStatus(job, status), *(event(job, note) for note in said))


def refusal_verdict(status: JobStatus) -> Verdict | None:
    """Return why the API server refuses the job's pods; None when it does not."""
    admitted = find_condition(status.conditions, names.ADMITTED)
    if admitted is None or admitted.status != "False":
        return None
    reason = Reason.of(admitted.reason)
    if reason is None or reason not in REFUSALS:
        return None
    return Verdict(reason, {"message": admitted.message})


def back_off_verdict(status: JobStatus) -> Verdict | None:
    """Return that a job waits for its restart without nodes; None when it does not."""
    admitted = find_condition(status.conditions, names.ADMITTED)
    if admitted is None or admitted.status != "False" or not status.restart_at:
        return None
    reason = Reason.of(admitted.reason)
    if reason is None or not reason.has(Trait.BACKS_OFF):
        return None
    return backing_off(status, reason)


def backing_off(status: JobStatus, reason: Reason) -> Verdict:
    """Return that a job, which must have a `restart_at`, waits until then for this reason."""
    record, until = status.current_attempt, status.restart_at
    assert until is not None
    facts: dict[str, Fact] = {"attempt": status.attempt + 1}
    if reason is Reason.PLACE_REFUSED:
        facts |= {
            "times": refusals_in_a_row(status.attempts),
            "until": format_time(parse_time(until)),
            "message": record.message if record is not None else "",
        }
        return Verdict(reason, facts)
    since = record.finished_at if record is not None else None
    seconds = parse_time(until) - parse_time(since or until)
    return Verdict(reason, facts | {"backoff_seconds": max(0, round(seconds))})


def is_given_up(status: JobStatus) -> bool:
    """True for the status that `given_up` writes."""
    failed = find_condition(status.conditions, names.FAILED)
    return failed is not None and failed.reason == EndReason.STATUS_REFUSED.value


def preempted_verdict(status: JobStatus) -> Verdict | None:
    """Return for what this job gives its place back; None when it does not."""
    found = status.preemption
    if found is None:
        return None
    job = f"{found.namespace}/{found.name}"
    match found.kind:
        case PreemptionKind.PREEMPT:
            return Verdict(Reason.PREEMPTED, {"job": job, "priority": found.priority})
        case PreemptionKind.MOVE:
            return Verdict(Reason.MOVED, {"job": job})
        case PreemptionKind.EMPTY:
            shown = ", ".join(found.empties[:_NODES_SHOWN_MAX])
            return Verdict(Reason.CONSOLIDATED, {"nodes": len(found.empties), "shown": shown})
        case _:
            assert_never(found.kind)


def is_moving(job: Job) -> bool:
    """True for a job that leaves its place, or has left it, for the one that is kept for it, and
    does not queue yet.
    """
    status, phase = job.status, phase_of(job)
    if status.nomination is None or phase in _ENDS_MOVE:
        return False
    if status.preemption is not None:
        return True
    admitted = find_condition(status.conditions, names.ADMITTED)
    has_left = status.placement is None and phase is Phase.UNADMITTED
    return has_left and admitted is not None and admitted.reason == Reason.PREEMPTED.value


def given_up(job: Job, now: float) -> StatusDraft:
    """Return the least change that ends a job whose status the API server refuses."""
    text = "The API server refuses the status of the job, which can go on no further"
    reason, draft = EndReason.STATUS_REFUSED, StatusDraft.of(job, now)
    record = job.status.current_attempt
    if record is not None and record.finished_at is None:
        draft = draft.closed(End(reason, text, Cause.INFRASTRUCTURE))
    draft = draft.condition(names.RUNNING, "False", reason.value)
    return draft.finished(names.FAILED, reason.value, text)
