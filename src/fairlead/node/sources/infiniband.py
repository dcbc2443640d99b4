"""Ports of InfiniBand and RoCE: links that are down or flap, and error counters.

Which counters matter, and the rate of symbol errors, are those of NVSentinel: any growth of a few
counters latches a fault until the counter begins again or the machine does. Links of 200 Gb/s and
more always show raw errors, so others count by rate only. A port with an Ethernet link may be that
of the management network: unless its device is named, what is found there is only noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
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
from fairlead.node.reports.counters import Counter, CounterGrowth, grown, per_hour
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings, InfinibandSettings
from fairlead.node.source import Judged, SignalSource, skipped

DOWN, FLAPS, ERRORS, COUNT = "fabric-port", "fabric-flaps", "fabric-errors", "fabric-ports"
_DEVICES = "sys/class/infiniband"
#: Any growth is a fault.
LATCHING = ("excessive_buffer_overrun_errors", "local_link_integrity_errors", "rnr_nak_retry_err")
_LINK_DOWNED, _SYMBOLS = "link_downed", "symbol_error"
_COUNTERS = (*LATCHING, _LINK_DOWNED, _SYMBOLS)
_LATCHED = FaultVerdict(Severity.CRITICAL, Action.REPLACE, Recovery.COUNTER_RESET)
_NOTED = FaultVerdict(Severity.INFO, Action.NONE, Recovery.COUNTER_RESET)


@dataclass(frozen=True, slots=True)
class Port:
    """A port as the kernel shows it; `rate_gbps` is that of the link as it is now."""

    state: str
    rate_gbps: int
    layer: str
    counters: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_active(self) -> bool:
        """True when the link carries data."""
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True)
class PortFacts:
    """The ports by name, as `mlx5_0/1`."""

    ports: dict[str, Port]
    unreadable: tuple[str, ...] = ()


class PortMemory(msgspec.Struct, frozen=True):
    """Counters as `mlx5_0/1 symbol_error`, and the uptime since which each port is down."""

    counters: dict[str, Counter] = {}
    down_since: dict[str, float] = {}


def read(host: Host) -> PortFacts:
    """Return all ports; Absent when there is none."""
    names: list[str] = []
    unreadable: list[str] = []
    for device in host.names(_DEVICES):
        try:
            names += [f"{device}/{port}" for port in host.names(_DEVICES, device, "ports")]
        except Absent:
            continue
        except OSError as error:
            unreadable.append(f"{device}: {error.strerror or error}")
    if not names and not unreadable:
        raise Absent("no port of InfiniBand or RoCE")
    found, bad = read_each(names, partial(_port, host))
    return PortFacts(found, (*unreadable, *bad))


def _port(host: Host, name: str) -> Port:
    device, _, number = name.partition("/")
    place = (_DEVICES, device, "ports", number)
    state = host.text(*place, "state").rpartition(": ")[2].upper()  # 4: ACTIVE
    rate = re.match(r"\d{1,9}", host.text(*place, "rate"))  # 400 Gb/sec (4X NDR)
    counters = dict(_counters(host, place))
    return Port(state, int(rate[0]) if rate else 0, host.text(*place, "link_layer"), counters)


def _counters(host: Host, place: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for name in _COUNTERS:
        for folder in ("counters", "hw_counters"):
            try:
                yield name, host.number(*place, folder, name)
            except FileNotFoundError:
                continue


@dataclass(slots=True)
class _Ports:
    """Judges the ports of one look."""

    memory: PortMemory
    at: Moment
    settings: InfinibandSettings
    counters: dict[str, Counter] = field(default_factory=dict[str, Counter])
    down_since: dict[str, float] = field(default_factory=dict[str, float])
    observations: list[Observation] = field(default_factory=list[Observation])
    resets: set[Identity] = field(default_factory=set[Identity])

    def count(self, name: str, port: Port, *, is_fabric: bool) -> None:
        """Judge the counters of one port."""
        for counter, value in port.counters.items():
            self._counter(name, counter, value, is_fabric=is_fabric)

    def link(self, name: str, port: Port, *, is_short: bool) -> None:
        """Judge the link of a port of the fabric; `is_short`: it may be one that is missing."""
        verdict = steady(Severity.CRITICAL, Action.REPLACE, self.settings.stable_seconds)
        least = self.settings.rate_gbps
        if port.is_active:
            if port.rate_gbps < least and is_short:
                text = f"{port.rate_gbps} Gb/s; expected: {least}"
                self._observe(identity(DOWN, name, ("rate",)), verdict, text)
            return
        since = self.memory.down_since.get(name, self.at.uptime_seconds)
        self.down_since[name] = since
        seconds = self.at.uptime_seconds - since
        if self.settings.ports and is_short and seconds >= self.settings.down_seconds:
            text = f"{port.state} for {seconds:.0f} s"
            self._observe(identity(DOWN, name, ("down",)), verdict, text)

    def _counter(self, name: str, counter: str, value: int, *, is_fabric: bool) -> None:
        window = self.settings.flap_window_seconds if counter == _LINK_DOWNED else HOUR
        key = f"{name} {counter}"
        growth = grown(self.memory.counters.get(key), value, self.at.uptime_seconds, window)
        self.counters[key] = growth.counter
        of = identity(FLAPS if counter == _LINK_DOWNED else ERRORS, name, (counter,))
        if growth.was_reset:
            self.resets.add(of)
        if text := self._bad(counter, growth):
            verdict = _LATCHED if is_fabric else _NOTED
            if counter == _LINK_DOWNED:
                severity, action = verdict.severity, verdict.action
                verdict = steady(severity, action, self.settings.stable_seconds)
            self._observe(of, verdict, text)

    def _bad(self, counter: str, growth: CounterGrowth) -> str:
        """Return what is wrong with a counter, "" for nothing."""
        if counter in LATCHING:
            return f"{counter} grew by {growth.since_last:,}" if growth.since_last else ""
        if counter == _LINK_DOWNED:
            # A count, not a rate: it is known before the window is over.
            first = growth.counter.samples[0][1]
            flaps, most = growth.counter.value - first, self.settings.flaps_max
            grew = growth.since_last or 0
            return f"the link was lost {flaps} times" if grew and flaps > most else ""
        rate, most = per_hour(growth), self.settings.symbol_errors_per_hour_max
        if rate is None or rate <= most:
            return ""
        return f"{rate:,.0f} symbol errors per hour; accepted: {most:,}"

    def _observe(self, of: Identity, verdict: FaultVerdict, text: str) -> None:
        self.observations.append(observed(of, verdict, text, self.at))


def judge(
    facts: PortFacts, memory: PortMemory, at: Moment, *, settings: AgentSettings
) -> Judged[PortMemory]:
    """Return the faults of ports.

    What is down or slow is a fault only where so many ports are expected, and not so many are good:
    a machine may have ports without a cable.
    """
    wanted = settings.infiniband
    ports = _Ports(memory, at, wanted)
    fabric = {name: port for name, port in facts.ports.items() if _is_fabric(name, port, wanted)}
    good = sum(port.is_active and port.rate_gbps >= wanted.rate_gbps for port in fabric.values())
    is_short = not wanted.ports or good < wanted.ports
    for name, port in facts.ports.items():
        ports.count(name, port, is_fabric=name in fabric)
    for name, port in fabric.items():
        ports.link(name, port, is_short=is_short)
    if len(fabric) < wanted.ports:
        text = f"{len(fabric)} of {wanted.ports} ports are there, {good} are good"
        verdict = steady(Severity.CRITICAL, Action.REPLACE, settings.stable_seconds)
        ports.observations.append(observed(identity(COUNT, "all"), verdict, text, at))
    unset = "infiniband.ports is not set"
    return Judged(
        PortMemory(ports.counters, ports.down_since), tuple(ports.observations),
        frozenset({*facts.ports, "all"}), frozenset(ports.resets),
        skipped=(*skipped([(COUNT, wanted.ports > 0)], unset),
                 *skipped([(DOWN, wanted.ports > 0 or wanted.rate_gbps > 0)],
                          "infiniband.ports and rateGbps are not set")),
        unreadable=facts.unreadable,
    )  # fmt: skip


def _is_fabric(name: str, port: Port, settings: InfinibandSettings) -> bool:
    device = name.partition("/")[0]
    named = any(fnmatchcase(device, pattern) for pattern in settings.ethernet_devices)
    return port.layer == "InfiniBand" or named


def source(host: Host, settings: AgentSettings) -> SignalSource[PortFacts, PortMemory]:
    """Return the source of the fabric's ports."""
    return SignalSource("infiniband", (DOWN, FLAPS, ERRORS, COUNT), PortMemory, partial(read, host),
                  partial(judge, settings=settings), period_seconds=5)  # fmt: skip
