"""Objects of other tools on a real control plane, and our controllers that adopt their pods.

The gate stands in the pod templates here, as the webhook puts it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.kubernetes.operating import CLOCK, Pair, sweep, until
from tests.simulation.hostile_tools import Thing

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOBS, PODS, Resource
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.adoption import AdoptionController
from fairlead.decide.adoption.view import AdoptionPolicy
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Client, Propagation
from fairlead.runtime.loop import ControllerLoop

GPU = "nvidia.com/gpu"
#: Controllers of kube-controller-manager that make the pods.
TOOLS = ("job-controller", "statefulset-controller")


BATCH = Resource("batch", "v1", "jobs", "Job", Thing)
SETS = Resource("apps", "v1", "statefulsets", "StatefulSet", Thing)
PATIENT = AdoptionPolicy(bind_patience_seconds=2.0, idle_seconds_max=20.0)


@asynccontextmanager
async def adopting(client: Client) -> AsyncIterator[AdoptionController]:
    """All three controllers, for the length of the block."""
    rng = random.Random(3)
    pair = Pair(client)
    controller = AdoptionController(
        client, ClusterWorld.make(client, clock=CLOCK, rng=rng), history=MemoryHistory(),
        events=pair.events, clock=CLOCK, policy=PATIENT,
    )  # fmt: skip
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(pair.run()),
            group.create_task(ControllerLoop(controller, clock=CLOCK, rng=rng).run()),
        ]
        yield controller
        for task in tasks:
            task.cancel()


def template(
    *, seconds: float | None = None, gated: bool = True, gpus: int = 8, restart: str = "Never",
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    notes = {} if seconds is None else {"fairlead.dev/simulate-seconds": str(seconds)}
    amounts = {"cpu": "1", GPU: str(gpus)}
    container = {"name": "main", "image": "train:1", "resources": {"limits": amounts}}
    spec: dict[str, Any] = {"containers": [container], "restartPolicy": restart}
    if gated:
        spec["schedulingGates"] = [{"name": names.GANG_GATE}]
    return {"metadata": {"labels": dict(labels or {}), "annotations": notes}, "spec": spec}


def batch_job(name: str, members: int, **pod: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed", "completions": members, "parallelism": members,
            "backoffLimit": 100, "template": template(**pod),
        },
    }  # fmt: skip


def stateful_set(name: str, members: int, **pod: Any) -> dict[str, Any]:
    labels = {"set": name}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": members, "serviceName": name, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": template(restart="Always", labels=labels, **pod),
        },
    }  # fmt: skip


async def pods_of(client: Client, owner: str) -> list[Pod]:
    pods = (await client.list(PODS)).items
    return [p for p in pods if any(o.name == owner for o in p.metadata.owner_references)]


async def bound(client: Client, owner: str) -> int:
    return sum(bool(p.spec.node_name) for p in await pods_of(client, owner))


async def stand_in(client: Client, owner: str) -> Job:
    jobs = (await client.list(JOBS)).items
    return next(j for j in jobs if j.spec.adopts and j.spec.adopts.name == owner)


async def complete(client: Client, name: str, namespace: str = "default") -> bool:
    status = (await client.get(BATCH, name, namespace=namespace)).status
    return any(c["type"] == "Complete" for c in status.get("conditions", ()))


async def make(
    client: Client,
    resource: Resource[Thing],
    *bodies: dict[str, Any],
    namespace: str = "default",
) -> None:
    """Create objects at the same time, so that their members are created interleaved."""
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(client.create(resource, body, namespace=namespace))


async def settled(client: Client, *owners: str, total: int) -> list[int]:
    """Return how many members of each owner are bound, once so many are, and it stays so."""

    async def are_bound() -> bool:
        return sum([await bound(client, owner) for owner in owners]) >= total

    await until(are_bound)
    await asyncio.sleep(1.0)
    return [await bound(client, owner) for owner in owners]


async def gone(client: Client) -> None:
    """Return once no pod is left."""

    async def is_empty() -> bool:
        return not (await client.list(PODS)).items

    await until(is_empty)


@asynccontextmanager
async def partial_gangs(client: Client) -> AsyncIterator[list[str]]:
    """Watch for owners of which some members are bound while another owner's are, too.

    Every gang here needs all nodes, so two with bound members at a time would share them.
    """
    found: list[str] = []
    live: dict[str, dict[str, None]] = {}
    version = (await client.list(PODS)).resource_version

    async def watch() -> None:
        nonlocal version
        while True:
            async for event in client.watch(PODS, resource_version=version):
                version, pod = event.resource_version, event.object
                if pod is None or not pod.metadata.owner_references:
                    continue
                owner = pod.metadata.owner_references[0].name
                uids = live.setdefault(owner, {})
                uids.pop(pod.metadata.uid, None)
                if pod.spec.node_name and not pod.is_terminal and event.type.value != "DELETED":
                    uids[pod.metadata.uid] = None
                if sum(map(bool, live.values())) > 1:
                    found.append(f"{ {name: len(each) for name, each in live.items()} }")

    async with asyncio.TaskGroup() as group:
        task = group.create_task(watch())
        yield found
        task.cancel()


async def sweep_all(client: Client) -> None:
    """Delete what the tests made, owners first."""
    for resource in (BATCH, SETS):
        await client.delete_collection(resource, propagation=Propagation.BACKGROUND)
    await sweep(client)
    await gone(client)
