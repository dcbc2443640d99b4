"""In-place resize on the embedded cluster: its API, its nodes and the planner together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.simulation.embedded_world import NAMESPACE, EmbeddedWorld, embedded_world

from fairlead.api.kubernetes.core import ContainerStatus, Pod, PodCondition
from fairlead.api.resources import JOBS, NODES, PODS, PRIORITY_CLASSES
from fairlead.api.status import Forbidden
from fairlead.embedded.virtual.stages.records import NodeFault
from fairlead.runtime.client import PatchType
from fairlead.sim.loop import run

#: Of a virtual node.
NODE = "v00000"


async def make(world: EmbeddedWorld, name: str, cpu: str, **spec: Any) -> None:
    main = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    main |= spec.pop("main", {})
    body = {"metadata": {"name": name}, "spec": {"containers": [main], "nodeName": NODE, **spec}}
    await world.client.create(PODS, body, namespace=NAMESPACE)


async def resize(world: EmbeddedWorld, name: str, cpu: str) -> None:
    change = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}
    await world.client.patch(
        PODS, name, change, namespace=NAMESPACE, subresource="resize",
        patch_type=PatchType.STRATEGIC,
    )  # fmt: skip
    await asyncio.sleep(1)


async def get(world: EmbeddedWorld, name: str) -> Pod:
    return await world.client.get(PODS, name, namespace=NAMESPACE)


def pending(pod: Pod) -> PodCondition | None:
    return next((c for c in pod.status.conditions if c.type == "PodResizePending"), None)


async def state(world: EmbeddedWorld, name: str) -> tuple[str, str, str]:
    """Return what a pod asks, what is allocated and what it has, and why a resize waits."""
    pod = await get(world, name)
    shown: ContainerStatus = pod.status.container_statuses[0]
    asked = str(pod.spec.containers[0].resources.requests["cpu"])
    if shown.resources is None:  # it is as it is asked, and dropped as the pod is read
        return asked, asked, ""
    wait = pending(pod)
    assert shown.allocated_resources == shown.resources.requests
    return asked, str(shown.resources.requests["cpu"]), wait.reason if wait else ""


async def room(world: EmbeddedWorld) -> int:
    node = await world.client.get(NODES, NODE)
    return int(node.status.allocatable["cpu"])


def test_a_resize_is_taken_once_there_is_room_and_the_most_important_comes_first() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            free = await room(world)
            await world.client.create(
                PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 9}
            )
            await make(world, "large", str(free - 6))
            await make(world, "small", "2")
            await make(world, "early", "2")
            await make(world, "urgent", "2", priorityClassName="urgent")
            await asyncio.sleep(2)
            await resize(world, "small", "1")
            assert await state(world, "small") == ("1", "1", "")
            await resize(world, "early", "3")
            assert await state(world, "early") == ("3", "3", "")
            await resize(world, "early", "5")
            await resize(world, "urgent", "4")
            assert await state(world, "early") == ("5", "3", "Deferred")
            assert await state(world, "urgent") == ("4", "2", "Deferred")
            why = pending(await get(world, "urgent"))
            assert why is not None
            assert why.message.startswith("Node didn't have enough resource: cpu, requested: 4000")
            # There is room for one by a pod that shrinks, for the other by one that goes.
            await resize(world, "large", str(free - 8))
            assert await state(world, "urgent") == ("4", "4", "")
            assert await state(world, "early") == ("5", "3", "Deferred")
            await resize(world, "early", "4")
            await world.client.delete(PODS, "small", namespace=NAMESPACE)
            await asyncio.sleep(2)
            assert await state(world, "early") == ("4", "4", "")
            with pytest.raises(Forbidden, match="enough allocatable resources: cpu"):
                await resize(world, "early", str(free + 1))

    run(main())


def test_a_resize_that_would_restart_a_container_is_never_carried_out() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
            await make(world, "p", "2", main={"resizePolicy": policy})
            await asyncio.sleep(2)
            await resize(world, "p", "3")
            assert await state(world, "p") == ("3", "2", "Infeasible")
            await resize(world, "p", "2")
            assert await state(world, "p") == ("2", "2", "")

    run(main())


def test_a_node_that_comes_back_knows_what_it_had_allocated() -> None:
    async def main() -> None:
        async with embedded_world(1) as world:
            free = await room(world)
            await make(world, "p", "2")
            await make(world, "large", str(free - 2))
            await asyncio.sleep(2)
            await resize(world, "p", "3")
            assert world.nodes is not None
            world.nodes.fail_node(NODE, NodeFault.UNREACHABLE, detect_seconds=86_400)
            await resize(world, "large", str(free - 3))
            assert await state(world, "p") == ("3", "2", "Deferred")
            world.nodes.recover_node(NODE)
            await asyncio.sleep(2)
            assert await state(world, "p") == ("3", "3", "")

    run(main())


def test_the_planner_counts_a_member_that_grew_and_keeps_it_where_it_is() -> None:
    async def main() -> None:
        async with embedded_world(2) as world:
            free = await room(world)

            async def submit(name: str, cpu: int) -> None:
                main = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
                annotations = {"fairlead.dev/simulate-seconds": "86400"}
                template = {
                    "metadata": {"annotations": annotations}, "spec": {"containers": [main]}
                }  # fmt: skip
                roles = [{"name": "worker", "count": 2, "template": template}]
                body = {"metadata": {"name": name}, "spec": {"roles": roles}}
                await world.client.create(JOBS, body, namespace=NAMESPACE)

            await submit("grows", free - 10)
            await world.runs("grows")
            member = min(pod.metadata.name for pod in await world.pods("grows"))
            await resize(world, member, str(free - 4))
            assert await state(world, member) == (str(free - 4), str(free - 4), "")
            await submit("waits", 8)
            job = await world.until("waits", lambda job: job.status.verdict is not None)
            assert "needs 16 CPUs, 14 of 192 are free" in job.status.conditions[-1].message
            await asyncio.sleep(20)
            assert not await world.pods("waits")
            await resize(world, member, str(free - 10))
            await world.runs("waits")
            assert (await world.job("grows")).status.attempt == 1

    run(main())
