"""Notes: the events that go with a change of a job's status."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import array_reference_of
from fairlead.decide.job_actions import EmitEvent
from fairlead.decide.reasons import Reason


class EventReason(Enum):
    """The `reason` of an event."""

    ADMITTED = "Admitted"
    HELD = "Held"
    RELEASED = "Released"
    PREFLIGHT = "Preflight"
    PREFLIGHT_FAILED = "PreflightFailed"
    STARTED = "Started"
    MEMBER_FAILED = "MemberFailed"
    MEMBER_LOST = "MemberLost"
    ATTEMPT_FAILED = "AttemptFailed"
    MEMBER_RESTARTED = "MemberRestarted"
    MEMBER_SLOW = "MemberSlow"
    CAUSE_REVISED = "CauseRevised"
    STOPPING = "Stopping"
    PREEMPTED = "Preempted"
    PODS_REFUSED = "PodsRefused"
    NODES_RELEASED = "NodesReleased"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    #: A target of spec.notify was not reached.
    NOT_NOTIFIED = "NotNotified"
    #: Of the idle policy: it warns, ends, and reports what it does not do.
    IDLE = "Idle"
    IDLE_ENDED = "IdleEnded"
    IDLE_REPORTED = "IdleReported"
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
        EventReason.PREFLIGHT_FAILED,
        EventReason.PODS_REFUSED,
        EventReason.NODES_RELEASED,
        EventReason.PREEMPTED,
        EventReason.MEMBER_RESTARTED,
        EventReason.MEMBER_SLOW,
        EventReason.FAILED,
        EventReason.NOT_NOTIFIED,
        EventReason.IDLE,
        EventReason.IDLE_ENDED,
        EventReason.WAITS_AGAIN,
        EventReason.NOT_BOUND,
        EventReason.REPLACED,
        EventReason.IGNORED,
    )
)


#: What each element of an array goes through where all is well.
_OF_EVERY_ELEMENT = frozenset(
    (
        Reason.PLACED.value,
        EventReason.ADMITTED.value,
        EventReason.STARTED.value,
        EventReason.SUCCEEDED.value,
    )
)


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """A pending event; the message is in the past tense, with the facts."""

    reason: EventReason
    message: str


def is_left_to_array(job: Job, reason: str) -> bool:
    """True for an event of an element that says no more than the status of its array.

    An array counts its elements, and the history has how each of them went: of a million that go
    well, three million events would say nothing else.
    """
    return reason in _OF_EVERY_ELEMENT and array_reference_of(job.metadata) is not None


def event(job: Job, note: PendingEvent) -> EmitEvent:
    """Return the event of a note."""
    kind = "Warning" if note.reason in _WARNINGS else "Normal"
    return EmitEvent(job, kind, note.reason.value, note.message)
