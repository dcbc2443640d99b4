"""Somebody who may write pods and jobs of one namespace, where admission is not asked: whatever the
order in which they write them, they get no room, no rank and no reading that their pods do not give
them, and others run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.simulation.adoption_world import AdoptionWorld, running
from tests.simulation.test_adoption import runs, until

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.names import SIMULATE_SECONDS
from fairlead.api.resources import JOBS, NAMESPACES, PODS
from fairlead.api.values.quantity import GPU
from fairlead.sim.actors.training_operator import OWNERS, SPACE, owner_body
from fairlead.sim.loop import run

MALLORY = "mallory"
NODES = 4
GANG = "h"


def pod(name: str, *, size: int = 0, gpus: int = 8, seconds: float = 9e5, **more: Any) -> Any:
    """A pod of Mallory's, in the gang that a label names; `size` 0 does not say how large it is."""
    notes = {SIMULATE_SECONDS: str(seconds)}
    if size:
        notes[names.GROUP_SIZE] = str(size)
    limits = {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}
    container = {"name": "main", "image": "i", "resources": {"limits": limits}}
    spec = {"containers": [container], "restartPolicy": "Never",
            "schedulingGates": [{"name": names.GANG_GATE}]}  # fmt: skip
    labels = {names.GANG_NAME: GANG, **more.pop("labels", {})}
    meta = {"name": name, "labels": labels, "annotations": notes}
    return {"metadata": meta, "spec": {**spec, **more}}


async def add(world: AdoptionWorld, *pods: Any) -> None:
    for each in pods:
        await world.client.create(PODS, each, namespace=MALLORY)


def mallorys(world: AdoptionWorld) -> list[Job]:
    return [job for key, job in world.jobs.items() if key[0] == MALLORY]


def held(world: AdoptionWorld) -> int:
    """GPUs that the placements of Mallory's jobs hold."""
    gpus = 0
    for job in mallorys(world):
        place, vacant = job.status.placement, job.status.vacant
        asked = {
            role.name: int(role.template.spec.containers[0].resources.limits.get(GPU, 0))
            for role in job.spec.roles
        }
        for role in place.roles if place is not None else ():
            seats = [(role.role, i) for i in range(len(role.nodes))]
            gpus += asked[role.role] * sum(seat not in vacant for seat in seats)
    return gpus


@asynccontextmanager
async def shared() -> AsyncGenerator[AdoptionWorld]:
    async with running(AdoptionWorld(seed=1, nodes=NODES)) as world:
        await world.client.create(NAMESPACES, {"metadata": {"name": MALLORY}})
        yield world


def job_body(name: str, count: int, **spec: Any) -> dict[str, Any]:
    containers = pod("x")["spec"]["containers"]
    notes = {SIMULATE_SECONDS: "900000"}
    template = {"metadata": {"annotations": notes}, "spec": {"containers": containers}}
    roles = [{"name": "worker", "count": count, "template": template}]
    return {"metadata": {"name": name}, "spec": {"roles": roles, **spec}}


async def victim(world: AdoptionWorld) -> None:
    """A job on all nodes, of the class that pods without one have."""
    await world.client.create(JOBS, job_body("victim", NODES), namespace=SPACE)
    await until(lambda: is_running(world), 60)


def is_running(world: AdoptionWorld) -> bool:
    job = world.jobs.get((SPACE, "victim"))
    return job is not None and job.status.state == "Running" and not job.status.preemption


async def runs_on(world: AdoptionWorld, seconds: float = 120) -> None:
    await asyncio.sleep(seconds)
    assert is_running(world)
    assert world.jobs[SPACE, "victim"].status.attempt == 1


async def forged(world: AdoptionWorld, name: str, *roles: Any, **more: Any) -> None:
    """Create a job as Fairlead would for the gang, and what Mallory adds to it."""
    spec = {
        "roles": list(roles),
        "adopts": {"kind": "Gang", "name": GANG, "apiVersion": names.API_VERSION}, **more,
    }  # fmt: skip
    labels = {names.MANAGED_BY: "fairlead-adoption"}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
    await world.client.create(JOBS, body, namespace=MALLORY)


async def gangs_job(world: AdoptionWorld, gpus: int = 8) -> tuple[str, dict[str, Any]]:
    """Let a pod make the job, and take both away; return its name and the template of its role."""
    await add(world, pod("probe", size=9, gpus=gpus))
    await until(lambda: len(mallorys(world)) == 1, 30)
    name = mallorys(world)[0].metadata.name
    template = to_wire(mallorys(world)[0].spec.roles[0].template)
    await world.client.delete(PODS, "probe", namespace=MALLORY)
    await until(lambda: not mallorys(world), 90)
    return name, template


HIGH = {"priorityClassName": "high"}


@pytest.mark.parametrize("order", ["patched", "patched-when-whole", "job-first", "pods-first"])
def test_a_class_that_the_pods_do_not_have_preempts_nobody(order: str) -> None:
    async def main() -> None:
        async with shared() as world:
            await victim(world)
            if order in ("patched", "patched-when-whole"):
                pods = [pod(f"h{i}", size=2) for i in range(2)]
                await add(world, *pods[: 2 if order == "patched-when-whole" else 1])
                await until(lambda: len(mallorys(world)) == 1, 30)
                name = mallorys(world)[0].metadata.name
                await world.client.patch(JOBS, name, {"spec": HIGH}, namespace=MALLORY)
                await add(world, *pods[2 if order == "patched-when-whole" else 1 :])
            else:
                name, template = await gangs_job(world)
                role = {"name": "worker", "count": 2, "template": template}
                pods = [pod(f"h{i}", size=2) for i in range(2)]
                if order == "job-first":
                    await forged(world, name, role, **HIGH)
                    await add(world, *pods)
                else:
                    await add(world, {**pods[0], "metadata": {
                        **pods[0]["metadata"], "annotations": {}}})  # fmt: skip
                    await forged(world, name, role, **HIGH)
                    note = {"metadata": {"annotations": {names.GROUP_SIZE: "2"}}}
                    await world.client.patch(PODS, "h0", note, namespace=MALLORY)
                    await add(world, pods[1])
            await runs_on(world)
            (job,) = mallorys(world)
            assert job.spec.priority_class_name == ""
            assert (job.status.attempt, job.status.placement) == (1, None), "it waits in the queue"

    run(main())


