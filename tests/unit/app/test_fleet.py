"""Node pools end to end on the in-process API: what is bought, joins, goes and stays."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.app.fleet_world import FleetWorld

from fairlead.api import names
from fairlead.api.job import Topology
from fairlead.api.resources import FLEETS, NODE_POOLS, NODES
from fairlead.cloud.simulated import CloudRates
from fairlead.sim.loop import run


def test_a_gang_is_bought_for_runs_and_its_idle_nodes_go_within_the_budgets() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(scaleDown={"idleSeconds": 300})
            await world.submit("train", gpus=8, count=8, seconds=1800)

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            seconds = await world.until(placed, 600)
            assert seconds < 200, "launch 60 to 120 s, and the rest at once"
            assert len(await world.nodes()) == 8, "exactly what the gang needs"
            assert world.cloud.launched == 8
            pool = (await world.get_pool()).status
            assert [d.action for d in pool.decisions] == ["Launch"]
            assert "8 nodes for default/train" in pool.decisions[0].message

            async def half_is_gone() -> bool:
                return len(await world.nodes()) == 4

            await world.until(half_is_gone, 6 * 3600)
            await asyncio.sleep(6 * 3600)
            assert len(world.cloud.machines) == 4, "never more than half of a pool in 24 hours"
            assert len(await world.nodes()) == 4
            fleet = await world.fleet()
            assert fleet.status.grants == ()

    run(main())


def test_a_gang_that_cannot_be_bought_for_completely_is_not_bought_for_at_all() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=4)
            await world.submit("large", gpus=8, count=5)
            await asyncio.sleep(600)
            assert world.cloud.launched == 0
            await world.submit("small", gpus=8, count=3)
            await asyncio.sleep(600)
            assert world.cloud.launched == 3
            assert (await world.job("small")).status.placement is not None

    run(main())


def test_a_gang_with_a_required_domain_is_bought_in_one_domain() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            domains = [{"name": d, "labels": {"rack": d}, "max": 4} for d in ("a", "b")]
            await world.pool(domains=domains)
            await world.submit("first", gpus=8, count=3, topology=Topology("rack", required=True))
            await asyncio.sleep(300)
            await world.submit("second", gpus=8, count=4, topology=Topology("rack", required=True))
            await asyncio.sleep(300)
            racks = [n.metadata.labels["rack"] for n in await world.nodes()]
            assert sorted(racks) == ["a"] * 3 + ["b"] * 4
            assert (await world.job("second")).status.placement is not None

    run(main())


def test_a_domain_without_capacity_is_avoided_and_the_next_pool_is_tried() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(refusal=0.5)) as world:
            await world.pool("first", weight=1)
            await world.pool("second")
            for number in range(6):
                await world.submit(f"train-{number}", gpus=8, count=2)

            async def placed() -> bool:
                jobs = [await world.job(f"train-{n}") for n in range(6)]
                return all(job.status.placement is not None for job in jobs)

            await world.until(placed, 4 * 3600)
            pools = [await world.get_pool(name) for name in ("first", "second")]
            assert any(d.action == "Refused" for p in pools for d in p.status.decisions)
            assert len(world.cloud.machines) == 12, "nothing is bought twice"

    run(main())


def test_a_pool_in_dry_run_says_what_it_would_buy_and_buys_nothing() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(mode="DryRun")
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(300)
            pool = await world.get_pool()
            assert world.cloud.launched == 0
            assert pool.status.message == "dry run: would buy 2"
            assert pool.status.wanted == 2

    run(main())


def test_machines_that_never_register_are_replaced() -> None:
    async def main() -> None:
        async with FleetWorld.running(CloudRates(never_registers=0.3)) as world:
            await world.pool(scaleUp={"readySeconds": 300})
            await world.submit("train", gpus=8, count=8)

            async def placed() -> bool:
                return (await world.job("train")).status.placement is not None

            await world.until(placed, 24 * 3600)
            assert world.cloud.launched > 8

    run(main())


def test_hold_and_headroom_keep_nodes_without_demand() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool("held", hold=5)
            await world.pool("spare", headroomNodes=2, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(3600)
            held, spare = await world.get_pool("held"), await world.get_pool("spare")
            assert (held.status.ready, spare.status.ready) == (5, 2)
            await world.submit("train", gpus=8, count=2, node_selector={names.POOL: "spare"})
            await asyncio.sleep(600)
            assert (await world.get_pool("spare")).status.ready == 4

    run(main())


def test_a_frozen_fleet_neither_buys_nor_removes() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(scaleDown={"idleSeconds": 60}, hold=4)
            await asyncio.sleep(600)
            freeze = {"spec": {"freeze": {"reason": "move of the data centre"}}}
            await world.client.patch(FLEETS, "fleet", freeze)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"hold": None}})
            await world.submit("train", gpus=8, count=9)
            await asyncio.sleep(3600)
            assert len(await world.nodes()) == 4
            assert not any(n.spec.unschedulable for n in await world.nodes())
            assert "Frozen" in (await world.get_pool()).status.message
            await world.client.patch(FLEETS, "fleet", {"spec": {"freeze": None}})
            await asyncio.sleep(600)
            assert len(await world.nodes()) == 9

    run(main())


def test_a_person_s_cordon_is_not_lifted_and_the_node_is_not_removed() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=4)
            await asyncio.sleep(600)
            cordoned = (await world.nodes())[0].metadata.name
            await world.client.patch(NODES, cordoned, {"spec": {"unschedulable": True}})
            patch: dict[str, Any] = {"spec": {"hold": None, "scaleDown": {"idleSeconds": 1}}}
            await world.client.patch(NODE_POOLS, "h100", patch)
            await asyncio.sleep(6 * 3600)
            left = {n.metadata.name: n for n in await world.nodes()}
            assert len(left) == 2, "half of the pool"
            assert left[cordoned].spec.unschedulable

    run(main())


def test_all_nodes_not_ready_at_once_removes_nothing_and_work_goes_on_after() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=20, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(900)
            for name in world.virtual.node_names():
                world.virtual.fail_node(name)
            await world.client.patch(NODE_POOLS, "h100", {"spec": {"hold": 10}})
            await asyncio.sleep(30)
            fleet = await world.fleet()
            assert "NodesUnready" in fleet.status.blind, "said within 30 seconds"
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(7200)
            assert len(world.cloud.machines) == 20
            assert world.cloud.launched == 20
            for name in world.virtual.node_names():
                world.virtual.recover_node(name)
            await asyncio.sleep(3600)
            assert (await world.job("train")).status.placement is not None
            assert len(world.cloud.machines) < 20, "and removals resumed by themselves"

    run(main())


def test_controllers_that_are_killed_again_and_again_buy_nothing_twice_and_forget_nothing() -> None:
    async def main() -> None:
        rates = CloudRates(refusal=0.1, error=0.1, never_registers=0.05)
        async with FleetWorld.running(rates) as world:
            await world.pool(max=200, scaleUp={"readySeconds": 600, "nodesPerLaunchMax": 4})
            for number in range(12):
                await world.submit(f"train-{number}", gpus=8, count=1 + number % 5, seconds=900)
                await asyncio.sleep(world.rng.random() * 240)
                await world.kill()

            async def ended() -> bool:
                jobs = [await world.job(f"train-{n}") for n in range(12)]
                return all(job.is_finished for job in jobs)

            await world.until(ended, 24 * 3600)
            pool = await world.get_pool()
            by_token = {m.instance.token for m in world.cloud.machines.values()}
            assert len(world.cloud.tokens) <= pool.status.launch_number
            assert by_token <= world.cloud.tokens.keys()
            assert pool.status.launches == () or pool.status.launching
            nodes = {node.spec.provider_id for node in await world.nodes()}
            assert world.cloud.machines.keys() >= nodes, "no machine is forgotten"

    run(main())
