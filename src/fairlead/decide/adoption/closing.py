"""Closing the record of an attempt of an adopted group."""

from __future__ import annotations

from enum import Enum

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.job import Job, JobStatus
from fairlead.api.meta import Condition
from fairlead.decide.job_status import current_attempt, stamp, with_attempt, with_condition


class EndReason(Enum):
    """Why an attempt ended."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    NOT_BOUND = "NotBound"
    NODE_LOST = "NodeLost"
    #: So often not bound that the whole group waits anew.
    WAITS_AGAIN = "WaitsAgain"
    MEMBERS_GONE = "MembersGone"
    PLACEMENT_LOST = "PlacementLost"
    DELETED = "Deleted"


def closed(job: Job, now: float, reason: EndReason, message: str, *nodes_lost: str) -> JobStatus:
    """Return the status with the record of the current attempt closed, and Running False."""
    status = job.status
    attempt = current_attempt(status)
    assert attempt is not None
    ended = replace(
        attempt,
        finished_at=stamp(now),
        reason=reason.value,
        message=message,
        nodes_lost=tuple(sorted(dict.fromkeys((*attempt.nodes_lost, *nodes_lost)))),
    )
    condition = Condition(names.RUNNING, "False", reason.value, message)
    return with_condition(job, with_attempt(status, ended), now, condition)
