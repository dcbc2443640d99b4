"""Faults of a machine: what is wrong with which part of it, how badly, and what would end it.

A fault is found by the agent on the node (`node/`); what is done about it is decided elsewhere. So
its types are here, below both; severity, action and recovery are those of the API. An observation
is one sight of a fault, such as a kernel line; the fault is what the sights of one identity have in
common. Two identities never share a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from fairlead.api.cluster.node_report import (
    CODE_MAX,
    CODES_MAX,
    COMPONENT_MAX,
    EVIDENCE_MAX,
    Action,
    Recovery,
    Severity,
)


class Ending(Enum):
    """Why a fault is over."""

    BOOT = "Boot"
    GPU_RESET = "GPUReset"  # its GPU was reset, and nothing more was asked for
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


class FaultVerdict(msgspec.Struct, frozen=True, rename="camel"):
    """What is to be thought of a fault. `stable_seconds` counts for Recovery.STABLE_TIME only."""

    severity: Severity
    action: Action
    recovery: Recovery
    stable_seconds: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        """Order of badness."""
        return (self.severity.rank, self.action.rank)

    @property
    def ends_with_boot(self) -> bool:
        """True where another boot ends it: also what asks for one and is over once it is not seen.

        What is still so is found by the next look. Until then it would look as if the boot had not
        helped, and the machine be started again for nothing.
        """
        if self.recovery is Recovery.STABLE_TIME:
            return self.action in (Action.RESET_GPU, Action.REBOOT)
        return self.recovery in (Recovery.BOOT, Recovery.COUNTER_RESET)


class Observation(msgspec.Struct, frozen=True):
    """One sight of a fault. `due`: when the machine stops for it, if that is known."""

    identity: Identity
    verdict: FaultVerdict
    evidence: str
    at: Moment
    due: float | None = None


class Fault(msgspec.Struct, frozen=True, rename="camel"):
    """A fault that is open.

    `count` are the lines of a log, or how often a state began. `boot_id` is of the boot in which it
    was last seen. `quiet_since` is the uptime since which its check looked and did not see it; None
    while it is seen, and while nothing looks. `due`: when the machine stops for it, if it is known.
    """

    identity: Identity
    verdict: FaultVerdict
    evidence: str
    first_seen: float
    last_seen: float
    boot_id: str
    count: int = 1
    quiet_since: float | None = None
    due: float | None = None

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


def observed(
    of: Identity, verdict: FaultVerdict, evidence: str, at: Moment, *, due: float | None = None
) -> Observation:
    """Return an observation whose evidence has a bounded size."""
    return Observation(of, verdict, evidence[:EVIDENCE_MAX], at, due)


def steady(severity: Severity, action: Action, stable_seconds: int) -> FaultVerdict:
    """Return the verdict on a state that is over once it was not seen for so long."""
    return FaultVerdict(severity, action, Recovery.STABLE_TIME, stable_seconds)
