"""Two replicas with one PostgreSQL: every job that ended is recorded once, whichever led.

So is every end by a time limit, before it, in one chain of audit records.
"""

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
from tests.kubernetes.replicas import Replica, leader, replicas
from tests.unit.history.audit_contract import all_of, check_has
from tests.unit.history.contract import records_of

from fairlead.api.resources import JOBS
from fairlead.decide.takings import TakingKind
from fairlead.history.postgres import PostgresStore
from fairlead.kube.client import HttpClient
from fairlead.runtime.kept.audit import Head
from fairlead.runtime.kept.history import HistoryQuery

pytestmark = pytest.mark.kubernetes
GANGS, OUTAGE_AFTER = 24, 12
LATE = {"seconds": 600, "timeLimitSeconds": 1}


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
        started = [await world.start() for _ in range(2)]
        await client.create(JOBS, job_body("late-1", 3, **LATE), namespace="default")
        assert (await ended(client, "late-1")).status.state == "Failed"
        for name in names[:OUTAGE_AFTER]:
            await client.create(JOBS, job_body(name, 3, seconds=0.5), namespace="default")
        world.kill(await leader(client, world))
        assert (await ended(client, names[0])).status.state == "Succeeded"
        server.kill()
        for name in names[OUTAGE_AFTER:]:
            await client.create(JOBS, job_body(name, 3, seconds=0.5), namespace="default")
        server.start()
        await client.create(JOBS, job_body("late-2", 3, **LATE), namespace="default")
        assert (await ended(client, "late-2")).status.state == "Failed"
        jobs = [await ended(client, name) for name in names]
    store = PostgresStore(server.url, rng=random.Random(1), runner=asyncio.to_thread)
    records = [each for each in await records_of(store, HistoryQuery()) if each.name in names]
    taken = await all_of(store)
    await store.close()
    assert {job.status.state for job in jobs} == {"Succeeded"}
    assert sorted(r.name for r in records) == names
    assert {r.uid for r in records} == {job.metadata.uid for job in jobs}
    assert {each.object for each in taken if each.kind == TakingKind.END.value} == {
        "Job default/late-1", "Job default/late-2",
    }  # fmt: skip
    assert len({each.writer for each in taken}) == 2
    check_has(taken, [head for each in started for head in _logged(each)])


def _logged(replica: Replica) -> list[Head]:
    """The heads of the chain that a replica said to have written."""
    said = [each for each in replica.lines if each["message"] == "Audit"]
    return [Head(int(str(each["number"])), str(each["digest"])) for each in said]
