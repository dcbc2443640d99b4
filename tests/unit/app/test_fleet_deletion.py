"""Node pools that are deleted: what becomes of their machines, and who says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.app.fleet_world import FleetWorld

from fairlead.api import names
from fairlead.api.resources import FLEETS, NODE_POOLS, NODES
from fairlead.api.status import Forbidden, NotFound
from fairlead.controllers.nodes.fleet import FleetController
from fairlead.decide.fleet.actions import Action, SetPoolFinalizer
from fairlead.model.inventory.spares import is_spare
from fairlead.runtime.watching.barrier import Written
from fairlead.sim.loop import run

HELD = (names.POOL_FINALIZER,)


async def with_machines(world: FleetWorld, count: int = 3, **spec: Any) -> None:
    """Have a pool with so many machines, one of which a job uses for an hour."""
    await world.pool(hold=count, scaleDown={"idleSeconds": 60}, **spec)

    async def are_ready() -> bool:
        return (await world.get_pool()).status.ready == count

    await world.until(are_ready, 900)
    await world.submit("train", gpus=8, count=1)

    async def runs() -> bool:
        return (await world.job("train")).status.placement is not None

    await world.until(runs, 60)


async def is_gone(world: FleetWorld) -> bool:
    try:
        await world.get_pool()
    except NotFound:
        return True
    return False


async def released(world: FleetWorld) -> list[str]:
    found = await world.decisions(pool="h100")
    return [each.message for each in found if each.action == "Release"]


async def unmanaged(world: FleetWorld) -> dict[str, int]:
    return (await world.fleet()).status.unmanaged


def test_nothing_is_bought_before_the_finalizer_is_on_a_pool() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=2)
            while not world.cloud.launched:
                pool = await world.get_pool()
                assert pool.metadata.finalizers == HELD or not pool.status.launches
                await asyncio.sleep(0.1)
            assert (await world.get_pool()).metadata.finalizers == HELD

    run(main())


def test_a_pool_is_acted_on_where_the_controllers_may_not_put_the_finalizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    perform = FleetController.perform

    async def refuse(controller: FleetController, action: Action) -> Written | None:
        if isinstance(action, SetPoolFinalizer):
            raise Forbidden("cannot patch nodepools")
        return await perform(controller, action)

    monkeypatch.setattr(FleetController, "perform", refuse)

    async def main() -> None:
        async with FleetWorld.running() as world:
            await with_machines(world, 2)
            assert (await world.get_pool()).metadata.finalizers == ()
            assert world.crashes() == []

    run(main())


@pytest.mark.parametrize("is_down", [False, True], ids=["while controllers run", "while none does"])
def test_machines_of_a_deleted_pool_stay_and_it_is_said(is_down: bool) -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await with_machines(world, 3, spareNodes=1, max=4)
            await world.resize(2)
            await asyncio.sleep(75)  # one node is marked to go
            if is_down:
                world.controller.cancel()
            await world.client.delete(NODE_POOLS, "h100")
            if is_down:
                await asyncio.sleep(600)
                assert not await is_gone(world), "the next controller still finds it"
                world.controller = world.group.create_task(world.control())
            await world.until(lambda: is_gone(world), 300)
            left = len(world.cloud.machines)
            assert left >= 2
            assert any(
                f"{left} machines stay, and nothing" in said for said in await released(world)
            )

            async def is_said() -> bool:
                return await unmanaged(world) == {"h100": left}

            await world.until(is_said, 60)
            nodes = await world.nodes()
            assert not any(node.spec.unschedulable or node.spec.taints for node in nodes)
            assert (await world.job("train")).status.placement is not None
            await asyncio.sleep(6 * 3600)
            assert len(world.cloud.machines) == left
            assert world.crashes() == []

            await world.pool(hold=left)  # the same name and provider
            await asyncio.sleep(300)
            assert (await world.get_pool()).status.nodes == left
            assert world.cloud.launched == left + (3 - left)
            assert await unmanaged(world) == {}

    run(main())


def test_machines_of_a_pool_that_is_drained_go_once_their_jobs_have_ended() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await with_machines(world, 3, deletionPolicy="Drain", spareNodes=1, max=4)
            await world.client.patch(FLEETS, "fleet", {"spec": {"freeze": {"reason": "a look"}}})
            await world.client.delete(NODE_POOLS, "h100")
            await asyncio.sleep(60)
            assert not any(node.spec.unschedulable for node in await world.nodes()), "frozen"
            await world.client.patch(FLEETS, "fleet", {"spec": {"freeze": None}})
            await asyncio.sleep(60)
            await world.submit("next", gpus=8, count=1)
            assert all(node.spec.unschedulable for node in await world.nodes())
            pool = await world.get_pool()
            assert "is deleted: 3 machines left" in pool.status.message
            await asyncio.sleep(1800)
            assert (await world.job("next")).status.placement is None, "no new work there"
            assert len(world.cloud.machines) == 1, "one machine has a job"
            for _ in range(3):
                await world.kill()
                await asyncio.sleep(60)
            assert not await is_gone(world)
            await world.until(lambda: is_gone(world), 7200)
            assert not world.cloud.machines
            assert not await world.nodes()
            assert world.cloud.launched == 3
            assert await released(world) == []
            assert await unmanaged(world) == {}

    run(main())


def test_a_spare_goes_that_was_not_ready_when_its_pool_was_drained() -> None:
    """It is marked like all nodes, and no write takes the taint of a spare off one that is."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            await with_machines(world, 2, deletionPolicy="Drain", spareNodes=1, max=3)

            async def spares() -> list[str]:
                nodes = await world.nodes()
                return [n.metadata.name for n in nodes if is_spare(n.spec.taints)]

            [name] = await spares()
            world.virtual.fail_node(name)
            await asyncio.sleep(120)
            await world.client.delete(NODE_POOLS, "h100")
            await asyncio.sleep(120)
            assert await spares() == [name]
            world.virtual.recover_node(name)
            await world.until(lambda: is_gone(world), 2 * 3600)
            assert not world.cloud.machines

    run(main())


