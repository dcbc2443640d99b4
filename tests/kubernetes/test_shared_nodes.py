"""Gangs on nodes that the real kube-scheduler fills with pods of others at the same time.

Nodes are nearly full all along: every gang has to be placed into what others leave, and what our
planner sees is always a little old. Virtual nodes refuse what does not fit, as kubelets do, and a
watch sums up what is bound after every event.

FAIRLEAD_SHARED_NODES sets the number of nodes; pods grow with it, 20 a node.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    POLICY,
    controllers,
    http_client,
    install_kinds,
    job_body,
    virtual_nodes,
)
from tests.kubernetes.outage_world import eventually
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.sharing import GPUS_PER_NODE, other_pod, watched

from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS, PODS, Resource
from fairlead.api.status import AlreadyExists
from fairlead.decide.pinning import Binding
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
NODES = int(os.environ.get("FAIRLEAD_SHARED_NODES", "200"))
PODS_PER_NODE = 20
#: Of all pods, those that are members of gangs.
GANG_SHARE = 0.25
SECONDS_MAX = 600
CREATES_PARALLEL = 16
PINNED = replace(POLICY, binding=Binding.PINNED, bind_patience_seconds=2.0)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True)


def gang_sizes(rng: random.Random) -> list[tuple[int, int]]:
    """Members and GPUs a member, until the share of gangs is reached."""
    sizes = list[tuple[int, int]]()
    while sum(members for members, _ in sizes) < NODES * PODS_PER_NODE * GANG_SHARE:
        gpus = rng.choice((1, 2, 4, 8))
        sizes.append((rng.randint(2, max(2, NODES // 10)), gpus))
    return sizes


async def create_all(client: HttpClient, bodies: list[tuple[Resource[Any], Any]]) -> None:
    """Create these objects in their order, several at a time; a busy server is asked again."""
    todo = iter(bodies)

    async def creator() -> None:
        for resource, body in todo:

            async def is_made(resource: Resource[Any] = resource, body: Any = body) -> bool:
                with suppress(AlreadyExists):
                    await client.create(resource, body, namespace="default")
                return True

            await eventually(is_made, SECONDS_MAX)

    async with asyncio.TaskGroup() as group:
        for _ in range(CREATES_PARALLEL):
            group.create_task(creator())


async def test_every_gang_gets_its_turn_and_no_node_is_given_more_than_it_has(
    cluster: ControlPlane,
) -> None:
    client, rng = http_client(cluster), random.Random(1)
    await install_kinds(client)
    sizes = gang_sizes(rng)
    others = NODES * PODS_PER_NODE - sum(members for members, _ in sizes)
    # At some 200 creations a second this keeps most of the GPUs in use, whatever the size.
    seconds = [rng.uniform(0.5, 1.5) * NODES * 0.04 for _ in range(others)]
    bodies: list[tuple[Resource[Any], Any]] = [
        (PODS, other_pod(f"other-{i}", seconds=seconds[i])) for i in range(others)
    ]
    for i, (members, gpus) in enumerate(sizes):
        body = job_body(f"gang-{i}", members, seconds=rng.uniform(1, 4), gpus=gpus)
        bodies.insert(rng.randrange(len(bodies)), (JOBS, body))
    jobs: tuple[Job, ...] = ()

    async def all_ended() -> bool:
        nonlocal jobs
        await asyncio.sleep(1.0)
        jobs = (await client.list(JOBS)).items
        return len(jobs) == len(sizes) and all(job.is_finished for job in jobs)

    async with (
        watched(client) as bound,
        virtual_nodes(client, NODES),
        controllers(client, policy=PINNED),
        asyncio.TaskGroup() as group,
    ):
        group.create_task(create_all(client, bodies))
        await eventually(all_ended, SECONDS_MAX)
    await client.close()
    assert {job.status.state for job in jobs} == {"Succeeded"}
    assert sum(job.status.infrastructure_failures for job in jobs) == 0
    assert bound.most == GPUS_PER_NODE
    attempts = sum(job.status.attempt for job in jobs)
    share = bound.most_together / (NODES * GPUS_PER_NODE)
    print(
        f"{len(jobs)} gangs, {attempts} attempts, {others} pods of others, {NODES} nodes, "
        f"at most {share:.0%} of all GPUs in use"
    )
