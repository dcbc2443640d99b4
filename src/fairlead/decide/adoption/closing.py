"""Closing the record of an attempt of an adopted group."""

from __future__ import annotations

from enum import Enum

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.job import JobStatus
from fairlead.api.meta import Condition
from fairlead.decide.adoption.view import GroupContext
from fairlead.decide.attempts.job_status import stamp, with_attempt, with_condition


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


def closed(group: GroupContext, reason: EndReason, message: str, *nodes_lost: str) -> JobStatus:
    """Return the status with the record of the current attempt closed, and Running False."""
    job, now, status = group.job, group.now, group.job.status
    attempt = status.current_attempt
    assert attempt is not None
    newest = max((m.pod.metadata.version for m in group.view.members.values()), default=0)
    ended = replace(
        attempt,
        finished_at=stamp(now),
        reason=reason.value,
        message=message,
        nodes_lost=tuple(sorted(dict.fromkeys((*attempt.nodes_lost, *nodes_lost)))),
        pods_version=str(newest) if newest else "",
    )
    condition = Condition(names.RUNNING, "False", reason.value, message)
    return with_condition(job, with_attempt(status, ended), now, condition)
