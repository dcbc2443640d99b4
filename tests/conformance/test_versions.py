"""Both versions of a kind, whose fields have different names, through every verb.

Either server: the real one has objects converted by the webhook, the embedded one converts itself.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.conformance.http_server import widget
from tests.conformance.scenarios_versions import (
    ALPHA_POOLS,
    BETA_POOLS,
    converting,
    define,
    deprecated_definition,
    forget,
    full,
    pool,
)
from tests.conformance.target import Answer, Target
from tests.conformance.vocabulary import APPLY, CRDS, JSON_PATCH, MERGE, TABLE, WIDGETS
from tests.conformance.webhook_server import patches, webhook_server
from tests.patience import PATIENCE_SECONDS

from fairlead.api import names
from fairlead.api.schema.conversion import ALPHA, BETA, converted

TYPES = {"merge": MERGE, "json": JSON_PATCH, "apply": APPLY}


async def send(target: Target, way: str, path: str, body: Any, manager: str = "one") -> Answer:
    return await target.request(
        "PATCH", path, body, query={"fieldManager": manager}, headers={"Content-Type": TYPES[way]}
    )


async def both(target: Target, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pool in both versions, which must say the same."""
    alpha = (await target.request("GET", f"{ALPHA_POOLS}/{name}")).json
    beta = (await target.request("GET", f"{BETA_POOLS}/{name}")).json
    assert converted(alpha, BETA) == beta
    return alpha, beta


async def test_60_what_one_version_writes_the_other_one_reads(target: Target) -> None:
    async with converting() as definition:
        await define(target, definition)
        made = await target.request("POST", BETA_POOLS, full("a", min=1))
        assert made.status == 201, made.json
        assert (made.json["spec"]["nodesMax"], made.json["spec"]["nodesMin"]) == (8, 1)
        alpha, _ = await both(target, "a")
        assert (alpha["spec"]["max"], alpha["spec"]["min"]) == (8, 1)

        path = f"{BETA_POOLS}/a"
        await send(target, "merge", path, {"spec": {"nodesMin": None, "holdNodes": 3}})
        alpha, _ = await both(target, "a")
        assert alpha["spec"]["hold"] == 3
        assert "min" not in alpha["spec"]
        moved = [{"op": "move", "from": "/spec/holdNodes", "path": "/spec/nodesMin"}]
        assert (await send(target, "json", path, moved)).json["spec"]["nodesMin"] == 3
        wrong = await send(target, "json", path, [{"op": "remove", "path": "/spec/max"}])
        assert wrong.status == 422
        replaced = await target.request("GET", path)
        replaced.json["spec"]["nodesMax"] = 12
        put = await target.request("PUT", path, replaced.json)
        assert put.json["metadata"]["generation"] == 4, put.json
        alpha, _ = await both(target, "a")
        assert alpha["spec"]["max"] == 12
        bought = {"status": {"bought": [{"clockSeconds": 5, "instances": ["i"]}]}}
        await send(target, "merge", f"{path}/status", bought)
        alpha, _ = await both(target, "a")
        assert alpha["status"]["bought"] == [{"at": 5, "instances": ["i"]}]
        unknown = {**full("b"), "spec": {**full("b")["spec"], "max": 3}}
        pruned = await target.request("POST", BETA_POOLS, unknown)
        assert pruned.headers["Warning"] == '299 - "unknown field \\"spec.max\\""'
        assert pruned.json["spec"]["nodesMax"] == 8

        for collection, column in ((ALPHA_POOLS, ".spec.max"), (BETA_POOLS, ".spec.nodesMax")):
            table = await target.request("GET", collection, headers={"Accept": TABLE})
            at = [each["name"] for each in table.json["columnDefinitions"]].index("Max")
            assert [row["cells"][at] for row in table.json["rows"]] == [12, 8], column
        items = (await target.request("GET", BETA_POOLS)).json["items"]
        assert [each["spec"]["nodesMax"] for each in items] == [12, 8]
        assert {each["apiVersion"] for each in items} == {BETA}
        await forget(target)


async def test_60_each_answer_in_a_deprecated_version_warns_of_it(target: Target) -> None:
    async def warning(method: str, path: str, body: Any = None, **query: str) -> str:
        answer = await target.request(method, path, body, query=query)
        return answer.headers.get("Warning", "")

    made = await target.request("POST", CRDS, deprecated_definition())
    assert made.status == 201, made.json
    default = "example.dev/v1alpha1 Widget is deprecated; use example.dev/v1 Widget"
    own = 'say \\"v1\\"'
    for version, text in (("v1", ""), ("v1beta1", own), ("v1alpha1", default)):
        said = f'299 - "{text}"' if text else ""
        path = WIDGETS.replace("/v1/", f"/{version}/")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await target.request("GET", path)).status != 200:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.02)
        body = {**widget("w"), "apiVersion": f"example.dev/{version}"}
        assert await warning("POST", path, body) == said
        assert await warning("GET", path) == said
        assert await warning("GET", path, watch="1", timeoutSeconds="1") == said
        assert await warning("GET", f"{path}/none") == said
        assert await warning("DELETE", f"{path}/w") == said
    await target.request("DELETE", f"{CRDS}/widgets.example.dev")


