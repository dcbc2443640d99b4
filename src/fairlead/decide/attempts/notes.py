"""Notes: the events that go with a change of a job's status."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fairlead.api.job import Job
from fairlead.decide.job_actions import EmitEvent


class EventReason(Enum):
    """The `reason` of an event."""

    ADMITTED = "Admitted"
    HELD = "Held"
    RELEASED = "Released"
    STARTED = "Started"
    MEMBER_FAILED = "MemberFailed"
    MEMBER_LOST = "MemberLost"
    ATTEMPT_FAILED = "AttemptFailed"
    MEMBER_RESTARTED = "MemberRestarted"
    CAUSE_REVISED = "CauseRevised"
    STOPPING = "Stopping"
    PREEMPTED = "Preempted"
    PODS_REFUSED = "PodsRefused"
    NODES_RELEASED = "NodesReleased"
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
    REPLACED = "Replaced"
    IGNORED = "SpecIgnored"


_WARNINGS = frozenset(
    (
        EventReason.MEMBER_FAILED,
        EventReason.MEMBER_LOST,
        EventReason.ATTEMPT_FAILED,
        EventReason.PODS_REFUSED,
        EventReason.NODES_RELEASED,
        EventReason.PREEMPTED,
        EventReason.MEMBER_RESTARTED,
        EventReason.FAILED,
        EventReason.WAITS_AGAIN,
        EventReason.NOT_BOUND,
        EventReason.REPLACED,
        EventReason.IGNORED,
    )
)


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """A pending event; the message is in the past tense, with the facts."""

    reason: EventReason
    message: str


def event(job: Job, note: PendingEvent) -> EmitEvent:
    """Return the event of a note."""
    kind = "Warning" if note.reason in _WARNINGS else "Normal"
    return EmitEvent(job, kind, note.reason.value, note.message)
