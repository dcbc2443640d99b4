"""Readers of a shared mirror: a fault is its reader's own, and handlers come off together."""

from __future__ import annotations

import asyncio
import random

import pytest

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.api.resources import CONFIG_MAPS
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient


def new_mirror(client: FakeClient) -> Mirror[ConfigMap]:
    return Mirror(client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1))


async def put(client: FakeClient, name: str) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": name}}, namespace="a")


def refuse_b(change: Change[ConfigMap]) -> None:
    if change.key[1] == "b":
        raise LookupError("b")


def test_a_fault_of_one_reader_ends_it_and_others_miss_nothing():
    async def main() -> None:
        client = FakeClient()
        mirror = new_mirror(client)
        bad, good = MirrorReader(), MirrorReader()
        seen: list[str] = []
        also_bad: list[str] = []
        bad.follow(mirror, lambda change: also_bad.append(change.key[1]))
        bad.follow(mirror, refuse_b)
        good.follow(mirror, lambda change: seen.append(change.key[1]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mirror.run())
            await mirror.wait_synced()
            for name in ("a", "b", "c"):
                await put(client, name)
            with pytest.raises(LookupError):
                await bad.wait_fault()
            while mirror.get("a", "c") is None:
                await mirror.advanced()
            assert not task.done()
            task.cancel()
        assert seen == ["a", "b", "c"]
        assert also_bad == ["a", "b"]

    run(main())


def test_a_handler_that_cannot_take_what_is_held_is_refused_and_leaves_nothing_behind():
    async def main() -> None:
        client = FakeClient()
        for name in ("a", "b"):
            await put(client, name)
        mirror = new_mirror(client)
        reader = MirrorReader()
        seen: list[str] = []
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mirror.run())
            await mirror.wait_synced()
            reader.follow(mirror, lambda change: seen.append(change.key[1]))
            with pytest.raises(LookupError):
                reader.follow(mirror, refuse_b)
            await put(client, "c")
            while mirror.get("a", "c") is None:
                await mirror.advanced()
            task.cancel()
        assert seen == ["a", "b"]

    run(main())


def test_a_closed_reader_hears_no_more():
    async def main() -> None:
        client = FakeClient()
        mirror = new_mirror(client)
        reader = MirrorReader()
        seen: list[str] = []
        reader.follow(mirror, lambda change: seen.append(change.key[1]))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mirror.run())
            await mirror.wait_synced()
            await put(client, "a")
            while mirror.get("a", "a") is None:
                await mirror.advanced()
            reader.close()
            await put(client, "b")
            while mirror.get("a", "b") is None:
                await mirror.advanced()
            task.cancel()
        assert seen == ["a"]

    run(main())
