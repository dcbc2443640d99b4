"""A kind whose versions have different names of fields: conversion on the way of each verb.

A real server asks the webhook of this project; the embedded one converts by the same functions.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.conformance.http_server import widget, widget_crd
from tests.conformance.recorder import Recorder
from tests.conformance.scenarios_apply import by
from tests.conformance.target import Answer, Target
from tests.conformance.vocabulary import APPLY, CRDS, JSON_PATCH, MERGE, METADATA, TABLE, WIDGETS
from tests.patience import PATIENCE_SECONDS

from fairlead.api import names
from fairlead.api.schema import crd
from fairlead.api.schema.conversion import ALPHA, BETA, converted
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.runtime.clock import SystemClock
from fairlead.webhook.answers import AdmissionAnswers
from fairlead.webhook.certificates import Times, make
from fairlead.webhook.configuration import SERVICE
from fairlead.webhook.definitions import converted_definition
from fairlead.webhook.server import WebhookServer

HOST = "127.0.0.1"
ALPHA_POOLS, BETA_POOLS = (f"/apis/{version}/nodepools" for version in (ALPHA, BETA))
DEFINITION = f"{CRDS}/nodepools.{names.GROUP}"


@asynccontextmanager
async def converting() -> AsyncGenerator[dict[str, Any]]:
    """The definition of node pools in both versions, while a webhook on loopback converts."""
    answers = AdmissionAnswers(
        GateRules(), classes=lambda: None, teams=lambda: None, submitted=lambda: None,
        node_team=lambda _: "", converts=True,
    )  # fmt: skip
    server = WebhookServer(answers)
    authority, pair = make((HOST,), now=SystemClock().now(), times=Times())
    server.use(pair)
    [definition] = [
        converted_definition(each, names.OWN_NAMESPACE, SERVICE)
        for each in crd.manifests()
        if each["spec"]["names"]["kind"] == "NodePool"
    ]
    asked = definition["spec"]["conversion"]["webhook"]["clientConfig"]
    path = asked.pop("service")["path"]
    async with server.listening(HOST, 0) as port:
        asked["url"] = f"https://{HOST}:{port}{path}"
        asked["caBundle"] = base64.b64encode(authority).decode()
        yield definition


def pool(name: str = "a", version: str = BETA, **spec: Any) -> dict[str, Any]:
    """A configuration of a pool: what is given, in the names of v1alpha1."""
    body = {"apiVersion": ALPHA, "kind": "NodePool", "metadata": {"name": name}, "spec": spec}
    return converted(body, version)


def full(name: str = "a", version: str = BETA, **spec: Any) -> dict[str, Any]:
    """A whole pool."""
    made = {"provider": {"type": "Simulated"}, "template": {"resources": {"cpu": "8"}}, "max": 8}
    return pool(name, version, **{**made, **spec})


async def _apply(
    r: Recorder, label: str, body: dict[str, Any], manager: str = "one", **query: str
) -> Answer:
    path = BETA_POOLS if body["apiVersion"] == BETA else ALPHA_POOLS
    name = body["metadata"]["name"]
    return await r(
        label, "PATCH", f"{path}/{name}", body, kind=APPLY, query=by(manager, **query)
    )  # fmt: skip


async def define(target: Target, definition: dict[str, Any]) -> None:
    """Store the definition, and return once both versions are served."""
    made = await target.request("POST", CRDS, definition)
    assert made.status == 201, made.json
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await target.request("GET", BETA_POOLS)).status != 200:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)


async def forget(target: Target) -> None:
    """Take the definition away while a webhook still converts."""
    await target.request("DELETE", DEFINITION)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await target.request("GET", DEFINITION)).status != 404:  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)


async def p60_versions_of_other_names(r: Recorder) -> None:
    async with converting() as definition:
        await define(r.target, definition)
        await r("create-beta", "POST", BETA_POOLS, full("a", min=1), query=by("maker"))
        await r("create-alpha", "POST", ALPHA_POOLS, full("b", ALPHA, hold=2))
        await r("unknown", "POST", BETA_POOLS, {
            **full("c"), "spec": {**full("c")["spec"], "max": 3, "min": 1}}
        )  # fmt: skip
        await r("wrong", "POST", BETA_POOLS, full("d", min="one"))
        for label, path in (("alpha", ALPHA_POOLS), ("beta", BETA_POOLS)):
            await r(f"get-{label}", "GET", f"{path}/b")
            await r(f"list-{label}", "GET", path)
            await r(f"table-{label}", "GET", path, accept=TABLE)
            await r(f"metadata-{label}", "GET", f"{path}/a", accept=METADATA)
        one = f"{BETA_POOLS}/a"
        await r("merge", "PATCH", one, {"spec": {"nodesMin": None, "holdNodes": 3}}, kind=MERGE)
        changes = [
            {"op": "test", "path": "/spec/nodesMax", "value": 8},
            {"op": "replace", "path": "/spec/nodesMax", "value": 9},
            {"op": "move", "from": "/spec/holdNodes", "path": "/spec/nodesMin"},
        ]
        await r("json", "PATCH", one, changes, kind=JSON_PATCH)
        await r("other-names", "PATCH", one, [{"op": "remove", "path": "/spec/max"}],
                kind=JSON_PATCH)  # fmt: skip
        await r("no-change", "PATCH", one, {"spec": {"nodesMax": 9}}, kind=MERGE)
        await r("in-alpha", "GET", f"{ALPHA_POOLS}/a")
        bought = {"status": {"bought": [{"clockSeconds": 5, "instances": ["i"]}], "nodes": 1}}
        await r("status", "PATCH", f"{one}/status", bought, kind=MERGE)
        await r("status-alpha", "GET", f"{ALPHA_POOLS}/a/status")
        put = (await r.quietly("GET", one)).json
        put["spec"]["nodesMax"] = 10
        await r("put", "PUT", one, put)
        put["metadata"]["resourceVersion"] = "1"
        await r("put-old", "PUT", one, put)
        await r("delete", "DELETE", f"{BETA_POOLS}/b")
        await r("dry", "DELETE", one, query={"dryRun": "All"})
        await r("collection", "DELETE", BETA_POOLS)
        await forget(r.target)


async def p45_watches_of_both_versions(r: Recorder) -> None:
    async with converting() as definition:
        await define(r.target, definition)

        async def change() -> None:
            await r.quietly("POST", ALPHA_POOLS, full("a", ALPHA, hold=1))
            await r.quietly("PATCH", f"{BETA_POOLS}/a", {"spec": {"holdNodes": 2}},
                            headers={"Content-Type": MERGE})  # fmt: skip
            await r.quietly("DELETE", f"{ALPHA_POOLS}/a")

        await r.events("beta", BETA_POOLS, change, count=3)
        await r.events("alpha", ALPHA_POOLS, change, count=3)
        await forget(r.target)


async def p19_applies_in_either_version(r: Recorder) -> None:
    async with converting() as definition:
        await define(r.target, definition)
        zones = [{"name": "x", "max": 2}, {"name": "y", "max": 3}]
        await _apply(r, "create", full("a", BETA, min=1, hold=2, domains=zones))
        await _apply(r, "same-in-alpha", full("a", ALPHA, min=1, hold=2, domains=zones))
        await _apply(r, "conflict-alpha", pool("a", ALPHA, hold=3), "two")
        await _apply(r, "conflict-beta", pool("a", BETA, hold=3), "two")
        await _apply(r, "conflicts", pool("a", BETA, hold=3, domains=[{"name": "x", "max": 9}]),
                     "two")  # fmt: skip
        await _apply(r, "shared", pool("a", BETA, hold=2), "two")
        await _apply(r, "force", pool("a", BETA, hold=3), "two", force="true")
        await _apply(r, "fewer-in-alpha", full("a", ALPHA, domains=zones[:1]))
        await _apply(r, "fewer-in-beta", full("a", BETA))
        await _apply(r, "given-up", pool("a", ALPHA), "two")
        await r(
            "update-beta",
            "PATCH",
            f"{BETA_POOLS}/a",
            {"spec": {"nodesMin": 4}},
            kind=MERGE,
            query=by("editor"),
        )
        await r(
            "update-alpha",
            "PATCH",
            f"{ALPHA_POOLS}/a",
            {"spec": {"hold": 6}},
            kind=MERGE,
            query=by("editor"),
        )
        await _apply(r, "over-update", pool("a", ALPHA, min=5), "two")
        await _apply(r, "over-update-beta", pool("a", BETA, hold=5), "two")
        await _apply(r, "take", pool("a", BETA, min=5, hold=5), "two", force="true")
        await _apply(r, "unknown", {**pool("a"), "spec": {"max": 3}}, "three")
        status = {**pool("a"), "status": {"bought": [{"clockSeconds": 5, "instances": ["i"]}]}}
        await r("status", "PATCH", f"{BETA_POOLS}/a/status", status, kind=APPLY,
                query=by("controller"))  # fmt: skip
        await r("end", "GET", f"{ALPHA_POOLS}/a")
        await forget(r.target)


def deprecated_definition() -> dict[str, Any]:
    """Widgets in v1, and in two versions that are deprecated; one says so in words of its own."""
    definition = widget_crd()
    [version] = definition["spec"]["versions"]
    old = {**version, "storage": False, "deprecated": True}
    beta = {**old, "name": "v1beta1", "deprecationWarning": 'say "v1"'}
    definition["spec"]["versions"] = [version, beta, {**old, "name": "v1alpha1"}]
    return definition


async def p60_p62_deprecated_versions(r: Recorder) -> None:
    definition = deprecated_definition()
    version = definition["spec"]["versions"][0]
    said = [{**version, "deprecationWarning": "no"}]
    lone = {**definition, "spec": {**definition["spec"], "versions": said}}
    await r("not-deprecated", "POST", CRDS, lone, query={"dryRun": "All"})
    await r("create-definition", "POST", CRDS, definition)
    for name in ("v1", "v1beta1", "v1alpha1"):
        path = WIDGETS.replace("/v1/", f"/{name}/")
        await r.until(path, lambda answer: answer.status == 200)
        body = {**widget("w", replicas=1), "apiVersion": f"example.dev/{name}"}
        await r(f"{name}-create", "POST", path, body)
        await r(f"{name}-unknown", "PATCH", f"{path}/w", {"spec": {"nope": 1}}, kind=MERGE)
        await r(f"{name}-get", "GET", f"{path}/w")
        await r(f"{name}-missing", "GET", f"{path}/none")
        await r(f"{name}-list", "GET", path)
        await r(f"{name}-table", "GET", path, accept=TABLE)
        nothing = {"watch": "1", "timeoutSeconds": "1", "fieldSelector": "metadata.name=none"}
        await r(f"{name}-watch", "GET", path, query=nothing)
        await r(f"{name}-scale", "GET", f"{path}/w/scale")
        await r(f"{name}-delete", "DELETE", f"{path}/w")
        await r(f"{name}-delete-all", "DELETE", path)
    await r.quietly("DELETE", f"{CRDS}/widgets.example.dev")
    await r.until(WIDGETS, lambda answer: answer.status == 404)
