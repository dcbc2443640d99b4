"""Packets that are lost: segments of TCP sent again, and errors of network devices.

Both are shares of what was sent or received within an hour, as only the machine itself can count
them, and a warning: what loses a packet may be the cable, the switch, or the other side. Segments
are those of the machine's own network, so of its daemons and of pods that share it; of a pod with a
network of its own, the errors of the device that carries its packets are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from fairlead.api.values.sections import HOUR
from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.devices import network_devices, read_each
from fairlead.node.reports.counters import Counter, grown
from fairlead.node.running.host import Absent, Host, whole_number
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource, skipped

SOURCE = "packet-loss"
RETRANSMITS, ERRORS = "tcp-retransmits", "network-errors"
_SNMP = "proc/net/snmp"
#: What a device lost, by the counters of its driver. Not `rx_dropped`, which also has packets of
#: protocols that the machine does not speak.
_LOST = ("rx_errors", "tx_errors", "rx_missed_errors", "tx_dropped")
_CARRIED = ("rx_packets", "tx_packets")
#: A share of fewer packets than these says nothing.
_PACKETS_MIN = 10_000
TCP = "tcp"


@dataclass(frozen=True, slots=True)
class LossFacts:
    """(lost, carried) since boot: of TCP under `tcp`, of each network device under its name."""

    counts: dict[str, tuple[int, int]]
    unreadable: tuple[str, ...] = ()


class LossMemory(msgspec.Struct, frozen=True):
    """The counters of the hour, as `eth0 lost` and `eth0 carried`."""

    counters: dict[str, Counter] = {}


def read(host: Host) -> LossFacts:
    """Return the counts of TCP and of the devices that are hardware; Absent without any."""
    found, unreadable = read_each((TCP, *_hardware(host)), partial(_counts, host))
    if not found and not unreadable:
        raise Absent(f"no {_SNMP} and no network device")
    return LossFacts(found, unreadable)


def _hardware(host: Host) -> list[str]:
    try:
        return [name for name in network_devices(host) if name != TCP]
    except Absent:
        return []


def _counts(host: Host, name: str) -> tuple[int, int]:
    if name == TCP:
        return parse_segments(host.text(_SNMP))
    lost, carried = (
        sum(host.number("sys/class/net", name, "statistics", each) for each in counters)
        for counters in (_LOST, _CARRIED)
    )
    return lost, lost + carried


def parse_segments(text: str) -> tuple[int, int]:
    """Return segments of TCP that were sent again, and all that were sent; OSError without them.

    Of proc_pid_net_snmp(5): a line of names and one of values, which both begin with `Tcp:`.
    """
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
    values = dict(zip(*lines, strict=False)) if len(lines) == 2 else {}
    again = whole_number(values.get("RetransSegs", ""))
    first = whole_number(values.get("OutSegs", ""))
    if again is None or first is None:
        raise OSError(f"{_SNMP} has no segments of TCP")
    return again, again + first


def judge(
    facts: LossFacts, memory: LossMemory, at: Moment, *, settings: AgentSettings
) -> Judged[LossMemory]:
    """A share of the hour above its limit is a warning."""
    limits = settings.network
    verdict = steady(Severity.WARNING, Action.WATCH, settings.stable_seconds)
    counters: dict[str, Counter] = {}
    observations: list[Observation] = []
    for name, totals in facts.counts.items():
        growths = [
            grown(memory.counters.get(f"{name} {what}"), total, at.uptime_seconds, HOUR)
            for what, total in zip(("lost", "carried"), totals, strict=True)
        ]
        counters[f"{name} lost"], counters[f"{name} carried"] = (each.counter for each in growths)
        lost, carried = (each.in_window for each in growths)
        if lost is None or carried is None or carried < _PACKETS_MIN:
            continue
        is_tcp, percent = name == TCP, 100 * lost / carried
        limit = limits.retransmit_percent_max if is_tcp else limits.error_percent_max
        if limit and percent > limit:
            what = "segments sent again" if is_tcp else "packets lost"
            text = (
                f"{lost:,} of {carried:,} {what} within an hour ({percent:.1f} %); "
                f"accepted: {limit} %"
            )
            of = identity(RETRANSMITS if is_tcp else ERRORS, name, ("share",))
            observations.append(observed(of, verdict, text, at))
    return Judged(
        LossMemory(counters), tuple(observations), frozenset(facts.counts),
        skipped=(*skipped([(RETRANSMITS, limits.retransmit_percent_max > 0)],
                          "network.retransmitPercentMax is 0"),
                 *skipped([(ERRORS, limits.error_percent_max > 0)],
                          "network.errorPercentMax is 0")),
        unreadable=facts.unreadable,
    )  # fmt: skip


def source(host: Host, settings: AgentSettings) -> SignalSource[LossFacts, LossMemory]:
    """Return the source of lost packets."""
    return SignalSource(SOURCE, (RETRANSMITS, ERRORS), LossMemory, partial(read, host),
                  partial(judge, settings=settings), period_seconds=60)  # fmt: skip
