"""Nodes that come back after an outage take work again one after another."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.app.fleet_world import FleetWorld, PagedClient
from tests.unit.app.test_fleet_drill import fill

from fairlead.api import names
from fairlead.api.resources import NODE_POOLS
from fairlead.decide.fleet.leaving.returns import TAINTED_MAX
from fairlead.runtime.client import Request
from fairlead.runtime.loop import LoopOptions
from fairlead.sim.loop import run

COUNT, AWAY = 200, 120


async def waiting(world: FleetWorld) -> set[str]:
    """Return the nodes with the taint."""
    return {
        node.metadata.name
        for node in await world.nodes()
        if any(taint.key == names.TAINT_RETURNING for taint in node.spec.taints)
    }


async def outage(world: FleetWorld, seconds: float, nodes: Iterable[str]) -> None:
    for name in nodes:
        world.virtual.fail_node(name)
    await asyncio.sleep(seconds)


def test_nodes_that_come_back_wait_for_their_turn_and_their_gang_has_them_again() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await fill(world, COUNT)
            await world.submit("train", gpus=8, count=COUNT, seconds=36_000)
            await asyncio.sleep(60)
            before = (await world.job("train")).status
            assert before.placement is not None
            away = sorted(world.virtual.node_names())[:AWAY]
            await outage(world, 55, away)
            assert not await waiting(world), "a node that is back within a minute was not away"
            await asyncio.sleep(60)
            assert await waiting(world) == set(away)
            for name in away:
                world.virtual.recover_node(name)
            begun, counts = world.clock.now(), list[int]()

            async def all_work() -> bool:
                counts.append(AWAY - len(await waiting(world)))
                left = (world.clock.now() - begun) * 500 / 60 + COUNT * 0.1 + 5 * 500 / 60
                assert counts[-1] <= left, "a tenth of the cluster, and then 500 a minute at most"
                return counts[-1] == AWAY

            assert await world.until(all_work, 600) > 10
            assert len(set(counts)) > 3, counts
            after = (await world.job("train")).status
            assert after.placement is not None, "the gang whose nodes were away has them again"
            assert after.placement.attempt == after.attempt
            assert after.placement.roles[0].nodes == before.placement.roles[0].nodes
            assert (await world.get_pool()).status.leaving == 0
            assert world.crashes() == []

    run(main())


def test_taints_are_few_at_a_time_and_are_lifted_in_a_pool_that_is_no_longer_acted_on() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await fill(world, COUNT)
            await asyncio.sleep(60)
            await outage(world, 0, sorted(world.virtual.node_names())[:AWAY])
            seen = [0]

            async def all_wait() -> bool:
                seen.append(len(await waiting(world)))
                return seen[-1] == AWAY

            await world.until(all_wait, 300)
            steps = [after - before for before, after in itertools.pairwise(seen)]
            assert max(steps) <= TAINTED_MAX
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"mode": "DryRun"}})
            for name in world.virtual.node_names():
                world.virtual.recover_node(name)

            async def none_waits() -> bool:
                return not await waiting(world)

            await world.until(none_waits, 600)

    run(main())


def test_one_node_that_is_away_in_a_quiet_fleet_waits_for_its_turn_too() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await fill(world, COUNT)
            await asyncio.sleep(600)
            [name, *_] = world.virtual.node_names()
            await outage(world, 100, [name])
            assert await waiting(world) == {name}

    run(main())


def test_taints_are_not_tried_in_each_decision_while_the_api_server_refuses_writes() -> None:
    tried = [0]

    class Client(PagedClient):
        async def call(self, request: Request[Any]) -> Any:
            tried[0] += self.is_full and names.TAINT_RETURNING in str(request.body)
            return await super().call(request)

    async def main() -> None:
        async with FleetWorld.running() as world:
            await fill(world, COUNT)
            await asyncio.sleep(60)
            await outage(world, 0.5, world.virtual.node_names())
            world.client.is_full = True
            await asyncio.sleep(300)
            assert not await waiting(world)
            retried = 1 + LoopOptions().retries_max
            assert tried[0] <= 3 * TAINTED_MAX * retried, "not in each of 60 decisions"
            for name in world.virtual.node_names():
                world.virtual.recover_node(name)
            world.client.is_full = False
            await asyncio.sleep(30)
            assert not await waiting(world), "they are ready, and there is nothing to wait for"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.app.fleet_world.PagedClient", Client)
        run(main())
