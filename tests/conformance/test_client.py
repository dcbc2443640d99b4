"""One suite for every `Client`: in process (virtual time), over HTTP, and the test kit's fake.

A controller cannot tell them apart; whatever it relies on is stated here once.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.api.kubernetes.core import ConfigMap, Pod
from fairlead.api.meta import OnlyMetadata
from fairlead.api.resources import CONFIG_MAPS, NODES, PODS
from fairlead.api.status import AlreadyExists, ApiError, Conflict, Expired, NotFound, Unavailable
from fairlead.runtime.client import Client, EventType, PatchType, WatchEvent
from fairlead.runtime.clock import LoopClock, SystemClock
from fairlead.runtime.watching.mirror import Mirror, MirrorOptions
from fairlead.sim import loop as simulation
from fairlead.testing.fake_client import FakeClient

NAMESPACE = "default"

Test = Callable[[Client], Awaitable[None]]


@asynccontextmanager
async def fake() -> AsyncIterator[Client]:
    client = FakeClient(latency_seconds=0.001)
    await client.create(NODES, {"metadata": {"name": "something-else"}})
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def service(clock: LoopClock | SystemClock) -> AsyncIterator[Any]:
    from fairlead.embedded.registry import Registry
    from fairlead.embedded.storage.store import Store
    from fairlead.embedded.verbs.service import ApiService

    numbers = itertools.count(1)
    store = Store.open(None)
    made = ApiService(
        store, Registry.with_builtins(), clock,
        ids=lambda: f"00000000-0000-4000-8000-{next(numbers):012x}", rng=random.Random(7),
    )  # fmt: skip
    await made.bootstrap()
    try:
        async with asyncio.TaskGroup() as group:
            sweeping = group.create_task(made.run())
            yield made
            sweeping.cancel()
    finally:
        await store.close()


@asynccontextmanager
async def in_process() -> AsyncIterator[Client]:
    from fairlead.embedded.client import InProcessClient

    async with service(LoopClock(1_767_225_600.0)) as served:
        client = InProcessClient(served)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def over_http() -> AsyncIterator[Client]:
    from fairlead.embedded.http.server import serve
    from fairlead.kube.client import HttpClient
    from fairlead.kube.kubeconfig import Connection
    from fairlead.kube.protocol import HttpOptions

    async with (
        service(SystemClock()) as served,
        serve(served, token="t", host="127.0.0.1", port=0) as server,
    ):
        connection = Connection(f"http://127.0.0.1:{server.port}", "test", token="t")
        client = HttpClient(connection, HttpOptions(page_size=3))
        try:
            yield client
        finally:
            await client.close()


@dataclass(frozen=True)
class World:
    """A way to make a client, and the loop that it lives in."""

    name: str
    make: Callable[[], Any]
    run: Callable[[Coroutine[Any, Any, None]], None]

    def check(self, test: Test) -> None:
        async def main() -> None:
            async with self.make() as client:
                await test(client)

        self.run(main())


WORLDS = [
    World("fake", fake, simulation.run),
    World("in-process", in_process, simulation.run),
    World("http", over_http, asyncio.run),
]


def conforms(test: Test) -> Callable[[World], None]:
    """Run a test of a client in every world."""

    @pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
    def wrapper(world: World) -> None:
        world.check(test)

    wrapper.__name__ = test.__name__
    return wrapper


def body(name: str, value: str = "v", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "data": {"k": value}}


async def put(client: Client, name: str, value: str = "v", **metadata: Any) -> ConfigMap:
    return await client.create(CONFIG_MAPS, body(name, value, **metadata), namespace=NAMESPACE)


async def follow(client: Client, version: str, count: int, **selection: str) -> list[str]:
    """Return the first events after `version` as `TYPE name`, without bookmarks."""
    out: list[str] = []
    selection = {"namespace": NAMESPACE, **selection}
    events = client.watch(CONFIG_MAPS, resource_version=version, **selection)
    async with aclosing(events), asyncio.timeout(PATIENCE_SECONDS):
        async for event in events:
            if event.object is not None:
                out.append(f"{event.type.value} {event.object.metadata.name}")
                if len(out) == count:
                    break
    return out


@conforms
async def test_what_is_created_has_identity_and_version_and_can_be_read(client: Client) -> None:
    made = await put(client, "x", labels={"a": "b"})
    assert isinstance(made, ConfigMap)
    assert made.metadata.key == (NAMESPACE, "x")
    assert made.metadata.uid
    assert made.metadata.version > 0
    assert made.data == {"k": "v"}
    assert await client.get(CONFIG_MAPS, "x", namespace=NAMESPACE) == made


@conforms
async def test_a_typed_object_can_be_created_too(client: Client) -> None:
    made = await put(client, "x")
    copy = ConfigMap(metadata=type(made.metadata)(name="y", namespace=NAMESPACE), data=made.data)
    stored = await client.create(CONFIG_MAPS, copy)
    assert (stored.metadata.key, stored.data) == ((NAMESPACE, "y"), {"k": "v"})
    node = await client.create(NODES, {"metadata": {"name": "n1"}})
    assert node.metadata.key == ("", "n1")


@conforms
async def test_who_needs_no_more_is_answered_with_metadata_alone(client: Client) -> None:
    only = CONFIG_MAPS.only_metadata
    made = await client.create(only, body("x", labels={"a": "b"}), namespace=NAMESPACE)
    assert isinstance(made, OnlyMetadata)
    assert made.metadata.labels == {"a": "b"}
    patched = await client.patch(only, "x", {"data": {"k": "w"}}, namespace=NAMESPACE)
    assert patched.metadata.version > made.metadata.version
    assert await client.get(only, "x", namespace=NAMESPACE) == patched
    whole = await client.get(CONFIG_MAPS, "x", namespace=NAMESPACE)
    assert (whole.metadata, whole.data) == (patched.metadata, {"k": "w"})


@conforms
async def test_a_name_in_use_is_refused(client: Client) -> None:
    await put(client, "x")
    with pytest.raises(AlreadyExists, match='"x" already exists'):
        await put(client, "x")


@conforms
async def test_what_does_not_exist_is_not_found(client: Client) -> None:
    for call in (
        client.get(CONFIG_MAPS, "x", namespace=NAMESPACE),
        client.patch(CONFIG_MAPS, "x", {"data": {}}, namespace=NAMESPACE),
        client.delete(CONFIG_MAPS, "x", namespace=NAMESPACE),
    ):
        with pytest.raises(NotFound, match='"x" not found'):
            await call


@conforms
async def test_a_list_is_a_consistent_selection_in_key_order(client: Client) -> None:
    for name in ("d", "a", "c", "b", "e", "f", "g"):
        made = await put(client, name, labels={"odd": str(ord(name) % 2)})
    listed = await client.list(CONFIG_MAPS, namespace=NAMESPACE)
    names = [item.metadata.name for item in listed.items]
    assert [name for name in names if len(name) == 1] == list("abcdefg")
    assert int(listed.resource_version) >= made.metadata.version
    odd = await client.list(CONFIG_MAPS, namespace=NAMESPACE, label_selector="odd=1")
    assert [item.metadata.name for item in odd.items] == list("aceg")
    one = await client.list(CONFIG_MAPS, field_selector="metadata.name=c")
    assert [item.metadata.name for item in one.items] == ["c"]
    assert (await client.list(CONFIG_MAPS, namespace="no-such-namespace")).items == ()


@conforms
async def test_a_merge_patch_changes_what_it_names_and_nothing_else(client: Client) -> None:
    made = await put(client, "x", labels={"a": "1", "b": "2"})
    patch = {"metadata": {"labels": {"a": None}}, "data": {"new": "n"}}
    patched = await client.patch(CONFIG_MAPS, "x", patch, namespace=NAMESPACE)
    assert patched.metadata.labels == {"b": "2"}
    assert patched.data == {"k": "v", "new": "n"}
    assert patched.metadata.version > made.metadata.version
    assert patched.metadata.uid == made.metadata.uid


@conforms
async def test_a_patch_that_changes_nothing_makes_no_version(client: Client) -> None:
    made = await put(client, "x")
    again = await client.patch(CONFIG_MAPS, "x", {"data": {"k": "v"}}, namespace=NAMESPACE)
    assert again == made


@conforms
async def test_of_two_writers_with_the_same_version_one_loses(client: Client) -> None:
    made = await put(client, "x")
    version = made.metadata.resource_version

    async def swap(value: str) -> str:
        patch = {"metadata": {"resourceVersion": version}, "data": {"k": value}}
        try:
            patched = await client.patch(CONFIG_MAPS, "x", patch, namespace=NAMESPACE)
        except Conflict:
            return "lost"
        return patched.data["k"]

    outcomes = [await swap("1"), await swap("2")]
    assert outcomes == ["1", "lost"]


@conforms
async def test_status_and_spec_are_written_apart(client: Client) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await client.create(PODS, pod, namespace=NAMESPACE)
    status = {"status": {"phase": "Running"}, "metadata": {"labels": {"x": "y"}}}
    patched = await client.patch(PODS, "p", status, namespace=NAMESPACE, subresource="status")
    assert isinstance(patched, Pod)
    assert patched.status.phase == "Running"
    other = {"status": {"phase": "Failed"}, "metadata": {"labels": {"x": "z"}}}
    patched = await client.patch(PODS, "p", other, namespace=NAMESPACE)
    assert (patched.status.phase, patched.metadata.labels) == ("Running", {"x": "z"})


@conforms
async def test_a_dry_run_answers_and_stores_nothing(client: Client) -> None:
    await client.create(CONFIG_MAPS, body("x"), namespace=NAMESPACE, dry_run=True)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "x", namespace=NAMESPACE)
    made = await put(client, "y")
    patched = await client.patch(
        CONFIG_MAPS, "y", {"data": {"k": "w"}}, namespace=NAMESPACE, dry_run=True
    )
    assert patched.data == {"k": "w"}
    assert await client.get(CONFIG_MAPS, "y", namespace=NAMESPACE) == made


@conforms
async def test_a_deletion_may_name_the_uid_and_the_version_it_means(client: Client) -> None:
    made = await put(client, "x")
    for wrong in ({"uid": "00000000-0000-4000-8000-00000000dead"}, {"resource_version": "1"}):
        with pytest.raises(Conflict):
            await client.delete(CONFIG_MAPS, "x", namespace=NAMESPACE, **wrong)
    await client.delete(CONFIG_MAPS, "x", namespace=NAMESPACE, uid=made.metadata.uid)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "x", namespace=NAMESPACE)


@conforms
async def test_an_object_with_a_finalizer_waits_for_it(client: Client) -> None:
    await put(client, "x", finalizers=["fairlead.dev/test"])
    await client.delete(CONFIG_MAPS, "x", namespace=NAMESPACE)
    waiting = await client.get(CONFIG_MAPS, "x", namespace=NAMESPACE)
    assert waiting.metadata.deletion_timestamp
    patch = {"metadata": {"finalizers": None}}
    await client.patch(CONFIG_MAPS, "x", patch, namespace=NAMESPACE)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "x", namespace=NAMESPACE)


@conforms
async def test_a_collection_is_deleted_by_selection_also_in_all_namespaces(client: Client) -> None:
    for name in ("a", "b", "c", "d"):
        await put(client, name, labels={"odd": str(ord(name) % 2), "mine": "1"})
    await client.delete_collection(CONFIG_MAPS, namespace=NAMESPACE, label_selector="odd=1")
    left = await client.list(CONFIG_MAPS, label_selector="mine")
    assert [item.metadata.name for item in left.items] == ["b", "d"]
    await client.delete_collection(CONFIG_MAPS, label_selector="mine")
    assert (await client.list(CONFIG_MAPS, label_selector="mine")).items == ()


@conforms
async def test_a_watch_replays_from_a_version_and_then_follows(client: Client) -> None:
    start = (await client.list(CONFIG_MAPS, namespace=NAMESPACE)).resource_version
    await put(client, "x")
    await client.patch(CONFIG_MAPS, "x", {"data": {"k": "2"}}, namespace=NAMESPACE)
    async with asyncio.TaskGroup() as group:
        seen = group.create_task(follow(client, start, 4))
        await asyncio.sleep(0.05)
        await client.delete(CONFIG_MAPS, "x", namespace=NAMESPACE)
        await put(client, "y")
    assert seen.result() == ["ADDED x", "MODIFIED x", "DELETED x", "ADDED y"]


@conforms
async def test_a_selecting_watch_sees_objects_enter_and_leave(client: Client) -> None:
    start = (await client.list(CONFIG_MAPS, namespace=NAMESPACE)).resource_version
    await put(client, "x")
    for value in ("yes", "no"):
        patch = {"metadata": {"labels": {"in": value}}}
        await client.patch(CONFIG_MAPS, "x", patch, namespace=NAMESPACE)
    await put(client, "y", labels={"in": "yes"})
    seen = await follow(client, start, 3, label_selector="in=yes")
    assert seen == ["ADDED x", "DELETED x", "ADDED y"]


@conforms
async def test_events_carry_typed_objects_and_rising_versions_and_a_deletion_its_own(
    client: Client,
) -> None:
    start = (await client.list(CONFIG_MAPS, namespace=NAMESPACE)).resource_version
    made = await put(client, "x")
    await client.delete(CONFIG_MAPS, "x", namespace=NAMESPACE)
    events: list[WatchEvent[ConfigMap]] = []
    stream = client.watch(CONFIG_MAPS, resource_version=start, namespace=NAMESPACE)
    async with aclosing(stream), asyncio.timeout(PATIENCE_SECONDS):
        async for event in stream:
            if event.type is not EventType.BOOKMARK:
                events.append(event)
            if len(events) == 2:
                break
    assert events[0].object == made
    assert events[0].resource_version == made.metadata.resource_version
    assert int(events[1].resource_version) > made.metadata.version
    assert events[1].object is not None
    assert events[1].object.metadata.resource_version == events[1].resource_version


@conforms
async def test_a_watch_ends_by_itself_after_the_time_asked_for(client: Client) -> None:
    start = (await client.list(CONFIG_MAPS, namespace=NAMESPACE)).resource_version
    stream = client.watch(
        CONFIG_MAPS, resource_version=start, namespace=NAMESPACE, timeout_seconds=1
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        events = [event async for event in stream if event.object is not None]
    assert events == []


@conforms
async def test_an_unknown_patch_is_refused_by_name(client: Client) -> None:
    await put(client, "x")
    with pytest.raises(ApiError) as caught:
        await client.patch(
            CONFIG_MAPS, "x", [{"op": "dance"}], namespace=NAMESPACE, patch_type=PatchType.JSON
        )
    assert caught.value.status.code in (400, 422)
    assert not caught.value.retryable


@conforms
async def test_after_close_everything_is_unavailable(client: Client) -> None:
    await client.close()
    with pytest.raises(Unavailable):
        await client.get(CONFIG_MAPS, "x", namespace=NAMESPACE)
    with pytest.raises(Unavailable):
        await follow(client, "1", 1)


@conforms
async def test_a_mirror_follows_random_writes_to_the_end(client: Client) -> None:
    clock = LoopClock(1_767_225_600.0)
    options = MirrorOptions(label_selector="mine", watch_seconds=1)
    mirror = Mirror(client, CONFIG_MAPS, clock=clock, rng=random.Random(1), options=options)
    rng = random.Random(5)
    version = 0
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mirror.run())
        await mirror.wait_synced()
        for step in range(150):
            name = f"m{rng.randrange(8)}"
            held = {obj.metadata.name for obj in await mine(client)}
            if name not in held:
                version = (
                    await put(client, name, str(step), labels={"mine": "1"})
                ).metadata.version
            elif rng.random() < 0.5:
                await client.delete(CONFIG_MAPS, name, namespace=NAMESPACE)
            else:
                patch = {"data": {"k": str(step)}}
                patched = await client.patch(CONFIG_MAPS, name, patch, namespace=NAMESPACE)
                version = patched.metadata.version
        last = await put(client, "last", labels={"mine": "1"})
        async with asyncio.timeout(PATIENCE_SECONDS):
            while mirror.resource_version < last.metadata.version:
                await mirror.advanced()
        assert version < last.metadata.version
        assert mirror.items() == await mine(client)
        assert mirror.list_count == 1
        task.cancel()


async def mine(client: Client) -> tuple[ConfigMap, ...]:
    listed = await client.list(CONFIG_MAPS, namespace=NAMESPACE, label_selector="mine")
    return listed.items


def test_a_version_that_is_too_old_is_expired_in_the_fake() -> None:
    async def main() -> None:
        client = FakeClient()
        await put(client, "x")
        client.compact()
        with pytest.raises(Expired):
            await follow(client, "0", 1)

    simulation.run(main())
