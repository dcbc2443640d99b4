"""The recorder: counting instead of repeating, limits, and names that survive a restart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fairlead.api.kubernetes.core import Event
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import EVENTS, JOBS, NODES
from fairlead.api.status import Forbidden, Unavailable
from fairlead.runtime.client import ClientWrapper, Request
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import Allowance, EventKind, Recorder, RecorderOptions
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

EPOCH = 1_767_225_600.0
JOB = ObjectMeta(namespace="a", name="train", uid="u1", resource_version="7")


def new_recorder(client: Any, **options: object) -> Recorder:
    return Recorder(
        client,
        LoopClock(EPOCH),
        "scheduler",
        rng=random.Random(1),
        options=RecorderOptions(**options),
    )


def say(recorder: Recorder, message: str, reason: str = "Placed", about: ObjectMeta = JOB) -> None:
    recorder.record(JOBS, about, EventKind.NORMAL, reason=reason, message=message)


@asynccontextmanager
async def running(recorder: Recorder):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(recorder.run())
        yield
        task.cancel()


def events(client: FakeClient) -> dict[str, Event]:
    return {event.message: event for event in client.stored(EVENTS)}


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapper() -> None:
        run(test())

    wrapper.__name__ = test.__name__
    return wrapper


@simulated
async def test_an_event_names_the_object_the_reporter_and_the_instant() -> None:
    client = FakeClient()
    recorder = new_recorder(client)
    async with running(recorder):
        say(recorder, "placed on 4 nodes")
        await asyncio.sleep(1)
    event = events(client)["placed on 4 nodes"]
    involved = event.involved_object
    assert (involved.api_version, involved.kind) == ("fairlead.dev/v1alpha1", "Job")
    assert (involved.namespace, involved.name, involved.uid) == ("a", "train", "u1")
    assert (event.type, event.reason, event.count) == ("Normal", "Placed", 1)
    assert event.source.component == "scheduler"
    assert event.first_timestamp == event.last_timestamp == "2026-01-01T00:00:00Z"
    assert event.metadata.namespace == "a"
    assert event.metadata.name.startswith("train.")


@simulated
async def test_repeats_are_counted_in_one_event_with_one_write_per_quiet_period() -> None:
    client = FakeClient()
    recorder = new_recorder(client, quiet_seconds=60.0, quiet_seconds_by_reason={"Loud": 0.0})
    async with running(recorder):
        for _ in range(100):
            say(recorder, "does not fit")
            await asyncio.sleep(1)
        await asyncio.sleep(60)
        for _ in range(3):
            say(recorder, "written each time", reason="Loud")
            await asyncio.sleep(1)
    assert events(client)["does not fit"].count == 100
    assert events(client)["does not fit"].last_timestamp == "2026-01-01T00:01:39Z"
    assert client.count("create", "events") == 2
    assert client.count("patch", "events") == 4
    assert events(client)["written each time"].count == 3


@simulated
async def test_other_objects_reasons_and_messages_are_other_events() -> None:
    client = FakeClient()
    recorder = new_recorder(client)
    async with running(recorder):
        say(recorder, "one")
        say(recorder, "two")
        say(recorder, "one", reason="Other")
        say(recorder, "one", about=ObjectMeta(namespace="a", name="train", uid="u2"))
        await asyncio.sleep(1)
    assert len(client.stored(EVENTS)) == 4


@simulated
async def test_a_controller_that_starts_anew_goes_on_counting_the_same_event() -> None:
    client = FakeClient()
    for _ in range(3):
        recorder = new_recorder(client)
        async with running(recorder):
            say(recorder, "placed")
            await asyncio.sleep(1)
    [event] = client.stored(EVENTS)
    assert event.count == 3


@simulated
async def test_an_event_that_expired_meanwhile_is_written_anew() -> None:
    client = FakeClient()
    recorder = new_recorder(client)
    async with running(recorder):
        say(recorder, "placed")
        await asyncio.sleep(60)
        await client.delete_collection(EVENTS)
        say(recorder, "placed")
        await asyncio.sleep(60)
    [event] = client.stored(EVENTS)
    assert event.count == 1
    assert event.first_timestamp == "2026-01-01T00:01:00Z"


@simulated
async def test_trouble_is_retried_and_then_dropped_and_counted_without_stopping_the_rest() -> None:
    client = FakeClient()
    recorder = new_recorder(client)
    client.fail_next("create", Unavailable("gone"), Unavailable("gone"), None)
    client.fail_next("create", Forbidden("namespace is going away"))
    async with running(recorder):
        say(recorder, "in spite of trouble")
        say(recorder, "forbidden")
        say(recorder, "after it")
        await asyncio.sleep(60)
    assert sorted(events(client)) == ["after it", "in spite of trouble"]
    assert recorder.dropped_count == 1


@simulated
async def test_a_full_queue_drops_the_oldest_and_memory_stays_bounded() -> None:
    client = FakeClient()
    recorder = new_recorder(client, queue_max=10, cache_max=20)
    for i in range(100):
        say(recorder, f"message {i}")
    async with running(recorder):
        await asyncio.sleep(1)
        assert sorted(events(client)) == [f"message {i}" for i in range(90, 100)]
        assert recorder.dropped_count == 90
        for i in range(100):
            say(recorder, f"later {i}")
            await asyncio.sleep(1)
        assert len(recorder._noted) <= 20


@simulated
async def test_what_an_event_says_is_kept_until_it_is_written_and_said_again_after_that() -> None:
    client = FakeClient()
    recorder = new_recorder(client)
    say(recorder, "placed on 2 nodes")
    assert [noted.body is not None for noted in recorder._noted.values()] == [True]
    async with running(recorder):
        await asyncio.sleep(1)
        assert [noted.body for noted in recorder._noted.values()] == [None]
        await asyncio.sleep(3600)
        [name] = [event.metadata.name for event in client.stored(EVENTS)]
        await client.delete(EVENTS, name, namespace="a")  # as it has expired
        say(recorder, "placed on 2 nodes")
        await asyncio.sleep(1)
        assert events(client)["placed on 2 nodes"].involved_object.name == "train"


@simulated
async def test_events_of_cluster_scoped_objects_go_to_the_default_namespace() -> None:
    client = FakeClient()
    recorder = new_recorder(client)
    async with running(recorder):
        about = ObjectMeta(name="n" * 253, uid="u")
        recorder.record(NODES, about, EventKind.WARNING, reason="Cordoned", message="broken")
        await asyncio.sleep(1)
    [event] = client.stored(EVENTS)
    assert event.metadata.namespace == "default"
    assert len(event.metadata.name) <= 253
    assert event.type == "Warning"


class Slow(ClientWrapper):
    """A client whose writes are applied at once and answered after a second."""

    async def call(self, request: Request[Any]) -> Any:
        answer = await super().call(request)
        await asyncio.sleep(1)
        return answer


@simulated
async def test_repeats_that_come_while_an_event_is_written_are_counted_too() -> None:
    client = FakeClient()
    recorder = new_recorder(Slow(client), quiet_seconds=60.0)
    async with running(recorder):
        for written in (1, 4):  # by a create, then by a patch
            say(recorder, "does not fit")
            await asyncio.sleep(0.5)
            assert events(client)["does not fit"].count == written, "in flight"
            say(recorder, "does not fit")
            say(recorder, "does not fit")
            await asyncio.sleep(200)
            assert events(client)["does not fit"].count == written + 2
    assert recorder.dropped_count == 0


def test_a_clock_that_is_set_back_takes_nothing_of_an_allowance_and_stops_no_more() -> None:
    allowance = Allowance(per_second=1.0, burst=2.0)
    assert allowance.take(3600.0)
    assert allowance.take(0.0)
    assert not allowance.take(0.0)
    assert allowance.take(1.0)
