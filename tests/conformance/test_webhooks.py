"""Point 63 of the checklist: admission webhooks, called for real over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.http_server import pod, widget, widget_crd
from tests.conformance.target import Target
from tests.conformance.webhook_server import KINDS, MAPS, Hooks, allow, patches, webhook_server

PODS = "/api/v1/namespaces/default/pods"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.dev/v1/namespaces/default/widgets"
MUTATING = f"{KINDS}/mutatingwebhookconfigurations"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
MERGE = {"Content-Type": "application/merge-patch+json"}
ADD_DATA = patches({"op": "add", "path": "/data", "value": {"from": "webhook"}})


@pytest.fixture
async def hooks(tmp_path: Path) -> AsyncIterator[Hooks]:
    """A webhook server."""
    async with webhook_server(tmp_path) as hooks:
        yield hooks


async def test_p63_a_mutating_webhook_changes_what_is_stored_and_a_validating_one_sees_it(
    target: Target, hooks: Hooks
) -> None:
    await hooks.configure(target, "Validating", "look", hooks.webhook("look"))
    await hooks.configure(target, "Mutating", "change", hooks.webhook("change", ADD_DATA))
    made = await target.request("POST", MAPS, hooks.named("one"), query={"fieldManager": "me"})
    assert made.status == 201, made
    assert made.json["data"] == {"from": "webhook"}
    assert (await target.request("GET", f"{MAPS}/one")).json["data"] == {"from": "webhook"}
    (first,), (second,) = hooks.of("change"), hooks.of("look")
    kind = {"group": "", "version": "v1", "kind": "ConfigMap"}
    resource = {"group": "", "version": "v1", "resource": "configmaps"}
    for request in (first, second):
        assert (request["kind"], request["requestKind"]) == (kind, kind)
        assert (request["resource"], request["requestResource"]) == (resource, resource)
        assert (request["name"], request["namespace"]) == ("one", "default")
        assert (request["operation"], request["dryRun"]) == ("CREATE", False)
        assert request["oldObject"] is None
        assert "subResource" not in request
        options = {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me"}
        assert request["options"] == options
        assert {"username", "groups"} <= set(request["userInfo"])
    assert "data" not in first["object"]
    assert "uid" not in first["object"]["metadata"]
    assert second["object"]["data"] == {"from": "webhook"}
    assert second["object"]["metadata"]["uid"] == made.json["metadata"]["uid"]


@pytest.mark.parametrize(
    ("status", "code", "reason", "words"),
    [
        ({"code": 403, "message": "no", "reason": "Forbidden"}, 403, "Forbidden", ": no"),
        ({"code": 200, "message": "no"}, 400, None, ": no"),
        ({"reason": "Teapot", "code": 418}, 418, "Teapot", ": Teapot"),
        (None, 400, None, " without explanation"),
    ],
)
async def test_p63_a_refusal_is_answered_with_what_the_webhook_says(
    target: Target,
    hooks: Hooks,
    status: dict[str, Any] | None,
    code: int,
    reason: str | None,
    words: str,
) -> None:
    def refuse(_request: Mapping[str, Any]) -> dict[str, Any]:
        return {"allowed": False} | ({"status": status} if status else {})

    await hooks.configure(target, "Validating", "no", hooks.webhook("no", refuse))
    answer = await target.request("POST", MAPS, hooks.named("one"))
    assert answer.status == answer.json["code"] == code
    assert answer.json.get("reason") == reason
    text = 'admission webhook "no.example.dev" denied the request'
    assert answer.json["message"] == text + words
    assert answer.json["status"] == "Failure"
    assert (await target.request("GET", f"{MAPS}/one")).status == 404


async def test_p63_warnings_of_webhooks_reach_the_client(target: Target, hooks: Hooks) -> None:
    def warn(_request: Mapping[str, Any]) -> dict[str, Any]:
        return {"allowed": True, "warnings": ["mind the gap"]}

    hook = hooks.webhook("warn", warn, operations=["CREATE", "DELETE"])
    await hooks.configure(target, "Validating", "warn", hook)
    for method, path, body in (
        ("POST", MAPS, hooks.named("one")), ("DELETE", f"{MAPS}/one", None),
    ):  # fmt: skip
        answer = await target.request(method, path, body)
        assert answer.status in (200, 201)
        assert answer.headers["Warning"] == '299 - "mind the gap"'
    hooks.answers["warn"] = lambda request: {**warn(request), "allowed": False}
    answer = await target.request("POST", MAPS, hooks.named("two"))
    assert (answer.status, answer.headers["Warning"]) == (400, '299 - "mind the gap"')


async def test_p63_a_call_that_fails_refuses_the_request_or_is_ignored(
    target: Target, hooks: Hooks
) -> None:
    never = asyncio.Event()

    async def wait(_request: Mapping[str, Any]) -> dict[str, Any]:
        await never.wait()
        return {"allowed": True}

    untrusted = hooks.webhook("untrusted")
    del untrusted["clientConfig"]["caBundle"]
    service = hooks.webhook("service")
    service["clientConfig"] = {"service": {"namespace": "default", "name": "nobody"}}
    dead = hooks.webhook("dead")
    dead["clientConfig"]["url"] = "https://127.0.0.1:1/dead"
    broken = {
        "slow": hooks.webhook("slow", wait, timeoutSeconds=1),
        "garbled": hooks.webhook("garbled", lambda _: {"allowed": True, "uid": "another"}),
        "untrusted": untrusted,
        "service": service,
        "dead": dead,
    }
    for name, hook in broken.items():
        selected = {"matchLabels": {**hooks.labels, "which": name}}
        hook["objectSelector"] = selected
        ignored = {**hook, "name": f"{name}-ignored.example.dev", "failurePolicy": "Ignore"}
        ignored["objectSelector"] = {"matchLabels": {**hooks.labels, "ignored": name}}
        broken[name] = hook
        await hooks.configure(target, "Validating", name, hook, ignored)
        body = hooks.named(f"map-{name}")
        body["metadata"]["labels"]["which"] = name
        answer = await target.request("POST", MAPS, body)
        assert (answer.status, answer.json["reason"]) == (500, "InternalError"), name
        text = f'Internal error occurred: failed calling webhook "{name}.example.dev": '
        assert answer.json["message"].startswith(text)
        assert f"{text}{answer.json['details']['causes'][0]['message']}".endswith(
            answer.json["message"].removeprefix("Internal error occurred: ")
        )
        body["metadata"]["labels"] = {**hooks.labels, "ignored": name}
        assert (await target.request("POST", MAPS, body)).status == 201, name
    never.set()


async def test_p63_updates_patches_and_deletions_carry_the_old_object(
    target: Target, hooks: Hooks
) -> None:
    await target.request("POST", MAPS, hooks.named("one", data={"key": "1"}))
    hook = hooks.webhook("all", operations=["*"])
    await hooks.configure(target, "Validating", "all", hook)
    path = f"{MAPS}/one"
    answer = await target.request("PATCH", path, {"data": {"key": "2"}}, headers=MERGE)
    assert answer.status == 200
    await target.request("PUT", path, hooks.named("one", data={"key": "3"}))
    await target.request("DELETE", path, {"gracePeriodSeconds": 0})
    patched, replaced, deleted = _settled(hooks.of("all"))
    seen = [
        (r["operation"], r["options"]["kind"], _key(r["object"]), _key(r["oldObject"]))
        for r in (patched, replaced, deleted)
    ]
    assert seen == [
        ("UPDATE", "UpdateOptions", "2", "1"),
        ("UPDATE", "UpdateOptions", "3", "2"),
        ("DELETE", "DeleteOptions", None, "3"),
    ]
    assert deleted["name"] == "one"
    assert deleted["options"]["gracePeriodSeconds"] == 0
    await target.request("POST", MAPS, hooks.named("two", data={"key": "4"}))
    hooks.asked.clear()
    selector = ",".join(f"{key}={value}" for key, value in hooks.labels.items())
    await target.request("DELETE", MAPS, query={"labelSelector": selector})
    (collected,) = _settled(hooks.of("all"))
    assert "name" not in collected
    assert _key(collected["oldObject"]) == "4"


def _settled(asked: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last request of each change: a server whose cache was behind asks again."""

    def change(each: Mapping[str, Any]) -> str:
        return repr((each["operation"], (each["object"] or {}) | {"metadata": None}))

    return list({change(each): each for each in asked}.values())


