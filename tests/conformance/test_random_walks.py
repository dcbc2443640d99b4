"""Random writes, lists and watches, sent to both servers at once: their answers must agree.

Each step draws a write (create, put, patch, delete) of one of a few ConfigMaps, or a read with
selectors, versions and pages that are drawn too. Versions differ between the servers, so each side
keeps its own under the step in which it saw it. In the end two watches, one of everything and one
by label, opened at the start on both, must have shown the same.

FAIRLEAD_STEPS and FAIRLEAD_SEED set the length and the seed; a failure prints both.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.conformance.embedded import embedded_target
from tests.conformance.http_server import config
from tests.conformance.over_http import HttpTarget
from tests.conformance.target import Answer
from tests.conformance.vocabulary import HOLD, MAPS, MERGE
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.real import Cleaner, connected
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.kubernetes
STEPS = int(os.environ.get("FAIRLEAD_STEPS", "200"))
SEED = int(os.environ.get("FAIRLEAD_SEED", "1"))
NAMES, TEAMS = "abcdef", ("red", "blue", "")
LAST = "last"
VERSIONS_MAX = 20  # how far back a step may refer


@dataclass(slots=True)
class Side:
    """One server, with the versions and tokens that it gave out, by step."""

    target: HttpTarget
    versions: list[str] = field(default_factory=list)
    token: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One request; `version` counts back into what the side saw, 0 for none."""

    method: str
    name: str = ""
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()
    version: int = 0
    goes_on: bool = False  # with the last page's token


def _body(rng: random.Random, name: str) -> dict[str, Any]:
    team = rng.choice(TEAMS)
    body = config(name, **({"team": team} if team else {}))
    body["data"] = {"key": str(rng.randrange(3))}
    if rng.random() < 0.15:
        body["metadata"]["finalizers"] = [HOLD]
    return body


def _patch(rng: random.Random) -> dict[str, Any]:
    return rng.choice([
        {"metadata": {"labels": {"team": rng.choice(["red", "blue", None])}}},
        {"data": {"key": str(rng.randrange(3))}},
        {"data": None},
        {"metadata": {"finalizers": None}},
        {"metadata": {"finalizers": [HOLD]}},
        {"metadata": {"annotations": {"note": str(rng.randrange(2))}}},
    ])  # fmt: skip


def _list(rng: random.Random) -> Step:
    query: dict[str, str] = {}
    if rng.random() < 0.4:
        # Without selectors: of a selection, the real server may promise a page that is then empty.
        limit = (("limit", str(rng.randint(1, 3))),)
        return Step("GET", query=limit, goes_on=rng.random() < 0.5)
    selector = rng.choice(["", "", "team=red", "team!=red", "team in (red,blue)", "!team"])
    if selector:
        query["labelSelector"] = selector
    if rng.random() < 0.3:
        query["fieldSelector"] = f"metadata.name{rng.choice(['=', '!='])}{rng.choice(NAMES)}"
    version = 0
    if rng.random() < 0.3:
        query["resourceVersionMatch"] = "Exact"
        version = rng.randint(1, VERSIONS_MAX)
    return Step("GET", query=tuple(query.items()), version=version)


def draw(rng: random.Random) -> Step:
    """Return a step."""
    name = rng.choice(NAMES)
    match rng.randrange(8):
        case 0 | 1:
            return Step("POST", body=_body(rng, name))
        case 2:
            version = rng.randint(1, VERSIONS_MAX) if rng.random() < 0.5 else 0
            return Step("PUT", name, _body(rng, name), version=version)
        case 3 | 4:
            version = rng.randint(1, VERSIONS_MAX) if rng.random() < 0.2 else 0
            return Step("PATCH", name, _patch(rng), version=version)
        case 5:
            return Step("DELETE", name)
        case 6:
            return Step("GET", name)
        case _:
            return _list(rng)


async def take(side: Side, step: Step) -> Answer:
    """Send a step to one side, with that side's versions in the place of ours."""
    query, body = dict(step.query), step.body
    version = side.versions[-step.version] if 0 < step.version <= len(side.versions) else ""
    if step.method in ("PUT", "PATCH") and version:
        body = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
    if "resourceVersionMatch" in query:
        query |= {"resourceVersion": version} if version else {}
    if step.goes_on and side.token:
        query["continue"] = side.token
    path = f"{MAPS}/{step.name}" if step.name else MAPS
    headers = {"Content-Type": MERGE} if step.method == "PATCH" else {}
    answer = await side.target.request(step.method, path, body, query=query, headers=headers)
    metadata = (answer.json or {}).get("metadata", {})
    if "resourceVersion" in metadata:
        side.versions.append(metadata["resourceVersion"])
    if step.method == "GET" and not step.name:
        side.token = metadata.get("continue", "")
    return answer


def brief(value: Any) -> Any:
    """What two servers must agree on."""
    metadata = value.get("metadata", {})
    kept = ("name", "labels", "annotations", "finalizers", "generation")
    out: dict[str, Any] = {
        "metadata": {key: metadata[key] for key in kept if metadata.get(key)},
        "is_deleting": "deletionTimestamp" in metadata,
        "data": value.get("data"),
    }
    if "items" in value:
        out["items"] = [brief(item) for item in value["items"]]
        out["remaining"] = metadata.get("remainingItemCount")
        out["more"] = bool(metadata.get("continue"))
    if value.get("kind") == "Status":
        out["reason"] = value.get("reason")
    return out


async def follow(events: AsyncIterator[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return what a watch shows, up to the object that marks the end."""
    seen: list[tuple[str, Any]] = []
    async for event in events:
        if event["object"]["metadata"]["name"] == LAST:
            break
        seen.append((event["type"], brief(event["object"])))
    return seen


async def watching(side: Side, selector: str, is_open: asyncio.Event) -> list[tuple[str, Any]]:
    query = {"labelSelector": selector} if selector else {}
    async with side.target.watch(MAPS, query=query) as events:
        is_open.set()
        return await follow(events)


async def test_both_servers_walk_the_same_way(plane: ControlPlane) -> None:
    rng = random.Random(SEED)
    async with embedded_target() as ours, connected(plane) as theirs:
        sides = (Side(ours), Side(theirs))
        try:
            async with asyncio.TaskGroup() as group:
                watches: list[list[asyncio.Task[list[tuple[str, Any]]]]] = []
                for selector in ("", "team=red"):
                    watches.append([])
                    for side in sides:  # open before anything happens
                        is_open = asyncio.Event()
                        watch = group.create_task(watching(side, selector, is_open))
                        watches[-1].append(watch)
                        await is_open.wait()
                for number in range(STEPS):
                    step = draw(rng)
                    a, b = [await take(side, step) for side in sides]
                    where = f"FAIRLEAD_SEED={SEED}, step {number} of {STEPS}: {step}"
                    assert a.status == b.status, f"{where}\n{a.json}\n{b.json}"
                    assert brief(a.json) == brief(b.json), where
                    assert len(sides[0].versions) == len(sides[1].versions), where
                for side in sides:
                    await side.target.request("POST", MAPS, config(LAST, team="red"))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    for embedded, real in watches:
                        assert await embedded == await real
        finally:
            await Cleaner(theirs).clean()
