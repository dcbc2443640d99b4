"""Which notices a job owes to its targets, and which of them are still to be delivered.

They follow from the status, which outlives every process: nothing is lost with a controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job, JobState
from fairlead.api.jobs.notify import (
    NOTIFY_MAX,
    NoticeEvent,
    NoticeRecord,
    NoticeState,
    Notify,
)
from fairlead.api.meta import is_true
from fairlead.decide.attempts.end_reason import EndReason

#: An ended job that would be deleted waits at most so long for its notices.
HOLD_SECONDS_MAX = 7_200.0


@dataclass(frozen=True, slots=True, order=True)
class Occurrence:
    """What happened, in which attempt."""

    attempt: int
    event: NoticeEvent


@dataclass(frozen=True, slots=True)
class DueNotice:
    """A notice that is not settled, and what is recorded of it; None: nothing yet."""

    index: int
    target: Notify
    occurrence: Occurrence
    record: NoticeRecord | None


def occurrences(job: Job, target: Notify) -> Iterator[Occurrence]:
    """Yield what a target is notified of, oldest first."""
    status = job.status
    if NoticeEvent.START in target.on and status.started_at is not None:
        yield Occurrence(1, NoticeEvent.START)
    if NoticeEvent.PREEMPT in target.on:
        for attempt in status.attempts:
            if attempt.reason == EndReason.PREEMPTED.value:
                yield Occurrence(attempt.number, NoticeEvent.PREEMPT)
    if NoticeEvent.IDLE in target.on and status.idle is not None:
        yield Occurrence(status.idle.attempt, NoticeEvent.IDLE)
    if not job.is_finished:
        return
    has_failed = is_true(status.conditions, names.FAILED)
    if has_failed and status.state != JobState.CANCELLED.value and NoticeEvent.FAIL in target.on:
        yield Occurrence(status.attempt, NoticeEvent.FAIL)
    elif NoticeEvent.END in target.on:
        yield Occurrence(status.attempt, NoticeEvent.END)


def due_notices(job: Job) -> Iterator[DueNotice]:
    """Yield the notice that each target is to get next; a target gets them one after the other."""
    records = {(each.target, each.event): each for each in job.status.notices}
    for index, target in enumerate(job.spec.notify[:NOTIFY_MAX]):
        for occurrence in occurrences(job, target):
            record = records.get((index, occurrence.event))
            if record is not None and record.attempt > occurrence.attempt:
                continue  # settled before a later one was begun
            if record is None or record.attempt < occurrence.attempt:
                yield DueNotice(index, target, occurrence, None)
                break
            if record.state is NoticeState.SENDING:
                yield DueNotice(index, target, occurrence, record)
                break


def held_until(job: Job, ended_at: float) -> float | None:
    """Return until when an ended job is kept for its notices; None: it owes none."""
    is_owed = bool(job.spec.notify) and next(due_notices(job), None) is not None
    return ended_at + HOLD_SECONDS_MAX if is_owed else None