def _key(obj: Mapping[str, Any] | None) -> str | None:
    return None if obj is None else obj["data"]["key"]


async def test_p63_a_refused_deletion_leaves_the_object(target: Target, hooks: Hooks) -> None:
    await target.request("POST", MAPS, hooks.named("kept"))
    refuse = hooks.webhook("keep", lambda _: {"allowed": False}, operations=["DELETE"])
    await hooks.configure(target, "Validating", "keep", refuse)
    assert (await target.request("DELETE", f"{MAPS}/kept")).status == 400
    metadata = (await target.request("GET", f"{MAPS}/kept")).json["metadata"]
    assert "deletionTimestamp" not in metadata


async def test_p63_a_mutating_webhook_cannot_change_a_deletion(
    target: Target, hooks: Hooks
) -> None:
    await target.request("POST", MAPS, hooks.named("one"))
    hook = hooks.webhook("change", ADD_DATA, operations=["DELETE"], failurePolicy="Ignore")
    await hooks.configure(target, "Mutating", "change", hook)
    answer = await target.request("DELETE", f"{MAPS}/one")
    assert answer.status == 500
    assert answer.json["message"] == (
        'Internal error occurred: admission webhook "change.example.dev" attempted to modify the '
        "object, which is not supported for this operation"
    )


