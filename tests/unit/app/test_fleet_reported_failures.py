"""Failures of other autoscalers that their users reported: each is a test of the same situation.

Those of the rails are in tests/unit/decide/test_removal.py; docs/design/fleet.md has the list.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from msgspec.structs import replace
from tests.unit.app.fleet_world import FleetWorld

from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import NODES, PODS, TEAMS
from fairlead.api.status import InternalError
from fairlead.api.values.quantity import GPU
from fairlead.cloud.provider import MachineProvider
from fairlead.cloud.simulated import CloudRates, SimulatedProvider
from fairlead.model.health.machines import Inventory
from fairlead.runtime.client import Request, RequestVerb
from fairlead.sim.loop import run
from fairlead.testing.builders import make_pod, make_team

LOOP_SECONDS = 5


async def set_devices(world: FleetWorld, name: str, gpus: int | None) -> None:
    """Have the device plugin of a node register this many GPUs; None: it is not up."""
    patch = {"status": {"allocatable": {GPU: gpus}, "capacity": {GPU: gpus}}}
    await world.client.patch(NODES, name, patch, subresource="status")


def without_devices(world: FleetWorld) -> None:
    """Let nodes register before their device plugins are up."""
    register = world.virtual.register

    async def bare(body: Any, devices: Any) -> None:
        status = {**body["status"]}
        for key in ("allocatable", "capacity"):
            status[key] = {name: n for name, n in status[key].items() if name != GPU}
        await register({**body, "status": status}, devices)

    world.virtual.register = bare  # type: ignore[method-assign] # machines of this test


def test_nothing_is_removed_while_the_pods_have_not_been_listed() -> None:
    """kubernetes/autoscaler#446: without its cache of pods, every node looked empty."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=4, scaleDown={"idleSeconds": 60})
            await asyncio.sleep(600)
            for node in await world.nodes():
                pod = make_pod(f"other-{node.metadata.name}", node=node.metadata.name, gpus=8)
                notes = {"fairlead.dev/simulate-seconds": "86400"}
                meta = {"name": pod.metadata.name, "annotations": notes}
                body = {"metadata": meta, "spec": to_wire(pod.spec)}
                await world.client.create(PODS, body, namespace="default")
            call = world.client.call

            async def no_pods(request: Request[Any]) -> Any:
                if request.verb is RequestVerb.LIST and request.resource is PODS:
                    raise InternalError("the list of pods fails")
                return await call(request)

            world.client.call = no_pods  # type: ignore[method-assign] # for one test
            await world.kill()
            await world.resize(0)
            await asyncio.sleep(3600)
            assert not any(node.spec.unschedulable for node in await world.nodes())
            world.client.call = call  # type: ignore[method-assign] # as it was
            await asyncio.sleep(3600)
            assert len(world.cloud.machines) == 4, "and then each is seen to be used"
            assert isinstance(
                await world.client.get(PODS, "other-h100-000001", namespace="default"), Pod
            )

    run(main())


def test_machines_are_bought_for_gangs_that_can_run_and_not_for_the_heads_of_ten() -> None:
    """kubernetes/autoscaler#5170, #8783: a part of each of ten gangs was bought, and none ran."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=20, scaleDown={"idleSeconds": 60})
            for number in range(10):
                await world.submit(f"gang-{number}", gpus=8, count=8, seconds=1800)
            await asyncio.sleep(600)
            jobs = [await world.job(f"gang-{number}") for number in range(10)]
            assert sum(job.status.placement is not None for job in jobs) == 2
            assert world.cloud.launched == 16
            await world.submit("light", cpu=1, gpus=0, count=1, seconds=7200)
            await asyncio.sleep(6 * 3600)
            jobs = [await world.job(f"gang-{number}") for number in range(10)]
            assert all(job.is_finished for job in jobs)

    run(main())


def test_a_gang_is_bought_for_before_any_of_its_pods_exists() -> None:
    """kubernetes-sigs/karpenter#742: the autoscaler waited for pods, the gang for nodes."""

    async def main() -> None:
        async with FleetWorld.running(CloudRates(launch_seconds=600)) as world:
            await world.pool()
            await world.submit("train", gpus=8, count=8)
            await asyncio.sleep(30)
            assert world.cloud.launched == 8
            assert (await world.client.list(PODS)).items == ()

    run(main())


