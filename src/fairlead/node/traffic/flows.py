"""Traffic by job and namespace, with rates: what a node says of it to the cluster (pure).

A rate is a mean that forgets within about a minute, so it can be compared between nodes that report
at different times. Only counters that lead to pods make rates: what ends is moved to its
namespace's sum by the kernel, and is no traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from fairlead.node.traffic.netlink import Counted
from fairlead.node.traffic.ruleset import OTHERS, AddressOwner, parse_name

#: Jobs and teams that a node tells apart, and namespaces, each by traffic. What has no room is in
#: its namespace, or in namespace "-": so one namespace's jobs leave the room of others.
JOBS_MAX, NAMESPACES_MAX = 16, 15
#: What a rate forgets in: after so long it is two thirds of the way to a new one.
_SECONDS = 60.0
_DIRECTIONS = ("out", "in")


class FlowGroup(NamedTuple):
    """Pods that are told apart: of a namespace, of a team that their label names, of a job."""

    namespace: str
    team: str = ""
    job: str = ""


class FlowLine(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic of a group with a class of addresses: bytes so far, and bits per second.

    Pods that have ended are in the group of their namespace alone.
    """

    namespace: str
    team: str
    job: str
    traffic_class: str
    sent: int
    received: int
    sent_rate: int
    received_rate: int


_NODE = FlowGroup("")
#: A group, a class and a direction.
_Cell = tuple[FlowGroup, str, str]


@dataclass(slots=True)
class FlowMeter:
    """Adds counters up by group, and measures rates between looks."""

    _counted: Mapping[str, int] = field(default_factory=dict[str, int])
    _at: float | None = None
    _rates: dict[_Cell, float] = field(default_factory=dict[_Cell, float])

    def lines(
        self, counters: Mapping[str, Counted], groups: Mapping[AddressOwner, FlowGroup],
        uptime: float,
    ) -> tuple[FlowLine, ...]:  # fmt: skip
        """Return the lines of a look, in order; `groups` are of the pods that are listed."""
        sums: dict[_Cell, int] = {}
        moved: dict[_Cell, int] = {}
        sizes: dict[str, int] = {}
        for name, counted in counters.items():
            of = parse_name(name) if counted.size else None
            if of is None:
                continue
            group = groups.get(AddressOwner(of.namespace, of.uid), FlowGroup(of.namespace))
            cell = group, of.traffic_class, of.direction
            sums[cell] = sums.get(cell, 0) + counted.size
            if of.uid or not of.namespace:
                sizes[name] = counted.size
                before = self._counted.get(name, 0)
                grown = counted.size - (before if before <= counted.size else 0)
                moved[cell] = moved.get(cell, 0) + grown
        seconds = 0.0 if self._at is None else uptime - self._at
        keeps = math.exp(-max(0.0, seconds) / _SECONDS)
        rates: dict[_Cell, float] = {}
        for cell in sums:
            now = moved.get(cell, 0) * 8 / seconds if seconds > 0 else 0.0
            rates[cell] = self._rates.get(cell, 0.0) * keeps + now * (1 - keeps)
        self._counted, self._at, self._rates = sizes, uptime, rates
        return _lines(sums, rates)


def _lines(sums: Mapping[_Cell, int], rates: Mapping[_Cell, float]) -> tuple[FlowLine, ...]:
    shown = _shown(sums, rates)
    found: dict[tuple[FlowGroup, str], list[float]] = {}
    for (group, traffic_class, direction), size in sums.items():
        figures = found.setdefault((shown[group], traffic_class), [0, 0, 0.0, 0.0])
        n = _DIRECTIONS.index(direction)
        figures[n] += size
        figures[n + 2] += rates[group, traffic_class, direction]
    return tuple(
        FlowLine(*group, traffic_class, *(int(each) for each in figures))
        for (group, traffic_class), figures in sorted(found.items())
        if figures[0] or figures[1]
    )


def _shown(sums: Mapping[_Cell, int], rates: Mapping[_Cell, float]) -> dict[FlowGroup, FlowGroup]:
    """Return in which group each is shown."""
    weights: dict[FlowGroup, tuple[float, int]] = {}
    spaces: dict[FlowGroup, tuple[float, int]] = {}
    for cell, size in sums.items():
        for found, key in ((weights, cell[0]), (spaces, FlowGroup(cell[0].namespace))):
            rate, whole = found.get(key, (0.0, 0))
            found[key] = rate + rates[cell], whole + size
    own = _largest({each: weights[each] for each in weights if each.team or each.job}, JOBS_MAX)
    roomy = {_NODE, *_largest(spaces, NAMESPACES_MAX)}
    shown: dict[FlowGroup, FlowGroup] = {}
    for each in weights:
        space = FlowGroup(each.namespace)
        fallback = space if space in roomy else FlowGroup(OTHERS)
        shown[each] = each if each in own and space in roomy else fallback
    return shown


def _largest(weights: Mapping[FlowGroup, tuple[float, int]], count: int) -> list[FlowGroup]:
    order = sorted(weights, key=lambda each: (-weights[each][0], -weights[each][1], each))
    return order[:count]
