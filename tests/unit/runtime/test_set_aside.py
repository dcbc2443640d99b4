"""One object's fault: it is set aside and told of; all others go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from fairlead.api.kubernetes.core import ConfigMap
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import CONFIG_MAPS, PODS, Resource
from fairlead.runtime.client import (
    EventType,
    ObjectList,
    Request,
    RequestVerb,
    Unreadable,
    WatchEvent,
    WatchRequest,
)
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.watching import set_aside as module
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import STRICT, AsideStage, SetAside
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient


def meta(name: str = "a", uid: str = "u", version: int = 1) -> ObjectMeta:
    return ObjectMeta(name, namespace="x", uid=uid, resource_version=str(version))


class Said:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None:  # fmt: skip
        self.events.append(f"{resource.kind} {metadata.name} {kind.value} {reason} {message}")


# The registry


def test_an_object_is_told_of_once_and_again_when_the_fault_is_another() -> None:
    said = Said()
    registry = SetAside("test", events=said)
    for _ in range(3):
        registry.note(PODS, meta(), AsideStage.DECIDE, ValueError("bad"))
    registry.note(PODS, meta(), AsideStage.DECIDE, ValueError("worse"))
    assert said.events == [
        "Pod a Warning SetAside Cannot be decided on: ValueError: bad. It is looked at when it "
        "changes",
        "Pod a Warning SetAside Cannot be decided on: ValueError: worse. It is looked at when it "
        "changes",
    ]
    entry = registry.find(PODS, ("x", "a"))
    assert entry is not None
    assert entry.count == 4
    assert registry.counts() == {"Pod": 1}
    successor = registry.note(PODS, meta(uid="another"), AsideStage.DECIDE, ValueError("worse"))
    assert successor.count == 1


def test_an_object_comes_back_when_the_stage_that_failed_succeeds_or_with_its_end() -> None:
    registry = SetAside()
    registry.note(PODS, meta(), AsideStage.DECIDE, ValueError())
    registry.clear(PODS, ("x", "a"), AsideStage.OBSERVE)
    assert len(registry) == 1
    registry.clear(PODS, ("x", "a"), AsideStage.DECIDE)
    assert len(registry) == 0
    registry.note(PODS, meta(), AsideStage.DECIDE, ValueError())
    registry.clear(PODS, ("x", "a"))
    assert registry.counts() == {}


def test_what_has_passed_since_is_no_news() -> None:
    registry = SetAside()
    for name in ("passed", "gone", "bad"):
        registry.note(PODS, meta(name), AsideStage.OBSERVE, ValueError("bad"))
    registry.clear(PODS, ("x", "passed"), AsideStage.OBSERVE)
    registry.clear(PODS, ("x", "gone"))
    assert [entry.metadata.name for entry in registry.pop_news(PODS)] == ["bad"]


def test_the_registry_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 3)
    registry = SetAside()
    for i in range(5):
        registry.note(PODS, meta(f"p{i}"), AsideStage.READ, ValueError())
    assert [e.metadata.name for e in registry.pop_news(PODS)] == ["p2", "p3", "p4"]
    assert registry.pop_news(PODS) == []
    assert registry.counts() == {"Pod": 3}


def test_what_a_fault_says_is_one_bounded_line() -> None:
    text = module.describe(ValueError("x\ny" * 100_000))
    assert len(text) <= 300
    assert "\n" not in text


def test_the_strict_one_raises_what_it_is_given() -> None:
    error = ValueError("ours")
    with pytest.raises(ValueError, match="ours"):
        STRICT.note(PODS, meta(), AsideStage.DECIDE, error)


# Handlers


class Follower:
    """A handler that raises over what is bad, half-way; `held` is what it then has."""

    def __init__(self) -> None:
        self.held: dict[str, str] = {}
        self.changes = 0

    def __call__(self, change: Change[ConfigMap]) -> None:
        self.changes += 1
        name, new = change.key[1], change.new
        if change.old is not None:
            self.held.pop(name, None)
        if new is None:
            return
        self.held[name] = "half"
        if new.data["value"] == "bad":
            raise ArithmeticError("bad value")
        self.held[name] = new.data["value"]


async def put(client: FakeClient, name: str, value: str) -> None:
    body = {"metadata": {"name": name}, "data": {"value": value}}
    await client.create(CONFIG_MAPS, body, namespace="x")


async def change(client: FakeClient, name: str, value: str) -> None:
    await client.patch(CONFIG_MAPS, name, {"data": {"value": value}}, namespace="x")


def test_a_handler_keeps_what_it_had_of_an_object_that_turned_bad_and_all_others() -> None:
    async def main() -> None:
        client = FakeClient()
        await put(client, "first", "bad")
        mirror: Mirror[ConfigMap] = Mirror(
            client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1)
        )
        registry = SetAside("test")
        reader, follower = MirrorReader(registry), Follower()
        reader.follow(mirror, follower)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(mirror.run()), group.create_task(reader.wait_fault())]
            await mirror.wait_synced()
            assert follower.held == {}
            await put(client, "second", "good")
            await change(client, "second", "bad")
            await put(client, "third", "good")
            await asyncio.sleep(1)
            assert follower.held == {"second": "good", "third": "good"}
            assert registry.counts() == {"ConfigMap": 2}
            await change(client, "second", "better")
            await change(client, "first", "good")
            await asyncio.sleep(1)
            assert follower.held == {"second": "better", "third": "good", "first": "good"}
            assert registry.counts() == {}
            registry.note(CONFIG_MAPS, meta("second"), AsideStage.ACT, ValueError())
            await change(client, "second", "best")
            await asyncio.sleep(1)
            assert registry.counts() == {}
            await change(client, "third", "bad")
            for name in ("first", "second", "third"):
                await client.delete(CONFIG_MAPS, name, namespace="x")
            await asyncio.sleep(1)
            assert follower.held == {}
            assert registry.counts() == {}
            for task in tasks:
                task.cancel()

    run(main())


def test_a_handler_that_cannot_take_an_absence_is_broken() -> None:
    async def main() -> None:
        client = FakeClient()
        await put(client, "a", "good")
        mirror: Mirror[ConfigMap] = Mirror(
            client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1)
        )

        def broken(_: Change[ConfigMap]) -> None:
            raise ArithmeticError

        reader = MirrorReader(SetAside("test"))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mirror.run())
            await mirror.wait_synced()
            with pytest.raises(ArithmeticError):
                reader.follow(mirror, broken)
            task.cancel()

    run(main())


# Objects that cannot be decoded


class Partly(FakeClient):
    """A fake whose ConfigMaps with the value "bad" cannot be decoded."""

    async def call(self, request: Request[Any]) -> Any:
        listed = await super().call(request)
        if request.verb is not RequestVerb.LIST:
            return listed
        bad = tuple(_unreadable(o) for o in listed.items if o.data["value"] == "bad")
        good = tuple(o for o in listed.items if o.data["value"] != "bad")
        return ObjectList(good, listed.resource_version, bad)

    async def open_watch(self, request: WatchRequest[Any]) -> AsyncIterator[Any]:
        async for event in super().open_watch(request):
            obj = event.object
            if obj is not None and obj.data["value"] == "bad":
                version, bad = event.resource_version, _unreadable(obj)
                yield WatchEvent(event.type, None, version, bad)
            else:
                yield event


def _unreadable(obj: ConfigMap) -> Unreadable:
    return Unreadable(obj.metadata, "too deep")


@pytest.mark.parametrize("relists", [False, True])
def test_a_mirror_keeps_what_it_had_of_an_object_that_cannot_be_decoded(*, relists: bool) -> None:
    async def main() -> None:
        client = Partly()
        mirror: Mirror[ConfigMap] = Mirror(
            client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1)
        )
        for name, value in (("a", "1"), ("b", "1"), ("never", "bad")):
            await put(client, name, value)

        async def settle() -> None:
            if relists:
                mirror.relist()
            await asyncio.sleep(1)

        def held() -> dict[str, str]:
            return {obj.metadata.name: obj.data["value"] for obj in mirror.items()}

        async with asyncio.TaskGroup() as group:
            task = group.create_task(mirror.run())
            await mirror.wait_synced()
            assert held() == {"a": "1", "b": "1"}
            await change(client, "a", "bad")
            await settle()
            assert held() == {"a": "1", "b": "1"}
            assert mirror.set_aside.counts() == {"ConfigMap": 2}
            stored = await client.get(CONFIG_MAPS, "a", namespace="x")
            mine = mirror.get("x", "a")
            assert mine is not None
            assert mine.metadata == stored.metadata
            await change(client, "a", "2")
            await settle()
            assert held() == {"a": "2", "b": "1"}
            await change(client, "b", "bad")
            await settle()
            for name in ("a", "b", "never"):
                await client.delete(CONFIG_MAPS, name, namespace="x")
            await settle()
            assert held() == {}
            assert mirror.set_aside.counts() == {}
            task.cancel()

    run(main())


def test_an_object_that_was_mended_while_nobody_looked_is_no_longer_set_aside() -> None:
    async def main() -> None:
        client = Partly()
        mirror: Mirror[ConfigMap] = Mirror(
            client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1)
        )

        async def counts_after_a_list() -> Mapping[str, int]:
            mirror.relist()
            task = asyncio.create_task(mirror.run())
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.wait([task])
            return mirror.set_aside.counts()

        await put(client, "a", "bad")
        assert await counts_after_a_list() == {"ConfigMap": 1}
        await change(client, "a", "2")
        assert await counts_after_a_list() == {}

    run(main())


def test_an_object_that_was_deleted_while_nobody_looked_is_no_longer_set_aside() -> None:
    async def main() -> None:
        client = Partly()
        mirror: Mirror[ConfigMap] = Mirror(
            client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1)
        )
        for name in ("gone", "here"):
            await put(client, name, "bad")  # neither was ever readable
        for expected in (2, 1):
            mirror.relist()
            task = asyncio.create_task(mirror.run())
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.wait([task])
            assert mirror.set_aside.counts() == {"ConfigMap": expected}
            if expected == 2:
                await client.delete(CONFIG_MAPS, "gone", namespace="x")

    run(main())


def test_an_object_of_another_uid_that_cannot_be_decoded_ends_the_one_before() -> None:
    async def main() -> None:
        client = Partly()
        mirror: Mirror[ConfigMap] = Mirror(
            client, CONFIG_MAPS, clock=LoopClock(0.0), rng=random.Random(1)
        )
        await put(client, "a", "1")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(mirror.run())
            await mirror.wait_synced()
            mirror._apply(
                WatchEvent(EventType.MODIFIED, None, "99", Unreadable(meta("a", "other", 99), ""))
            )
            assert mirror.get("x", "a") is None
            task.cancel()

    run(main())