async def test_p63_a_dry_run_is_sent_as_one(target: Target, hooks: Hooks) -> None:
    hook = hooks.webhook("change", ADD_DATA, sideEffects="NoneOnDryRun")
    await hooks.configure(target, "Mutating", "change", hook)
    answer = await target.request("POST", MAPS, hooks.named("one"), query={"dryRun": "All"})
    assert answer.status == 201
    assert answer.json["data"] == {"from": "webhook"}
    (request,) = hooks.of("change")
    assert request["dryRun"] is True
    assert request["options"]["dryRun"] == ["All"]
    assert (await target.request("GET", f"{MAPS}/one")).status == 404


async def test_p63_webhooks_run_in_order_and_again_if_needed(target: Target, hooks: Hooks) -> None:
    late = patches({"op": "add", "path": "/immutable", "value": False})
    await hooks.configure(target, "Mutating", "z", hooks.webhook("third", late))
    first = hooks.webhook("first", reinvocationPolicy="IfNeeded")
    await hooks.configure(target, "Mutating", "a", first, hooks.webhook("second"))
    await target.request("POST", MAPS, hooks.named("one"))
    assert [path for path, _ in hooks.asked] == ["first", "second", "third", "first"]
    assert hooks.of("first")[1]["object"]["immutable"] is False


async def test_p63_selectors_exempt_requests(target: Target, hooks: Hooks) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace"}
    for name in ("watched", "unwatched"):
        metadata = {"name": name, "labels": {"state": name}}
        await target.request("POST", "/api/v1/namespaces", {**space, "metadata": metadata})
    selector = {"matchExpressions": [{"key": "state", "operator": "In", "values": ["watched"]}]}
    hook = hooks.webhook("space", namespaceSelector=selector)
    other = hooks.webhook("other", resources=["configmaps/status", "secrets"])
    await hooks.configure(target, "Validating", "space", hook, other)
    for name in ("watched", "unwatched"):
        await target.request("POST", f"/api/v1/namespaces/{name}/configmaps", hooks.named("one"))
    unlabelled = {"metadata": {"name": "two"}}
    await target.request("POST", "/api/v1/namespaces/watched/configmaps", unlabelled)
    assert [(path, request["namespace"]) for path, request in hooks.asked] == [("space", "watched")]


async def test_p63_a_schema_is_applied_after_mutating_webhooks(
    target: Target, hooks: Hooks
) -> None:
    assert (await target.request("POST", CRDS, widget_crd())).status == 201
    hook = {"groups": ["example.dev"], "resources": ["widgets"]}
    fill = patches({"op": "add", "path": "/spec/size", "value": 3})
    await hooks.configure(target, "Mutating", "fill", hooks.webhook("fill", fill, **hook))
    body = widget("one")
    body["metadata"]["labels"] = hooks.labels
    del body["spec"]["size"]
    made = await target.request("POST", WIDGETS, body)
    assert made.status == 201, made
    assert made.json["spec"] == {"size": 3}
    hooks.answers["fill"] = patches({"op": "add", "path": "/spec/size", "value": "big"})
    body["metadata"]["name"] = "two"
    refused = await target.request("POST", WIDGETS, body)
    assert refused.status == 422
    assert refused.json["details"]["causes"][0]["field"] == "spec.size"


