"""What all nodes together say of their traffic, kept up with each report (pure).

The figures are reports of nodes, and nothing is decided by them: a node that lies falsifies sums.
So classes, which each node names, are bounded here as teams are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from fairlead.api.cluster.node_report import (
    NodeReport,
    NodeReportStatus,
    ReportedPodEgress,
    SourceState,
)

#: A pod that is held at its limit of traffic for so long without a break has an event.
HELD_BACK_SECONDS_MIN = 600
#: Classes with figures of their own; others are added up.
CLASSES_MAX = 12
OTHER_CLASSES = "other"
_ALWAYS = ("internal", "peered", "storage", "internet")
#: As the agent's source and check are named (node/sources/traffic.py).
_SOURCE, _COVERAGE = "traffic", "traffic-coverage"

#: Namespace, the team that labels name, class, direction ("out", "in").
FlowCell = tuple[str, str, str, str]


class CountingState(Enum):
    """Whether a node's agent sees the traffic of its pods."""

    COUNTED = "counted"
    PARTLY = "partly"  # less than what is expected of it
    BLIND = "blind"  # it should be counted, and is not
    OFF = "off"  # the agent is not asked to count


def counting_state(status: NodeReportStatus) -> CountingState:
    """Return what a report says of its counting."""
    if any(each.source == _SOURCE and each.state is not SourceState.LOSSY
           for each in status.sources):  # fmt: skip
        return CountingState.BLIND
    if status.traffic is None:
        return CountingState.OFF
    if any(each.check == _COVERAGE for each in status.faults):
        return CountingState.PARTLY
    return CountingState.COUNTED


@dataclass(slots=True)
class TrafficBook:
    """Rates in bits per second over all reports, and how many nodes count; by change."""

    states: Counter[CountingState] = field(default_factory=Counter[CountingState])
    _rates: Counter[FlowCell] = field(default_factory=Counter[FlowCell])
    _classes: set[str] = field(default_factory=lambda: set(_ALWAYS))

    def put(self, old: NodeReport | None, new: NodeReport | None) -> None:
        """Take in that a report has come, changed or gone."""
        for report, sign in ((old, -1), (new, 1)):
            if report is None:
                continue
            self.states[counting_state(report.status)] += sign
            for flow in report.status.traffic.flows if report.status.traffic else ():
                for direction, rate in (("out", flow.sent_rate), ("in", flow.received_rate)):
                    cell = flow.namespace, flow.team, flow.traffic_class, direction
                    self._rates[cell] += sign * rate
                    if not self._rates[cell]:
                        del self._rates[cell]

    def by_team(self, team_of: Callable[[str, str], str]) -> dict[tuple[str, str, str], int]:
        """Return rates by team, class and direction; `team_of` a namespace and a label's team."""
        found: dict[tuple[str, str, str], int] = {}
        for (namespace, label, traffic_class, direction), rate in sorted(self._rates.items()):
            if traffic_class not in self._classes and len(self._classes) < CLASSES_MAX:
                self._classes.add(traffic_class)
            shown = traffic_class if traffic_class in self._classes else OTHER_CLASSES
            key = team_of(namespace, label), shown, direction
            found[key] = found.get(key, 0) + rate
        return found


def team_of(teams: Iterable[str], label: str) -> str:
    """Return whose traffic it is: the labelled one of a namespace's teams, else the first."""
    names = sorted(teams)
    return label if label in names else next(iter(names), "")


@dataclass(slots=True)
class HeldBackPods:
    """Pods that are held back for long, by node: each is named once until it is no longer."""

    _known: dict[str, frozenset[tuple[str, str]]] = field(
        default_factory=dict[str, frozenset[tuple[str, str]]]
    )

    def changed(self, node: str, report: NodeReport | None) -> list[ReportedPodEgress]:
        """Return the pods of a node that are held back for long since this report."""
        shaping = report.status.shaping if report is not None else None
        held: Mapping[tuple[str, str], ReportedPodEgress] = {
            (each.namespace, each.name): each
            for each in (shaping.pods if shaping is not None else ())
            if each.held_back_seconds >= HELD_BACK_SECONDS_MIN
        }
        known = self._known.pop(node, frozenset())
        if held:
            self._known[node] = frozenset(held)
        return [held[key] for key in sorted(held.keys() - known)]
