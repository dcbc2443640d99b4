"""Server-side apply where the servers' answers are read by clients: what they build on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conformance.http_server import pod
from tests.conformance.target import Answer, Target
from tests.conformance.vocabulary import APPLY, MAPS, MERGE, PODS

KIND = {"Content-Type": APPLY}


def _map(**data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}


async def put(
    target: Target, body: Any, manager: str, path: str = f"{MAPS}/a", **query: str
) -> Answer:
    return await target.request(
        "PATCH", path, body, headers=KIND, query={"fieldManager": manager, **query}
    )


async def test_19_an_apply_creates_and_a_second_one_changes_nothing(target: Target) -> None:
    first = await put(target, _map(k="1"), "one")
    second = await put(target, _map(k="1"), "one")
    assert (first.status, second.status) == (201, 200)
    version = first.json["metadata"]["resourceVersion"]
    assert second.json["metadata"]["resourceVersion"] == version
    assert second.json["metadata"]["managedFields"] == first.json["metadata"]["managedFields"]


async def test_19_a_conflict_names_field_and_manager_and_force_takes_it(target: Target) -> None:
    await put(target, _map(k="1", l="1"), "one")
    refused = await put(target, _map(k="2"), "two")
    assert (refused.status, refused.json["reason"]) == (409, "Conflict")
    assert refused.json["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.k"}
    ]
    await put(target, _map(k="2"), "two", force="true")
    left = await put(target, _map(), "one")
    assert left.json["data"] == {"k": "2"}


async def test_19_one_of_many_writers_wins_and_nothing_of_theirs_is_lost(target: Target) -> None:
    names = [f"m{number}" for number in range(8)]
    answers = await asyncio.gather(*(put(target, _map(**{name: "x"}), name) for name in names))
    assert sorted(answer.status for answer in answers)[:7] == [200] * 7
    read = await target.request("GET", f"{MAPS}/a")
    assert set(read.json["data"]) == set(names)
    assert {entry["manager"] for entry in read.json["metadata"]["managedFields"]} == set(names)


async def test_09_the_status_has_owners_of_its_own(target: Target) -> None:
    await target.request("POST", PODS, pod("p"), query={"fieldManager": "maker"})
    change = {"status": {"phase": "Running"}}
    answer = await target.request(
        "PATCH", f"{PODS}/p/status", change, headers={"Content-Type": MERGE},
        query={"fieldManager": "kubelet"},
    )  # fmt: skip
    owners = {e["manager"]: e.get("subresource") for e in answer.json["metadata"]["managedFields"]}
    assert owners == {"maker": None, "kubelet": "status"}


@pytest.mark.parametrize("reset", [[], [{}]])
async def test_09_managers_are_forgotten_on_request(target: Target, reset: Any) -> None:
    await put(target, _map(k="1"), "one")
    answer = await target.request(
        "PATCH", f"{MAPS}/a", {"metadata": {"managedFields": reset}},
        headers={"Content-Type": MERGE},
    )  # fmt: skip
    assert "managedFields" not in answer.json["metadata"]
