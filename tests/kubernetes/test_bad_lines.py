"""The line between the controllers and the API server does harm: it hangs, goes dead, is cut.

The controllers act through a proxy; the witness, the virtual nodes and the test itself do not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.operating import (
    Pair,
    controllers,
    ended,
    http_client,
    install_kinds,
    job_body,
    sweep,
    until,
    virtual_nodes,
    witnessed,
)
from tests.kubernetes.outage_world import (
    Counts,
    Proxy,
    client_of,
    counted,
    equal_to_the_server,
    proxied,
)
from tests.kubernetes.own_plane import own_plane

from fairlead.api.resources import JOBS, NODES
from fairlead.api.status import Timeout
from fairlead.kube.client import HttpClient
from fairlead.kube.protocol import HttpOptions

pytestmark = pytest.mark.kubernetes
#: Impatient, so that a test need not wait for minutes.
IMPATIENT = HttpOptions(request_seconds=1.5, stream_idle_seconds=3.0)
NODE_COUNT = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    yield from own_plane(tmp_path_factory)


@dataclass(frozen=True)
class World:
    """Controllers behind a proxy; `client` goes round it."""

    client: HttpClient
    proxy: Proxy
    pair: Pair
    counts: Counts

    async def submit(self, count: int, rng: random.Random, *, first: int = 0) -> list[str]:
        names = [f"gang-{number:03d}" for number in range(first, first + count)]
        for name in names:
            body = job_body(name, rng.choice([2, 5, 10]), seconds=rng.uniform(0.2, 1.0))
            await self.client.create(JOBS, body, namespace="default")
        return names

    async def judge(self, names: Sequence[str]) -> None:
        """All gangs end well, in their first attempt, and the mirrors equal the server."""
        for name in names:
            job = await ended(self.client, name)
            assert (job.status.state, job.status.attempt) == ("Succeeded", 1)
        for controller in (self.pair.jobs, self.pair.scheduler):
            await equal_to_the_server({m.kind: m for m in controller.mirrors}, self.client)


@asynccontextmanager
async def acting_through_a_proxy(
    cluster: ControlPlane, options: HttpOptions
) -> AsyncIterator[World]:
    client = http_client(cluster)
    await install_kinds(client)
    async with proxied(cluster) as proxy:
        acting = client_of(cluster, proxy, options=options)
        counts = counted(acting)
        async with (
            witnessed(client),
            virtual_nodes(client, NODE_COUNT),
            controllers(acting) as pair,
        ):
            yield World(client, proxy, pair, counts)
        await acting.close()
    await sweep(client)
    await client.close()


async def test_a_request_without_an_answer_is_given_up_in_time(cluster: ControlPlane) -> None:
    async with proxied(cluster) as proxy:
        client = client_of(cluster, proxy, options=IMPATIENT)

        async def is_answered() -> bool:
            with suppress(Timeout):
                return bool(await client.list(NODES))
            return False

        await until(is_answered)
        proxy.hold_answers()
        async with asyncio.timeout(10 * IMPATIENT.request_seconds):
            with pytest.raises(Timeout, match="no answer from https"):
                await client.list(NODES)
        proxy.flow()
        await until(is_answered)
        await client.close()


async def test_gangs_end_well_though_the_server_hangs_again_and_again(
    cluster: ControlPlane,
) -> None:
    """Requests that arrive when nobody waits for them any more, and answers that never come."""
    rng = random.Random(7)
    async with acting_through_a_proxy(cluster, IMPATIENT) as world:
        names: list[str] = []
        for hang in range(8):
            names += await world.submit(5, rng, first=5 * hang)
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            if hang % 2:
                world.proxy.hold_answers()
            else:
                world.proxy.hold_requests()
            await asyncio.sleep(rng.uniform(1.0, 4.0))
            world.proxy.flow()
            await asyncio.sleep(rng.uniform(0.5, 1.5))
        await world.judge(names)
        given_up = world.counts.failed(Timeout)
        writes = [each for each in given_up if each.verb in ("create", "patch", "delete")]
        print(f"{len(given_up)} requests given up, {len(writes)} of them writes")
        assert writes


async def test_watches_that_went_dead_are_found_and_resumed(cluster: ControlPlane) -> None:
    rng = random.Random(8)
    async with acting_through_a_proxy(cluster, IMPATIENT) as world:
        names = await world.submit(3, rng)
        await world.judge(names)
        lists = world.counts.of("list")
        for dead in range(3):
            world.proxy.deaden()
            more = await world.submit(3, rng, first=3 + 3 * dead)
            await world.judge(more)
        # On a slow machine a mirror may be listed again that shows our own writes too late.
        mirrors = [*world.pair.jobs.mirrors, *world.pair.scheduler.mirrors]
        assert world.counts.of("list") - lists < len(mirrors), "a watch resumes where it was"


async def test_gangs_run_through_though_all_connections_are_cut_every_two_seconds(
    cluster: ControlPlane,
) -> None:
    rng = random.Random(9)
    async with acting_through_a_proxy(cluster, HttpOptions()) as world:
        names: list[str] = []
        both = (*world.pair.jobs.mirrors, *world.pair.scheduler.mirrors)

        def watching() -> int:
            """How many mirrors there are, less those that sleep; what both read is one."""
            return len({id(each) for each in both if each.list_count})

        async def all_watch() -> bool:
            return world.proxy.open_count >= watching()

        for cut in range(12):
            names += await world.submit(5, rng, first=5 * cut)
            await asyncio.sleep(2.0)
            await until(all_watch)
            world.proxy.cut()
        await world.judge(names)
        lists = world.counts.of("list")
        print(f"{world.proxy.cut_count} connections cut, requests: {world.counts.by_verb}")
        assert world.proxy.cut_count > 20 * watching(), "both ends of each connection count"
        assert lists < 4 * watching(), "one list per mirror and start, and hardly more"
