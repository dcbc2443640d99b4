"""Writing a job's status: what always goes with a write, and the events that tell people of it.

Shared by the parts of the core that end in a job's status, whoever made the pods.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.bounds import ATTEMPTS_MAX
from fairlead.api.job import Attempt, Cause, Job, JobState, JobStatus, MemberCounts
from fairlead.api.meta import Condition, find_condition, set_condition
from fairlead.api.times import format_micro_time, format_time, parse_time
from fairlead.decide.job_actions import EmitEvent, JobAction, RecordHistory, WriteJobStatus
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict


class EventReason(Enum):
    """What people are told; the `reason` of events."""

    ADMITTED = "Admitted"
    HELD = "Held"
    RELEASED = "Released"
    STARTED = "Started"
    MEMBER_LOST = "MemberLost"
    MEMBER_RESTARTED = "MemberRestarted"
    CAUSE_REVISED = "CauseRevised"
    STOPPING = "Stopping"
    PODS_REFUSED = "PodsRefused"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    # Of groups of other tools' pods only.
    WAITS_AGAIN = "WaitsAgain"
    NOT_BOUND = "NotBound"
    MOVED = "Moved"
    NO_GANG = "NotAGang"
    SIZE_UNKNOWN = "GroupSizeUnknown"


_WARNINGS = frozenset(
    (
        EventReason.MEMBER_LOST,
        EventReason.PODS_REFUSED,
        EventReason.MEMBER_RESTARTED,
        EventReason.FAILED,
        EventReason.WAITS_AGAIN,
        EventReason.NOT_BOUND,
    )
)


_REFUSALS = frozenset(
    reason.value for reason in (Reason.QUOTA_EXCEEDED, Reason.POLICY_REFUSED, Reason.POD_HELD_BACK)
)


@dataclass(frozen=True, slots=True)
class Note:
    """An event to be: past tense, with the facts."""

    reason: EventReason
    message: str


def with_attempt(status: JobStatus, attempt: Attempt) -> JobStatus:
    """Return the status with this record in the place of its number, or appended."""
    kept = tuple(a for a in status.attempts if a.number != attempt.number)
    return replace(status, attempts=(*kept, attempt)[-ATTEMPTS_MAX:])


def template_digest(job: Job) -> str:
    """Return a digest of what pods are made from, as far as the read model knows it."""
    data = msgspec.json.encode((job.spec.roles, job.spec.checkpoint), order="sorted")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def new_record(job: Job, now: float) -> Attempt:
    """Return the record with which the job's current attempt begins."""
    progress = job.status.progress
    return Attempt(
        number=job.status.attempt,
        begun_at=stamp(now),
        resumed_from_step=progress.checkpoint_step if progress else None,
        template_digest=template_digest(job),
    )


def with_begun(job: Job, status: JobStatus, attempt: Attempt) -> JobStatus:
    """Return the status with the record opened: its pods may exist, and the place may not go."""
    running = Condition(names.RUNNING, "False", "Starting")
    new = with_condition(job, with_attempt(status, attempt), parse_time(attempt.begun_at), running)
    new = replace(new, members=MemberCounts(job.member_count, job.member_count))
    return with_state(new, JobState.STARTING)


def with_condition(job: Job, status: JobStatus, now: float, condition: Condition) -> JobStatus:
    """Return the status with the condition set, its instant and generation filled in."""
    new = replace(
        condition,
        observed_generation=job.metadata.generation or None,
        last_transition_time=format_time(now),
    )
    return replace(status, conditions=set_condition(status.conditions, new))


def with_state(status: JobStatus, state: JobState) -> JobStatus:
    """Return the status with the STATE column set."""
    return replace(status, state=state.value)


def write(job: Job, status: JobStatus, *notes: Note, record: bool = False) -> tuple[JobAction, ...]:
    """Return the actions that write the status and then tell people; () when nothing is new.

    With `record`, the history comes first: once the status says that the job has ended, nothing
    looks at it again.
    """
    status = replace(
        status,
        observed_generation=job.metadata.generation,
        submitted_at=status.submitted_at or job.metadata.creation_timestamp,
    )
    if status == job.status:
        return ()
    actions: list[JobAction] = [RecordHistory(replace(job, status=status))] if record else []
    actions.append(WriteJobStatus(job, status))
    actions += [event(job, note) for note in notes]
    return tuple(actions)


def refusal_verdict(status: JobStatus) -> Verdict | None:
    """Return why the API server refuses the job's pods; None when it does not."""
    admitted = find_condition(status.conditions, names.ADMITTED)
    if admitted is None or admitted.status != "False" or admitted.reason not in _REFUSALS:
        return None
    return Verdict(Reason(admitted.reason), {"message": admitted.message})


def event(job: Job, note: Note) -> EmitEvent:
    """Return the event of a note."""
    kind = "Warning" if note.reason in _WARNINGS else "Normal"
    return EmitEvent(job, kind, note.reason.value, note.message)


def given_up(job: Job, now: float) -> JobStatus:
    """Return the least that ends a job whose status the API does not take otherwise."""
    text = "The API server refuses the status of the job, which can go on no further"
    status, reason = job.status, "StatusRefused"
    open_ = status.current_attempt
    if open_ is not None and open_.finished_at is None:
        closed = replace(
            open_, finished_at=stamp(now), cause=Cause.INFRASTRUCTURE, reason=reason, message=text
        )
        status = with_attempt(status, closed)
    status = with_condition(job, status, now, Condition(names.RUNNING, "False", reason))
    status = with_condition(job, status, now, Condition(names.FAILED, "True", reason, text))
    return with_state(replace(status, restart_at=None, finished_at=stamp(now)), JobState.FAILED)


def stamp(now: float) -> str:
    """Return an instant as Fairlead's own fields hold it, to the microsecond."""
    return format_micro_time(now)


def earliest(*instants: float | None) -> float | None:
    """Return the earliest instant that there is."""
    return min((at for at in instants if at is not None), default=None)


def plural(count: int, word: str) -> str:
    """Return e.g. "1 member", "4 members"."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
