"""What is measured of the health of nodes: states, and what holds back, read at the scrape.

Labels are closed sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from fairlead.api.jobs.notify import NoticeState
from fairlead.decide.health.cycle import HealthReport
from fairlead.decide.health.unreachable_nodes import Presence, SilenceHold, SilenceReport
from fairlead.decide.removal.removals import RemovalRule
from fairlead.decide.removal.trust import Blindness
from fairlead.model.health.node_record import NodeState
from fairlead.runtime.exported.scraped import ScrapedMetrics, gauge

_STATES = [s for s in NodeState if s not in (NodeState.READY, NodeState.JOINING, NodeState.RETIRED)]


class HealthMetrics(ScrapedMetrics[HealthReport]):
    """The series of the health controller."""

    def series(self, report: HealthReport) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        blind = {finding.blindness for finding in report.findings}
        rails = sorted(Blindness, key=lambda each: each.value)
        return (
            gauge(
                "fairlead_health_nodes",
                "Nodes that are suspected or out of service, by state.", "state",
                ((each.value.lower(), report.states.get(each, 0)) for each in _STATES),
            ),
            gauge(
                "fairlead_health_rail_holds",
                "1 while no sick node is taken out because what is seen cannot be trusted, by what "
                "is wrong.", "rail",
                ((each.value, each in blind) for each in rails),
            ),
            gauge(
                "fairlead_health_nodes_held",
                "Sick nodes that stay in service, by the rule of the rails that holds them there.",
                "rule",
                ((each.value, report.held.get(each, 0)) for each in RemovalRule),
            ),
            gauge(
                "fairlead_health_nodes_untested",
                "Idle nodes whose last test is old: all of them, and those that should have been "
                "tested by now.", "state",
                (("due", report.due), ("late", report.overdue)),
            ),
            GaugeMetricFamily(
                "fairlead_health_bad_links",
                "Links of leaves of the network, and of pairs of good nodes, that are slow, late "
                "or change data.", value=report.bad_links,
            ),
        )  # fmt: skip


class TicketMetrics(ScrapedMetrics[Mapping[NoticeState, int]]):
    """The series of tickets of nodes."""

    def series(self, report: Mapping[NoticeState, int]) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        yield gauge(
            "fairlead_health_tickets",
            "Tickets of nodes that need a person or other hardware, by how far sending them is.",
            "state",
            ((state.value, report.get(state, 0)) for state in NoticeState),
        )


class SilenceMetrics(ScrapedMetrics[SilenceReport]):
    """The series of nodes whose leases are late."""

    def series(self, report: SilenceReport) -> Iterable[Metric]:
        """Return what is read at the scrape."""
        return (
            gauge(
                "fairlead_node_leases",
                "Nodes with a lease: all of them; those that are ready and whose lease is late; "
                "and those that were found unreachable.", "state",
                ((each, getattr(report, each)) for each in ("leases", "silent", "unreachable")),
            ),
            gauge(
                "fairlead_silent_nodes",
                "Nodes whose lease is late, by what was found out: answers and refuses are signs "
                "of the machine.", "presence",
                ((each.value, report.presence.get(each, 0)) for each in Presence),
            ),
            gauge(
                "fairlead_silence_rail_holds",
                "1 while silent nodes are not taken for lost, because what is seen cannot be "
                "trusted or too many were, by what is wrong.", "rail",
                ((each.value, report.hold is each) for each in SilenceHold),
            ),
        )  # fmt: skip
