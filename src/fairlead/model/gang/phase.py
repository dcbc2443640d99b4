"""The phase of a job: one function of the Job object, from which every part of Fairlead derives.

The jobs and adoption controllers choose what to do by it, the scheduler whether to place the job,
release its nodes or leave it alone, the fence which jobs a former leader may still place, and
`fairlead why` what to say. docs/design/jobs.md shows the table for people.
"""

from __future__ import annotations

from enum import Enum

from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition, find_condition, is_true
from fairlead.api.names import ADMITTED, FAILURE_TARGET


class Phase(Enum):
    """Where a job is in its life; a job is in exactly one phase."""

    UNADMITTED = "Unadmitted"
    QUEUED = "Queued"
    PLACED = "Placed"
    ACTIVE = "Active"
    BETWEEN_ATTEMPTS = "BetweenAttempts"
    REPAIRING = "Repairing"
    STOPPING = "Stopping"
    HELD = "Held"
    CANCELLING = "Cancelling"
    FINISHED = "Finished"


#: The scheduler may write a placement in these phases, and in no other.
PLACEABLE = (Phase.QUEUED, Phase.REPAIRING)
#: A job in these phases has no use for a placement: the scheduler releases one that it has.
RELEASABLE = (Phase.UNADMITTED, Phase.HELD, Phase.CANCELLING, Phase.FINISHED)
#: The record of the current attempt is open: pods may exist, and the placement must stay.
OPEN = (Phase.ACTIVE, Phase.STOPPING)


def phase_of(job: Job) -> Phase:
    """Return the phase of a job; the first row that matches counts.

    "Record" is that of the current attempt in `status.attempts`, "placement" is
    `status.placement`.

    | Phase           | When                                                            |
    | --------------- | --------------------------------------------------------------- |
    | Finished        | Succeeded or Failed is True                                     |
    | Stopping        | the record is open; `cancel`, `suspend`, or the job is deleted  |
    | Active          | the record is open                                              |
    | Cancelling      | `cancel`, or the job is deleted                                 |
    | Held            | `suspend`                                                       |
    | Unadmitted      | attempt 0, or Admitted is False (of a group: not True of this spec) |
    | BetweenAttempts | the record is closed                                            |
    | Queued          | no placement                                                    |
    | Placed          | the placement is of the current attempt                         |
    | Repairing       | the placement is of another attempt                             |
    """
    status, spec = job.status, job.spec
    if job.is_finished:
        return Phase.FINISHED
    record = status.current_attempt
    is_cancelled = spec.cancel or job.metadata.deletion_timestamp is not None
    if record is not None and record.finished_at is None:
        return Phase.STOPPING if is_cancelled or spec.suspend else Phase.ACTIVE
    if is_cancelled:
        return Phase.CANCELLING
    if spec.suspend:
        return Phase.HELD
    if not _is_admitted(job):
        return Phase.UNADMITTED
    if record is not None:
        return Phase.BETWEEN_ATTEMPTS
    if status.placement is None:
        return Phase.QUEUED
    is_current = status.placement.attempt == status.attempt
    return Phase.PLACED if is_current else Phase.REPAIRING


def is_new(job: Job) -> bool:
    """True for a job of ours about which nobody has decided yet whether it may queue.

    The scheduler may place it with the write that admits it (`controllers/admissions.py`).
    """
    status = job.status
    is_judged = find_condition(status.conditions, ADMITTED) is not None
    return (
        status.attempt == 0
        and not is_judged
        and job.spec.adopts is None
        and (phase_of(job) is Phase.UNADMITTED)
    )


def is_failing(job: Job) -> bool:
    """True for a job whose last attempt is closed for good: its placement holds nothing.

    It stays in the status for the record. Pods that the job still has count as pods, so one that
    cannot go holds its own node, and not its gang's.
    """
    return is_true(job.status.conditions, FAILURE_TARGET)


def is_current(job: Job, condition: Condition) -> bool:
    """True for a condition that is about the spec as it is; one without a generation counts so."""
    return condition.observed_generation in (None, job.metadata.generation)


def _is_admitted(job: Job) -> bool:
    """True for a job that may hold nodes.

    Admitted is False while the API server refuses the job's pods, and after a hold. A group of
    other tools' pods is admitted only while it is complete, so it must say True; and for the spec
    that was compared with the pods: whoever changes it later waits until that is done again.
    """
    admitted = find_condition(job.status.conditions, ADMITTED)
    if job.spec.adopts is not None:
        if admitted is None or admitted.status != "True":
            return False
        return job.status.attempt > 0 and is_current(job, admitted)
    return job.status.attempt > 0 and (admitted is None or admitted.status != "False")
