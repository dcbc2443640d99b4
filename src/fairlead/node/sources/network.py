"""Tables of the kernel's network that fill up: connections, and neighbours of both families.

When a neighbour table is full, new connections fail while everything else works; the kernel counts
that as `table_fulls`. Its default of 1,024 entries is too small for flat networks of pods. A table
that grows steadily is a fault before it is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from fairlead.model.health.faults import (
    Action,
    Moment,
    Observation,
    Severity,
    identity,
    observed,
    steady,
)
from fairlead.node.devices import read_each
from fairlead.node.forecast import Trend, followed, forecast
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Judged, SignalSource

CONNTRACK, NEIGHBOURS = "conntrack", "neighbours"
_CONNTRACK = "proc/sys/net/netfilter/nf_conntrack"
#: Statistics and limits by name of the table.
_TABLES = {
    "arp_cache": "proc/sys/net/ipv4/neigh/default/gc_thresh3",
    "ndisc_cache": "proc/sys/net/ipv6/neigh/default/gc_thresh3",
}


@dataclass(frozen=True, slots=True)
class TableFill:
    """Entries of a table, how many it can have, and how often it was full since boot."""

    entries: int
    entries_max: int
    fulls: int = 0

    @property
    def percent(self) -> float:
        """Percentage in use."""
        return 100 * self.entries / self.entries_max if self.entries_max else 0.0


@dataclass(frozen=True, slots=True)
class TableFacts:
    """The tables by name; `conntrack` is that of connections."""

    tables: dict[str, TableFill]
    unreadable: tuple[str, ...] = ()


class TableMemory(msgspec.Struct, frozen=True):
    """How often each table was full at the look before, and how each grows."""

    fulls: dict[str, int] = {}
    trends: dict[str, Trend] = {}


def read(host: Host) -> TableFacts:
    """Return the tables that there are; Absent when there is none."""
    found, unreadable = read_each((CONNTRACK, *_TABLES), partial(_fill, host))
    if not found and not unreadable:
        raise Absent("no table of connections or neighbours")
    return TableFacts(found, unreadable)


def _fill(host: Host, name: str) -> TableFill:
    if name == CONNTRACK:
        return TableFill(host.number(f"{_CONNTRACK}_count"), host.number(f"{_CONNTRACK}_max"))
    return parse_fill(host.text("proc/net/stat", name), host.number(_TABLES[name]))


def parse_fill(text: str, entries_max: int) -> TableFill:
    """Return the fill of a table from its statistics; OSError when these are none.

    A line per CPU in hexadecimal: the entries are those of the table, the rest is of the CPU.
    """
    head, *lines = [line.split() for line in text.splitlines()] or [[]]
    try:
        entries, fulls = head.index("entries"), head.index("table_fulls")
        rows = [[int(word, 16) for word in line] for line in lines]
        return TableFill(rows[0][entries], entries_max, sum(row[fulls] for row in rows))
    except (ValueError, IndexError) as error:
        raise OSError("not the statistics of a neighbour table") from error


def judge(
    facts: TableFacts, memory: TableMemory, at: Moment, *, settings: AgentSettings
) -> Judged[TableMemory]:
    """A table that was full is critical, whatever its fill is by now."""
    limits, stable = settings.network, settings.stable_seconds
    warning = steady(Severity.WARNING, Action.WATCH, stable)
    critical = steady(Severity.CRITICAL, Action.ASK_PERSON, stable)
    observations: list[Observation] = []
    used = {name: fill.entries for name, fill in facts.tables.items()}
    trends = followed(memory.trends, used, at.uptime_seconds)
    for name, fill in facts.tables.items():
        check = CONNTRACK if name == CONNTRACK else NEIGHBOURS
        text = f"{fill.entries:,} of {fill.entries_max:,} entries ({fill.percent:.0f} %)"
        was_full = fill.fulls - memory.fulls.get(name, fill.fulls)
        if was_full > 0:
            said = f"full {was_full:,} times since the last look; {text}"
            observations.append(observed(identity(check, name, ("full",)), critical, said, at))
        said = forecast(trends[name], fill.entries, fill.entries_max, settings.forecast_seconds)
        if said:
            of = identity(check, name, ("forecast",))
            observations.append(observed(of, warning, f"{said}; {text}", at))
        verdict = None
        if name == CONNTRACK:
            verdict = warning if fill.percent >= limits.conntrack_percent_max else None
        elif fill.percent >= limits.neighbour_critical_percent:
            verdict = critical
        elif fill.percent >= limits.neighbour_warning_percent:
            verdict = warning
        if verdict:
            observations.append(observed(identity(check, name, ("fill",)), verdict, text, at))
    return Judged(
        TableMemory({name: fill.fulls for name, fill in facts.tables.items()}, trends),
        tuple(observations), frozenset(facts.tables), unreadable=facts.unreadable,
    )  # fmt: skip


def source(host: Host, settings: AgentSettings) -> SignalSource[TableFacts, TableMemory]:
    """Return the source of the network's tables."""
    return SignalSource("network-tables", (CONNTRACK, NEIGHBOURS), TableMemory, partial(read, host),
                  partial(judge, settings=settings), period_seconds=5)  # fmt: skip
