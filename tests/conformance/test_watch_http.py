"""Watches over HTTP: framing, bookmarks, ends, slow readers, many at once. Points 42 to 49."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.conformance.http_server import (
    TOKEN,
    Running,
    config,
    eventually,
    running,
    widget,
    widget_crd,
)

from fairlead.embedded.http.answering.broadcast import WatchEnding, WatchLimits
from fairlead.embedded.http.server import ServerLimits
from fairlead.embedded.storage.store import Store, StoreOptions

MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = {"Content_Type": "application/merge-patch+json"}


def limits(**watch: Any) -> ServerLimits:
    return ServerLimits(watch=WatchLimits(**{"sweep_seconds": 0.01, **watch}))


@asynccontextmanager
async def watching(
    api: Running, query: str, path: str = MAPS
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    url = f"{api.server.url}{path}?watch=1&{query}"
    async with api.session.get(url) as response:
        assert response.status == 200, await response.text()

        async def events() -> AsyncIterator[dict[str, Any]]:
            async for line in response.content:
                assert line.endswith(b"\n"), "one JSON object per line"
                yield msgspec.json.decode(line)

        yield events()


def seen(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"]["name"]


async def take(events: AsyncIterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return [await anext(events) for _ in range(count)]


async def test_42_changes_arrive_in_order_of_version_and_once() -> None:
    async with running() as api:
        await api.call("POST", MAPS, config("before"))
        async with watching(api, "") as events:
            assert seen(await anext(events)) == ("ADDED", "before")
            for i in range(50):
                await api.call("POST", MAPS, config(f"c{i}"))
            await api.call("PATCH", f"{MAPS}/c7", {"data": {"key": "new"}}, **MERGE)
            await api.call("DELETE", f"{MAPS}/c7")
            got = await take(events, 52)
        assert [seen(e) for e in got[:50]] == [("ADDED", f"c{i}") for i in range(50)]
        assert [seen(e) for e in got[50:]] == [("MODIFIED", "c7"), ("DELETED", "c7")]
        versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in got]
        assert versions == sorted(set(versions))
        assert got[0]["object"]["kind"] == "ConfigMap"


async def test_43_a_watch_from_a_version_gets_only_what_came_after() -> None:
    async with running() as api:
        first = (await api.call("POST", MAPS, config("a")))[1]
        await api.call("POST", MAPS, config("b"))
        version = first["metadata"]["resourceVersion"]
        async with watching(api, f"resourceVersion={version}") as events:
            assert seen(await anext(events)) == ("ADDED", "b")


async def test_45_leaving_and_entering_a_selector_are_deleted_and_added() -> None:
    async with running() as api:
        await api.call("POST", MAPS, config("x", color="red"))
        async with watching(api, "labelSelector=color%3Dred") as events:
            assert seen(await anext(events)) == ("ADDED", "x")
            for color in ("blue", "red"):
                patch = {"metadata": {"labels": {"color": color}}}
                changed = (await api.call("PATCH", f"{MAPS}/x", patch, **MERGE))[1]
            left, back = await take(events, 2)
        assert (seen(left), seen(back)) == (("DELETED", "x"), ("ADDED", "x"))
        assert left["object"]["metadata"]["labels"] == {"color": "red"}
        assert back["object"] == changed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("fieldSelector=metadata.name%3Da", "fieldSelector=metadata.name%3Db"),
        ("labelSelector=color%3Da", "labelSelector=color%3Db"),
        ("labelSelector=color%3Da", "fieldSelector=metadata.name%3Db"),
    ],
)
async def test_45_watches_that_select_other_things_see_other_things(one: str, other: str) -> None:
    async with running() as api, watching(api, one) as first, watching(api, other) as second:
        for _ in range(2):
            for name in ("a", "b"):
                await api.call("POST", MAPS, config(name, color=name))
                await api.call("DELETE", f"{MAPS}/{name}")
        for events, name in ((first, "a"), (second, "b")):
            got = [seen(event) for event in await take(events, 4)]
            assert got == [("ADDED", name), ("DELETED", name)] * 2


async def test_46_bookmarks_come_with_time_and_before_the_end() -> None:
    for query, seconds, count in (("", 0.05, 3), ("&timeoutSeconds=1", 60.0, 1)):
        async with running(limits=limits(bookmark_seconds=seconds)) as api:
            await api.call("POST", MAPS, config("x"))
            async with watching(api, "allowWatchBookmarks=true" + query) as events:
                assert seen(await anext(events)) == ("ADDED", "x")
                marks = await take(events, count)
            version = str(api.service.store.version)
        for mark in marks:
            assert (mark["type"], mark["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
            assert mark["object"]["metadata"]["resourceVersion"] == version


async def test_46_a_bookmark_comes_after_all_events_up_to_its_version() -> None:
    rhythm = {"tick_seconds_min": 0.3, "tick_seconds_max": 0.3, "bookmark_seconds": 0.02}
    async with running(limits=limits(**rhythm)) as api:
        await api.call("POST", MAPS, config("x"))
        async with watching(api, "allowWatchBookmarks=true") as events:
            await anext(events)
            written = [
                (await api.call("POST", MAPS, config(f"c{i}")))[1]["metadata"]["resourceVersion"]
                for i in range(5)
            ]
            seen_versions: set[str] = set()
            while True:
                event = await anext(events)
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    due = {each for each in written if int(each) <= int(version)}
                    assert seen_versions >= due
                    if len(due) == len(written):
                        break
                else:
                    seen_versions.add(version)


async def test_46_initial_events_have_no_bookmark_at_their_end_unless_asked_for() -> None:
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"
    async with running(limits=limits()) as api:
        await api.call("POST", MAPS, config("x"))
        async with watching(api, query) as events:
            assert [seen(event) async for event in events] == [("ADDED", "x")]


async def test_48_a_watch_ends_cleanly_at_its_time_out_and_the_connection_lives_on() -> None:
    async with running(limits=limits()) as api:
        reader, writer = await api.connect()
        head = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        writer.write(f"GET {MAPS}?watch=1&timeoutSeconds=1 HTTP/1.1\r\n{head}".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in answer
        assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
        writer.write(f"GET {MAPS} HTTP/1.1\r\n{head}".encode())
        assert b" 200 " in await reader.readline()
        writer.close()
        assert api.server.broadcaster.ended_counts[WatchEnding.TIMEOUT] == 1


async def test_49_a_slow_reader_is_cut_off_and_only_that_one() -> None:
    async with running(limits=limits(buffer_bytes_max=200_000)) as api:
        slow = socket.create_connection((api.server.host, api.server.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        slow.sendall(head.encode())
        async with watching(api, "") as events:
            await eventually(lambda: api.server.broadcaster.watcher_count == 2)
            body = config("big")
            body["data"]["key"] = "x" * 300_000
            sent = 0
            while not api.server.broadcaster.ended_counts[WatchEnding.SLOW]:
                body["metadata"]["name"] = f"big{sent}"
                assert (await api.call("POST", MAPS, body))[0] == 201
                assert seen(await anext(events)) == ("ADDED", f"big{sent}")
                sent += 1
                assert sent < 200
            await api.call("POST", MAPS, config("after"))
            assert seen(await anext(events)) == ("ADDED", "after")
        assert api.server.broadcaster.ended_counts[WatchEnding.SLOW] == 1
        slow.close()


async def test_49_a_reader_that_goes_away_is_forgotten() -> None:
    async with running(limits=limits()) as api:
        async with watching(api, ""):
            await eventually(lambda: api.server.broadcaster.watcher_count == 1)
        await eventually(lambda: not api.server.broadcaster.watcher_count)


async def test_49_more_watches_than_the_server_takes_get_429() -> None:
    async with running(limits=limits(watchers_max=1)) as api, watching(api, "") as events:
        await api.call("POST", MAPS, config("x"))
        await anext(events)
        code, _, headers = await api.call("GET", f"{MAPS}?watch=1")
        assert (code, headers["Retry-After"]) == (429, "5")


async def test_44_a_version_that_is_forgotten_is_answered_410() -> None:
    store = Store.open(None, StoreOptions(history_max=4))
    async with running(store=store) as api:
        first = (await api.call("POST", MAPS, config("first")))[1]
        for i in range(10):
            await api.call("POST", MAPS, config(f"c{i}"))
        version = first["metadata"]["resourceVersion"]
        code, status, _ = await api.call("GET", f"{MAPS}?watch=1&resourceVersion={version}")
        assert (code, status["reason"]) == (410, "Expired")


async def test_42_two_hundred_watchers_that_join_amid_writes_all_see_everything_once() -> None:
    async with running() as api:
        base = (await api.call("POST", MAPS, config("base")))[1]["metadata"]["resourceVersion"]
        last = "c199"

        async def watcher(number: int) -> list[str]:
            await asyncio.sleep(number * 0.001)
            async with watching(api, f"resourceVersion={base}") as events:
                names: list[str] = []
                async for event in events:
                    names.append(seen(event)[1])
                    if names[-1] == last:
                        break
            return names

        async with asyncio.TaskGroup() as group:
            watchers = [group.create_task(watcher(i)) for i in range(200)]
            for i in range(200):
                await api.call("POST", MAPS, config(f"c{i}"))
        expected = [f"c{i}" for i in range(200)]
        assert all(task.result() == expected for task in watchers)


async def test_42_a_long_start_is_caught_up_with_while_things_change() -> None:
    async with running() as api:
        body = config("x")
        body["data"]["key"] = "x" * 20_000
        for i in range(100):
            body["metadata"]["name"] = f"c{i:03}"
            await api.call("POST", MAPS, body)
        async with watching(api, "") as events:
            for i in range(100, 150):
                await api.call("POST", MAPS, config(f"c{i}"))
            got = await take(events, 150)
        assert [seen(e) for e in got] == [("ADDED", f"c{i:03}") for i in range(150)]


async def test_60_a_watch_ends_when_its_kind_is_no_longer_served() -> None:
    async with running(limits=limits()) as api:
        crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        widgets = "/apis/example.dev/v1/namespaces/default/widgets"
        await api.call("POST", crds, widget_crd())
        while (await api.call("POST", widgets, widget("w")))[0] != 201:
            pass
        async with watching(api, "", widgets) as events:
            assert seen(await anext(events)) == ("ADDED", "w")
            await api.call("DELETE", f"{crds}/widgets.example.dev")
            rest = [seen(event) async for event in events]
        assert rest in ([], [("DELETED", "w")])


async def test_48_watches_end_cleanly_when_the_server_stops() -> None:
    finished = asyncio.Event()

    async def follow(api: Running) -> None:
        async with watching(api, "") as events:
            async for _ in events:
                pass
        finished.set()

    async with running(limits=limits()) as api, asyncio.TaskGroup() as group:
        group.create_task(follow(api))
        await eventually(lambda: api.server.broadcaster.watcher_count)
        api.server.stop()
        await finished.wait()
