"""The barrier: which writes a decision waits for, and for how long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.api.resources import CONFIG_MAPS
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Barrier, Written
from fairlead.runtime.watching.mirror import Mirror, MirrorOptions
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

PATIENCE_SECONDS = 5.0


class World:
    """A mirror of ConfigMaps, one object "one", and a barrier before the mirror."""

    def __init__(self) -> None:
        self.client = FakeClient()
        options = MirrorOptions(watch_seconds=3600)
        rng = random.Random(1)
        self.mirror: Mirror[ConfigMap] = Mirror(
            self.client, CONFIG_MAPS, clock=LoopClock(0.0), rng=rng, options=options
        )
        self.barrier = Barrier((self.mirror,), timeout_seconds=PATIENCE_SECONDS)

    async def write(self, value: str) -> Written:
        body = {"data": {"value": value}}
        written = await self.client.patch(CONFIG_MAPS, "one", body, namespace="a")
        return Written.of(CONFIG_MAPS, written)

    @property
    def seen(self) -> str | None:
        obj = self.mirror.get("a", "one")
        return None if obj is None else obj.data.get("value")

    async def waited_seconds(self) -> float:
        """Pass the barrier; return how long it took."""
        now = asyncio.get_running_loop().time
        before = now()
        await self.barrier.wait()
        return now() - before


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    world = World()
    await world.client.create(CONFIG_MAPS, {"metadata": {"name": "one"}}, namespace="a")
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        task = group.create_task(world.mirror.run())
        await world.mirror.wait_synced()
        yield world
        task.cancel()


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def wrapper() -> None:
        run(test())

    wrapper.__name__ = test.__name__
    return wrapper


@simulated
async def test_a_decision_waits_until_its_own_write_is_seen() -> None:
    async with a_world() as world:
        world.client.hold_watches()
        world.barrier.expect(await world.write("x"))
        asyncio.get_running_loop().call_later(2.0, world.client.release_watches)
        assert 2.0 <= await world.waited_seconds() < PATIENCE_SECONDS
        assert world.seen == "x"
        assert await world.waited_seconds() == 0.0


@simulated
async def test_the_newest_of_several_writes_counts_in_whatever_order_their_answers_came() -> None:
    async with a_world() as world:
        world.client.hold_watches()
        first, second = await world.write("old"), await world.write("new")
        world.barrier.expect(second)
        world.barrier.expect(first)
        shown = asyncio.create_task(_show_up_to(world, first.version))
        await asyncio.sleep(1.0)
        assert world.mirror.resource_version == first.version
        asyncio.get_running_loop().call_later(2.0, world.client.release_watches)
        assert await world.waited_seconds() >= 2.0
        assert world.seen == "new"
        await shown


async def _show_up_to(world: World, version: int) -> None:
    """Let the mirror reach `version` and no further, as a watch does that is slow."""
    world.mirror._version = version  # there is no server that stops in between


@simulated
async def test_a_deletion_is_seen_once_its_object_is_terminating() -> None:
    """An object with a grace period or a finalizer stays for long; no later decision repeats it."""
    async with a_world() as world:
        held = {"metadata": {"finalizers": ["example.com/stays"]}}
        obj = await world.client.patch(CONFIG_MAPS, "one", held, namespace="a")
        await world.client.delete(CONFIG_MAPS, "one", namespace="a")
        world.barrier.expect(Written.deletion(CONFIG_MAPS, ("a", "one"), obj.metadata.uid))
        assert await world.waited_seconds() < 0.5
        left = world.mirror.get("a", "one")
        assert left is not None
        assert left.metadata.deletion_timestamp is not None
        assert world.barrier.relist_count == 0


@simulated
async def test_a_deletion_that_is_not_shown_is_waited_for() -> None:
    async with a_world() as world:
        obj = world.mirror.get("a", "one")
        assert obj is not None
        world.client.hold_watches()
        await world.client.delete(CONFIG_MAPS, "one", namespace="a")
        world.barrier.expect(Written.deletion(CONFIG_MAPS, ("a", "one"), obj.metadata.uid))
        asyncio.get_running_loop().call_later(2.0, world.client.release_watches)
        assert await world.waited_seconds() >= 2.0
        assert world.mirror.get("a", "one") is None


@simulated
async def test_the_last_finalizer_of_an_object_that_stays_is_taken_off_by_a_change() -> None:
    async with a_world() as world:
        held = {"metadata": {"finalizers": ["example.com/stays"]}}
        obj = await world.client.patch(CONFIG_MAPS, "one", held, namespace="a")
        writer = ObjectWriter(world.client)
        world.barrier.expect(await writer.set_finalizers(CONFIG_MAPS, obj.metadata, ()))
        assert await world.waited_seconds() < 0.5
        left = world.mirror.get("a", "one")
        assert left is not None
        assert left.metadata.finalizers == ()


@simulated
async def test_a_version_that_another_object_names_is_waited_for() -> None:
    async with a_world() as world:
        world.client.hold_watches()
        written = await world.write("x")
        world.mirror.expect(written.version)
        world.mirror.expect(written.version - 1)
        asyncio.get_running_loop().call_later(2.0, world.client.release_watches)
        assert await world.waited_seconds() >= 2.0
        assert world.seen == "x"


@simulated
async def test_a_list_ends_every_expectation_though_it_is_older() -> None:
    """The store was put back, or somebody wrote nonsense: nothing waits for ever."""
    async with a_world() as world:
        world.mirror.expect(1_000_000)
        assert PATIENCE_SECONDS <= await world.waited_seconds() < PATIENCE_SECONDS + 1.0
        assert world.barrier.relist_count == 1
        assert not world.mirror.is_behind
        assert await world.waited_seconds() == 0.0


@simulated
async def test_a_list_ends_the_wait_for_a_deletion_that_it_does_not_show() -> None:
    async with a_world() as world:
        obj = world.mirror.get("a", "one")
        assert obj is not None
        world.barrier.expect(Written.deletion(CONFIG_MAPS, ("a", "one"), obj.metadata.uid))
        assert PATIENCE_SECONDS <= await world.waited_seconds() < PATIENCE_SECONDS + 1.0
        assert world.barrier.relist_count == 1
        assert await world.waited_seconds() == 0.0
