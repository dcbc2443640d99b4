"""Points 25 to 34 and 60 of the checklist: finalizers, grace, preconditions, owners, namespaces."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from tests.conformance.embedded import embedded_target
from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.target import Target
from tests.patience import PATIENCE_SECONDS

from fairlead.api.values.times import parse_time

NS = "/api/v1/namespaces/default"
MAPS = f"{NS}/configmaps"
PODS = f"{NS}/pods"
NAMESPACES = "/api/v1/namespaces"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.dev/v1/namespaces/default/widgets"
HOLD = "example.dev/hold"
MERGE = {"Content-Type": "application/merge-patch+json"}


async def make(target: Target, name: str, **metadata: Any) -> dict[str, Any]:
    body = config(name)
    body["metadata"] |= metadata
    answer = await target.request("POST", MAPS, body)
    assert answer.status == 201, answer
    return answer.json


def owned_by(*owners: dict[str, Any], block: bool = False) -> dict[str, Any]:
    return {
        "ownerReferences": [
            {
                "apiVersion": o["apiVersion"], "kind": o["kind"], "name": o["metadata"]["name"],
                "uid": o["metadata"]["uid"], "blockOwnerDeletion": block,
            }
            for o in owners
        ]
    }  # fmt: skip


async def gone(target: Target, path: str) -> None:
    """Return once the object is gone; what cleans up does so after the answer."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await target.request("GET", path)).status != 404:  # noqa: ASYNC110 # over the wire
            await asyncio.sleep(0.005)


async def finish(target: Target, path: str) -> int:
    patch = {"metadata": {"finalizers": None}}
    return (await target.request("PATCH", path, patch, headers=MERGE)).status


async def test_p25_an_object_with_finalizers_is_marked_and_goes_with_the_last(
    target: Target,
) -> None:
    await make(target, "a", finalizers=[HOLD])
    answer = await target.request("DELETE", f"{MAPS}/a")
    assert answer.status == 200
    metadata = (await target.request("GET", f"{MAPS}/a")).json["metadata"]
    assert metadata["deletionTimestamp"]
    assert metadata["deletionGracePeriodSeconds"] == 0
    assert answer.json["metadata"]["deletionTimestamp"] == metadata["deletionTimestamp"]
    assert await finish(target, f"{MAPS}/a") == 200
    assert (await target.request("GET", f"{MAPS}/a")).status == 404


