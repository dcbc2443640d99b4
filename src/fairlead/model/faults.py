"""Faults of a machine: what is wrong with which part of it, how badly, and what would end it.

A fault is found by the agent on the node (`node/`); what is done about it is decided elsewhere. So
its types are here, below both. An observation is one sight of a fault, such as a kernel line; the
fault is what the sights of one identity have in common. Two identities never share a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Self

import msgspec

#: Longer texts of others are cut: a fault costs the same whatever a driver or a program writes.
EVIDENCE_MAX = 240
COMPONENT_MAX = 160
CODE_MAX = 64
CODES_MAX = 8


class Severity(Enum):
    """How bad a fault is; `rank` orders them."""

    _value_: str
    rank: int

    def __new__(cls, value: str, rank: int) -> Self:
        """Make a member."""
        severity = object.__new__(cls)
        severity._value_, severity.rank = value, rank
        return severity

    INFO = "Info", 0
    WARNING = "Warning", 1
    CRITICAL = "Critical", 2

    @property
    def is_sick(self) -> bool:
        """True when a machine with such a fault is not healthy."""
        return self.rank > 0


class Recovery(Enum):
    """What ends a fault."""

    BOOT = "Boot"  # the machine has started again
    COUNTER_RESET = "CounterReset"  # the hardware's counter began again, or the machine did
    STABLE_TIME = "StableTime"  # it was looked for, and not seen, for so long without a break
    PERSON = "Person"  # somebody says so


class Action(Enum):
    """What should be done about a fault, from least to most.

    `recovery` is what ends the fault of an event that asks for the action.
    """

    _value_: str
    rank: int
    recovery: Recovery

    def __new__(cls, value: str, rank: int, recovery: Recovery) -> Self:
        """Make a member."""
        action = object.__new__(cls)
        action._value_, action.rank, action.recovery = value, rank, recovery
        return action

    NONE = "None", 0, Recovery.STABLE_TIME
    WATCH = "Watch", 1, Recovery.STABLE_TIME
    RESET_GPU = "ResetGPU", 2, Recovery.BOOT
    REBOOT = "Reboot", 3, Recovery.BOOT
    REPLACE = "Replace", 4, Recovery.PERSON
    ASK_PERSON = "AskPerson", 5, Recovery.PERSON


class Ending(Enum):
    """Why a fault is over."""

    BOOT = "Boot"
    COUNTER_RESET = "CounterReset"
    STABLE_TIME = "StableTime"
    PERSON = "Person"
    RECOVERED = "Recovered"  # its source says so
    COMPONENT_GONE = "ComponentGone"  # not there after a reboot, as a NIC that was renamed
    CHECK_REMOVED = "CheckRemoved"


class Moment(msgspec.Struct, frozen=True, rename="camel"):
    """An instant: for people, and for durations.

    `time` is in seconds since the epoch, and may be set; `uptime_seconds` since boot, and never is.
    """

    time: float
    uptime_seconds: float


class Identity(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """Which fault it is: the check that finds it, the part of the machine, codes in their order."""

    check: str
    component: str
    codes: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True, rename="camel"):
    """What is to be thought of a fault. `stable_seconds` counts for Recovery.STABLE_TIME only."""

    severity: Severity
    action: Action
    recovery: Recovery
    stable_seconds: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Order of badness."""
        return (self.severity.rank, self.action.rank)


class Observation(msgspec.Struct, frozen=True):
    """One sight of a fault."""

    identity: Identity
    verdict: Verdict
    evidence: str
    at: Moment


class Fault(msgspec.Struct, frozen=True, rename="camel"):
    """A fault that is open.

    `count` are the lines of a log, or how often a state began. `boot_id` is of the boot in which it
    was last seen. `quiet_since` is the uptime since which its check looked and did not see it; None
    while it is seen, and while nothing looks.
    """

    identity: Identity
    verdict: Verdict
    evidence: str
    first_seen: float
    last_seen: float
    boot_id: str
    count: int = 1
    quiet_since: float | None = None

    @property
    def is_sick(self) -> bool:
        """True when a machine with this fault is not healthy."""
        return self.verdict.severity.is_sick


class EndedFault(msgspec.Struct, frozen=True, rename="camel"):
    """A fault that is over."""

    fault: Fault
    ending: Ending
    ended_at: float


class Look(msgspec.Struct, frozen=True):
    """What one look of a source found.

    `components` are those that were looked at, None for all that there are. A look at a log
    (`is_log`) covers the time since the look before, unless `is_lossy`; any other one covers the
    instant.
    """

    checks: tuple[str, ...]
    at: Moment
    observations: tuple[Observation, ...] = ()
    components: frozenset[str] | None = None
    counter_resets: frozenset[Identity] = frozenset()
    recovered: frozenset[Identity] = frozenset()
    is_log: bool = False
    is_lossy: bool = False


def identity(check: str, component: str, codes: Iterable[str] = ()) -> Identity:
    """Return an identity of bounded size from texts that may be of anybody."""
    kept = sorted(set(codes))[:CODES_MAX]
    return Identity(check, component[:COMPONENT_MAX], tuple(code[:CODE_MAX] for code in kept))


def observed(of: Identity, verdict: Verdict, evidence: str, at: Moment) -> Observation:
    """Return an observation whose evidence has a bounded size."""
    return Observation(of, verdict, evidence[:EVIDENCE_MAX], at)


def steady(severity: Severity, action: Action, stable_seconds: int) -> Verdict:
    """Return the verdict on a state that is over once it was not seen for so long."""
    return Verdict(severity, action, Recovery.STABLE_TIME, stable_seconds)
