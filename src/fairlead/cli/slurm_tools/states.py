"""Slurm's states of jobs and its reasons for waiting, and what follows from Fairlead's own."""

from __future__ import annotations

from enum import Enum
from typing import Self

from fairlead.api import names
from fairlead.api.jobs.job import Cause, Job, JobState
from fairlead.api.meta import find_condition
from fairlead.cli.views.jobs import latest_attempt, state_of
from fairlead.decide.attempts.end_reason import EndReason, end_of
from fairlead.decide.jobs.restart import FailReason
from fairlead.decide.reasons import Reason, Trait


class SlurmState(Enum):
    """A state of a job: its name, its code of two letters, and whether it is an end.

    Source: the manual page squeue(1), "JOB STATE CODES".
    """

    _value_: str
    code: str
    is_end: bool

    def __new__(cls, value: str, code: str, is_end: bool = False) -> Self:  # noqa: FBT001, FBT002
        """Make a member."""
        state = object.__new__(cls)
        state._value_, state.code, state.is_end = value, code, is_end
        return state

    PENDING = "PENDING", "PD"
    CONFIGURING = "CONFIGURING", "CF"
    RUNNING = "RUNNING", "R"
    SUSPENDED = "SUSPENDED", "S"
    COMPLETING = "COMPLETING", "CG"
    STOPPED = "STOPPED", "ST"
    SIGNALING = "SIGNALING", "SI"
    STAGE_OUT = "STAGE_OUT", "SO"
    REQUEUED = "REQUEUED", "RQ"
    REQUEUE_FED = "REQUEUE_FED", "RF"
    REQUEUE_HOLD = "REQUEUE_HOLD", "RH"
    RESIZING = "RESIZING", "RS"
    RESV_DEL_HOLD = "RESV_DEL_HOLD", "RD"
    SPECIAL_EXIT = "SPECIAL_EXIT", "SE"
    REVOKED = "REVOKED", "RV"
    COMPLETED = "COMPLETED", "CD", True
    CANCELLED = "CANCELLED", "CA", True
    FAILED = "FAILED", "F", True
    TIMEOUT = "TIMEOUT", "TO", True
    NODE_FAIL = "NODE_FAIL", "NF", True
    PREEMPTED = "PREEMPTED", "PR", True
    BOOT_FAIL = "BOOT_FAIL", "BF", True
    DEADLINE = "DEADLINE", "DL", True
    OUT_OF_MEMORY = "OUT_OF_MEMORY", "OOM", True


_BY_NAME = {name: state for state in SlurmState for name in (state.value, state.code)}

_LIVE = {
    JobState.HELD: SlurmState.PENDING,
    JobState.WAITING: SlurmState.PENDING,
    JobState.STARTING: SlurmState.CONFIGURING,
    JobState.RUNNING: SlurmState.RUNNING,
    JobState.STOPPING: SlurmState.COMPLETING,
    JobState.SUCCEEDED: SlurmState.COMPLETED,
    JobState.CANCELLED: SlurmState.CANCELLED,
}


def parse_state(text: str) -> SlurmState | None:
    """Return the state of a name or a code in any case; None for one that does not exist."""
    return _BY_NAME.get(text.upper())


def slurm_state(job: Job) -> SlurmState:
    """Return the state of a job. One that begins again is pending, or configuring if it has a
    place.
    """
    state = JobState(state_of(job))
    if state is JobState.FAILED:
        return _failed(job)
    if state is JobState.RESTARTING:
        return SlurmState.CONFIGURING if job.status.placement is not None else SlurmState.PENDING
    if state is JobState.CANCELLED and _ended_by(job) == FailReason.DEADLINE_MISSED.value:
        return SlurmState.DEADLINE
    return _LIVE[state]


def _ended_by(job: Job) -> str:
    failed = find_condition(job.status.conditions, names.FAILED)
    return failed.reason if failed is not None else ""


def _failed(job: Job) -> SlurmState:
    attempt = latest_attempt(job)
    ended = None if attempt is None else end_of(attempt)
    match ended:
        case EndReason.TIME_LIMIT | EndReason.DEADLINE_EXCEEDED:
            return SlurmState.TIMEOUT
        case EndReason.OUT_OF_MEMORY:
            return SlurmState.OUT_OF_MEMORY
        case EndReason.PREEMPTED | EndReason.POD_PREEMPTED:
            return SlurmState.PREEMPTED
        case _:
            is_lost = ended is not None and ended.cause is Cause.NODE
            return SlurmState.NODE_FAIL if is_lost else SlurmState.FAILED


#: Slurm's word for a reason; where there is none, Fairlead's own stands.
_REASONS = {
    Reason.HELD: "JobHeldUser",
    Reason.DEPENDENCY: "Dependency",
    Reason.DEPENDENCY_MISSING: "Dependency",
    Reason.DEPENDENCY_FAILED: "DependencyNeverSatisfied",
    Reason.DEPENDENCY_CYCLE: "DependencyNeverSatisfied",
    Reason.PENDING_EVALUATION: "None",
    Reason.QUOTA_EXCEEDED: "AssocGrpJobsLimit",
    Reason.BACKING_OFF: "BeginTime",
    Reason.NOT_BEFORE: "BeginTime",
    Reason.RESERVATION_ENDED: "Reservation",
    Reason.AWAITING_RESERVATION: "Reservation",
    Reason.MAINTENANCE: "ReqNodeNotAvail",
    Reason.NODES_UNAVAILABLE: "ReqNodeNotAvail",
}


def waiting_reason(job: Job) -> str:
    """Return why a job waits, in one word; "None" where nothing is said yet."""
    verdict = job.status.verdict
    admitted = find_condition(job.status.conditions, names.ADMITTED)
    said = verdict.reason if verdict is not None else ""
    if admitted is not None and admitted.status != "True":
        said = admitted.reason
    reason = Reason.of(said)
    if reason is None:
        return said or "None"
    if reason in _REASONS:
        return _REASONS[reason]
    if reason.has(Trait.HAS_JOB_AHEAD):
        return "Priority"
    return "Resources" if reason.has(Trait.NODES_HELP) else reason.value