def test_the_class_of_the_pods_counts() -> None:
    """The canary: what the tests above forbid happens where the pods have the class."""

    async def main() -> None:
        async with shared() as world:
            await victim(world)
            pods = [pod(f"h{i}", size=2, priorityClassName="high") for i in range(2)]
            await add(world, *pods)
            await until(lambda: any(j.status.placement for j in mallorys(world)), 120)
            assert not is_running(world)

    run(main())


@pytest.mark.parametrize("order", ["pods-first", "job-first", "size-last"])
def test_labels_of_ended_pods_hold_no_node(order: str) -> None:
    async def main() -> None:
        async with shared() as world:
            name, small = await gangs_job(world, gpus=0)
            big = pod("x")["spec"]["containers"]
            roles = [
                {"name": "worker", "count": 1, "template": small},
                {"name": "big", "count": 3, "template": {"spec": {"containers": big}}},
            ]
            ended = [f"true-{i}" for i in range(3)]
            for each in ended:
                plain = pod(each, gpus=0, seconds=1, schedulingGates=[], nodeName="v00001")
                await add(world, {**plain, "metadata": {**plain["metadata"], "labels": {}}})
            is_over = [False]
            while not all(is_over):
                await asyncio.sleep(1)
                found = [await world.client.get(PODS, n, namespace=MALLORY) for n in ended]
                is_over = [p.status.phase == "Succeeded" for p in found]
            if order == "job-first":
                await forged(world, name, *roles)
            tiny = pod("tiny", gpus=0, size=0 if order == "size-last" else 1)
            await add(world, tiny)
            if order != "job-first":
                await asyncio.sleep(1)
                if not mallorys(world):
                    await forged(world, name, *roles)
            for _ in range(20):  # the uid of whichever job there is
                for i, each in enumerate(ended):
                    uid = next((j.metadata.uid for j in mallorys(world)), "none")
                    labels = {
                        names.GANG_NAME: GANG, names.JOB_NAME: name, names.JOB_UID: uid,
                        names.ROLE: "big", names.INDEX: str(i), names.ATTEMPT: "1",
                    }  # fmt: skip
                    patch = {"metadata": {"labels": labels}}
                    await world.client.patch(PODS, each, patch, namespace=MALLORY)
                note = {"metadata": {"annotations": {names.GROUP_SIZE: "1"}}}
                await world.client.patch(PODS, "tiny", note, namespace=MALLORY)
                await asyncio.sleep(3)
                assert held(world) <= 8, "the place of the tiny pod alone"
            body = owner_body("victim", seconds=60, Worker=NODES)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "victim") == NODES, 60)
            assert all(job.member_count == 1 for job in mallorys(world))

    run(main())


@pytest.mark.parametrize("how", ["succeeded", "failed", "deleted"])
def test_one_small_member_that_lives_on_holds_its_own_node_only(how: str) -> None:
    """Its members had quota when they were created; another gang may have it by now."""

    async def main() -> None:
        async with shared() as world:
            seconds = 30.0 if how == "succeeded" else 9e5
            big = [pod(f"big-{i}", size=NODES, seconds=seconds) for i in range(NODES - 1)]
            await add(world, pod("tiny", size=NODES, gpus=0), *big)
            await until(lambda: any(j.status.started_at for j in mallorys(world)), 60)
            for i in range(NODES - 1):
                if how == "deleted":
                    await world.client.delete(PODS, f"big-{i}", namespace=MALLORY)
                elif how == "failed":
                    patch = {"status": {"phase": "Failed"}}
                    await world.client.patch(
                        PODS, f"big-{i}", patch, namespace=MALLORY, subresource="status"
                    )
            body = owner_body("victim", seconds=9e5, Worker=NODES)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "victim") == NODES, 900)
            assert held(world) <= 8
            tiny = await world.client.get(PODS, "tiny", namespace=MALLORY)
            assert tiny.status.phase == "Running"

    run(main())


def test_a_job_that_its_author_keeps_by_a_finalizer_holds_nothing() -> None:
    async def main() -> None:
        async with shared() as world:
            await add(world, *(pod(f"h{i}", size=NODES) for i in range(NODES)))
            await until(lambda: any(j.status.started_at for j in mallorys(world)), 60)
            name = mallorys(world)[0].metadata.name
            keep = {"metadata": {"finalizers": ["mallory.example/keep"]}}
            await world.client.patch(JOBS, name, keep, namespace=MALLORY)
            await world.client.delete(JOBS, name, namespace=MALLORY)
            for i in range(NODES):
                await world.client.delete(PODS, f"h{i}", namespace=MALLORY)
            body = owner_body("victim", seconds=9e5, Worker=NODES)
            await world.client.create(OWNERS, body, namespace=SPACE)
            await until(lambda: runs(world, "victim") == NODES, 120)
            assert world.jobs[MALLORY, name].metadata.deletion_timestamp

    run(main())
