"""What comes after the end of an attempt: limits and back-off, read from the status alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from fairlead.api.jobs.job import Attempt, Cause, Job, RestartPolicy
from fairlead.api.meta import find_condition
from fairlead.api.names import FAILURE_TARGET, STOPPED_EARLY
from fairlead.api.values.bounds import BACKOFF_SECONDS_MAX
from fairlead.decide.attempts.backoff import doubled
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.jobs.policy import JobsPolicy


class FailReason(Enum):
    """Why a job failed for good; the `reason` of the condition Failed."""

    CANCELLED = "Cancelled"
    DEPENDENCY_FAILED = "DependencyFailed"
    ELEMENT_ENDED = "ElementEnded"
    DEADLINE_MISSED = "DeadlineMissed"
    TIME_LIMIT = "TimeLimit"
    MEMBER_FAILED = "MemberFailed"
    RESTART_LIMIT = "RestartLimit"
    POD_REJECTED = "PodRejected"


@dataclass(frozen=True, slots=True)
class Fail:
    """The job ends."""

    reason: FailReason
    message: str


@dataclass(frozen=True, slots=True)
class HoldJob:
    """The job waits, without pods and place, until it is released."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The next attempt comes, after the back-off."""


Next = Fail | HoldJob | Retry


def is_cancelled(job: Job) -> bool:
    """True when the job is to stop for good: cancelled, or deleted."""
    return job.spec.cancel or job.metadata.deletion_timestamp is not None


def cancel_message(job: Job) -> str:
    """Return who stopped it."""
    if job.metadata.deletion_timestamp:
        return "the job was deleted"
    return job.metadata.annotations.get(STOPPED_EARLY, "")[:500] or "cancelled by its user"


def next_step(job: Job, ended: Attempt, policy: JobsPolicy) -> Next:
    """Return what follows the end of the current attempt; a pure function of the job.

    That it fails is final once it is written, since the place is given up with it.
    """
    target = find_condition(job.status.conditions, FAILURE_TARGET)
    if target is not None and target.status == "True":
        reasons = {reason.value: reason for reason in FailReason}
        return Fail(reasons.get(target.reason, FailReason.MEMBER_FAILED), target.message)
    if is_cancelled(job):
        return Fail(FailReason.CANCELLED, cancel_message(job))
    if ended.reason == EndReason.CANCELLED.value:  # taking `cancel` back comes too late
        return Fail(FailReason.CANCELLED, ended.message)
    if ended.reason == EndReason.TIME_LIMIT.value:
        return Fail(FailReason.TIME_LIMIT, ended.message)
    if ended.reason == EndReason.POD_REJECTED.value:  # the next attempt's pods would be the same
        return Fail(FailReason.POD_REJECTED, f"the API refuses the job's pods: {ended.message}")
    if ended.cause is not None:
        failed = _limit_reached(job, policy, ended.cause, ended.message)
        if failed is not None:
            return failed
    return HoldJob() if job.spec.suspend else Retry()


def infrastructure_limit(job: Job, policy: JobsPolicy) -> int:
    """Return how many failures of the infrastructure the job may have: the admin's bound holds."""
    return min(job.spec.restart.infrastructure_limit, policy.infrastructure_limit_max)


def _limit_reached(job: Job, policy: JobsPolicy, cause: Cause, message: str) -> Fail | None:
    restart, status = job.spec.restart, job.status
    if restart.policy is RestartPolicy.NEVER:
        return Fail(FailReason.MEMBER_FAILED, message)
    match cause:
        case Cause.USER:
            count, limit, whose = status.user_failures, restart.limit, "its own program"
        case Cause.NODE | Cause.INFRASTRUCTURE:
            count, limit = status.infrastructure_failures, infrastructure_limit(job, policy)
            whose = "the infrastructure"
        case _:
            assert_never(cause)
    if count <= limit:
        return None
    if limit == 0:
        return Fail(FailReason.MEMBER_FAILED, message)
    allowed = "1 restart is" if limit == 1 else f"{limit} restarts are"
    text = f"{message}; this is failure {count} of {whose}, and {allowed} allowed"
    return Fail(FailReason.RESTART_LIMIT, text)


def backoff_seconds(job: Job, cause: Cause, user_failures: int) -> int:
    """Return the wait before the next attempt (or member).

    It doubles with the user's own failures up to its cap; for others' it is the first step, since
    nothing is gained by letting the gang's healthy nodes stand idle.
    """
    restart = job.spec.restart
    longest = min(restart.backoff_seconds_max, BACKOFF_SECONDS_MAX)
    first = min(restart.backoff_seconds, longest)
    if cause is not Cause.USER:
        return first
    return int(doubled(restart.backoff_seconds, user_failures - 1, longest))