async def test_p63_a_binding_is_sent_as_one(target: Target, hooks: Hooks) -> None:
    assert (await target.request("POST", PODS, pod("p"))).status == 201
    refuse = hooks.webhook("bind", lambda _: {"allowed": False}, resources=["pods/binding"])
    await hooks.configure(target, "Validating", "bind", refuse)
    metadata = {"name": "p", "labels": hooks.labels}
    binding = {
        "apiVersion": "v1", "kind": "Binding", "metadata": metadata,
        "target": {"kind": "Node", "name": "n"},
    }  # fmt: skip
    assert (await target.request("POST", f"{PODS}/p/binding", binding)).status == 400
    (request,) = hooks.of("bind")
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Binding"}
    assert request["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (request["subResource"], request["name"]) == ("binding", "p")
    assert request["object"]["target"]["name"] == "n"
    hooks.answers["bind"] = allow
    assert (await target.request("POST", f"{PODS}/p/binding", binding)).status == 201
    assert (await target.request("GET", f"{PODS}/p")).json["spec"]["nodeName"] == "n"


async def test_p63_a_configuration_is_defaulted_checked_and_never_sent(
    target: Target, hooks: Hooks
) -> None:
    group = ["admissionregistration.k8s.io"]
    every = hooks.webhook("every", groups=group, resources=["*/*"], operations=["*"])
    del every["objectSelector"]
    made = await hooks.configure(target, "Mutating", "every", every)
    stored = made.json["webhooks"][1]
    assert made.json["metadata"]["generation"] == 1
    assert {key: stored[key] for key in (
        "failurePolicy", "matchPolicy", "reinvocationPolicy", "timeoutSeconds", "objectSelector",
    )} == {
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "reinvocationPolicy": "Never",
        "timeoutSeconds": 10, "objectSelector": {},
    }  # fmt: skip
    assert stored["rules"][0]["scope"] == "*"
    path = f"{MUTATING}/{made.json['metadata']['name']}"
    table = (await target.request("GET", path, headers={"Accept": TABLE})).json
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Webhooks", "Age"]
    assert table["rows"][0]["cells"][1] == 2
    assert table["columnDefinitions"][1]["type"] == "integer"
    bad = hooks.webhook("bad", timeoutSeconds=31, sideEffects="Some", failurePolicy="Perhaps")
    bad["clientConfig"]["url"] = "http://127.0.0.1/"
    bad["rules"][0]["resources"] = ["*/*", "pods"]
    body = {**made.json, "webhooks": [bad]}
    answer = await target.request("PUT", path, body)
    assert answer.status == 422
    fields = {cause["field"] for cause in answer.json["details"]["causes"]}
    assert fields == {
        f"webhooks[0].{field}"
        for field in (
            "timeoutSeconds", "sideEffects", "failurePolicy", "clientConfig.url",
            "rules[0].resources",
        )
    }  # fmt: skip
    assert (await target.request("DELETE", path)).status == 200
    assert hooks.asked == []


async def test_p63_a_rule_for_another_version_of_the_kind_selects_it_as_that_version(
    target: Target, hooks: Hooks
) -> None:
    definition = widget_crd()
    (version,) = definition["spec"]["versions"]
    definition["spec"]["versions"] = [version, {**version, "name": "v2", "storage": False}]
    assert (await target.request("POST", CRDS, definition)).status == 201
    where: dict[str, Any] = {"groups": ["example.dev"], "resources": ["widgets"]}
    exact = hooks.webhook("exact", matchPolicy="Exact", **where)
    fill = patches({"op": "replace", "path": "/spec/size", "value": 9})
    equivalent = hooks.webhook("equivalent", fill, **where)
    for hook in (exact, equivalent):
        hook["rules"][0]["apiVersions"] = ["v2"]
    await hooks.configure(target, "Mutating", "versions", exact, equivalent)
    body = widget("one")
    body["metadata"]["labels"] = hooks.labels
    made = await target.request("POST", WIDGETS, body)
    assert made.status == 201, made
    assert (made.json["apiVersion"], made.json["spec"]["size"]) == ("example.dev/v1", 9)
    assert hooks.of("exact") == []
    (request,) = hooks.of("equivalent")
    assert request["object"]["apiVersion"] == "example.dev/v2"
    assert (request["kind"]["version"], request["requestKind"]["version"]) == ("v2", "v1")
    assert (request["resource"]["version"], request["requestResource"]["version"]) == ("v2", "v1")


async def test_p63_an_eviction_and_a_scale_are_sent_as_such(target: Target, hooks: Hooks) -> None:
    assert (await target.request("POST", PODS, pod("p"))).status == 201
    assert (await target.request("POST", CRDS, widget_crd())).status == 201
    body = widget("one", replicas=2)
    body["metadata"]["labels"] = hooks.labels
    assert (await target.request("POST", WIDGETS, body)).status == 201
    kinds = ["pods/eviction", "widgets/scale"]
    where: dict[str, Any] = {"groups": ["*"], "resources": kinds, "operations": ["*"]}
    # A Scale and an Eviction carry no labels of their own.
    chosen: dict[str, Any] = {"objectSelector": {}, "failurePolicy": "Ignore"}
    await hooks.configure(target, "Validating", "sub", hooks.webhook("sub", **where, **chosen))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    assert (await target.request("POST", f"{PODS}/p/eviction", eviction)).status == 201
    patch = {"spec": {"replicas": 5}}
    answer = await target.request("PATCH", f"{WIDGETS}/one/scale", patch, headers=MERGE)
    assert answer.json["spec"]["replicas"] == 5
    evicted, scaled = _settled(hooks.of("sub"))
    assert (evicted["operation"], evicted["subResource"]) == ("CREATE", "eviction")
    assert evicted["kind"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    assert evicted["object"]["metadata"]["name"] == evicted["name"] == "p"
    assert (scaled["operation"], scaled["subResource"]) == ("UPDATE", "scale")
    assert scaled["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert (scaled["object"]["spec"], scaled["oldObject"]["spec"]) == (
        {"replicas": 5}, {"replicas": 2},
    )  # fmt: skip
