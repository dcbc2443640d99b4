"""Tables and metadata-only forms over HTTP. Points 56 and 57, and what lists promise (35, 36)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from tests.conformance.http_server import pod
from tests.conformance.target import Target

PODS = "/api/v1/namespaces/default/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


async def make(target: Target, *names: str, **labels: str) -> list[dict[str, Any]]:
    answers = [await target.request("POST", PODS, pod(name, labels=labels)) for name in names]
    assert [answer.status for answer in answers] == [201] * len(names)
    return [answer.json for answer in answers]


async def note(target: Target, name: str, text: str) -> None:
    patch = {"metadata": {"annotations": {"note": text}}}
    merge = {"Content-Type": "application/merge-patch+json"}
    assert (await target.request("PATCH", f"{PODS}/{name}", patch, headers=merge)).status == 200


async def test_56_a_list_as_a_table_has_columns_rows_and_metadata(target: Target) -> None:
    made = await make(target, "t-b", "t-a", of="table")
    answer = await target.request(
        "GET", PODS, query={"labelSelector": "of=table"}, headers={"Accept": TABLE}
    )
    table = answer.json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert int(table["metadata"]["resourceVersion"]) >= int(made[1]["metadata"]["resourceVersion"])
    columns = {c["name"]: c["priority"] for c in table["columnDefinitions"]}
    assert columns == {
        "Name": 0, "Ready": 0, "Status": 0, "Restarts": 0, "Age": 0, "IP": 1, "Node": 1,
        "Nominated Node": 1, "Readiness Gates": 1,
    }  # fmt: skip
    assert [row["cells"][:4] for row in table["rows"]] == [
        ["t-a", "0/1", "Pending", "0"], ["t-b", "0/1", "Pending", "0"],
    ]  # fmt: skip
    first = table["rows"][0]["object"]
    assert (first["kind"], first["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert first["metadata"] == made[1]["metadata"]


async def test_56_rows_carry_as_much_of_the_object_as_was_asked_for(target: Target) -> None:
    (made,) = await make(target, "t-include")
    headers = {"Accept": TABLE}
    path = f"{PODS}/t-include"
    whole = await target.request("GET", path, query={"includeObject": "Object"}, headers=headers)
    assert whole.json["rows"][0]["object"] == made
    none = await target.request("GET", path, query={"includeObject": "None"}, headers=headers)
    assert none.json["rows"][0]["object"] is None
    wrong = await target.request("GET", path, query={"includeObject": "All"}, headers=headers)
    assert wrong.status == 400


async def test_56_pages_of_a_table_go_on_like_any_list(target: Target) -> None:
    await make(target, "p-1", "p-2", "p-3", page="yes")
    names: list[str] = []
    query = {"limit": "2", "labelSelector": "page=yes"}
    versions: set[str] = set()
    while True:
        table = (await target.request("GET", PODS, query=query, headers={"Accept": TABLE})).json
        names += [row["cells"][0] for row in table["rows"]]
        versions.add(table["metadata"]["resourceVersion"])
        if not table["metadata"].get("continue"):
            break
        query["continue"] = table["metadata"]["continue"]
    assert names == ["p-1", "p-2", "p-3"]
    assert len(versions) == 1


async def test_56_watch_events_are_tables_too(target: Target) -> None:
    made = await make(target, "t-watched", watched="yes")
    query = {"watch": "1", "labelSelector": "watched=yes", "timeoutSeconds": "1",
             "allowWatchBookmarks": "true"}  # fmt: skip
    response = await target.request("GET", PODS, query=query, headers={"Accept": TABLE})
    lines = response.body.splitlines()
    assert len(lines) >= 2, "one event and the bookmark before the end; a server may send more"
    assert b'"kind":"Table"' in lines[0]
    assert made[0]["metadata"]["uid"].encode() in lines[0]
    assert all(b'"type":"BOOKMARK"' in line for line in lines[1:])


async def test_56_of_watched_tables_the_first_alone_has_the_columns(target: Target) -> None:
    made = await make(target, "t-first", "t-second", streamed="yes")

    async def columns(version: str, initial: int) -> list[bool]:
        query = {"labelSelector": "streamed=yes", "resourceVersion": version}
        async with target.watch(PODS, query=query, headers={"Accept": TABLE}) as events:
            tables = [(await anext(events))["object"] for _ in range(initial)]
            await note(target, "t-first", version)
            tables.append((await anext(events))["object"])
        assert all("columnDefinitions" in table for table in tables)
        return [bool(table["columnDefinitions"]) for table in tables]

    assert await columns("0", 2) == [True, False, False]
    version = made[1]["metadata"]["resourceVersion"]
    assert await columns(version, 1) == [True, False], "the first need not be initial"


async def test_56_watched_tables_carry_as_much_of_the_object_as_each_watch_asked_for(
    target: Target,
) -> None:
    (made,) = await make(target, "t-parts", carried="yes")
    version = made["metadata"]["resourceVersion"]
    table = {"Accept": TABLE}

    async with AsyncExitStack() as stack:
        watches: list[AsyncIterator[dict[str, Any]]] = []
        for included in ("None", "Metadata", "Object"):
            query = {"labelSelector": "carried=yes", "resourceVersion": version,
                     "includeObject": included}  # fmt: skip
            opened = target.watch(PODS, query=query, headers=table)
            watches.append(await stack.enter_async_context(opened))
        await note(target, "t-parts", "x")
        found = [(await anext(events))["object"]["rows"][0]["object"] for events in watches]
    assert [each and each["kind"] for each in found] == [None, "PartialObjectMetadata", "Pod"]


async def test_56_a_bookmark_is_a_table_whose_one_row_has_the_annotation(target: Target) -> None:
    query = {"watch": "1", "timeoutSeconds": "1", "sendInitialEvents": "true",
             "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true",
             "labelSelector": "no=such"}  # fmt: skip
    for path in (PODS, PODS.replace("pods", "secrets")):
        answer = await target.request("GET", path, query=query, headers={"Accept": TABLE})
        table = json.loads(answer.body.splitlines()[0])["object"]
        (row,) = table["rows"]
        assert len(row["cells"]) == len(table["columnDefinitions"])
        assert row["object"]["metadata"] == {
            **table["metadata"], "annotations": {"k8s.io/initial-events-end": "true"}
        }  # fmt: skip


async def test_57_a_review_has_no_form_of_a_table(target: Target) -> None:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": spec}  # fmt: skip
    only_table = TABLE.partition(",")[0]
    answer = await target.request("POST", path, body=body, headers={"Accept": only_table})
    assert answer.status == 406
    assert (await target.request("POST", path, body=body)).status == 201


async def test_57_metadata_alone_for_an_object_and_a_list(target: Target) -> None:
    (made,) = await make(target, "m-one", meta="yes")
    one = await target.request("GET", f"{PODS}/m-one", headers={"Accept": METADATA})
    assert one.json == {
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": made["metadata"],
    }  # fmt: skip
    many = await target.request(
        "GET", PODS, query={"labelSelector": "meta=yes"}, headers={"Accept": METADATA_LIST}
    )
    assert many.json["kind"] == "PartialObjectMetadataList"
    assert many.json["items"] == [one.json]
    for path, accept in ((PODS, METADATA), (f"{PODS}/m-one", METADATA_LIST)):
        wrong = await target.request("GET", path, headers={"Accept": accept})
        assert wrong.status == 406


async def test_57_writes_are_answered_with_metadata_alone_too(target: Target) -> None:
    both = {"Accept": f"{METADATA},application/json"}
    made = await target.request("POST", PODS, pod("m-made"), headers=both)
    assert made.status == 201
    merge = {**both, "Content-Type": "application/merge-patch+json"}
    labels = {"metadata": {"labels": {"changed": "yes"}}}
    changed = await target.request("PATCH", f"{PODS}/m-made", labels, headers=merge)
    reason = {"status": {"reason": "None"}}
    status = await target.request("PATCH", f"{PODS}/m-made/status", reason, headers=merge)
    versions: list[int] = []
    for answer in (made, changed, status):
        assert answer.json.keys() == {"kind", "apiVersion", "metadata"}
        assert answer.json["kind"] == "PartialObjectMetadata"
        versions.append(int(answer.json["metadata"]["resourceVersion"]))
    assert versions == sorted(set(versions))
    stored = await target.request("GET", f"{PODS}/m-made")
    assert stored.json["metadata"] == status.json["metadata"]
    assert stored.json["status"]["reason"] == "None"


async def test_57_a_client_that_takes_plain_json_too_gets_that(target: Target) -> None:
    await make(target, "m-two")
    for path, accept in ((PODS, METADATA), (f"{PODS}/m-two", METADATA_LIST)):
        fallback = await target.request(
            "GET", path, headers={"Accept": f"{accept},application/json;q=0.5"}
        )
        assert fallback.json["kind"] in ("Pod", "PodList")
    accept = f"application/json;q=0.5,{METADATA};q=0.9"
    better = await target.request("GET", f"{PODS}/m-two", headers={"Accept": accept})
    assert better.json["kind"] == "PartialObjectMetadata"


async def test_35_items_of_built_in_lists_carry_no_kind_and_an_empty_list_is_a_list(
    target: Target,
) -> None:
    await make(target, "plain", plain="yes")
    answer = (await target.request("GET", PODS, query={"labelSelector": "plain=yes"})).json
    assert (answer["kind"], answer["apiVersion"]) == ("PodList", "v1")
    assert "kind" not in answer["items"][0]
    assert "apiVersion" not in answer["items"][0]
    empty = (await target.request("GET", PODS, query={"labelSelector": "plain=no"})).json
    assert empty["items"] == []