async def test_45_a_watch_sees_all_writes_in_its_own_version(target: Target) -> None:
    async with converting() as definition:
        await define(target, definition)
        async with target.watch(BETA_POOLS) as events:
            await target.request("POST", ALPHA_POOLS, full("a", ALPHA, hold=1))
            await send(target, "merge", f"{BETA_POOLS}/a", {"spec": {"holdNodes": 2}})
            await send(target, "merge", f"{ALPHA_POOLS}/a", {"spec": {"hold": 3}})
            async with asyncio.timeout(PATIENCE_SECONDS):
                seen = [await anext(events) for _ in range(3)]
        assert [each["object"]["spec"]["holdNodes"] for each in seen] == [1, 2, 3]
        assert {each["object"]["apiVersion"] for each in seen} == {BETA}
        await forget(target)


async def test_19_fields_are_owned_whatever_version_they_were_applied_in(target: Target) -> None:
    async with converting() as definition:
        await define(target, definition)
        path, old = f"{BETA_POOLS}/a", f"{ALPHA_POOLS}/a"
        zones = [{"name": "x", "max": 2}, {"name": "y", "max": 3}]
        made = await send(target, "apply", path, full("a", BETA, min=1, hold=2, domains=zones))
        assert made.status == 201, made.json
        [owner] = made.json["metadata"]["managedFields"]
        assert owner["apiVersion"] == BETA
        assert "f:holdNodes" in owner["fieldsV1"]["f:spec"]
        # Another one, in the other version, meets who has the field.
        taken = await send(target, "apply", old, pool("a", ALPHA, hold=3), "two")
        assert taken.status == 409, taken.json
        [cause] = taken.json["details"]["causes"]
        assert cause["message"] == 'conflict with "one"'
        # The same one gives up, in the other version, what it names no more.
        fewer = await send(target, "apply", old, full("a", ALPHA, domains=zones[:1]))
        assert fewer.json["spec"]["domains"] == [{"name": "x", "max": 2}]
        assert not {"min", "hold"} & set(fewer.json["spec"])
        [owner] = fewer.json["metadata"]["managedFields"]
        assert owner["apiVersion"] == ALPHA
        free = await send(target, "apply", path, pool("a", BETA, hold=4), "two")
        assert free.json["spec"]["holdNodes"] == 4
        await both(target, "a")
        await forget(target)


async def test_p63_a_webhook_gets_the_version_that_it_matches_and_its_patch_comes_back(
    target: Target, tmp_path: Path
) -> None:
    async with converting() as definition, webhook_server(tmp_path) as hooks:
        await define(target, definition)
        rule = {
            "operations": ["CREATE", "UPDATE"], "apiGroups": [names.GROUP],
            "apiVersions": [names.BETA_VERSION], "resources": ["nodepools", "nodepools/status"],
        }  # fmt: skip
        adds = patches({"op": "add", "path": "/spec/nodesMin", "value": 2})
        await hooks.configure(target, "Mutating", "beta", hooks.webhook("beta", adds, rules=[rule]))
        body = full("a", ALPHA, hold=3)
        body["metadata"]["labels"] = hooks.labels
        made = await target.request("POST", ALPHA_POOLS, body)
        assert made.status == 201, made.json
        assert (made.json["apiVersion"], made.json["spec"]["min"]) == (ALPHA, 2)
        assert "nodesMin" not in made.json["spec"]
        [asked] = hooks.of("beta")
        assert asked["kind"]["version"] == names.BETA_VERSION
        assert asked["requestKind"]["version"] == names.VERSION
        assert (asked["object"]["apiVersion"], asked["object"]["spec"]["holdNodes"]) == (BETA, 3)

        later = {"op": "replace", "path": "/status/bought/0/clockSeconds", "value": 6}
        hooks.answers["beta"] = patches(later)
        bought = {"status": {"bought": [{"at": 5, "instances": ["i"]}]}}
        written = await send(target, "merge", f"{ALPHA_POOLS}/a/status", bought)
        assert written.json["status"]["bought"] == [{"at": 6, "instances": ["i"]}]
        asked = hooks.of("beta")[-1]
        assert asked["object"]["status"]["bought"][0]["clockSeconds"] == 5
        assert asked["oldObject"]["spec"]["nodesMin"] == 2
        await both(target, "a")
        await forget(target)


async def test_60_a_definition_of_others_is_not_converted(target: Target) -> None:
    async with converting() as definition:
        foreign = json.loads(json.dumps(definition).replace("fairlead.dev", "example.dev"))
        answer = await target.request("POST", CRDS, foreign, query={"dryRun": "All"})
        if answer.status != 201:  # a real server calls any webhook
            assert answer.status == 422, answer.json
            [cause] = answer.json["details"]["causes"]
            assert cause["field"] == "spec.conversion.strategy"
