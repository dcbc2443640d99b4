"""Two replicas of `fairlead controller` on a real API server, and what befalls the leader.

Every test runs gangs meanwhile and ends with the judgement of a witness that saw every write: no
node over-committed, no gang placed in part, none twice.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.kubernetes.controlplane import PATIENCE_SECONDS, ControlPlane
from tests.kubernetes.operating import (
    ended,
    http_client,
    install_kinds,
    job_body,
    sweep,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.own_plane import own_plane
from tests.kubernetes.replicas import LEASE, Replica, holder, leader, replicas

from fairlead.api.resources import JOBS, LEASES
from fairlead.kube.client import HttpClient

pytestmark = pytest.mark.kubernetes
KILLS = 15


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of our own: others empty theirs between tests."""
    yield from own_plane(tmp_path_factory)


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[HttpClient]:
    client = http_client(cluster)
    await install_kinds(client)
    yield client
    await sweep(client)
    await client.delete_collection(LEASES, namespace="default")
    await client.close()


async def submit(
    client: HttpClient, count: int, rng: random.Random, *, first: int = 0
) -> list[str]:
    names = [f"gang-{number:03d}" for number in range(first, first + count)]
    for name in names:
        members = rng.choice([5, 10, 20, 30])
        body = job_body(name, members, seconds=rng.uniform(0.5, 2.0))
        await client.create(JOBS, body, namespace="default")
    return names


async def holders(client: HttpClient, version: str, *, last: str) -> list[str]:
    """Return who held the lease after a version, up to the last one, as it was written."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            async for event in client.watch(
                LEASES, resource_version=version, namespace="default", timeout_seconds=60
            ):
                version = event.resource_version
                if event.object is not None and event.object.metadata.name == LEASE:
                    found.append(event.object.spec.holder_identity)
                    if found[-1] == last:
                        return found


async def test_one_leads_the_other_stands_by_and_sigterm_hands_over_at_once(
    cluster: ControlPlane, client: HttpClient
) -> None:
    async with witnessed(client), virtual_nodes(client, 10), replicas(cluster) as world:
        first = await world.start()
        assert await leader(client, world) is first
        second = await world.start()

        async def ready(replica: Replica) -> bool:
            return (await replica.get("/readyz"))[0] == 200

        await until(lambda: ready(first))
        await until(lambda: ready(second))
        assert (await first.get("/healthz"))[0] == (await second.get("/healthz"))[0] == 200
        assert "fairlead_leader 1.0" in (await first.get("/metrics"))[1]
        assert "fairlead_leader 0.0" in (await second.get("/metrics"))[1]
        assert "[+] scheduler" in (await first.get("/readyz"))[1]
        assert f"held by {first.identity}" in (await second.get("/readyz"))[1]

        await client.create(JOBS, job_body("across", 10, seconds=3), namespace="default")
        version = (await client.list(LEASES, namespace="default")).resource_version
        first.process.terminate()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await first.process.wait() == 0
        world.running.remove(first)
        assert await leader(client, world) is second
        assert first.said("Handed the lease over")
        held = await holders(client, version, last=second.identity)
        assert held[-2:] == ["", second.identity], "it waited for the lease to run out"
        assert (await ended(client, "across")).status.state == "Succeeded"


async def test_gangs_run_through_though_the_leader_is_killed_again_and_again(
    cluster: ControlPlane, client: HttpClient
) -> None:
    rng = random.Random(4)
    takeovers: list[float] = []
    async with (
        witnessed(client) as witness,
        virtual_nodes(client, 40),
        replicas(cluster) as world,
    ):
        for _ in range(2):
            await world.start()
        await leader(client, world)
        names = await submit(client, 10, rng)
        for kill in range(KILLS):
            # always some to place, to make and to end when the leader dies
            names += await submit(client, 3, rng, first=10 + 3 * kill)
            await asyncio.sleep(rng.uniform(0.0, 1.5))
            victim = await leader(client, world)
            world.kill(victim)
            start = time.monotonic()
            fresh = asyncio.ensure_future(world.start())
            await leader(client, world)
            takeovers.append(time.monotonic() - start)
            await fresh
        for name in names:
            job = await ended(client, name)
            assert job.status.state == "Succeeded"
            assert job.status.attempt == 1, "a change of the leader costs a gang nothing"
    assert len(witness.judge().finished) == len(names)
    print(f"take-over after kill -9: {', '.join(f'{s:.2f}' for s in takeovers)} s")


async def test_a_leader_that_slept_through_its_lease_wakes_up_harmless(
    cluster: ControlPlane, client: HttpClient
) -> None:
    """SIGSTOP at random moments; it wakes up when the other has placed jobs on the same nodes."""
    rng = random.Random(5)
    async with witnessed(client), virtual_nodes(client, 30), replicas(cluster) as world:
        for _ in range(2):
            await world.start()
        await leader(client, world)
        names = await submit(client, 30, rng)
        for _ in range(4):
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            sleeper = await leader(client, world)
            os.kill(sleeper.process.pid, signal.SIGSTOP)

            async def another_leads(asleep: str = sleeper.identity) -> bool:
                return await holder(client) not in ("", asleep)

            await until(another_leads)
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            os.kill(sleeper.process.pid, signal.SIGCONT)

            async def noticed(replica: Replica = sleeper) -> bool:
                return replica.said("Lost the lease")

            await until(noticed)
            sleeper.lines.clear()
        for name in names:
            job = await ended(client, name)
            assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
