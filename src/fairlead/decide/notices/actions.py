"""The closed set of the notices controller's actions, and how a try to send ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Self, TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.notify import NoticeRecord, Notify


class TryReason(Enum):
    """How a try ended. `is_final`: no further one can mend it."""

    _value_: str
    is_final: bool

    def __new__(cls, value: str, is_final: bool = False) -> Self:  # noqa: FBT001, FBT002
        """Make a member."""
        reason = object.__new__(cls)
        reason._value_, reason.is_final = value, is_final
        return reason

    DELIVERED = "Delivered", True
    #: The cluster serves no such target.
    NOT_OFFERED = "NotOffered", True
    #: Nothing is sent, as the settings ask for a dry run.
    DRY_RUN = "DryRun", True
    #: The address, or the scheme, is not one that notices are sent to.
    ADDRESS_REFUSED = "AddressRefused", True
    BAD_URL = "BadUrl", True
    #: The Secret, or its key, is not there yet, or may not be read.
    SECRET_MISSING = "SecretMissing"  # noqa: S105
    NOT_RESOLVED = "NotResolved"
    UNREACHABLE = "Unreachable"
    TLS_FAILED = "TlsFailed"
    TIMEOUT = "Timeout"
    #: The receiver does not want it (4xx of HTTP, 5xx of SMTP), or sends it elsewhere (3xx).
    REJECTED = "Rejected", True
    #: The receiver may take it later.
    BUSY = "Busy"
    COMMAND_FAILED = "CommandFailed"


@dataclass(frozen=True, slots=True)
class TryOutcome:
    """How a try ended, and the status of HTTP or SMTP or the exit code, where there is one."""

    reason: TryReason
    code: int | None = None


@dataclass(frozen=True, slots=True)
class SendNotice:
    """Record that a try begins, and then make it: after a crash in between it counts."""

    job: Job
    target: Notify
    record: NoticeRecord


@dataclass(frozen=True, slots=True)
class SettleNotice:
    """Record that a notice is delivered, refused or given up."""

    job: Job
    record: NoticeRecord


Action: TypeAlias = SendNotice | SettleNotice
