"""Spares of a pool: bought and kept, taken by repairs alone, and made again."""

from __future__ import annotations

import asyncio

from tests.unit.app.fleet_world import FleetWorld

from fairlead.api import names
from fairlead.api.kubernetes.core import Node
from fairlead.api.resources import NODE_POOLS, NODES
from fairlead.decide.reasons import Reason
from fairlead.model.inventory.spares import is_spare
from fairlead.sim.loop import run

_TAINT = {"key": names.TAINT_SPARE, "effect": "NoSchedule"}


async def spares(world: FleetWorld) -> set[str]:
    return {n.metadata.name for n in await world.nodes() if is_spare(n.spec.taints)}


async def zones_of_spares(world: FleetWorld) -> set[str]:
    nodes = [n for n in await world.nodes() if is_spare(n.spec.taints)]
    return {n.metadata.labels[names.ZONE] for n in nodes}


async def places(world: FleetWorld, job: str) -> set[str]:
    placement = (await world.job(job)).status.placement
    return {n for role in (placement.roles if placement else ()) for n in role.nodes}


async def has_spares(world: FleetWorld, count: int) -> bool:
    return (await world.get_pool()).status.spares == len(await spares(world)) == count


async def has_nodes(world: FleetWorld, count: int) -> bool:
    return (await world.get_pool()).status.ready == count


def test_spares_are_bought_and_stay_and_no_job_gets_them() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(spareNodes=2, max=4, scaleDown={"idleSeconds": 60})
            await world.until(lambda: has_spares(world, 2), 900)
            assert (await world.get_pool()).status.wanted == 2
            await asyncio.sleep(24 * 3600)
            kept = await spares(world)
            assert len(kept) == len(await world.nodes()) == 2
            await world.submit("small", gpus=8, count=2, seconds=1800)
            await world.until(lambda: places(world, "small"), 900)
            assert not await places(world, "small") & kept
            assert await spares(world) == kept
            await world.submit("large", gpus=8, count=3)
            await asyncio.sleep(900)
            verdict = (await world.job("large")).status.verdict
            assert verdict is not None
            assert verdict.reason == Reason.EXCEEDS_CLUSTER.value
            assert len(await world.nodes()) <= 4
            assert world.crashes() == []

    run(main())


def test_a_lost_node_is_replaced_by_a_spare_and_the_pool_makes_another() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(spareNodes=1, max=5, scaleDown={"idleSeconds": 60})
            await world.submit("train", gpus=8, count=3, seconds=36_000)
            await world.until(lambda: places(world, "train"), 900)
            await world.until(lambda: has_spares(world, 1), 900)
            before, [spare] = await places(world, "train"), await spares(world)
            lost = min(before)
            world.virtual.fail_node(lost)

            async def moved() -> bool:
                return spare in await places(world, "train")

            await world.until(moved, 600)
            assert await places(world, "train") == before - {lost} | {spare}

            async def made_again() -> bool:
                return await has_spares(world, 1) and spare not in await spares(world)

            await world.until(made_again, 900)
            [new] = await spares(world)
            assert new not in {*before, spare}
            decisions = await world.decisions()
            said = [each.reason for each in decisions if each.action in ("Spare", "Unspare")]
            assert said == ["Wanted", "InUse", "Wanted"]
            world.virtual.recover_node(lost)
            await asyncio.sleep(3600)
            assert len(await world.nodes()) == 4, "what is one too many went"
            assert await has_spares(world, 1)
            assert world.crashes() == []

    run(main())


def test_a_node_that_comes_back_to_a_full_pool_is_a_spare_although_jobs_wait() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(spareNodes=1, hold=4, scaleDown={"idleSeconds": 60})
            await world.submit("train", gpus=8, count=3, seconds=36_000)
            await world.until(lambda: places(world, "train"), 900)
            await world.until(lambda: has_spares(world, 1), 900)
            for number in range(5):
                await world.submit(f"wait-{number}", gpus=8, count=1, seconds=36_000)
            [spare] = await spares(world)
            lost = min(await places(world, "train"))
            world.virtual.fail_node(lost)

            async def moved() -> bool:
                return spare in await places(world, "train")

            await world.until(moved, 600)
            await world.until(lambda: has_spares(world, 0), 600)
            world.virtual.recover_node(lost)
            await world.until(lambda: has_spares(world, 1), 600)
            assert await spares(world) == {lost}
            await asyncio.sleep(60)
            verdict = (await world.job("wait-0")).status.verdict
            assert verdict is not None
            assert verdict.facts["spares"] == 1, verdict

    run(main())


