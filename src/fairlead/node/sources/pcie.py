"""PCI devices: errors that Advanced Error Reporting counts, and the width of links.

The width is compared with what is set for a kind of device, not with the most that the device
could: a card in a narrower slot is no fault.
"""

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
    steady,
)
from fairlead.node.devices import read_each
from fairlead.node.reports.counters import Counter, grown, per_hour
from fairlead.node.running.host import Absent, Host, whole_number
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource, skipped

FATAL, RATE, WIDTH = "pcie-fatal", "pcie-rate", "pcie-width"
_DEVICES = "sys/bus/pci/devices"
_KINDS = ("correctable", "nonfatal", "fatal")
_FATAL = FaultVerdict(Severity.CRITICAL, Action.REBOOT, Recovery.COUNTER_RESET)
_RATE = FaultVerdict(Severity.WARNING, Action.WATCH, Recovery.COUNTER_RESET)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device: its kind as vendor:device, its lanes (0: no link), error totals by kind."""

    kind: str
    width: int
    errors: dict[str, int]


@dataclass(frozen=True, slots=True)
class PcieFacts:
    """The devices by address."""

    devices: dict[str, PciDevice]
    unreadable: tuple[str, ...] = ()


class PcieMemory(msgspec.Struct, frozen=True):
    """Counters by device and kind of error, as `0000:3b:00.0 fatal`."""

    counters: dict[str, Counter] = {}


def read(host: Host) -> PcieFacts:
    """Return what the kernel shows of each device; Absent without a PCI bus."""
    names = host.names(_DEVICES)
    if not names:
        raise Absent("no PCI device")
    return PcieFacts(*read_each(names, partial(_device, host)))


def _device(host: Host, name: str) -> PciDevice:
    parts = [host.text(_DEVICES, name, part).removeprefix("0x") for part in ("vendor", "device")]
    width = _optional(host, name, "current_link_width")
    errors = {
        kind: total
        for kind in _KINDS
        if (total := _total(_optional(host, name, f"aer_dev_{kind}"))) is not None
    }
    return PciDevice(":".join(parts), whole_number(width) or 0, errors)


def _optional(host: Host, name: str, file: str) -> str:
    try:
        return host.text(_DEVICES, name, file)
    except FileNotFoundError:
        return ""


def _total(text: str) -> int | None:
    """Return the last line of a table of errors, `TOTAL_ERR_FATAL 0`; None without one."""
    words = text.split()
    is_total = len(words) >= 2 and words[-2].startswith("TOTAL")
    return whole_number(words[-1]) if is_total else None


def judge(
    facts: PcieFacts, memory: PcieMemory, at: Moment, *, settings: AgentSettings
) -> Judged[PcieMemory]:
    """Any fatal error is a fault until the counter begins again; others by rate, if that is set."""
    limits = {"correctable": settings.pcie.corrected_per_hour_max,
              "nonfatal": settings.pcie.nonfatal_per_hour_max}  # fmt: skip
    observations: list[Observation] = []
    resets: set[Identity] = set()
    counters: dict[str, Counter] = {}
    for name, device in facts.devices.items():
        for kind, total in device.errors.items():
            growth = grown(memory.counters.get(f"{name} {kind}"), total, at.uptime_seconds, HOUR)
            counters[f"{name} {kind}"] = growth.counter
            of = identity(FATAL if kind == "fatal" else RATE, name, (kind,))
            if growth.was_reset:
                resets.add(of)
            rate, most = per_hour(growth), limits.get(kind, 0)
            if kind == "fatal" and total:
                text = f"{total:,} fatal PCIe errors of {device.kind} since boot"
                observations.append(observed(of, _FATAL, text, at))
            elif most and rate is not None and rate > most:
                text = (
                    f"{rate:,.0f} {kind} PCIe errors of {device.kind} per hour; accepted: {most:,}"
                )
                observations.append(observed(of, _RATE, text, at))
        wanted = settings.pcie.link_widths.get(device.kind)
        if wanted and device.width < wanted:
            text = f"{device.kind} has {device.width} of {wanted} lanes"
            verdict = steady(Severity.CRITICAL, Action.REBOOT, settings.stable_seconds)
            observations.append(observed(identity(WIDTH, name), verdict, text, at))
    return Judged(
        PcieMemory(counters), tuple(observations), frozenset(facts.devices), frozenset(resets),
        skipped=(
            *skipped([(RATE, any(limits.values()))],
                     "pcie.correctedPerHourMax and nonfatalPerHourMax are not set"),
            *skipped([(WIDTH, bool(settings.pcie.link_widths))], "pcie.linkWidths is not set"),
        ),
        unreadable=facts.unreadable,
    )  # fmt: skip


def source(host: Host, settings: AgentSettings) -> SignalSource[PcieFacts, PcieMemory]:
    """Return the source of PCI devices."""
    return SignalSource("pcie", (FATAL, RATE, WIDTH), PcieMemory, partial(read, host),
                  partial(judge, settings=settings), period_seconds=30)  # fmt: skip
