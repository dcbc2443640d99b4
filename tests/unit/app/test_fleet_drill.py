"""The drill of a mass failure: all nodes of a pool are not ready at once.

The outage that this repeats removed every worker of a cluster: etcd was full, so no kubelet could
report, and an autoscaler took the nodes for dead. tests/kubernetes/test_fleet_drill.py is the same
on a real API server. `FAIRLEAD_DRILL_NODES` says how many nodes in both.
"""

from __future__ import annotations

import asyncio
import os

from tests.unit.app.fleet_world import FleetWorld
from tests.unit.runtime.test_metrics import samples

from fairlead.api.resources import NODE_POOLS, NODES
from fairlead.cloud.provider import LaunchRequest
from fairlead.cloud.simulated import SCHEME, node_body
from fairlead.model.health.machines import Instance, InstanceState
from fairlead.model.health.node_health import is_ready
from fairlead.sim.loop import run

NODES_COUNT = int(os.environ.get("FAIRLEAD_DRILL_NODES", "1000"))


async def fill(world: FleetWorld, count: int) -> None:
    """Have a pool whose machines all work."""
    resources = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"}
    request = LaunchRequest("", "h100", 1, resources=resources)
    for number in range(1, count + 1):
        id_ = f"{SCHEME}h100-{number:06d}"
        body = node_body(Instance(id_, "h100", InstanceState.RUNNING), request)
        del body["spec"]["taints"]
        await world.virtual.register(body)
    world.cloud.take_in((await world.client.list(NODES)).items)
    await world.pool(max=count, hold=count)


def test_all_nodes_not_ready_at_once_removes_none_and_work_goes_on_by_itself() -> None:
    async def main() -> None:
        async with FleetWorld.running() as world:
            await fill(world, NODES_COUNT)
            await asyncio.sleep(60)
            assert (await world.fleet()).status.blind == (), "the controller saw clearly before"
            # Too many nodes from now on: whatever removes any removes these first.
            patch = {"spec": {"hold": NODES_COUNT - 10, "scaleDown": {"idleSeconds": 0}}}
            await world.client.patch(NODE_POOLS, "h100", patch)
            for name in world.virtual.node_names():
                world.virtual.fail_node(name)
            began_at = world.clock.now()
            await asyncio.sleep(0.5)
            assert not any(is_ready(node) for node in await world.nodes())
            world.client.is_full = True

            async def is_said() -> bool:
                seen = samples(world.metrics)
                return seen["fairlead_fleet_rail_holds{NodesUnready}"] == 1

            await world.until(is_said, 60)
            assert world.clock.now() - began_at <= 30, "what the alert reads, though not written"
            assert not (await world.fleet()).status.blind
            await asyncio.sleep(120)
            assert (len(world.cloud.machines), world.cloud.launched) == (NODES_COUNT, NODES_COUNT)
            assert not any(node.spec.unschedulable for node in await world.nodes()), "nor marked"
            world.client.is_full = False
            for name in world.virtual.node_names():
                world.virtual.recover_node(name)
            await world.submit("train", gpus=8, count=2)

            async def works_again() -> bool:
                is_placed = (await world.job("train")).status.placement is not None
                return is_placed and len(world.cloud.machines) == NODES_COUNT - 10

            assert await world.until(works_again, 900) < 900
            assert world.crashes() == []

    run(main())
