"""Two gangs that each need all of 100 nodes, their members made at the same time.

With kube-scheduler alone each gets a part and neither ever starts. With Fairlead one runs, then the
other: for Fairlead's own Job, for `batch/v1` Jobs and for StatefulSets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import chain

import pytest
from tests.kubernetes.adopting import (
    BATCH,
    SETS,
    TOOLS,
    adopting,
    batch_job,
    complete,
    gone,
    make,
    partial_gangs,
    settled,
    stand_in,
    stateful_set,
    sweep_all,
    template,
)
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    ended,
    http_client,
    install_kinds,
    job_body,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api.resources import JOBS, PODS
from fairlead.kube.client import HttpClient
from fairlead.runtime.client import Client, Propagation

pytestmark = pytest.mark.kubernetes
NODES_COUNT = 100
PAIR = ("left", "right")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory, scheduler=True, controllers=TOOLS)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep_all(client)
    await client.close()


def assert_shared(halves: list[int]) -> None:
    """Both hold a part of the nodes, and together all."""
    assert sum(halves) == NODES_COUNT
    assert min(halves) > 0, f"not made interleaved: {halves}"


async def test_fairleads_own_jobs_take_turns_where_the_same_pods_deadlock(
    client: HttpClient,
) -> None:
    async with virtual_nodes(client, NODES_COUNT):
        pair = [[template(gated=False, labels={"gang": name}) for _ in range(NODES_COUNT)]
                for name in PAIR]  # fmt: skip
        for i, body in enumerate(chain.from_iterable(zip(*pair, strict=True))):
            body["metadata"]["name"] = f"{body['metadata']['labels']['gang']}-{i}"
            await client.create(PODS, body, namespace="default")
        assert_shared(await _bound_of_gangs(client))
        await client.delete_collection(PODS, grace_period_seconds=0)
        await gone(client)
    async with (
        witnessed(client), virtual_nodes(client, NODES_COUNT), adopting(client),
        partial_gangs(client) as partial,
    ):  # fmt: skip
        for name in PAIR:
            await client.create(JOBS, job_body(name, NODES_COUNT, seconds=1), namespace="default")
        jobs = [await ended(client, name) for name in PAIR]
    assert [(job.status.state, job.status.attempt) for job in jobs] == [("Succeeded", 1)] * 2
    assert partial == []


async def _bound_of_gangs(client: Client) -> list[int]:
    """Return how many of each gang's pods have a node, once all nodes are taken."""

    async def counts() -> list[int]:
        pods = [p for p in (await client.list(PODS)).items if p.spec.node_name]
        return [sum(p.metadata.labels.get("gang") == name for p in pods) for name in PAIR]

    async def are_all_taken() -> bool:
        return sum(await counts()) >= NODES_COUNT

    await until(are_all_taken)
    await asyncio.sleep(1.0)
    return await counts()


async def test_batch_jobs_take_turns_where_they_deadlock_without_fairlead(
    client: HttpClient,
) -> None:
    async with virtual_nodes(client, NODES_COUNT):
        plain = [batch_job(name, NODES_COUNT, seconds=1000, gated=False) for name in PAIR]
        async with partial_gangs(client) as partial:
            await make(client, BATCH, *plain)
            assert_shared(await settled(client, *PAIR, total=NODES_COUNT))
        assert partial != []
        await client.delete_collection(BATCH, propagation=Propagation.BACKGROUND)
        await gone(client)
    async with (
        witnessed(client), virtual_nodes(client, NODES_COUNT), adopting(client),
        partial_gangs(client) as partial,
    ):  # fmt: skip
        await make(client, BATCH, *[batch_job(name, NODES_COUNT, seconds=1) for name in PAIR])

        async def are_over() -> bool:
            return all([await complete(client, name) for name in PAIR])

        await until(are_over)
        starts = [(await stand_in(client, name)).status for name in PAIR]
    assert [status.attempt for status in starts] == [1, 1]
    assert partial == []


async def test_stateful_sets_take_turns_where_they_deadlock_without_fairlead(
    client: HttpClient,
) -> None:
    async with virtual_nodes(client, NODES_COUNT):
        plain = [stateful_set(name, NODES_COUNT, gated=False) for name in PAIR]
        await make(client, SETS, *plain)
        assert_shared(await settled(client, *PAIR, total=NODES_COUNT))
        await client.delete_collection(SETS, propagation=Propagation.BACKGROUND)
        await gone(client)
    async with (
        witnessed(client), virtual_nodes(client, NODES_COUNT), adopting(client),
        partial_gangs(client) as partial,
    ):  # fmt: skip
        await make(client, SETS, *[stateful_set(name, NODES_COUNT) for name in PAIR])
        halves = await settled(client, *PAIR, total=NODES_COUNT)
        assert sorted(halves) == [0, NODES_COUNT]
        first, second = PAIR if halves[0] else reversed(PAIR)
        await client.delete(SETS, first, namespace="default", propagation=Propagation.BACKGROUND)
        assert await settled(client, second, total=NODES_COUNT) == [NODES_COUNT]
    assert partial == []
