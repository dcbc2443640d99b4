"""Two replicas with one PostgreSQL: every job that ended is recorded once, whoever led."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.e2e.postgres_server import Server, postgres_server
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    ended,
    http_client,
    install_kinds,
    job_body,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import leader, replicas
from tests.unit.history.contract import records_of

from fairlead.api.resources import JOBS
from fairlead.history.postgres import PostgresStore
from fairlead.kube.client import HttpClient
from fairlead.runtime.history import HistoryQuery

pytestmark = pytest.mark.kubernetes
GANGS, OUTAGE_AFTER = 24, 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgres_server() as running:
        yield running


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await client.close()


async def test_a_dead_leader_and_a_dead_database_cost_no_record(
    cluster: ControlPlane, client: HttpClient, server: Server
) -> None:
    names = [f"gang-{number:02d}" for number in range(GANGS)]
    async with (
        witnessed(client),
        virtual_nodes(client, 10),
        replicas(cluster, history=server.url) as world,
    ):
        for _ in range(2):
            await world.start()
        for name in names[:OUTAGE_AFTER]:
            await client.create(JOBS, job_body(name, 3, seconds=0.5), namespace="default")
        world.kill(await leader(client, world))
        assert (await ended(client, names[0])).status.state == "Succeeded"
        server.kill()
        for name in names[OUTAGE_AFTER:]:
            await client.create(JOBS, job_body(name, 3, seconds=0.5), namespace="default")
        server.start()
        jobs = [await ended(client, name) for name in names]
    store = PostgresStore(server.url, rng=random.Random(1), runner=asyncio.to_thread)
    records = await records_of(store, HistoryQuery())
    await store.close()
    assert {job.status.state for job in jobs} == {"Succeeded"}
    assert sorted(r.name for r in records) == names
    assert {r.uid for r in records} == {job.metadata.uid for job in jobs}
