"""How an attempt may end, and whose failure each end is (docs/design/jobs.md, "Causes")."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from fairlead.api.job import Attempt, Cause


class EndReason(Enum):
    """How an attempt ended; the `reason` of `status.attempts[]`."""

    SUCCEEDED = "Succeeded"
    SUSPENDED = "Suspended"
    CANCELLED = "Cancelled"
    TIME_LIMIT = "TimeLimit"
    SPEC_CHANGED = "SpecChanged"
    EXIT_CODE = "ExitCode"
    CRASHED = "Crashed"
    OUT_OF_MEMORY = "OutOfMemory"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    START_FAILED = "StartFailed"
    POD_REJECTED = "PodRejected"
    POD_HELD_BACK = "PodHeldBack"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POLICY_REFUSED = "PolicyRefused"
    KILLED = "Killed"
    STOPPED = "Stopped"
    PEERS_UNREACHABLE = "PeersUnreachable"
    START_TIMEOUT = "StartTimeout"
    POD_DELETED = "PodDeleted"
    POD_VANISHED = "PodVanished"
    NAME_TAKEN = "NameTaken"
    NODE_REFUSED = "NodeRefused"
    NOT_BOUND = "NotBound"
    PLACEMENT_LOST = "PlacementLost"
    UNKNOWN = "Unknown"
    NODE_LOST = "NodeLost"
    NODE_SHUTDOWN = "NodeShutdown"
    EVICTED = "Evicted"
    DRAINED = "Drained"
    #: The job gave its nodes back for one of higher priority.
    PREEMPTED = "Preempted"
    #: Another scheduler, or the kubelet, made room for a pod of higher priority.
    POD_PREEMPTED = "PodPreempted"
    #: The API server does not accept the status of the job.
    STATUS_REFUSED = "StatusRefused"
    # Of groups of other tools' pods only.
    FAILED = "Failed"
    #: So often not bound that the whole group waits again.
    WAITS_AGAIN = "WaitsAgain"
    MEMBERS_GONE = "MembersGone"
    DELETED = "Deleted"


#: The cause of each end; None: it counts against no limit.
CAUSES: dict[EndReason, Cause | None] = {
    EndReason.SUCCEEDED: None,
    EndReason.SUSPENDED: None,
    EndReason.CANCELLED: None,
    EndReason.TIME_LIMIT: None,
    EndReason.SPEC_CHANGED: None,
    EndReason.EXIT_CODE: Cause.USER,
    EndReason.CRASHED: Cause.USER,
    EndReason.OUT_OF_MEMORY: Cause.USER,
    EndReason.DEADLINE_EXCEEDED: Cause.USER,
    EndReason.START_FAILED: Cause.USER,
    EndReason.POD_REJECTED: Cause.USER,
    EndReason.POD_HELD_BACK: None,
    EndReason.QUOTA_EXCEEDED: None,
    EndReason.POLICY_REFUSED: None,
    EndReason.KILLED: Cause.INFRASTRUCTURE,
    EndReason.STOPPED: Cause.INFRASTRUCTURE,
    EndReason.PEERS_UNREACHABLE: Cause.INFRASTRUCTURE,
    EndReason.START_TIMEOUT: Cause.INFRASTRUCTURE,
    EndReason.POD_DELETED: Cause.INFRASTRUCTURE,
    EndReason.POD_VANISHED: Cause.INFRASTRUCTURE,
    EndReason.NAME_TAKEN: Cause.INFRASTRUCTURE,
    EndReason.NODE_REFUSED: Cause.INFRASTRUCTURE,
    # Another scheduler was faster on a shared node: frequent, and no failure.
    EndReason.NOT_BOUND: None,
    EndReason.PLACEMENT_LOST: Cause.INFRASTRUCTURE,
    EndReason.UNKNOWN: Cause.INFRASTRUCTURE,
    EndReason.DRAINED: Cause.INFRASTRUCTURE,
    EndReason.NODE_LOST: Cause.NODE,
    EndReason.NODE_SHUTDOWN: Cause.NODE,
    EndReason.EVICTED: Cause.NODE,
    EndReason.PREEMPTED: None,
    EndReason.POD_PREEMPTED: Cause.NODE,
    EndReason.STATUS_REFUSED: Cause.INFRASTRUCTURE,
    # Adopted groups have no limits on failures: their tools do.
    EndReason.FAILED: None,
    EndReason.WAITS_AGAIN: None,
    EndReason.MEMBERS_GONE: None,
    EndReason.DELETED: None,
}

#: So many attempts in a row whose members all say that another one ended are the program's fault.
STOPPED_IN_A_ROW_MAX = 3


def cause_of(reason: EndReason, attempts: Sequence[Attempt]) -> Cause | None:
    """Return the cause of an end for `reason`; `attempts` are the earlier ones, in order.

    A program that hides how its members end would otherwise restart without end.
    """
    last = [attempt.reason for attempt in attempts[1 - STOPPED_IN_A_ROW_MAX :]]
    repeats = last.count(EndReason.STOPPED.value) == STOPPED_IN_A_ROW_MAX - 1
    return Cause.USER if reason is EndReason.STOPPED and repeats else CAUSES[reason]
