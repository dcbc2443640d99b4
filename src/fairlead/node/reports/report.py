"""What the agent says of its machine: one document, for people, for tools and for collectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fairlead.api.values.times import format_time
from fairlead.model.health.faults import EndedFault, Fault, Moment
from fairlead.node.exports.window import ExportsUsage
from fairlead.node.reports.state import KeptRepair
from fairlead.node.reports.watch import MachineWatch
from fairlead.node.shaping.use import ShapingUsage
from fairlead.node.source import AnyUsage, SkippedCheck, SourceHealth
from fairlead.node.sources import hardware, tuning
from fairlead.node.sources.hardware import HardwareMemory
from fairlead.node.sources.tuning import TuningMemory
from fairlead.node.traffic.usage import TrafficUsage

VERSION = 1


class FaultLine(msgspec.Struct, frozen=True, rename="camel"):
    """A fault, with times that people can read."""

    check: str
    component: str
    codes: tuple[str, ...]
    severity: str
    action: str
    recovery: str
    first_seen: str
    last_seen: str
    count: int
    evidence: str
    boot_id: str
    due: str | None = None


class EndedLine(msgspec.Struct, frozen=True, rename="camel"):
    """A fault that is over."""

    check: str
    component: str
    codes: tuple[str, ...]
    first_seen: str
    ended_at: str
    ending: str
    count: int


class SourceLine(msgspec.Struct, frozen=True, rename="camel"):
    """How a source does."""

    source: str
    state: str
    why: str
    read_at: str | None
    lost: int
    unreadable: tuple[str, ...]
    checks: tuple[str, ...] = ()


class RepairLine(msgspec.Struct, frozen=True, rename="camel"):
    """The latest request to the agent, and its answer."""

    id: str
    action: str
    answer: str
    at: str
    message: str = ""


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """All that is known. `not_kept` says why the state could not be written, or was replaced.

    `tuning` is what the last look at a profile found, None where none is set.
    """

    version: int
    is_healthy: bool
    at: str
    uptime_seconds: int
    boot_id: str
    faults: tuple[FaultLine, ...]
    ended: tuple[EndedLine, ...]
    sources: tuple[SourceLine, ...]
    skipped: tuple[SkippedCheck, ...]
    dropped_faults: int = 0
    not_kept: str = ""
    machine_id: str = ""
    tuning: TuningMemory | None = None
    traffic: TrafficUsage | None = None
    shaping: ShapingUsage | None = None
    hardware: dict[str, str] = {}
    repair: RepairLine | None = None
    exports: ExportsUsage | None = None


def report_of(
    watch: MachineWatch, now: Moment, *, not_kept: str = "", machine_id: str = "",
    counted: Iterable[AnyUsage | None] = (), repair: KeptRepair | None = None,
) -> Report:  # fmt: skip
    """Return the report of this instant.

    `machine_id` names the hardware, `counted` is what sources have counted, `repair` the latest
    request to the agent.
    """
    found = tuple(counted)
    return Report(
        VERSION,
        watch.is_healthy,
        format_time(now.time),
        int(now.uptime_seconds),
        watch.boot_id,
        tuple(fault_line(each) for each in watch.faults),
        tuple(_ended_line(each) for each in watch.ended),
        tuple(_source_line(each, watch.checks(each.source)) for each in watch.health(now)),
        watch.skipped(),
        watch.dropped,
        not_kept,
        machine_id,
        _tuning(watch),
        next((each for each in found if isinstance(each, TrafficUsage)), None),
        next((each for each in found if isinstance(each, ShapingUsage)), None),
        _hardware(watch),
        None if repair is None else _repair_line(repair),
        next((each for each in found if isinstance(each, ExportsUsage)), None),
    )


def _repair_line(repair: KeptRepair) -> RepairLine:
    return RepairLine(repair.id, repair.action.value, repair.answer.value,
                      format_time(repair.at), repair.message)  # fmt: skip


def _hardware(watch: MachineWatch) -> dict[str, str]:
    found = watch.memory(hardware.SOURCE)
    return found.values if isinstance(found, HardwareMemory) else {}


def _tuning(watch: MachineWatch) -> TuningMemory | None:
    found = watch.memory(tuning.SOURCE)
    return found if isinstance(found, TuningMemory) and found.profile else None


def report_values(report: Report) -> dict[str, Any]:
    """Return the report as plain values."""
    values: dict[str, Any] = msgspec.to_builtins(report)
    return values


def fault_line(fault: Fault) -> FaultLine:
    """Return a fault for people."""
    verdict = fault.verdict
    return FaultLine(
        fault.identity.check, fault.identity.component, fault.identity.codes,
        verdict.severity.value, verdict.action.value, verdict.recovery.value,
        format_time(fault.first_seen), format_time(fault.last_seen), fault.count, fault.evidence,
        fault.boot_id, None if fault.due is None else format_time(fault.due),
    )  # fmt: skip


def _ended_line(ended: EndedFault) -> EndedLine:
    fault = ended.fault
    return EndedLine(
        fault.identity.check, fault.identity.component, fault.identity.codes,
        format_time(fault.first_seen), format_time(ended.ended_at), ended.ending.value, fault.count,
    )  # fmt: skip


def _source_line(health: SourceHealth, checks: tuple[str, ...]) -> SourceLine:
    read_at = None if health.read_at is None else format_time(health.read_at)
    return SourceLine(
        health.source,
        health.state.value,
        health.why,
        read_at,
        health.lost,
        health.unreadable,
        checks,
    )
