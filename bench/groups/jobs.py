"""The jobs controller: what others' jobs add to a cycle, and what starting a big gang costs."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench.harness import Report, slowness
from fairlead.api import crd, names
from fairlead.api.core import Pod
from fairlead.api.job import Job
from fairlead.api.resources import CRDS, JOBS, NODES, PODS
from fairlead.controllers.jobs import JobsController, JobsMirrors
from fairlead.controllers.jobs_templates import PodBodies
from fairlead.decide.jobs.members import PodFactory, seats
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import Service
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.client import Client
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import Recorder
from fairlead.runtime.loop import ControllerLoop
from fairlead.testing.builders import EPOCH, make_placement
from fairlead.testing.fake_client import FakeClient

FEW, MANY = 10, 10_000
CYCLES = 500
MEMBERS = 1_000
STARTS = 3

TEMPLATE: dict[str, Any] = {
    "spec": {
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "volumes": [{"name": "home", "nfs": {"server": "files", "path": "/home"}}],
        "containers": [
            {
                "name": "main",
                "image": "train:1",
                "command": ["python", "train.py"],
                "env": [{"name": f"OPTION_{i}", "value": str(i)} for i in range(10)],
                "resources": {"limits": {"nvidia.com/gpu": 8, "cpu": 64, "memory": "512Gi"}},
                "volumeMounts": [{"name": "home", "mountPath": "/home"}],
                "livenessProbe": {"exec": {"command": ["true"]}},
            }
        ],
    }
}


def run(report: Report) -> None:
    """Measure."""
    few, many = asyncio.run(_cycles())
    report.add("jobs.cycle_of_10000_over_10", many / few, "x")
    report.add("jobs.cycle", many * 1e6 / slowness(), "us")
    report.add("jobs.pod_body", asyncio.run(_bodies()) * 1e6 / slowness(), "us/pod")
    starts = [asyncio.run(_start()) for _ in range(STARTS)]
    report.add("jobs.start_of_1000", statistics.median(starts) / slowness(), "s")


def _body(name: str, count: int) -> dict[str, Any]:
    role = {"name": "worker", "count": count, "template": TEMPLATE}
    return {
        "metadata": {"name": name, "finalizers": [names.JOB_FINALIZER]},
        "spec": {"roles": [role]},
    }


def _controller(client: Client, clock: LoopClock) -> JobsController:
    policy, rng = JobsPolicy(checkpoint_root="/checkpoints"), random.Random(1)
    return JobsController(
        client,
        JobsMirrors.make(client, policy, clock=clock, rng=rng),
        history=MemoryHistory(),
        events=Recorder(client, clock, "jobs", rng=rng),
        policy=policy,
        clock=clock,
    )


# A cycle that concerns one job


async def _cycles() -> tuple[float, float]:
    """Return the seconds of a decision on one job among FEW, and among MANY, measured in turns."""
    few, many = await _waiting(FEW), await _waiting(MANY)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(CYCLES):
        for controller, seconds in zip((few, many), taken, strict=True):
            controller.changed(("default", "wait-00005"))
            start = time.perf_counter()
            decision = controller.decide(EPOCH)
            seconds.append(time.perf_counter() - start)
            assert len(decision.actions) > 0
    return statistics.median(taken[0]), statistics.median(taken[1])


async def _waiting(count: int) -> JobsController:
    """Return a controller that has seen `count` jobs and looked at each of them once."""
    clock = LoopClock(EPOCH)
    client = FakeClient(now=clock.now)
    for i in range(count):
        await client.create(JOBS, _body(f"wait-{i:05d}", 4), namespace="default")
    controller = _controller(client, clock)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(mirror.run()) for mirror in controller.mirrors]
        for mirror in controller.mirrors:
            await mirror.wait_synced()
        for task in tasks:
            task.cancel()
    while controller.decide(EPOCH).actions:
        pass
    assert controller.looked_count == count
    return controller


# A big gang


async def _bodies() -> float:
    """Return the seconds that making one pod and its body takes, in a gang of MEMBERS."""
    client = FakeClient()
    job = await client.create(JOBS, _body("train", MEMBERS), namespace="default")
    placement = make_placement([f"node-{i:04d}" for i in range(MEMBERS)])
    taken: list[float] = []
    for _ in range(5):
        bodies = PodBodies(client)
        start = time.perf_counter()
        factory = PodFactory(job, JobsPolicy(), resume_step=None)
        for seat in seats(job, placement):
            await bodies.body(job, factory.make(seat))
        taken.append((time.perf_counter() - start) / MEMBERS)
    return statistics.median(taken)


async def _start() -> float:
    """Return the seconds from the placement of a gang to the last of its pods."""
    clock, rng = LoopClock(EPOCH), random.Random(1)
    service = Service(
        Store.open(None),
        Registry.with_builtins(),
        clock,
        ids=lambda: f"{rng.getrandbits(128):032x}",
        rng=rng,
    )
    client = InProcessClient(service)
    await service.bootstrap()
    for manifest in crd.manifests():
        await client.create(CRDS, manifest)
    nodes = [f"node-{i:04d}" for i in range(MEMBERS)]
    for name in nodes:
        node = await client.create(NODES, {"metadata": {"name": name}})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        await client.patch(NODES, node.metadata.name, ready, subresource="status")
    controller = _controller(client, clock)
    loop = ControllerLoop(controller, clock=clock, rng=rng)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(service.run()), group.create_task(loop.run())]
        await client.create(JOBS, _body("train", MEMBERS), namespace="default")
        while (await _job(client)).status.attempt == 0:  # noqa: ASYNC110 - set-up, not measured
            await asyncio.sleep(0.01)
        seconds = await _place(client, nodes)
        for task in tasks:
            task.cancel()
    return seconds


async def _job(client: Client) -> Job:
    return await client.get(JOBS, "train", namespace="default")


async def _place(client: Client, nodes: Sequence[str]) -> float:
    listed = await client.list(PODS)
    watch = client.watch(PODS, resource_version=listed.resource_version)
    start = time.perf_counter()
    roles = [{"role": "worker", "nodes": list(nodes)}]
    patch = {"status": {"placement": {"attempt": 1, "roles": roles}}}
    await client.patch(JOBS, "train", patch, namespace="default", subresource="status")
    seen: dict[str, Pod] = {}
    async for event in watch:
        if event.object is not None:
            seen[event.object.metadata.name] = event.object
        if len(seen) == len(nodes):
            break
    return time.perf_counter() - start
