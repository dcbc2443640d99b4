"""Points 42 to 50 of the checklist: what a watch shows, from where, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
from tests.conformance.http_server import config, pod
from tests.conformance.over_http import HttpTarget
from tests.conformance.target import Target
from tests.patience import PATIENCE_SECONDS

NS = "/api/v1/namespaces/default"
MAPS = f"{NS}/configmaps"
PODS = f"{NS}/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}
#: Of 200 kB each: more than any server and all sockets between hold back for one reader.
WRITES_MANY = 250


async def version_of(target: Target, path: str = MAPS) -> str:
    return (await target.request("GET", path)).json["metadata"]["resourceVersion"]


def brief(event: dict[str, Any]) -> tuple[str, str]:
    return event["type"], event["object"]["metadata"].get("name", "")


async def test_p42_a_watch_shows_every_change_in_version_order(target: Target) -> None:
    start = {"resourceVersion": await version_of(target)}
    async with target.watch(MAPS, query=start) as events:
        for i in range(20):
            await target.request("POST", MAPS, config(f"m{i}"))
            change = {"data": {"key": str(i)}}
            await target.request("PATCH", f"{MAPS}/m{i}", change, headers=MERGE)
            await target.request("DELETE", f"{MAPS}/m{i}")
        seen = [await anext(events) for _ in range(60)]
    wanted = [(t, f"m{i}") for i in range(20) for t in ("ADDED", "MODIFIED", "DELETED")]
    assert [brief(event) for event in seen] == wanted
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert versions == sorted(set(versions))
    assert {event["object"]["kind"] for event in seen} == {"ConfigMap"}


async def test_p43_a_watch_without_version_begins_with_what_is_there(target: Target) -> None:
    for name in "ba":
        await target.request("POST", MAPS, config(name))
    for query in ({}, {"resourceVersion": "0"}):
        async with target.watch(MAPS, query=query) as events:
            assert [brief(await anext(events)) for _ in range(2)] == [
                ("ADDED", "a"),
                ("ADDED", "b"),
            ]
            name = f"c{len(query)}"
            await target.request("POST", MAPS, config(name))
            assert brief(await anext(events)) == ("ADDED", name)
            await target.request("DELETE", f"{MAPS}/{name}")
            # Version 0 is any version: the next watch may begin before what this one has not seen.
            assert brief(await anext(events)) == ("DELETED", name)


async def test_p43_a_watch_resumes_after_the_version_it_names(target: Target) -> None:
    await target.request("POST", MAPS, config("a"))
    start = {"resourceVersion": await version_of(target)}
    await target.request("POST", MAPS, config("b"))
    await target.request("DELETE", f"{MAPS}/a")
    async with target.watch(MAPS, query=start) as events:
        seen = [brief(await anext(events)) for _ in range(2)]
    assert seen == [("ADDED", "b"), ("DELETED", "a")]


async def test_p45_objects_move_into_and_out_of_a_selection(target: Target) -> None:
    await target.request("POST", MAPS, config("a", team="blue"))
    start = {"resourceVersion": await version_of(target), "labelSelector": "team=red"}
    async with target.watch(MAPS, query=start) as events:
        for labels in ({"team": "red"}, {"size": "l"}, {"team": "green"}, {"team": None}):
            change = {"metadata": {"labels": labels}}
            await target.request("PATCH", f"{MAPS}/a", change, headers=MERGE)
        await target.request("POST", MAPS, config("b", team="red"))
        seen = [await anext(events) for _ in range(4)]
    assert [brief(event) for event in seen] == [
        ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b"),
    ]  # fmt: skip
    left = seen[2]["object"]["metadata"]
    assert left["labels"] == {"team": "red", "size": "l"}  # as it last matched
    assert int(left["resourceVersion"]) > int(seen[1]["object"]["metadata"]["resourceVersion"])


async def test_p45_a_field_selector_follows_a_pod_to_its_node(target: Target) -> None:
    start = {"resourceVersion": await version_of(target, PODS), "fieldSelector": "spec.nodeName=n"}
    async with target.watch(PODS, query=start) as events:
        await target.request("POST", PODS, pod("p"))
        binding = {"metadata": {"name": "p"}, "target": {"name": "n"}}
        await target.request("POST", f"{PODS}/p/binding", binding)
        assert brief(await anext(events)) == ("ADDED", "p")


async def test_p46_bookmarks_come_before_the_end_if_asked_for(target: Target) -> None:
    await target.request("POST", MAPS, config("a"))
    query = {"resourceVersion": await version_of(target), "timeoutSeconds": "2"}
    # The real server looks once a second, and means to send one two seconds before the end; none if
    # its copy of this kind is not past the version where the watch began.
    asked = query | {"timeoutSeconds": "8", "allowWatchBookmarks": "true"}
    asked |= {"fieldSelector": "metadata.name=a"}
    async with target.watch(MAPS, query=asked) as events:
        await target.request("POST", MAPS, config("b"))
        seen = [event async for event in events]
    assert {event["type"] for event in seen} == {"BOOKMARK"}
    assert seen[0]["object"]["kind"] == "ConfigMap"
    assert int(seen[0]["object"]["metadata"]["resourceVersion"]) >= int(query["resourceVersion"])
    query = {"resourceVersion": await version_of(target), "timeoutSeconds": "2"}
    async with target.watch(MAPS, query=query) as events:
        assert [event async for event in events] == []


async def test_p47_a_watch_list_ends_its_start_with_a_marked_bookmark(target: Target) -> None:
    for name in "ab":
        await target.request("POST", MAPS, config(name))
    query = {
        "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }  # fmt: skip
    async with target.watch(MAPS, query=query) as events:
        seen = [await anext(events) for _ in range(3)]
        assert [brief(event) for event in seen[:2]] == [("ADDED", "a"), ("ADDED", "b")]
        assert (seen[2]["type"], seen[2]["object"]["kind"]) == ("BOOKMARK", "ConfigMap")
        metadata = seen[2]["object"]["metadata"]
        assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
        start = {"resourceVersion": metadata["resourceVersion"]}
        await target.request("POST", MAPS, config("c"))
        assert brief(await anext(events)) == ("ADDED", "c")
    async with target.watch(MAPS, query=start) as events:
        assert brief(await anext(events)) == ("ADDED", "c")


async def test_p47_initial_events_need_the_match_that_says_not_older(target: Target) -> None:
    for wrong in ({}, {"resourceVersionMatch": "Exact"}):
        query = {"watch": "true", "sendInitialEvents": "true", **wrong}
        answer = await target.request("GET", MAPS, query=query)
        assert (answer.status, answer.json["reason"]) == (422, "Invalid")


async def test_p48_a_watch_ends_cleanly_at_its_deadline(target: Target) -> None:
    async with target.watch(MAPS, query={"timeoutSeconds": "1"}) as events:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [event async for event in events] == []


async def test_p50_one_object_can_be_watched_by_its_name(target: Target) -> None:
    for name in "ab":
        await target.request("POST", MAPS, config(name))
    start = {"resourceVersion": await version_of(target), "fieldSelector": "metadata.name=b"}
    async with target.watch(MAPS, query=start) as events:
        await target.request("DELETE", f"{MAPS}/a")
        await target.request("DELETE", f"{MAPS}/b")
        assert brief(await anext(events)) == ("DELETED", "b")


async def test_p49_a_reader_that_stands_still_is_cut_off_and_no_other(target: Target) -> None:
    assert isinstance(target, HttpTarget)
    await target.request("POST", MAPS, config("a"))
    start = {"resourceVersion": await version_of(target), "watch": "true"}
    slow = target.session.get(target.url + MAPS, params=start, read_bufsize=1024)
    async with slow as still, target.watch(MAPS, query=start) as events:
        for i in range(WRITES_MANY):
            big = {"data": {"key": f"{i:06d}" + "x" * 200_000}}
            assert (await target.request("PATCH", f"{MAPS}/a", big, headers=MERGE)).status == 200
            event = await anext(events)
            assert event["object"]["data"]["key"][:6] == f"{i:06d}"
        # What it had been sent before it was cut off can still be read.
        received = bytearray()
        with contextlib.suppress(aiohttp.ClientPayloadError, aiohttp.ClientOSError):
            async for chunk in still.content.iter_any():
                received += chunk
    assert received.count(b"\n") < WRITES_MANY
