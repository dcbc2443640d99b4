"""A team's budget from its Team to the file of each agent, with controllers and collectors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from tests.unit.app.fleet_world import FleetWorld
from tests.unit.app.test_health import ACTING
from tests.unit.node.host_tree import HostTree, Looks

from fairlead.api.kubernetes.core import Event
from fairlead.api.meta import to_wire
from fairlead.api.resources import EVENTS, NODE_REPORTS, NODES, PODS, TEAMS
from fairlead.api.values.egress import TrafficDirection
from fairlead.api.values.times import format_time, parse_time
from fairlead.app.collector import Collector
from fairlead.decide.network import DestinationLimit, EgressPolicy
from fairlead.node.reports.report import report_of
from fairlead.node.shaping import (
    DestinationUse,
    EgressRates,
    ShapedPodLine,
    ShapingUsage,
    TeamEgress,
)
from fairlead.node.traffic import FlowLine, TrafficUsage
from fairlead.sim.loop import run
from fairlead.testing.builders import make_node, make_pod, make_team

G = 10**9


class Machine:
    """A node with an agent that limits traffic, which the test plays, and its collector."""

    def __init__(self, fleet: FleetWorld, name: str, root: Path) -> None:
        self.fleet, self.name = fleet, name
        self.looks = Looks(HostTree(root / name), "kernel-log")
        self.rates: EgressRates | None = None
        self.demand, self.shapes, self.with_pods = 0, True, True
        #: Classes that the agent knows, and what it says of each destination.
        self.classes: tuple[str, ...] = ()
        #: What a pod of the team sends, and for how long it is held back.
        self.sent, self.held = 0, 0
        self.pod = f"loader-{name}"
        self.collector = Collector(fleet.client, name, self._read, tell=self._tell,
                                   clock=fleet.clock, rng=random.Random(0))  # fmt: skip

    def _read(self) -> bytes:
        report = report_of(self.looks.watch, self.looks.host.now())
        at = format_time(self.fleet.clock.now())
        shaping = None
        if self.shapes:
            rates = self.rates or EgressRates(1, at, ())
            shaping = ShapingUsage("htb", shares=rates.shares, teams=tuple(
                TeamEgress(each.team, each.bits_per_second, 0, self.demand, 0, 1)
                for each in rates.teams if self.with_pods
            ), pods=(
                ShapedPodLine("default", self.pod, "x", "vision", 0, self.sent, 0, self.held),
            ), destinations=tuple(
                DestinationUse(each.destination, each.direction, each.bits_per_second, 0,
                               self.demand, 0, 1)
                for each in rates.destinations
                if each.destination in self.classes and self.with_pods
            ), classes=self.classes)  # fmt: skip
        flows = (FlowLine("default", "", "", "internet", 10**9, 0, self.sent, 0),)
        traffic = TrafficUsage(flows=flows)
        return msgspec.json.encode(msgspec.structs.replace(
            report, at=at, shaping=shaping, traffic=traffic
        ))  # fmt: skip

    def _tell(self, data: bytes) -> None:
        self.rates = msgspec.json.decode(data, type=EgressRates)

    def to(self, destination: str) -> int:
        """Return what the node may send to a destination."""
        given = self.rates.destinations if self.rates else ()
        return sum(each.bits_per_second for each in given if each.destination == destination)

    def share(self, team: str = "vision") -> int:
        teams = self.rates.teams if self.rates else ()
        return sum(each.bits_per_second for each in teams if each.team == team)


@contextmanager
def collecting(*machines: Machine) -> Generator[None]:
    tasks = [asyncio.create_task(each.collector.run()) for each in machines]
    yield
    for task in tasks:
        task.cancel()


async def make(fleet: FleetWorld, name: str, root: Path, *, has_pod: bool = True) -> Machine:
    """Make a node with one pod of the team, or none yet."""
    node = to_wire(make_node(name))
    await fleet.client.create(NODES, {"metadata": {"name": name}, "spec": node.get("spec", {})})
    if has_pod:
        await add_pod(fleet, name)
    return Machine(fleet, name, root)


async def add_pod(fleet: FleetWorld, node: str) -> None:
    pod = make_pod("loader", node=node)
    body = {"metadata": {"name": f"loader-{node}"}, "spec": to_wire(pod.spec)}
    await fleet.client.create(PODS, body, namespace="default")


async def set_budget(fleet: FleetWorld, text: str, ingress: str = "") -> None:
    network = {"internetEgress": text, "internetIngress": ingress}
    team = to_wire(make_team("vision", namespaces=("default",), network=network))
    body = {"metadata": {"name": "vision"}, "spec": team["spec"]}
    await fleet.client.create(TEAMS, body)


def test_a_budget_follows_the_demand_of_nodes_and_ends_with_the_team(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            one, two = [await make(fleet, name, tmp_path) for name in ("n1", "n2")]
            await set_budget(fleet, "1G", ingress="2G")
            with collecting(one, two):
                await asyncio.sleep(120)
                assert one.share() > 0
                assert two.share() > 0
                assert one.rates is not None
                (into,) = one.rates.ingress
                assert 0 < into.bits_per_second <= 2 * G
                one.demand = 5 * G
                await asyncio.sleep(120)
                assert one.share() > 0.95 * G
                two.demand = 5 * G
                await asyncio.sleep(120)
                assert abs(one.share() - two.share()) < 0.05 * G
                assert 0.95 * G < one.share() + two.share() <= G
                await fleet.client.delete(TEAMS, "vision")
                await asyncio.sleep(180)
                assert one.rates is not None
                report = await fleet.client.get(NODE_REPORTS, "n1")
                assert (report.spec.egress, report.spec.ingress) == ((), ())

    run(main())


def test_a_nodes_first_pod_of_a_team_finds_a_limit_that_holds_without_a_controller(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        limit = DestinationLimit("datasets", TrafficDirection.EGRESS, G)
        async with FleetWorld.running(
            health=ACTING, egress=EgressPolicy(destinations=(limit,))
        ) as fleet:
            one = await make(fleet, "n1", tmp_path)
            two = await make(fleet, "n2", tmp_path, has_pod=False)
            one.classes = two.classes = ("storage", "datasets")
            one.demand, two.with_pods = 5 * G, False
            await set_budget(fleet, "1G", ingress="1G")
            with collecting(one, two):
                await asyncio.sleep(180)
                assert 0 < two.share() <= 0.02 * G
                assert 0 < two.to("datasets") <= 0.02 * G
                assert 0.95 * G < one.share() + two.share() <= G
                report = await fleet.client.get(NODE_REPORTS, "n2")
                assert report.status.shaping is not None
                assert report.status.shaping.shares_at == report.spec.egress_at, "it is confirmed"
                await asyncio.sleep(3600)
                after = await fleet.client.get(NODE_REPORTS, "n2")
                assert after.spec == report.spec, "it does not grow old"
                await add_pod(fleet, "n2")
                two.demand, two.with_pods = 5 * G, True
                await asyncio.sleep(120)
                assert abs(one.share() - two.share()) < 0.05 * G
                one.with_pods = False
                await fleet.client.delete(PODS, "loader-n1", namespace="default")
                await asyncio.sleep(60)
                assert one.share() <= 0.02 * G
                assert two.share() > 0.95 * G, "what it left is given to others within a minute"

    run(main())


def test_a_destination_is_shared_by_pods_of_all_teams_on_nodes_that_know_its_addresses(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        limit = DestinationLimit("datasets", TrafficDirection.EGRESS, G)
        async with FleetWorld.running(
            health=ACTING, egress=EgressPolicy(destinations=(limit,))
        ) as fleet:
            machines = [await make(fleet, name, tmp_path) for name in ("n1", "n2", "n3")]
            one, two, three = machines
            one.classes = two.classes = ("storage", "datasets")
            one.demand, two.demand, three.demand = 5 * G, 1 << 62, 5 * G
            with collecting(*machines):
                await asyncio.sleep(180)
                assert abs(one.to("datasets") - two.to("datasets")) < 0.05 * G
                assert 0.95 * G < one.to("datasets") + two.to("datasets") <= G
                assert three.to("datasets") == 0, "it does not know where that is"
                series = exported(fleet)
                labels = 'destination="datasets",direction="egress",kind='
                name = "fairlead_destination_bits_per_second{" + labels
                assert series[name + '"budget"}'] == G
                assert 0.95 * G < series[name + '"given"}'] <= G
                await fleet.kill()
                one.demand = 0
                await asyncio.sleep(180)
                assert two.to("datasets") > 0.9 * G
                fleet.egress = EgressPolicy()  # the setting is gone
                await fleet.kill()
                await asyncio.sleep(180)
                report = await fleet.client.get(NODE_REPORTS, "n2")
                assert not report.spec.has_shares

    run(main())


def test_a_node_whose_agent_keeps_no_limits_has_no_part_of_the_budget(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            one, two = [await make(fleet, name, tmp_path) for name in ("n1", "n2")]
            one.demand, two.shapes = 5 * G, False
            await set_budget(fleet, "1G")
            with collecting(one, two):
                await asyncio.sleep(120)
                assert one.share() > 0.95 * G
                assert two.rates is None

    run(main())


def test_a_share_is_confirmed_while_nothing_changes_and_grows_old_without_a_controller(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            one = await make(fleet, "n1", tmp_path)
            one.demand = 5 * G
            await set_budget(fleet, "1G")
            with collecting(one):
                await asyncio.sleep(3600)
                assert one.rates is not None
                at = one.rates.shares
                assert fleet.clock.now() - 400 < parse_time(at)
                fleet.controller.cancel()
                await asyncio.sleep(3600)
                assert one.rates.shares <= format_time(fleet.clock.now() - 3500)

    run(main())


def exported(fleet: FleetWorld) -> dict[str, float]:
    """Return the series of traffic that are not 0."""
    names = ("fairlead_traffic", "fairlead_team_internet", "fairlead_destination")
    lines = (line.rsplit(" ", 1) for line in fleet.metrics.render().decode().splitlines()
             if line.startswith(names))  # fmt: skip
    return {name: float(value) for name, value in lines if float(value)}


def test_rates_of_all_nodes_are_added_up_by_team_and_written_rarely(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            machines = [await make(fleet, name, tmp_path) for name in ("n1", "n2")]
            await set_budget(fleet, "1G")
            labels = 'class="internet",direction="out",team="vision"'
            sent = f"fairlead_traffic_bits_per_second{{{labels}}}"
            labels = 'direction="egress",kind="budget",team="vision"'
            budget = f"fairlead_team_internet_bits_per_second{{{labels}}}"
            with collecting(*machines):
                for each in machines:
                    each.sent = 40 * 10**6
                await asyncio.sleep(120)
                series = exported(fleet)
                assert series[sent] == 80 * 10**6
                assert series['fairlead_traffic_nodes{state="counted"}'] == 2
                assert series[budget] == G
                machines[0].sent = 60 * 10**6  # less than twice: it goes with the next write
                before = await fleet.client.get(NODE_REPORTS, "n1")
                await asyncio.sleep(90)
                after = await fleet.client.get(NODE_REPORTS, "n1")
                assert before.status.observed_at == after.status.observed_at
                machines[0].sent = 100 * 10**6
                await asyncio.sleep(90)
                assert exported(fleet)[sent] == 140 * 10**6
                await fleet.client.delete(NODE_REPORTS, "n2")
                machines[1].collector.stop()
                await asyncio.sleep(5)
                assert exported(fleet)[sent] == 100 * 10**6

    run(main())


def test_a_pod_that_is_held_back_for_long_has_one_event_and_those_of_other_nodes_none(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            fleet.client.keeps_events = True
            one, two = [await make(fleet, name, tmp_path) for name in ("n1", "n2")]
            await set_budget(fleet, "1G")
            two.pod = "loader-n1"  # of another node: a node speaks for its own pods alone
            with collecting(one, two):
                one.held = two.held = 599
                await asyncio.sleep(60)
                assert await held_events(fleet) == []
                one.held = two.held = 600
                await asyncio.sleep(60)
                one.held = 5000
                await asyncio.sleep(1200)
                (event,) = await held_events(fleet)
                assert event.count == 1
                assert event.involved_object.name == "loader-n1"
                assert "fairlead network why loader-n1 -n default" in event.message

    run(main())


async def held_events(fleet: FleetWorld) -> list[Event]:
    found = (await fleet.client.list(EVENTS)).items
    return [each for each in found if each.reason == "TrafficHeldBack"]