def test_nothing_is_bought_for_a_job_that_its_team_may_not_run() -> None:
    """volcano-sh/volcano#4710: nodes for pods that the quota of their queue never admits."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            team = make_team("vision", namespaces=("default",))
            spec = replace(team.spec, limits=replace(team.spec.limits, gpus=24))
            await world.client.create(
                TEAMS, {"metadata": {"name": "vision"}, "spec": to_wire(spec)}
            )
            await world.pool()
            await world.submit("first", gpus=8, count=2)
            await world.submit("second", gpus=8, count=2)
            await asyncio.sleep(1800)
            jobs = [await world.job(name) for name in ("first", "second")]
            assert [job.status.placement is not None for job in jobs].count(True) == 1
            assert world.cloud.launched == 2

    run(main())


def test_a_node_that_is_ready_before_its_devices_is_not_bought_twice() -> None:
    """kubernetes/autoscaler#7956, NVIDIA/gpu-operator#708, NVIDIA/k8s-device-plugin#1746."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            without_devices(world)
            await world.pool()
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(600)
            nodes = await world.nodes()
            assert (len(nodes), world.cloud.launched) == (2, 2)
            assert all(node.spec.taints for node in nodes), "they do not take work"
            assert (await world.get_pool()).status.launching == 0
            for node in nodes:
                await set_devices(world, node.metadata.name, 8)
            await asyncio.sleep(60)
            # Placed there, again and again: the simulated kubelet knows nothing of the devices.
            assert (await world.job("train")).status.attempts
            assert world.cloud.launched == 2

    run(main())


def test_a_node_that_never_gets_its_devices_is_replaced_after_its_deadline() -> None:
    """NVIDIA/gpu-operator#2909: the check of a bad new node was repeated for ever."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(scaleUp={"readySeconds": 900}, scaleDown={"idleSeconds": 86_400})
            without_devices(world)
            await world.submit("train", gpus=8, count=2)
            await asyncio.sleep(300)
            bad, good = [node.metadata.name for node in await world.nodes()]
            await set_devices(world, good, 8)
            await set_devices(world, bad, 7)
            await asyncio.sleep(1500)
            left = [node.metadata.name for node in await world.nodes()]
            assert bad not in left
            assert good in left
            assert world.cloud.launched == 3

    run(main())


def test_nodes_whose_machines_are_gone_stop_nothing_and_are_deleted_within_the_budgets() -> None:
    """Azure/AKS#4420: Node objects of pre-empted machines stopped the autoscaler."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=20)
            await asyncio.sleep(900)
            ghosts = (await world.nodes())[:6]
            for node in ghosts:  # more than a fifth, and more than lists may differ by
                del world.cloud.machines[node.spec.provider_id]
                await world.virtual.unregister(node.metadata.name)
            await asyncio.sleep(900)
            assert world.cloud.launched == 26, "others were bought in their place"

            async def are_deleted() -> bool:
                names_ = {node.metadata.name for node in await world.nodes()}
                return not names_ & {node.metadata.name for node in ghosts}

            assert await world.until(are_deleted, 48 * 3600) > 3600, "not all at once"
            assert len(world.cloud.machines) == 20
            assert (await world.fleet()).status.blind == ()

    run(main())


def test_a_list_that_lacks_most_of_the_machines_of_silent_nodes_deletes_none() -> None:
    """The same, when it is the provider's list that is wrong, and the control plane is down."""

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(hold=20)
            await asyncio.sleep(900)
            world.cloud.machines.clear()
            for name in world.virtual.node_names():
                world.virtual.fail_node(name)
            await asyncio.sleep(6 * 3600)
            assert len(await world.nodes()) == 20
            assert world.cloud.launched == 20

    run(main())


def test_each_group_is_listed_at_most_once_in_a_loop_however_many_nodes_it_has() -> None:
    """kubernetes/kubernetes#75016: one call for each node and loop was throttled at 1,000."""
    calls: list[float] = []

    async def main() -> None:
        async with FleetWorld.running() as world:

            class Counting(SimulatedProvider):
                async def instances(self) -> Inventory:
                    calls.append(world.clock.now())
                    return await super().instances()

            def make() -> MachineProvider:
                return Counting(world.cloud, "h100")

            world.provider_makers["h100"] = make
            await world.pool(max=200, scaleDown={"idleSeconds": 60})
            await world.submit("first", gpus=8, count=100, seconds=600)
            await world.submit("second", gpus=8, count=50, seconds=900)
            await asyncio.sleep(3 * 3600)

    run(main())
    assert len(calls) > 100
    assert min(b - a for a, b in itertools.pairwise(calls)) >= LOOP_SECONDS - 1e-6
    quiet = [b - a for a, b in itertools.pairwise(calls[-20:])]
    assert min(quiet) >= 15, "less often while nothing is launched or ended"


def test_demand_is_answered_by_a_launch_call_within_five_seconds() -> None:
    waits: list[float] = []

    async def main() -> None:
        async with FleetWorld.running() as world:
            await world.pool(max=200)
            await asyncio.sleep(120)
            for number in range(20):
                await asyncio.sleep(world.rng.random() * 90)
                launched, began = world.cloud.launched, world.clock.now()
                await world.submit(f"train-{number}", gpus=8, count=4)
                while world.cloud.launched == launched:
                    assert world.clock.now() - began < 60
                    await asyncio.sleep(0.1)
                waits.append(world.clock.now() - began)

    run(main())
    assert max(waits) <= 5
