"""Objects that their owners fill until not one more byte can be written into them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    controllers,
    http_client,
    install_kinds,
    job_body,
    sweep,
    until,
    virtual_nodes,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS, PODS, PRIORITY_CLASSES, Resource
from fairlead.api.status import AlreadyExists, TooLarge
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
#: Long keys: it takes fewer of them.
PREFIX = ".".join(("a" * 63, "b" * 63, "c" * 63))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.close()


async def job(client: HttpClient, name: str) -> Job:
    return await client.get(JOBS, name, namespace="default")


async def fill(client: HttpClient, resource: Resource[Any], name: str) -> None:
    """Add labels to an object until the API server takes not one more."""
    count, step = 0, 4096
    while step:
        labels = {f"{PREFIX}/x-{each:07d}": "y" * 63 for each in range(count, count + step)}
        patch = {"metadata": {"labels": labels}}
        try:
            await client.patch(resource.only_metadata, name, patch, namespace="default")
            count += step
        except TooLarge:
            step //= 2
    assert count > 1_000, "the API server bounds labels: nothing is left to be tried"


async def test_a_job_that_is_as_large_as_can_be_and_so_are_its_pods_is_preempted_all_the_same(
    client: HttpClient,
) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 1000})
    policy = PlacementPolicy(preemption_min_run_seconds=0.0)
    async with virtual_nodes(client, 1), controllers(client, placement=policy):
        await client.create(JOBS, job_body("greedy", 1, seconds=3600), namespace="default")

        async def runs(name: str) -> bool:
            return (await job(client, name)).status.state == "Running"

        await until(functools.partial(runs, "greedy"))
        await fill(client, JOBS, "greedy")
        await fill(client, PODS, "greedy-1-worker-0")
        urgent = job_body("urgent", 1, seconds=3600, priorityClassName="urgent")
        await client.create(JOBS, urgent, namespace="default")
        await until(functools.partial(runs, "urgent"))
        attempt = (await job(client, "greedy")).status.attempts[0]
        assert attempt.reason == "Preempted"
