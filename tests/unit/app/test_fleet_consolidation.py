"""The tail of a day: small jobs that go on alone on bought nodes, consolidated and not."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.app.fleet_world import FleetWorld

from fairlead.api.resources import FLEETS
from fairlead.sim.loop import run

NODES = 8
HOURS = 12


async def a_day(world: FleetWorld, *, consolidates: bool) -> tuple[float, int]:
    """Return the machine hours of a burst of jobs that fill each node, of which one in two is
    small and goes on for hours; and how many nodes those use in the middle.
    """
    await world.pool(scaleDown={"idleSeconds": 300, "consolidates": consolidates})
    await burst(world)
    hours, used = 0.0, set[str]()
    for minute in range(HOURS * 60):
        await asyncio.sleep(60)
        hours += len(world.cloud.machines) / 60
        if minute == HOURS * 30:
            used = await nodes_of_small(world)
    return hours, len(used)


async def burst(world: FleetWorld) -> None:
    for i in range(NODES):
        await world.submit(f"large-{i}", gpus=7, count=1, seconds=2400)
        await world.submit(f"small-{i}", gpus=1, count=1, seconds=10 * 3600)


async def nodes_of_small(world: FleetWorld) -> set[str]:
    jobs = [await world.job(f"small-{i}") for i in range(NODES)]
    placements = [job.status.placement for job in jobs]
    assert all(placement is not None for placement in placements)
    return {n for p in placements if p is not None for role in p.roles for n in role.nodes}


async def moves(world: FleetWorld) -> list[int]:
    """Return how often each small job was moved."""
    jobs = [await world.job(f"small-{i}") for i in range(NODES)]
    return [sum(a.reason == "Preempted" for a in job.status.attempts) for job in jobs]


def test_a_tail_of_small_jobs_costs_fewer_machine_hours_where_the_pool_is_consolidated() -> None:
    hours = dict[bool, float]()

    async def main(*, consolidates: bool) -> None:
        async with FleetWorld.running() as world:
            hours[consolidates], used = await a_day(world, consolidates=consolidates)
            assert used == (1 if consolidates else NODES)
            moved = await moves(world)
            assert sum(moved) == (NODES - 1 if consolidates else 0)
            assert max(moved) <= 1
            jobs = [await world.job(f"small-{i}") for i in range(NODES)]
            assert all(job.is_finished for job in jobs)
            assert world.crashes() == []

    run(main(consolidates=True))
    run(main(consolidates=False))
    assert hours[True] < 0.7 * hours[False], hours


def test_as_many_nodes_stay_in_use_as_the_pool_keeps_anyway() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            down = {"idleSeconds": 300, "consolidates": True}
            await world.pool(scaleDown=down, min=4, headroomNodes=1)
            await burst(world)
            await asyncio.sleep(6 * 3600)
            assert len(await nodes_of_small(world)) == 3

    run(main())


@pytest.mark.parametrize("why", ["frozen", "held", "waiting"])
def test_nothing_moves_where_an_idle_node_would_stay(why: str) -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            if why == "frozen":
                await world.client.create(FLEETS, {"metadata": {"name": "fleet"}, "spec": {}})
            more = {"max": NODES} if why == "waiting" else {}
            await world.pool(scaleDown={"idleSeconds": 300, "consolidates": True}, **more)
            await burst(world)
            await asyncio.sleep(1200)
            if why == "frozen":
                await world.client.patch(FLEETS, "fleet", {"spec": {"freeze": {"reason": "x"}}})
            elif why == "held":
                await world.resize(NODES)
            else:
                await world.submit("wide", gpus=8, count=NODES, seconds=60)
            await asyncio.sleep(6 * 3600)
            assert sum(await moves(world)) == 0
            assert (await world.get_pool()).status.consolidates_to is None

    run(main())