def test_fewer_spares_are_ordinary_nodes_and_those_that_a_person_made_stay() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(spareNodes=3, min=4, scaleDown={"idleSeconds": 60})
            await world.until(lambda: has_nodes(world, 4), 900)
            by_hand = min(await spares(world))
            await world.client.patch(NODES, by_hand, {"spec": {"taints": [_TAINT]}})
            await asyncio.sleep(60)
            assert by_hand in await spares(world)
            assert await has_spares(world, 3), "it counts"
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"spareNodes": 0, "min": 0}})
            await world.until(lambda: has_spares(world, 1), 60)
            assert await spares(world) == {by_hand}
            await asyncio.sleep(2 * 24 * 3600)
            assert [n.metadata.name for n in await world.nodes()] == [by_hand]
            assert (await world.get_pool()).status.wanted == 1

    run(main())


def test_a_spare_that_is_not_ready_does_not_count_and_an_idle_node_takes_its_place() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(spareNodes=1, headroomNodes=1, scaleDown={"idleSeconds": 60})
            await world.until(lambda: has_spares(world, 1), 900)
            await asyncio.sleep(600)
            [first] = await spares(world)
            world.virtual.fail_node(first)

            async def another() -> bool:
                return (await world.get_pool()).status.spares == 1 and len(await spares(world)) == 2

            await world.until(another, 120)
            await asyncio.sleep(900)
            ready = [n for n in await world.nodes() if n.metadata.name != first]
            assert len(ready) == 2, "the headroom is bought again, since the node is out"
            world.virtual.recover_node(first)
            await world.until(lambda: has_spares(world, 1), 900)

    run(main())


def test_spares_are_spread_by_the_nodes_in_use() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            domains = [{"name": name, "max": 8, "labels": {names.ZONE: name}} for name in "ab"]
            await world.pool(domains=domains, min=8, scaleDown={"enabled": False})
            await world.until(lambda: has_nodes(world, 8), 900)
            await world.submit("in-a", gpus=8, count=3, node_selector={names.ZONE: "a"},
                               seconds=90_000)  # fmt: skip
            await world.submit("in-b", gpus=8, count=3, node_selector={names.ZONE: "b"},
                               seconds=9_000)  # fmt: skip
            await world.until(lambda: places(world, "in-b"), 900)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"min": 13}})
            await world.until(lambda: has_nodes(world, 13), 900)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"spareNodes": 2}})
            await world.until(lambda: has_spares(world, 2), 900)
            assert await zones_of_spares(world) == {"a", "b"}

            async def has_ended() -> bool:
                return not await places(world, "in-b")

            await world.until(has_ended, 10_000)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"spareNodes": 1}})
            await world.until(lambda: has_spares(world, 1), 900)
            assert await zones_of_spares(world) == {"a"}, "where nodes are in use"

    run(main())


def test_an_idle_node_that_becomes_a_spare_is_not_marked_for_removal() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(min=3, scaleDown={"idleSeconds": 600})
            await asyncio.sleep(900)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"spareNodes": 3, "min": 0}})
            await asyncio.sleep(24 * 3600)
            found: list[Node] = await world.nodes()
            assert len(found) == len(await spares(world)) == 3
            assert not any(n.spec.unschedulable for n in found)
            assert not any(each.action == "Mark" for each in await world.decisions())

    run(main())


def test_gangs_are_not_bought_for_in_the_room_of_spares() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.submit("large", gpus=8, count=3)
            await world.submit("small", gpus=8, count=2)
            await world.pool(spareNodes=2, max=4, weight=1)
            await world.pool("other")
            await world.until(lambda: places(world, "large"), 900)
            await world.until(lambda: has_spares(world, 2), 900)
            launches = [each for each in await world.decisions() if each.action == "Launch"]
            pools = {each.pool for each in launches if "default/large" in each.message}
            assert pools == {"other"}

    run(main())
