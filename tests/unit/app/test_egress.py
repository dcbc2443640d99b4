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

from fairlead.api.meta import to_wire
from fairlead.api.resources import NODE_REPORTS, NODES, PODS, TEAMS
from fairlead.api.values.times import format_time, parse_time
from fairlead.app.collector import Collector
from fairlead.node.report import report_of
from fairlead.node.shaping import EgressRates, ShapingUsage, TeamEgress
from fairlead.sim.loop import run
from fairlead.testing.builders import make_node, make_pod, make_team

G = 10**9


class Machine:
    """A node with an agent that limits traffic, which the test plays, and its collector."""

    def __init__(self, fleet: FleetWorld, name: str, root: Path) -> None:
        self.fleet, self.name = fleet, name
        self.looks = Looks(HostTree(root / name), "kernel-log")
        self.rates: EgressRates | None = None
        self.demand, self.shapes = 0, True
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
                for each in rates.teams
            ))  # fmt: skip
        return msgspec.json.encode(msgspec.structs.replace(report, at=at, shaping=shaping))

    def _tell(self, data: bytes) -> None:
        self.rates = msgspec.json.decode(data, type=EgressRates)

    def share(self, team: str = "vision") -> int:
        teams = self.rates.teams if self.rates else ()
        return sum(each.bits_per_second for each in teams if each.team == team)


@contextmanager
def collecting(*machines: Machine) -> Generator[None]:
    tasks = [asyncio.create_task(each.collector.run()) for each in machines]
    yield
    for task in tasks:
        task.cancel()


async def make(fleet: FleetWorld, name: str, root: Path) -> Machine:
    """Make a node with one pod of the team."""
    node = to_wire(make_node(name))
    await fleet.client.create(NODES, {"metadata": {"name": name}, "spec": node.get("spec", {})})
    await add_pod(fleet, name)
    return Machine(fleet, name, root)


async def add_pod(fleet: FleetWorld, node: str) -> None:
    pod = make_pod("loader", node=node)
    body = {"metadata": {"name": f"loader-{node}"}, "spec": to_wire(pod.spec)}
    await fleet.client.create(PODS, body, namespace="default")


async def set_budget(fleet: FleetWorld, text: str) -> None:
    team = to_wire(make_team("vision", namespaces=("default",), network={"internetEgress": text}))
    body = {"metadata": {"name": "vision"}, "spec": team["spec"]}
    await fleet.client.create(TEAMS, body)


def test_a_budget_follows_the_demand_of_nodes_and_ends_with_the_team(tmp_path: Path) -> None:
    async def main() -> None:
        async with FleetWorld.running(health=ACTING) as fleet:
            one, two = [await make(fleet, name, tmp_path) for name in ("n1", "n2")]
            await set_budget(fleet, "1G")
            with collecting(one, two):
                await asyncio.sleep(120)
                assert one.share() > 0
                assert two.share() > 0
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
                assert report.spec.egress == ()

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