def test_a_drain_keeps_to_the_rails_and_may_be_ended() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            limits = {"nodesPerDayMax": 1}
            await with_machines(world, 4, deletionPolicy="Drain", disruption=limits)
            name = max(node.metadata.name for node in await world.nodes())
            await world.client.patch(NODES, name, {"spec": {"unschedulable": True}})
            await world.client.delete(NODE_POOLS, "h100")
            await asyncio.sleep(12 * 3600)
            assert len(world.cloud.machines) == 3
            assert "but 1 that people have cordoned" in (await world.get_pool()).status.message
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"deletionPolicy": "Keep"}})
            await world.until(lambda: is_gone(world), 300)
            nodes = {node.metadata.name: node for node in await world.nodes()}
            assert [n for n, node in nodes.items() if node.spec.unschedulable] == [name]
            assert len(await released(world)) == 1

    run(main())


def test_nodes_of_a_pool_that_went_without_a_word_are_reported_all_the_same() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await with_machines(world, 2)
            world.controller.cancel()
            await world.client.delete(NODE_POOLS, "h100")
            await world.client.patch(NODE_POOLS, "h100", {"metadata": {"finalizers": None}})
            assert await is_gone(world)
            world.controller = world.group.create_task(world.control())

            async def is_said() -> bool:
                return await unmanaged(world) == {"h100": 2}

            await world.until(is_said, 60)
            found = [each for each in await world.decisions() if each.action == "Unmanaged"]
            assert [each.reason for each in found] == ["NoSuchPool"]

    run(main())


@pytest.mark.parametrize("count", [2, 0], ids=["with machines", "that never had any"])
def test_a_pool_whose_provider_does_not_answer_can_be_deleted(count: int) -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            if count:
                await with_machines(world, count)
            world.cloud.rates = type(world.cloud.rates)(error=1.0)
            if not count:
                await world.pool()
            await asyncio.sleep(120)
            await world.client.delete(NODE_POOLS, "h100")
            await world.until(lambda: is_gone(world), 300)
            (said,) = await released(world)
            assert "the provider does not answer" in said

    run(main())


@pytest.mark.parametrize("policy", ["Keep", "Drain"])
def test_an_empty_pool_and_one_of_another_autoscaler_go_at_once(policy: str) -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(deletionPolicy=policy)
            await world.pool("theirs", deletionPolicy=policy, provider={"type": "External"})
            await asyncio.sleep(60)
            for name in ("h100", "theirs"):
                await world.client.delete(NODE_POOLS, name)
            await asyncio.sleep(60)
            assert list((await world.client.list(NODE_POOLS)).items) == []
            assert await released(world) == []

    run(main())