async def test_p26_deletion_is_never_taken_back_and_no_finalizer_is_added(target: Target) -> None:
    await make(target, "a", finalizers=[HOLD])
    await target.request("DELETE", f"{MAPS}/a")
    marked = (await target.request("GET", f"{MAPS}/a")).json
    cleared = {"metadata": {"deletionTimestamp": None, "labels": {"x": "y"}}}
    after = (await target.request("PATCH", f"{MAPS}/a", cleared, headers=MERGE)).json
    assert after["metadata"]["labels"] == {"x": "y"}
    assert after["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]
    more = {"metadata": {"finalizers": [HOLD, "example.dev/more"]}}
    refused = await target.request("PATCH", f"{MAPS}/a", more, headers=MERGE)
    assert refused.status == 422
    assert refused.json["details"]["causes"][0]["field"] == "metadata.finalizers"


async def test_p27_a_grace_beyond_the_calendar_is_cut_and_can_be_shortened() -> None:
    # a real server stores it, and a time that overflowed: nothing to compare with
    async with embedded_target() as target:
        assert (await target.request("POST", PODS, pod("p", nodeName="n"))).status == 201
        for asked, kept in (10**13, 2**31 - 1), (10**12, 2**31 - 1), (7, 7):
            query = {"gracePeriodSeconds": str(asked)}
            answer = await target.request("DELETE", f"{PODS}/p", query=query)
            assert answer.status == 200, answer
            metadata = (await target.request("GET", f"{PODS}/p")).json["metadata"]
            assert metadata["deletionGracePeriodSeconds"] == kept
            assert parse_time(metadata["deletionTimestamp"])
        answer = await target.request("DELETE", f"{PODS}/p", query={"gracePeriodSeconds": "0"})
        assert answer.status == 200
        await gone(target, f"{PODS}/p")


async def test_p27_a_pod_on_a_node_waits_for_its_node(target: Target) -> None:
    await target.request("POST", PODS, pod("p", nodeName="n"))
    await target.request("DELETE", f"{PODS}/p")
    marked = (await target.request("GET", f"{PODS}/p")).json["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 30
    again = await target.request("DELETE", f"{PODS}/p")
    assert again.json["metadata"]["resourceVersion"] == marked["resourceVersion"]
    sooner = await target.request("DELETE", f"{PODS}/p", query={"gracePeriodSeconds": "5"})
    assert sooner.json["metadata"]["deletionGracePeriodSeconds"] == 5
    assert sooner.json["metadata"]["deletionTimestamp"] < marked["deletionTimestamp"]
    later = await target.request("DELETE", f"{PODS}/p", query={"gracePeriodSeconds": "60"})
    assert later.json["metadata"]["deletionGracePeriodSeconds"] == 5
    at_once = {"gracePeriodSeconds": 0}  # goes before the query
    last = await target.request("DELETE", f"{PODS}/p", at_once, query={"gracePeriodSeconds": "4"})
    assert last.json["kind"] == "Pod"
    assert (await target.request("GET", f"{PODS}/p")).status == 404


async def test_p27_a_pod_without_node_or_past_its_end_goes_at_once(target: Target) -> None:
    await target.request("POST", PODS, pod("waiting"))
    await target.request("POST", PODS, pod("ended", nodeName="n"))
    status = {"status": {"phase": "Succeeded"}}
    await target.request("PATCH", f"{PODS}/ended/status", status, headers=MERGE)
    for name in ("waiting", "ended"):
        assert (await target.request("DELETE", f"{PODS}/{name}")).status == 200
        assert (await target.request("GET", f"{PODS}/{name}")).status == 404


async def test_p28_preconditions_protect_another_incarnation(target: Target) -> None:
    made = (await make(target, "a"))["metadata"]
    for precondition in ({"uid": "other"}, {"resourceVersion": "1"}):
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": precondition}
        answer = await target.request("DELETE", f"{MAPS}/a", body)
        assert (answer.status, answer.json["reason"]) == (409, "Conflict")
    right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    assert (await target.request("DELETE", f"{MAPS}/a", {"preconditions": right})).status == 200


async def test_p29_foreground_waits_for_blocking_children(target: Target) -> None:
    parent = await make(target, "parent")
    await make(target, "child", finalizers=[HOLD], **owned_by(parent, block=True))
    query = {"propagationPolicy": "Foreground"}
    answer = await target.request("DELETE", f"{MAPS}/parent", query=query)
    assert answer.json["metadata"]["finalizers"] == ["foregroundDeletion"]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            child = (await target.request("GET", f"{MAPS}/child")).json
            if "deletionTimestamp" in child["metadata"]:
                break
    assert (await target.request("GET", f"{MAPS}/parent")).status == 200
    await finish(target, f"{MAPS}/child")
    await gone(target, f"{MAPS}/parent")


async def test_p29_orphan_leaves_the_children_without_owner(target: Target) -> None:
    parent = await make(target, "parent")
    await make(target, "child", **owned_by(parent))
    await target.request("DELETE", f"{MAPS}/parent", query={"propagationPolicy": "Orphan"})
    await gone(target, f"{MAPS}/parent")
    child = await target.request("GET", f"{MAPS}/child")
    assert child.status == 200
    assert "ownerReferences" not in child.json["metadata"]


async def test_p30_a_child_goes_when_all_its_owners_are_gone(target: Target) -> None:
    one, two = await make(target, "one"), await make(target, "two")
    await make(target, "child", **owned_by(one, two))
    await target.request("DELETE", f"{MAPS}/one")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            child = (await target.request("GET", f"{MAPS}/child")).json
            if len(child["metadata"]["ownerReferences"]) == 1:
                break
    assert child["metadata"]["ownerReferences"][0]["name"] == "two"
    await target.request("DELETE", f"{MAPS}/two")
    await gone(target, f"{MAPS}/child")


async def test_p30_an_owner_with_another_uid_counts_as_gone(target: Target) -> None:
    owner = await make(target, "owner")
    owner["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    await make(target, "child", **owned_by(owner))
    await gone(target, f"{MAPS}/child")
    assert (await target.request("GET", f"{MAPS}/owner")).status == 200


async def test_p31_a_collection_is_deleted_by_selector(target: Target) -> None:
    for name, team in (("a", "red"), ("b", "blue"), ("c", "red")):
        await make(target, name, labels={"team": team})
    answer = await target.request("DELETE", MAPS, query={"labelSelector": "team=red"})
    assert answer.status == 200
    left = (await target.request("GET", MAPS)).json["items"]
    assert [item["metadata"]["name"] for item in left] == ["b"]


async def test_p32_a_namespace_goes_after_its_contents_and_takes_nothing_new(
    target: Target,
) -> None:
    await target.request("POST", NAMESPACES, {"metadata": {"name": "team"}})
    maps = f"{NAMESPACES}/team/configmaps"
    held = config("held")
    held["metadata"]["finalizers"] = [HOLD]
    await target.request("POST", maps, held)
    await target.request("POST", maps, config("free"))
    await target.request("DELETE", f"{NAMESPACES}/team")
    await gone(target, f"{maps}/free")
    namespace = (await target.request("GET", f"{NAMESPACES}/team")).json
    assert namespace["status"]["phase"] == "Terminating"
    refused = await target.request("POST", maps, config("late"))
    assert refused.status == 403
    assert refused.json["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    await finish(target, f"{maps}/held")
    await gone(target, f"{NAMESPACES}/team")


async def test_p33_deleted_carries_the_last_state_under_a_new_version(target: Target) -> None:
    made = await make(target, "a")
    start = {"resourceVersion": made["metadata"]["resourceVersion"]}
    async with target.watch(MAPS, query=start) as events:
        await target.request("DELETE", f"{MAPS}/a")
        event = await anext(events)
    assert event["type"] == "DELETED"
    assert event["object"]["data"] == made["data"]
    version = int(event["object"]["metadata"]["resourceVersion"])
    assert version > int(made["metadata"]["resourceVersion"])


async def test_p34_deleting_what_is_not_there_is_404(target: Target) -> None:
    answer = await target.request("DELETE", f"{MAPS}/nope")
    assert (answer.status, answer.json["message"]) == (404, 'configmaps "nope" not found')


async def test_p60_a_kind_goes_with_its_definition_after_its_objects(target: Target) -> None:
    await target.request("POST", CRDS, widget_crd())
    body = widget("w")
    body["metadata"]["finalizers"] = [HOLD]
    await target.request("POST", WIDGETS, body)
    await target.request("DELETE", f"{CRDS}/widgets.example.dev")
    async with asyncio.timeout(PATIENCE_SECONDS):  # a real server takes new ones for another moment
        for number in itertools.count():
            late = await target.request("POST", WIDGETS, widget(f"late-{number}"))
            if late.status != 201:
                break
    assert (late.status, late.json["reason"]) == (403, "Forbidden")
    assert (await target.request("GET", f"{CRDS}/widgets.example.dev")).status == 200
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await finish(target, f"{WIDGETS}/w") == 200:  # noqa: ASYNC110 # over the wire
            await asyncio.sleep(0)
    await gone(target, f"{CRDS}/widgets.example.dev")
    assert (await target.request("GET", WIDGETS)).status == 404
    assert (await target.request("POST", CRDS, widget_crd())).status == 201
    assert (await target.request("GET", WIDGETS)).json["items"] == []
