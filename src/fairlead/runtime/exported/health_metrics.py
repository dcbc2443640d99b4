"""What is measured of the health of nodes: states, and what holds back, read at the scrape.

Labels are closed sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fairlead.api.jobs.notify import NoticeState
from fairlead.decide.health.cycle import HealthReport
from fairlead.decide.health.unreachable_nodes import Presence, SilenceHold, SilenceReport
from fairlead.decide.removal.removals import RemovalRule
from fairlead.decide.removal.trust import Blindness
from fairlead.model.health.node_record import NodeState

#: Returns what the latest decision found. Reading must not wait.
HealthSource = Callable[[], HealthReport]
SilenceSource = Callable[[], SilenceReport]
TicketSource = Callable[[], Mapping[NoticeState, int]]


class HealthMetrics(Collector):
    """The series of the health controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series on `registry`, which must not have them yet."""
        self._source: HealthSource | None = None
        registry.register(self)

    def watch(self, source: HealthSource | None) -> None:
        """Read this at each scrape; None: no more (this replica does not lead)."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        if self._source is None:
            return ()
        report = self._source()
        states = GaugeMetricFamily(
            "fairlead_health_nodes",
            "Nodes that are suspected or out of service, by state.",
            labels=["state"],
        )
        for state in NodeState:
            if state not in (NodeState.READY, NodeState.JOINING, NodeState.RETIRED):
                states.add_metric([state.value.lower()], report.states.get(state, 0))
        holds = GaugeMetricFamily(
            "fairlead_health_rail_holds",
            "1 while no sick node is taken out because what is seen cannot be trusted, by what is "
            "wrong.",
            labels=["rail"],
        )
        blind = {finding.blindness for finding in report.findings}
        for rail in sorted(Blindness, key=lambda each: each.value):
            holds.add_metric([rail.value], rail in blind)
        held = GaugeMetricFamily(
            "fairlead_health_nodes_held",
            "Sick nodes that stay in service, by the rule of the rails that holds them there.",
            labels=["rule"],
        )
        for rule in RemovalRule:
            held.add_metric([rule.value], report.held.get(rule, 0))
        tests = GaugeMetricFamily(
            "fairlead_health_nodes_untested",
            "Idle nodes whose last test is old: all of them, and those that should have been "
            "tested by now.",
            labels=["state"],
        )
        tests.add_metric(["due"], report.due)
        tests.add_metric(["late"], report.overdue)
        links = GaugeMetricFamily(
            "fairlead_health_bad_links",
            "Links of leaves of the network, and of pairs of good nodes, that are slow, late or "
            "change data.",
        )
        links.add_metric([], report.bad_links)
        return (states, holds, held, tests, links)


class TicketMetrics(Collector):
    """The series of tickets of nodes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series on `registry`, which must not have them yet."""
        self._source: TicketSource | None = None
        registry.register(self)

    def watch(self, source: TicketSource | None) -> None:
        """Read this at each scrape; None: no more (this replica does not lead)."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        if self._source is None:
            return ()
        found = self._source()
        tickets = GaugeMetricFamily(
            "fairlead_health_tickets",
            "Tickets of nodes that need a person or other hardware, by how far sending them is.",
            labels=["state"],
        )
        for state in NoticeState:
            tickets.add_metric([state.value], found.get(state, 0))
        return (tickets,)


class SilenceMetrics(Collector):
    """The series of nodes whose leases are late."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the series on `registry`, which must not have them yet."""
        self._source: SilenceSource | None = None
        registry.register(self)

    def watch(self, source: SilenceSource | None) -> None:
        """Read this at each scrape; None: no more (this replica does not lead)."""
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        if self._source is None:
            return ()
        report = self._source()
        nodes = GaugeMetricFamily(
            "fairlead_node_leases",
            "Nodes with a lease: all of them; those that are ready and whose lease is late; and "
            "those that were found unreachable.",
            labels=["state"],
        )
        for state in ("leases", "silent", "unreachable"):
            nodes.add_metric([state], getattr(report, state))
        found = GaugeMetricFamily(
            "fairlead_silent_nodes",
            "Nodes whose lease is late, by what was found out: answers and refuses are signs of "
            "the machine.",
            labels=["presence"],
        )
        for presence in Presence:
            found.add_metric([presence.value], report.presence.get(presence, 0))
        holds = GaugeMetricFamily(
            "fairlead_silence_rail_holds",
            "1 while silent nodes are not taken for lost, because what is seen cannot be trusted "
            "or too many were, by what is wrong.",
            labels=["rail"],
        )
        for hold in SilenceHold:
            holds.add_metric([hold.value], report.hold is hold)
        return (nodes, found, holds)
