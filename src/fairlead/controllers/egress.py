"""The egress controller: divides budgets of traffic, of teams and destinations, over the nodes.

It reads demand from the reports of nodes and writes their shares into the same objects' specs, from
where each node's collector takes them. It looks at all of them once in a round, and only while
there is a budget or some node has a share. With each report it adds up what nodes have counted, and
records an event on a pod that is held back for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from fairlead.api.cluster.node_report import NodeReport, NodeReportSpec, ReportedPodEgress
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.names import TEAM
from fairlead.api.resources import NODE_REPORTS, PODS
from fairlead.api.status import ApiError
from fairlead.api.values.egress import TEAM_BITS_MIN, TrafficDirection, egress_bits, rate_text
from fairlead.api.values.times import format_time
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.network import (
    Budget,
    DestinationBudget,
    EgressMemory,
    EgressPolicy,
    HeldBackPods,
    SetShares,
    TeamBudget,
    TrafficBook,
    decide_shares,
    team_of,
)
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.exported.traffic_metrics import (
    DestinationBudgetLine,
    TeamBudgetLine,
    TrafficReport,
)
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow

#: A pod's node, its namespace, and the team that it names.
_Place = tuple[str, str, str]


class EgressController:
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "egress"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        reports: Mirror[NodeReport],
        *,
        events: EventSink,
        clock: Clock,
        policy: EgressPolicy,
        reader: MirrorReader | None = None,
    ) -> None:
        self._world = world
        self._reports = reports
        self._objects = ObjectWriter(client)
        self._events = events
        self._clock = clock
        self._policy = policy
        self._memory = EgressMemory()
        self._places: Counter[_Place] = Counter()
        self._next_at = 0.0
        #: The latest round found neither a budget nor a share, with this version of the teams.
        self._is_idle, self._teams_seen = False, -1
        self._traffic, self._held_back = TrafficBook(), HeldBackPods()
        self._followed = ExitStack()
        for undo in (
            follow(world.mirrors.pods, self._pod_changed, reader),
            follow(reports, self._report_changed, reader),
        ):
            self._followed.callback(undo)

    def close(self) -> None:
        """Detach from the mirrors, which live longer than the controller."""
        self._followed.close()

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        return (self._reports, seen.teams, seen.pods)

    def _pod_changed(self, change: Change[Pod]) -> None:
        for pod, sign in ((change.old, -1), (change.new, 1)):
            if pod is None or not pod.spec.node_name or pod.is_terminal or pod.spec.host_network:
                continue
            meta = pod.metadata
            place = pod.spec.node_name, meta.namespace, meta.labels.get(TEAM, "")
            self._places[place] += sign
            if not self._places[place]:
                del self._places[place]

    def _report_changed(self, change: Change[NodeReport]) -> None:
        self._traffic.put(change.old, change.new)
        for each in self._held_back.changed(change.key[1], change.new):
            pod = self._world.mirrors.pods.get(each.namespace, each.name)
            # A node speaks for its own pods alone.
            if pod is not None and pod.spec.node_name == change.key[1]:
                self._events.record(PODS, pod.metadata, EventKind.WARNING, reason="TrafficHeldBack",
                                    message=_held_back_words(each))  # fmt: skip

    @property
    def traffic(self) -> TrafficReport:
        """Return what all nodes together have counted, and the use of budgets."""
        teams = self._world.state.teams
        used: dict[tuple[str, TrafficDirection], list[int]] = {}
        for report in self._reports.items():
            shaping = report.status.shaping
            if shaping is None:
                continue
            for direction in TrafficDirection:
                for line in shaping.lines(direction):
                    sums = used.setdefault((line.team, direction), [0, 0, 0])
                    for n, bits in enumerate((line.limit, line.demand, line.sent)):
                        sums[n] += bits
        return TrafficReport(
            self._traffic.by_team(lambda space, label: team_of(teams.open_to(space), label)),
            self._traffic.states,
            [TeamBudgetLine(name, direction.value, bits, *used.get((name, direction), (0, 0, 0)))
             for (name, direction), bits in self._bits().items()],
            self._destinations_used(),
        )  # fmt: skip

    def _destinations_used(self) -> list[DestinationBudgetLine]:
        used: dict[tuple[str, TrafficDirection], list[int]] = {}
        for report in self._reports.items() if self._policy.destinations else ():
            for line in report.status.shaping.destinations if report.status.shaping else ():
                sums = used.setdefault((line.destination, line.direction), [0, 0, 0])
                for n, bits in enumerate((line.limit, line.demand, line.sent)):
                    sums[n] += bits
        return [
            DestinationBudgetLine(each.name, each.direction.value, each.bits,
                                  *used.get((each.name, each.direction), (0, 0, 0)))
            for each in self._policy.destinations
        ]  # fmt: skip

    def due_at(self) -> float | None:
        """Return when the next round is; None while no team has a budget and no node a share."""
        is_idle = self._is_idle and self._teams_seen == self._world.state.teams.version
        return None if is_idle else self._next_at

    def _bits(self) -> dict[tuple[str, TrafficDirection], int]:
        """Return the budgets of teams by direction, in bits per second and in order."""
        return {
            (each.metadata.name, direction): egress_bits(text, least=TEAM_BITS_MIN)
            for each in self._world.state.teams
            for direction in TrafficDirection
            if (text := each.spec.network.internet(direction))
        }

    def _budgets(self, reports: Mapping[str, NodeReport]) -> list[Budget]:
        """Return all budgets, with the nodes that have pods that they are of."""
        bits = self._bits()
        nodes: dict[tuple[str, TrafficDirection], set[str]] = {key: set() for key in bits}
        for node, namespace, label in self._places if bits else ():
            teams = self._world.state.teams.open_to(namespace)
            for direction in TrafficDirection:
                of = [name for name in teams if (name, direction) in bits]
                if of:
                    nodes[team_of(of, label), direction].add(node)
        found: list[Budget] = []
        limiting = frozenset(
            name for name, each in reports.items() if each.status.shaping is not None
        )
        for (name, direction), budget in bits.items():
            team = self._world.state.teams.get(name)
            assert team is not None
            spaces = tuple(sorted(team.spec.namespaces))
            there = frozenset(nodes[name, direction])
            idle = limiting - there
            found.append(TeamBudget(name, budget, spaces, there, direction, idle))
        if self._policy.destinations:
            occupied = {node for node, _, _ in self._places} & reports.keys()
            for limit in self._policy.destinations:
                able = frozenset(node for node in limiting if _knows(reports[node], limit.name))
                found.append(DestinationBudget(limit, able & occupied, able - occupied))
        return found

    def decide(self, now: float) -> Decision[SetShares]:
        """Make a round where one is due."""
        if now < self._next_at:
            return Decision(wake_at=self._next_at)
        self._next_at = now + self._policy.round_seconds
        reports = {
            each.metadata.name: each
            for each in self._reports.items()
            if each.status.shaping is not None or each.spec.has_shares
        }
        budgets = self._budgets(reports)
        writes = decide_shares(budgets, reports, self._memory, now, policy=self._policy)
        self._is_idle = not budgets and not any(each.spec.has_shares for each in reports.values())
        self._teams_seen = self._world.state.teams.version
        return Decision(tuple(writes), wake_at=None if self._is_idle else self._next_at)

    def key_of(self, action: SetShares) -> ObjectKey:
        """Return the object of an action."""
        return ("node", action.report.metadata.name)

    def takings(self, action: SetShares) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        return takings.shaping(action)

    async def perform(self, action: SetShares) -> Written | None:
        """Write a node's shares; safe to repeat."""
        at = None if action.is_empty else format_time(self._clock.now())
        spec = to_wire(NodeReportSpec(action.shares, at, action.ingress, action.destinations))
        patch = {"spec": {
            **{name: spec.get(name, []) for name in ("egress", "ingress", "destinations")},
            "egressAt": spec.get("egressAt"),
        }}  # fmt: skip
        return await self._objects.patch(NODE_REPORTS, action.report.metadata, patch)

    def changed(self, key: ObjectKey) -> None:
        """Look at an object again: the next round does."""

    def faulted(self, action: SetShares, error: Exception) -> None:
        """Raise: what is written is made here, from numbers and names that were checked."""
        raise error

    def failed(self, action: SetShares, error: ApiError) -> None:
        """Leave it to the next round."""


def _knows(report: NodeReport, destination: str) -> bool:
    shaping = report.status.shaping
    return shaping is not None and destination in shaping.classes


def _held_back_words(pod: ReportedPodEgress) -> str:
    limits = [f"its own limit of {rate_text(pod.limit)}bit/s"] if pod.limit else []
    limits += [f"what team {pod.team} may send from its node"] if pod.team else []
    return (
        "What it sends to the internet has been held back for 10 minutes and more, by "
        f"{' or '.join(limits) or 'a limit of its node'}: fairlead network why {pod.name} "
        f"-n {pod.namespace}"
    )
