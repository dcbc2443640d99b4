"""Errors of the machine's memory that its controllers corrected or could not (EDAC)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from fairlead.api.values.sections import HOUR
from fairlead.model.health.faults import (
    Action,
    FaultVerdict,
    Identity,
    Moment,
    Observation,
    Recovery,
    Severity,
    identity,
    observed,
)
from fairlead.node.devices import read_each
from fairlead.node.reports.counters import Counter, grown, per_hour
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings, EccSettings
from fairlead.node.source import Judged, SignalSource, skipped

CHECK, RATE_CHECK = "memory-ecc", "memory-ecc-rate"
_CONTROLLERS = "sys/devices/system/edac/mc"
#: Lost data: the kernel has ended what used it. The module is suspect when it happens again.
_UNCORRECTED = FaultVerdict(Severity.CRITICAL, Action.REBOOT, Recovery.COUNTER_RESET)
_CORRECTED = FaultVerdict(Severity.WARNING, Action.WATCH, Recovery.COUNTER_RESET)


@dataclass(frozen=True, slots=True)
class EccFacts:
    """Corrected and uncorrected errors since boot, by memory controller."""

    controllers: dict[str, tuple[int, int]]
    unreadable: tuple[str, ...] = ()


class EccMemory(msgspec.Struct, frozen=True):
    """Counters of corrected errors, and of uncorrected ones."""

    corrected: dict[str, Counter] = {}
    uncorrected: dict[str, int] = {}


def read(host: Host) -> EccFacts:
    """Return the counters; Absent without EDAC."""
    names = [name for name in host.names(_CONTROLLERS) if name.startswith("mc")]
    if not names:
        raise Absent("no memory controller under EDAC")

    def counts(name: str) -> tuple[int, int]:
        return (host.number(_CONTROLLERS, name, "ce_count"),
                host.number(_CONTROLLERS, name, "ue_count"))  # fmt: skip

    return EccFacts(*read_each(names, counts))


def judge(
    facts: EccFacts, memory: EccMemory, at: Moment, *, settings: EccSettings
) -> Judged[EccMemory]:
    """Any uncorrected error is a fault until the counter begins again; corrected ones by rate."""
    observations: list[Observation] = []
    resets: set[Identity] = set()
    corrected: dict[str, Counter] = {}
    for name, (good, bad) in facts.controllers.items():
        of = identity(CHECK, name, ("uncorrected",))
        if bad < memory.uncorrected.get(name, 0):
            resets.add(of)
        if bad:
            text = f"{bad:,} uncorrected memory errors since boot"
            observations.append(observed(of, _UNCORRECTED, text, at))
        growth = grown(memory.corrected.get(name), good, at.uptime_seconds, HOUR)
        corrected[name] = growth.counter
        of = identity(RATE_CHECK, name, ("corrected",))
        if growth.was_reset:
            resets.add(of)
        rate, most = per_hour(growth), settings.corrected_per_hour_max
        if most and rate is not None and rate > most:
            text = f"{rate:,.0f} corrected memory errors per hour; accepted: {most:,}"
            observations.append(observed(of, _CORRECTED, text, at))
    return Judged(
        EccMemory(corrected, {name: bad for name, (_, bad) in facts.controllers.items()}),
        tuple(observations), frozenset(facts.controllers), frozenset(resets),
        skipped=skipped([(RATE_CHECK, settings.corrected_per_hour_max > 0)],
                        "ecc.correctedPerHourMax is not set"),
        unreadable=facts.unreadable,
    )  # fmt: skip


def source(host: Host, settings: AgentSettings) -> SignalSource[EccFacts, EccMemory]:
    """Return the source of memory errors."""
    return SignalSource("memory-ecc", (CHECK, RATE_CHECK), EccMemory, partial(read, host),
                  partial(judge, settings=settings.ecc), period_seconds=10)  # fmt: skip
