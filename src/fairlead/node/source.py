"""What a source is: a read that may block or fail, and a pure judge of what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from fairlead.api.cluster.node_report import SourceState
from fairlead.model.health.faults import Identity, Moment, Observation
from fairlead.node.exports.window import ExportsUsage
from fairlead.node.shaping.use import ShapingUsage
from fairlead.node.traffic.usage import TrafficUsage

#: What sources count beside their checks.
AnyUsage: TypeAlias = TrafficUsage | ShapingUsage | ExportsUsage
F = TypeVar("F")
M = TypeVar("M")


class Nothing(msgspec.Struct, frozen=True):
    """The memory of a judge that needs none."""


class SourceHealth(msgspec.Struct, frozen=True, rename="camel"):
    """How one source does. `lost` counts what was lost since the boot."""

    source: str
    state: SourceState
    why: str = ""
    read_at: float | None = None
    lost: int = 0
    unreadable: tuple[str, ...] = ()


class SkippedCheck(msgspec.Struct, frozen=True, rename="camel"):
    """A check that did not look, and why. One whose expectation `is_unset` has no faults."""

    check: str
    why: str
    is_unset: bool = True


@dataclass(frozen=True, slots=True)
class Judged(Generic[M]):
    """What a judge says of one read.

    `memory` is what the next judgement gets. `components` are those that were looked at (None: all
    there are), `unreadable` those that could not be, each with the reason; `lost` is what this read
    lacks. `skipped` names checks for which nothing is expected.
    """

    memory: M
    observations: tuple[Observation, ...] = ()
    components: frozenset[str] | None = None
    counter_resets: frozenset[Identity] = frozenset()
    recovered: frozenset[Identity] = frozenset()
    skipped: tuple[SkippedCheck, ...] = ()
    unreadable: tuple[str, ...] = ()
    lost: int = 0


def _no_usage() -> None:
    """Return nothing: most sources count nothing."""


@dataclass(frozen=True, slots=True)
class SignalSource(Generic[F, M]):
    """A kind of signal.

    `read` runs in a thread of its own; Absent when there is nothing to look at, OSError. `judge`
    gets the facts, the memory (at first, and after a reboot, an empty `memory_type()`), and when.
    `checks` are the names of all checks of which it may report faults. While `is_busy`, a later
    read brings more of what this one began. `is_early` is asked each second in the event loop,
    whether to read before the period is over. `usage` is what the last read counted, for the
    report.
    """

    name: str
    checks: tuple[str, ...]
    memory_type: type[M]
    read: Callable[[], F]
    judge: Callable[[F, M, Moment], Judged[M]]
    period_seconds: int
    is_log: bool = False
    is_busy: Callable[[], bool] = bool
    is_early: Callable[[], bool] | None = None
    usage: Callable[[], AnyUsage | None] = _no_usage


AnySource = SignalSource[Any, Any]


def skipped(checks: Iterable[tuple[str, bool]], why: str) -> tuple[SkippedCheck, ...]:
    """Return the checks that are not expected anything of, of (name, is expected)."""
    return tuple(SkippedCheck(name, why) for name, is_expected in checks if not is_expected)
