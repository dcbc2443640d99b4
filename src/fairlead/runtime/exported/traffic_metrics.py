"""What nodes have counted of their pods' traffic, by team, and the use of budgets; at the scrape.

Labels are bounded: teams, which administrators name, up to a number; classes of addresses, of which
the book of traffic keeps a dozen; two directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from fairlead.decide.network import CountingState
from fairlead.runtime.exported.scraped import ScrapedMetrics, gauge

#: Teams with series of their own; the others are added up as team "-".
TEAMS_MAX = 500
_OTHERS = "-"
_KINDS = ("budget", "given", "wanted", "used")


class TeamBudgetLine(NamedTuple):
    """A team's budget of a direction, what nodes hold and want of it, and what passes; bit/s."""

    team: str
    direction: str
    budget: int
    given: int
    wanted: int
    used: int


class DestinationBudgetLine(NamedTuple):
    """The same of a destination, which all teams share."""

    destination: str
    direction: str
    budget: int
    given: int
    wanted: int
    used: int


@dataclass(frozen=True, slots=True)
class TrafficReport:
    """Rates in bits per second by (team, class, direction), nodes by state, and budgets."""

    rates: Mapping[tuple[str, str, str], int] = field(
        default_factory=dict[tuple[str, str, str], int]
    )
    states: Mapping[CountingState, int] = field(default_factory=dict[CountingState, int])
    budgets: Sequence[TeamBudgetLine] = ()
    destinations: Sequence[DestinationBudgetLine] = ()


class TrafficMetrics(ScrapedMetrics[TrafficReport]):
    """The series of traffic."""

    def series(self, report: TrafficReport) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        traffic = GaugeMetricFamily(
            "fairlead_traffic_bits_per_second",
            "What pods send (out) and receive (in), by team and class of the other end, as the "
            "nodes last reported.",
            labels=["team", "class", "direction"],
        )
        named = set(sorted({team for team, _, _ in report.rates})[:TEAMS_MAX])
        sums: dict[tuple[str, str, str], int] = {}
        for (team, traffic_class, direction), rate in report.rates.items():
            key = team if team in named else _OTHERS, traffic_class, direction
            sums[key] = sums.get(key, 0) + rate
        for key, rate in sorted(sums.items()):
            traffic.add_metric(key, rate)
        nodes = gauge(
            "fairlead_traffic_nodes",
            "Nodes by whether their traffic is counted: counted; partly: less than is expected; "
            "blind: it should be and is not; off: the agent is not asked to.",
            "state",
            ((state.value, report.states.get(state, 0)) for state in CountingState),
        )
        budgets = GaugeMetricFamily(
            "fairlead_team_internet_bits_per_second",
            "Internet traffic of teams with a budget: the budget, what nodes are given of it, what "
            "they want, and what passes (used).",
            labels=["team", "direction", "kind"],
        )
        for line in report.budgets[: 2 * TEAMS_MAX]:
            for kind in _KINDS:
                budgets.add_metric([line.team, line.direction, kind], getattr(line, kind))
        shared = GaugeMetricFamily(
            "fairlead_destination_bits_per_second",
            "Traffic of all pods with destinations that have a budget: the budget, what nodes are "
            "given of it, what they want, and what passes (used).",
            labels=["destination", "direction", "kind"],
        )
        for line in report.destinations:
            for kind in _KINDS:
                shared.add_metric([line.destination, line.direction, kind], getattr(line, kind))
        return (traffic, nodes, budgets, shared)
