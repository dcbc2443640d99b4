"""How an attempt may end, and whose failure each end is (docs/design/jobs.md, "Causes")."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Self

from fairlead.api.jobs.job import Attempt, Cause
from fairlead.decide.reasons import Reason


class EndReason(Enum):
    """How an attempt ended; the `reason` of `status.attempts[]`. `cause`: whose failure that is;
    None: it counts against no limit.
    """

    _value_: str
    cause: Cause | None
    #: The program ended by itself, or at its limit: it would have run for no longer.
    is_own: bool
    #: The API server refuses the pods, so the job waits without nodes, and for this.
    refused: Reason | None
    #: A node, or the scheduler that binds to it, did not take the pod that was meant for it.
    refuses_place: bool

    def __new__(
        cls, value: str, cause: Cause | None, is_own: bool = False, refused: Reason | None = None  # noqa: FBT001, FBT002
    ) -> Self:  # fmt: skip
        """Make a member."""
        reason = object.__new__(cls)
        reason._value_, reason.cause = value, cause
        reason.is_own = is_own or cause is Cause.USER
        reason.refuses_place = refused is Reason.PLACE_REFUSED
        reason.refused = None if reason.refuses_place else refused
        return reason

    SUCCEEDED = "Succeeded", None, True
    SUSPENDED = "Suspended", None
    REQUEUED = "Requeued", None
    CANCELLED = "Cancelled", None
    TIME_LIMIT = "TimeLimit", None, True
    SPEC_CHANGED = "SpecChanged", None
    EXIT_CODE = "ExitCode", Cause.USER
    CRASHED = "Crashed", Cause.USER
    OUT_OF_MEMORY = "OutOfMemory", Cause.USER
    DEADLINE_EXCEEDED = "DeadlineExceeded", Cause.USER
    START_FAILED = "StartFailed", Cause.USER
    POD_REJECTED = "PodRejected", Cause.USER
    POD_HELD_BACK = "PodHeldBack", None, False, Reason.POD_HELD_BACK
    QUOTA_EXCEEDED = "QuotaExceeded", None, False, Reason.QUOTA_EXCEEDED
    POLICY_REFUSED = "PolicyRefused", None, False, Reason.POLICY_REFUSED
    KILLED = "Killed", Cause.INFRASTRUCTURE
    STOPPED = "Stopped", Cause.INFRASTRUCTURE
    PEERS_UNREACHABLE = "PeersUnreachable", Cause.INFRASTRUCTURE
    START_TIMEOUT = "StartTimeout", Cause.INFRASTRUCTURE
    POD_DELETED = "PodDeleted", Cause.INFRASTRUCTURE
    POD_VANISHED = "PodVanished", Cause.INFRASTRUCTURE
    NAME_TAKEN = "NameTaken", Cause.INFRASTRUCTURE
    NODE_REFUSED = "NodeRefused", Cause.INFRASTRUCTURE, False, Reason.PLACE_REFUSED
    # Another scheduler was faster on a shared node: frequent, and no failure.
    NOT_BOUND = "NotBound", None, False, Reason.PLACE_REFUSED
    #: A node failed the test before the program started; or the test itself stopped the gang.
    PREFLIGHT_FAILED = "PreflightFailed", None
    PREFLIGHT_ERROR = "PreflightError", None
    PLACEMENT_LOST = "PlacementLost", Cause.INFRASTRUCTURE
    UNKNOWN = "Unknown", Cause.INFRASTRUCTURE
    DRAINED = "Drained", Cause.INFRASTRUCTURE
    NODE_LOST = "NodeLost", Cause.NODE
    NODE_SHUTDOWN = "NodeShutdown", Cause.NODE
    EVICTED = "Evicted", Cause.NODE
    #: The job gave its nodes back for one of higher priority.
    PREEMPTED = "Preempted", None
    #: Another scheduler, or the kubelet, made room for a pod of higher priority.
    POD_PREEMPTED = "PodPreempted", Cause.NODE
    #: The API server does not accept the status of the job.
    STATUS_REFUSED = "StatusRefused", Cause.INFRASTRUCTURE
    # Of groups of other tools' pods only, which have no limits on failures: their tools do.
    FAILED = "Failed", None, True
    #: So often not bound that the whole group waits again.
    WAITS_AGAIN = "WaitsAgain", None
    MEMBERS_GONE = "MembersGone", None
    DELETED = "Deleted", None


_BY_VALUE = {reason.value: reason for reason in EndReason}
#: Why a job waits whose pods the API server refuses.
REFUSALS = frozenset(reason.refused for reason in EndReason if reason.refused is not None)


def end_of(attempt: Attempt) -> EndReason | None:
    """Return how an attempt ended; None for one that has not, or in a way that only a newer version
    knows.
    """
    return _BY_VALUE.get(attempt.reason)


def refusal_of(attempt: Attempt) -> Reason | None:
    """Return why the API server refused the pods of an attempt; None where it did not."""
    end = end_of(attempt)
    return end.refused if end is not None else None


def is_own_end(attempt: Attempt) -> bool:
    """True for an attempt whose program ended by itself, or at its limit."""
    end = end_of(attempt)
    return attempt.cause is Cause.USER or (end is not None and end.is_own)


#: So many attempts in a row whose members all say that another one ended are the program's fault.
STOPPED_IN_A_ROW_MAX = 3


def cause_of(reason: EndReason, attempts: Sequence[Attempt]) -> Cause | None:
    """Return the cause of an end for `reason`; `attempts` are the earlier ones, in order.

    A program that hides how its members end would otherwise restart without end.
    """
    last = [attempt.reason for attempt in attempts[1 - STOPPED_IN_A_ROW_MAX :]]
    repeats = last.count(EndReason.STOPPED.value) == STOPPED_IN_A_ROW_MAX - 1
    return Cause.USER if reason is EndReason.STOPPED and repeats else reason.cause
