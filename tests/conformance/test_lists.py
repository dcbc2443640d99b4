"""Points 35 to 41 of the checklist: lists, pages, versions, selectors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.conformance.conftest import BOTH
from tests.conformance.embedded import embedded_target
from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.target import Answer, Target
from tests.kubernetes.controlplane import ControlPlane
from tests.kubernetes.real import Cleaner, connected

from fairlead.embedded.storage.store import Store, StoreOptions

NS = "/api/v1/namespaces/default"
MAPS = f"{NS}/configmaps"
PODS = f"{NS}/pods"
WIDGETS = "/apis/example.dev/v1/namespaces/default/widgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


async def fill(target: Target, *names: str) -> None:
    for name in names:
        assert (await target.request("POST", MAPS, config(name))).status == 201


def names(answer: Answer) -> list[str]:
    return [item["metadata"]["name"] for item in answer.json["items"]]


async def test_p35_a_list_is_a_snapshot_in_key_order(target: Target) -> None:
    empty = (await target.request("GET", MAPS)).json
    assert (empty["kind"], empty["apiVersion"], empty["items"]) == ("ConfigMapList", "v1", [])
    await fill(target, "c", "a", "b")
    answer = await target.request("GET", MAPS)
    assert names(answer) == ["a", "b", "c"]
    assert int(answer.json["metadata"]["resourceVersion"]) > int(
        empty["metadata"]["resourceVersion"]
    )


async def test_p36_pages_show_one_snapshot_whatever_is_written_meanwhile(target: Target) -> None:
    await fill(target, *"abcde")
    first = await target.request("GET", MAPS, query={"limit": "2"})
    assert first.json["metadata"]["remainingItemCount"] == 3
    await target.request("DELETE", f"{MAPS}/c")
    await fill(target, "aa", "f")
    changed = (await target.request("GET", f"{MAPS}/d")).json | {"data": {"key": "new"}}
    await target.request("PUT", f"{MAPS}/d", changed)
    seen, page = names(first), first
    while token := page.json["metadata"].get("continue"):
        page = await target.request("GET", MAPS, query={"limit": "2", "continue": token})
        seen += names(page)
        version = page.json["metadata"]["resourceVersion"]
        assert version == first.json["metadata"]["resourceVersion"]
        old = [i for i in page.json["items"] if i["metadata"]["name"] == "d"]
        assert all(item["data"] == {"key": "value"} for item in old)
    assert seen == list("abcde")


async def test_p36_pages_of_a_selection_do_not_count_the_rest(target: Target) -> None:
    await fill(target, *"abc")
    query = {"limit": "1", "labelSelector": "!x"}
    page = await target.request("GET", MAPS, query=query)
    assert "remainingItemCount" not in page.json["metadata"]
    assert page.json["metadata"]["continue"]


@pytest.mark.parametrize("token", ["garbage", "e30", "eyJ2IjoieCJ9", "!!"])
async def test_p36_a_made_up_token_is_400(target: Target, token: str) -> None:
    assert (await target.request("GET", MAPS, query={"continue": token})).status == 400


@asynccontextmanager
async def forgetful(
    where: str, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Target, Callable[[], Awaitable[None]]]]:
    """A server, and what makes it forget the past."""
    if where == "embedded":
        async with embedded_target(Store.open(None, StoreOptions(history_max=4))) as target:

            async def write_much() -> None:
                for i in range(8):
                    await target.request("POST", WIDGETS, widget(f"z{i}"))

            yield target, write_much
        return
    plane: ControlPlane = request.getfixturevalue("plane")

    async def compact() -> None:
        await asyncio.to_thread(plane.compact)

    async with connected(plane) as target:
        try:
            yield target, compact
        finally:
            await Cleaner(target).clean()


@pytest.mark.parametrize("where", BOTH)
async def test_p37_a_page_of_a_forgotten_snapshot_is_410_with_a_token_that_goes_on(
    where: str, request: pytest.FixtureRequest
) -> None:
    async with forgetful(where, request) as (target, forget):
        # Of a kind that is newer than the snapshot asked for: no cache can have kept that.
        await target.request("POST", CRDS, widget_crd())
        for name in "abc":
            assert (await target.request("POST", WIDGETS, widget(name))).status == 201
        page = await target.request("GET", WIDGETS, query={"limit": "1"})
        token = page.json["metadata"]["continue"]
        parts = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        await forget()
        old = base64.urlsafe_b64encode(json.dumps(parts | {"rv": 2}).encode()).decode().rstrip("=")
        gone = await target.request("GET", WIDGETS, query={"limit": "1", "continue": old})
        assert (gone.status, gone.json.get("reason")) == (410, "Expired")
        # Not the snapshot of before, but nothing is left out that was there all the time.
        onward = {"limit": "2", "continue": gone.json["metadata"]["continue"]}
        rest = await target.request("GET", WIDGETS, query=onward)
        assert (rest.status, names(rest)) == (200, ["b", "c"])
        assert int(rest.json["metadata"]["resourceVersion"]) >= parts["rv"]


@pytest.mark.parametrize("where", BOTH)
async def test_p44_a_watch_from_a_forgotten_version_ends_with_410(
    where: str, request: pytest.FixtureRequest
) -> None:
    async with forgetful(where, request) as (target, forget):
        await target.request("POST", CRDS, widget_crd())
        assert (await target.request("POST", WIDGETS, widget("a"))).status == 201
        await forget()
        # At once, or as the only event of the stream: clients must take both.
        query = {"watch": "true", "resourceVersion": "2", "timeoutSeconds": "10"}
        gone = await target.request("GET", WIDGETS, query=query)
        status = gone.json["object"] if gone.status == 200 else gone.json
        assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")


async def test_p38_versions_and_matches_that_do_not_go_together_are_refused(
    target: Target,
) -> None:
    await fill(target, "a")
    for query, code in (
        ({"resourceVersion": "x"}, 400),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersion": "1", "resourceVersionMatch": "Never"}, 422),
        ({"resourceVersion": "0"}, 200),
        ({"resourceVersion": "1", "resourceVersionMatch": "NotOlderThan"}, 200),
    ):
        assert (await target.request("GET", MAPS, query=query)).status == code, query


async def test_p38_an_exact_version_shows_the_past(target: Target) -> None:
    await fill(target, "a")
    version = (await target.request("GET", MAPS)).json["metadata"]["resourceVersion"]
    await fill(target, "b")
    query = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    past = await target.request("GET", MAPS, query=query)
    assert names(past) == ["a"]
    assert past.json["metadata"]["resourceVersion"] == version


async def test_p38_a_version_of_the_future_is_a_timeout_to_retry(target: Target) -> None:
    answer = await target.request("GET", MAPS, query={"resourceVersion": "999999999"})
    assert (answer.status, answer.json["reason"]) == (504, "Timeout")
    assert answer.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("team=red", "a"), ("team==red", "a"), ("team!=red", "bc"), ("team in (red, blue)", "ab"),
        ("team notin (red)", "bc"), ("team", "ab"), ("!team", "c"), ("team=red,size=l", ""),
        ("team=", ""),
    ],
)  # fmt: skip
async def test_p39_label_selectors(target: Target, selector: str, wanted: str) -> None:
    for name, labels in (("a", {"team": "red"}), ("b", {"team": "blue"}), ("c", {})):
        await target.request("POST", MAPS, config(name, **labels))
    answer = await target.request("GET", MAPS, query={"labelSelector": selector})
    assert names(answer) == list(wanted)


async def test_p39_a_malformed_selector_is_400(target: Target) -> None:
    for selector in ("a in (", "a b", "=x", "-=b"):
        answer = await target.request("GET", MAPS, query={"labelSelector": selector})
        assert (answer.status, answer.json["reason"]) == (400, "BadRequest"), selector


async def test_p40_field_selectors_of_pods_nodes_and_all(target: Target) -> None:
    await target.request("POST", PODS, pod("a", nodeName="n1"))
    await target.request("POST", PODS, pod("b"))
    cordoned = {"metadata": {"name": "n"}, "spec": {"unschedulable": True}}
    await target.request("POST", "/api/v1/nodes", cordoned)
    for path, selector, wanted in (
        (PODS, "spec.nodeName=n1", ["a"]),
        (PODS, "spec.nodeName=", ["b"]),
        (PODS, "status.phase=Pending,metadata.name!=a", ["b"]),
        (PODS, "metadata.name=b", ["b"]),
        ("/api/v1/pods", "metadata.namespace=default", ["a", "b"]),
        ("/api/v1/nodes", "spec.unschedulable=false", []),
        ("/api/v1/nodes", "spec.unschedulable=true", ["n"]),
    ):
        answer = await target.request("GET", path, query={"fieldSelector": selector})
        assert names(answer) == wanted, selector


async def test_p40_a_field_that_cannot_be_selected_by_is_400(target: Target) -> None:
    for selector in ("spec.hostname=x", "status.phase>1"):
        answer = await target.request("GET", PODS, query={"fieldSelector": selector})
        assert answer.status == 400, selector
    await target.request("POST", CRDS, widget_crd())
    widgets = "/apis/example.dev/v1/namespaces/default/widgets"
    await target.request("POST", widgets, widget("w"))
    by_size = await target.request("GET", widgets, query={"fieldSelector": "spec.size=1"})
    assert by_size.status == 400


async def test_p40_a_definition_names_its_own_selectable_fields(target: Target) -> None:
    crd = widget_crd()
    crd["spec"]["versions"][0]["selectableFields"] = [{"jsonPath": ".spec.size"}]
    await target.request("POST", CRDS, crd)
    widgets = "/apis/example.dev/v1/namespaces/default/widgets"
    for name, size in (("a", 1), ("b", 2)):
        await target.request("POST", widgets, widget(name, size=size))
    answer = await target.request("GET", widgets, query={"fieldSelector": "spec.size=2"})
    assert names(answer) == ["b"]


async def test_p41_a_list_over_all_namespaces_is_in_the_order_of_both_names(
    target: Target,
) -> None:
    for namespace in ("kube-system", "default", "kube-public"):
        await target.request(
            "POST", f"/api/v1/namespaces/{namespace}/configmaps", config("a", of="test")
        )
    everywhere = await target.request(
        "GET", "/api/v1/configmaps", query={"labelSelector": "of=test"}
    )
    items = everywhere.json["items"]
    namespaces = [item["metadata"]["namespace"] for item in items]
    assert namespaces == ["default", "kube-public", "kube-system"]
