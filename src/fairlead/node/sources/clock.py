"""The kernel's clock: whether something disciplines it, and how far it is off."""

from __future__ import annotations

from functools import partial

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.running.host import ClockState, Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, Nothing, SignalSource, SkippedCheck, skipped

SYNCHRONIZED, OFFSET = "clock-synchronized", "clock-offset"


def judge(
    facts: ClockState, memory: Nothing, at: Moment, *, settings: AgentSettings
) -> Judged[Nothing]:
    """The offset says something only while the clock is disciplined."""
    limits, stable = settings.clock, settings.stable_seconds
    observations: list[Observation] = []
    if limits.synchronized and not facts.is_synchronized:
        verdict = steady(Severity.WARNING, Action.WATCH, stable)
        text = "nothing disciplines the clock"
        observations.append(observed(identity(SYNCHRONIZED, "clock"), verdict, text, at))
    off = abs(facts.offset_seconds) * 1000
    if facts.is_synchronized and off >= limits.warning_milliseconds:
        verdict = steady(Severity.WARNING, Action.WATCH, stable)
        if off >= limits.critical_milliseconds:
            verdict = steady(Severity.CRITICAL, Action.ASK_PERSON, stable)
        observations.append(observed(identity(OFFSET, "clock"), verdict, f"{off:.0f} ms off", at))
    why = "nothing disciplines the clock"
    unknown = [] if facts.is_synchronized else [SkippedCheck(OFFSET, why, is_unset=False)]
    return Judged(
        memory, tuple(observations),
        skipped=(*skipped([(SYNCHRONIZED, limits.synchronized)], "clock.synchronized is not set"),
                 *unknown),
    )  # fmt: skip


def source(host: Host, settings: AgentSettings) -> SignalSource[ClockState, Nothing]:
    """Return the source of the clock."""
    return SignalSource("clock", (SYNCHRONIZED, OFFSET), Nothing, host.clock_state,
                  partial(judge, settings=settings), period_seconds=60)  # fmt: skip
