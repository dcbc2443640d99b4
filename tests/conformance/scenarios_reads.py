"""Scenarios of reading and of everything around: lists, watches, errors, discovery, definitions."""

from __future__ import annotations

from typing import Any

from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.recorder import Recorder
from tests.conformance.vocabulary import (
    BUDGETS,
    CLASSES,
    CRDS,
    EVENTS,
    LEASES,
    MAPS,
    MERGE,
    METADATA,
    METADATA_LIST,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    STRATEGIC,
    TABLE,
    WIDGETS,
    node,
)


async def p35_p41_lists(r: Recorder) -> None:
    await r("empty", "GET", MAPS)
    for name, team in (("c", "red"), ("a", "blue"), ("b", "red"), ("d", "")):
        await r.quietly("POST", MAPS, config(name, **({"team": team} if team else {})))
    await r("all", "GET", MAPS)
    page = await r("page", "GET", MAPS, query={"limit": "2"})
    token = page.json["metadata"]["continue"]
    await r("page-2", "GET", MAPS, query={"limit": "2", "continue": token})
    await r("page-match", "GET", MAPS, query={"continue": token, "resourceVersionMatch": "Exact"})
    await r("page-version", "GET", MAPS, query={"continue": token, "resourceVersion": "5"})
    await r("page-selected", "GET", MAPS, query={"limit": "1", "labelSelector": "team=red"})
    await r("page-token", "GET", MAPS, query={"continue": "garbage"})
    for i, query in enumerate((
        {"resourceVersion": "x"}, {"resourceVersionMatch": "Exact"}, {"limit": "many"},
        {"resourceVersion": "0", "resourceVersionMatch": "Exact"}, {"limit": "-1"},
        {"resourceVersion": "1", "resourceVersionMatch": "Never"},
        {"resourceVersion": "-1"}, {"sendInitialEvents": "true"},
    )):  # fmt: skip
        await r(f"options-{i}", "GET", MAPS, query=query)
    await r("future", "GET", MAPS, query={"resourceVersion": "999999999"})
    for i, selector in enumerate((
        "team=red", "team!=red", "team in (red, blue)", "team notin (red)", "team", "!team",
        "team=red,size=l", "team=", "a in (", "a b", "=x", "a==b=c", "team in ()", "a>1", "a>x",
        "x" * 64 + "=a", "a=" + "x" * 64,
    )):  # fmt: skip
        await r(f"label-{i}", "GET", MAPS, query={"labelSelector": selector})
    await r.quietly("POST", PODS, pod("a", nodeName="n1"))
    await r.quietly("POST", PODS, pod("b"))
    for i, selector in enumerate((
        "spec.nodeName=n1", "spec.nodeName=", "status.phase=Pending,metadata.name!=a",
        "metadata.namespace=default", "spec.hostname=x", "status.phase>1", "metadata.name",
        "spec.restartPolicy=Always", "status.podIP=",
    )):  # fmt: skip
        await r(f"field-{i}", "GET", PODS, query={"fieldSelector": selector})
    await r("everywhere", "GET", "/api/v1/pods", query={"fieldSelector": "spec.nodeName=n1"})
    for i, (path, selector) in enumerate((
        (NODES, "spec.unschedulable=true"), (EVENTS, "involvedObject.name=x,reason=y"),
        (SECRETS, "type=Opaque"), (NAMESPACES, "status.phase=Active"), (SERVICES, "spec.type=x"),
        (NODES, "status.phase=x"), (EVENTS, "nope=x"),
    )):  # fmt: skip
        await r(f"field-of-{i}", "GET", path, query={"fieldSelector": selector})


async def p42_p50_watches(r: Recorder) -> None:
    made = (await r.quietly("POST", MAPS, config("a", team="red"))).json
    version = made["metadata"]["resourceVersion"]

    async def change() -> None:
        for labels in ({"size": "l"}, {"team": "green"}, {"team": "red"}):
            body = {"metadata": {"labels": labels}}
            await r.quietly("PATCH", f"{MAPS}/a", body, headers={"Content-Type": MERGE})
        await r.quietly("DELETE", f"{MAPS}/a")

    query = {"labelSelector": "team=red", "resourceVersion": version}
    await r.events("selected", MAPS, change, query=query, count=4)
    await r.events("all", MAPS, query={"resourceVersion": version}, count=4)
    await r.quietly("POST", MAPS, config("b"))
    await r.events("start", MAPS, query={"timeoutSeconds": "1"}, count=2)
    await r.events("start-0", MAPS, query={"timeoutSeconds": "1", "resourceVersion": "0"}, count=2)
    now = (await r.quietly("GET", MAPS)).json["metadata"]["resourceVersion"]
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan",
               "allowWatchBookmarks": "true"}  # fmt: skip
    for label, version in (("", ""), ("-0", "0"), ("-now", now)):
        more = {"resourceVersion": version} if version else {}
        await r.events(f"watch-list{label}", MAPS, query=initial | more, count=2)
    for i, wrong in enumerate((
        {"sendInitialEvents": "true"}, {"resourceVersionMatch": "NotOlderThan"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact"},
        {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan",
         "allowWatchBookmarks": "true"},
        {"resourceVersion": "x"}, {"labelSelector": "a in ("}, {"fieldSelector": "spec.nope=1"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"},
    )):  # fmt: skip
        query = {"watch": "true", "timeoutSeconds": "1", **wrong}
        await r(f"wrong-{i}", "GET", MAPS, query=query)
    await r(
        "future",
        "GET",
        MAPS,
        query={"watch": "1", "timeoutSeconds": "1", "resourceVersion": "999999999"},
    )
    await r("prefix", "GET", "/api/v1/watch/nope/configmaps")


async def p51_p52_errors(r: Recorder) -> None:
    for i, path in enumerate((
        "/nope", "/apis/nope.dev/v1/things", "/apis/apps/v1/nope", "/api/v1/nope", "/api/v2",
        f"{PODS}/x/nope", "/api/v1/namespaces/default/nodes", "/apis/nope.dev",
    )):  # fmt: skip
        await r(f"path-{i}", "GET", path)
    for i, (method, path) in enumerate((
        ("PUT", MAPS), ("POST", f"{MAPS}/x"), ("DELETE", NAMESPACES), ("POST", "/version"),
        ("POST", "/api/v1/configmaps"), ("PUT", "/api/v1/nodes"), ("PATCH", MAPS),
    )):  # fmt: skip
        await r(f"verb-{i}", method, path, config("x"))
    for i, body in enumerate((
        b"", b"{", b"[]", b'"x"', b"null", b'{"a": 1e999}', b'{"metadata": 5}',
        b'{"metadata": {"name": 5}}', b'{"metadata": {"name": "x", "labels": ["a"]}}',
        b'{"metadata": {"name": "x"}, "data": [1]}',
        b'{"metadata": {"name": "x"}, "data": {"a": 1}}',
        b'{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"}}',
    )):  # fmt: skip
        await r(f"body-{i}", "POST", MAPS, body, kind="application/json")
    await r("media", "POST", MAPS, b"x", kind="text/plain")
    await r("accept", "GET", MAPS, accept="text/html")
    await r("accept-star", "GET", MAPS, accept="text/html, */*;q=0.1")
    yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-yaml}\ndata: {a: '1'}\n"
    await r("yaml", "POST", MAPS, yaml, kind="application/yaml")
    await r("manager", "POST", MAPS, config("m"), query={"fieldManager": "m" * 129})


async def p53_p55_discovery(r: Recorder) -> None:
    served = {"coordination.k8s.io", "scheduling.k8s.io", "policy", "apiextensions.k8s.io"}
    await r("api", "GET", "/api")
    for group in sorted(served):
        await r(f"group-{group}", "GET", f"/apis/{group}")
        answer = await r.quietly("GET", f"/apis/{group}/v1")
        r.keep(
            f"resources-{group}", {each["name"]: _plain(each) for each in answer.json["resources"]}
        )
    core = (await r.quietly("GET", "/api/v1")).json["resources"]
    kinds = ("pods", "nodes", "configmaps", "secrets", "namespaces", "services", "events",
             "serviceaccounts", "persistentvolumeclaims")  # fmt: skip
    r.keep("core", {
        each["name"]: _plain(each) for each in core
        if each["name"].partition("/")[0] in kinds
    })  # fmt: skip
    version = (await r.quietly("GET", "/version")).json
    r.keep("version", sorted(version))
    index = (await r.quietly("GET", "/openapi/v3")).json["paths"]
    r.keep("openapi", {path: bool(index.get(path)) for path in ("api/v1", "apis/policy/v1")})


def _plain(resource: dict[str, Any]) -> dict[str, Any]:
    return {k: sorted(v) if isinstance(v, list) else v for k, v in resource.items()
            if k != "storageVersionHash"}  # fmt: skip


async def p56_p57_forms(r: Recorder) -> None:
    await r("pod", "POST", PODS, pod("a", nodeName="n"))
    await r("node", "POST", NODES, node("n"))
    for label, path in (
        ("pods", PODS), ("nodes", NODES), ("events", EVENTS), ("namespaces", NAMESPACES),
        ("maps", MAPS), ("budgets", BUDGETS), ("leases", LEASES),
    ):  # fmt: skip
        answer = await r.quietly("GET", path, headers={"Accept": TABLE})
        columns = answer.json["columnDefinitions"]
        r.keep(
            f"columns-{label}",
            {c["name"]: (c["type"], c["format"], c["priority"]) for c in columns},
        )
    await r("table", "GET", PODS, accept=TABLE)
    await r("table-none", "GET", PODS, accept=TABLE, query={"includeObject": "None"})
    await r("table-object", "GET", PODS, accept=TABLE, query={"includeObject": "Object"})
    await r("table-wrong", "GET", PODS, accept=TABLE, query={"includeObject": "All"})
    await r("metadata", "GET", f"{PODS}/a", accept=METADATA)
    await r("metadata-list", "GET", PODS, accept=METADATA_LIST)
    await r("metadata-of-list", "GET", PODS, accept=METADATA)
    await r("list-of-metadata", "GET", f"{PODS}/a", accept=METADATA_LIST)
    await r("table-after-write", "PATCH", f"{PODS}/a", {"metadata": {"labels": {"a": "b"}}},
            kind=MERGE, accept=METADATA)  # fmt: skip


async def p59_not_claimed(r: Recorder) -> None:
    await r("protobuf", "GET", MAPS, accept="application/vnd.kubernetes.protobuf")
    await r("json-too", "GET", MAPS,
            accept="application/vnd.kubernetes.protobuf;q=0.5, application/json")  # fmt: skip


async def p60_p62_definitions(r: Recorder) -> None:
    crd = widget_crd()
    wrong = widget_crd()
    del wrong["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["type"]
    await r("not-structural", "POST", CRDS, wrong, query={"dryRun": "All"})
    misnamed = widget_crd()
    misnamed["metadata"]["name"] = "others.example.dev"
    await r("misnamed", "POST", CRDS, misnamed, query={"dryRun": "All"})
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    schema["spec"]["properties"] |= {
        "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3},
                 "x-kubernetes-list-type": "set"},
        "port": {"x-kubernetes-int-or-string": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "kept": {"type": "string", "nullable": True},
        "code": {"type": "string", "pattern": "^[a-z]+$"},
        "limit": {"type": "number", "minimum": 1, "maximum": 5, "exclusiveMaximum": True},
    }  # fmt: skip
    crd["spec"]["versions"][0]["selectableFields"] = [{"jsonPath": ".spec.mode"}]
    ruled = widget_crd()
    rule = {"rule": "self.size > 0", "message": "must be positive"}
    ruled["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "x-kubernetes-validations"
    ] = [rule]
    await r("cel", "POST", CRDS, ruled, query={"dryRun": "All"})
    converted = widget_crd()
    hook = {"url": "https://127.0.0.1:1/convert"}
    converted["spec"]["conversion"] = {
        "strategy": "Webhook",
        "webhook": {"clientConfig": hook, "conversionReviewVersions": ["v1"]},
    }
    await r("conversion", "POST", CRDS, converted, query={"dryRun": "All"})
    await r("create-definition", "POST", CRDS, crd)
    await r("empty", "GET", WIDGETS)
    made = (await r("create", "POST", WIDGETS, widget("w", free={"x": 1}, kept=None, nope=1))).json
    for label, spec in (
        ("type", {"size": "big", "replicas": "x"}), ("missing", {}), ("enum", {"mode": "none"}),
        ("set", {"tags": ["a", "a"]}), ("length", {"tags": ["long"]}), ("port", {"port": []}),
        ("pattern", {"code": "A"}), ("limit", {"limit": 5}), ("low", {"limit": 0}),
        ("null", {"mode": None}), ("port-text", {"port": "http"}),
    ):  # fmt: skip
        body = widget(f"x-{label}", **spec)
        if label == "missing":
            del body["spec"]["size"]
        await r(f"invalid-{label}", "POST", WIDGETS, body)
    for mode in ("Strict", "Warn", "Ignore"):
        await r(f"unknown-{mode}", "POST", WIDGETS, widget("u", nope=1),
                query={"fieldValidation": mode, "dryRun": "All"})  # fmt: skip
    await r("put-no-version", "PUT", f"{WIDGETS}/w", widget("w", size=2))
    await r("put", "PUT", f"{WIDGETS}/w", {**made, "spec": {"size": 2}})
    await r("status", "PATCH", f"{WIDGETS}/w/status",
            {"status": {"state": "on"}, "spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}},
            kind=MERGE)  # fmt: skip
    await r("main", "PATCH", f"{WIDGETS}/w", {"status": {"state": "off"}, "spec": {"size": 3}},
            kind=MERGE)  # fmt: skip
    await r("strategic", "PATCH", f"{WIDGETS}/w", {"spec": {"size": 2}}, kind=STRATEGIC)
    await r("scale", "GET", f"{WIDGETS}/w/scale")
    labels = {"metadata": {"labels": {"a": "b"}}}
    await r("scale-none", "PATCH", f"{WIDGETS}/w/scale", labels, kind=MERGE)
    await r("scale-patch", "PATCH", f"{WIDGETS}/w/scale", {"spec": {"replicas": 4}}, kind=MERGE)
    await r("scale-negative", "PATCH", f"{WIDGETS}/w/scale", {"spec": {"replicas": -4}}, kind=MERGE)
    await r("selected", "GET", WIDGETS, query={"fieldSelector": "spec.mode=fast"})
    await r("not-selectable", "GET", WIDGETS, query={"fieldSelector": "spec.size=3"})
    await r("table", "GET", WIDGETS, accept=TABLE)
    await r("discovery", "GET", "/apis/example.dev/v1")
    await r("delete", "DELETE", f"{WIDGETS}/w")
    await r("missing", "GET", f"{WIDGETS}/w")
    await r("delete-definition", "DELETE", f"{CRDS}/widgets.example.dev")
    await r.until(WIDGETS, lambda answer: answer.status == 404)
    await r("not-served", "GET", WIDGETS)


async def p64_p65_admission_and_reviews(r: Recorder) -> None:
    await r("class", "POST", CLASSES, {"metadata": {"name": "high"}, "value": 1000})
    # the real server's admission sees a class a moment later
    named = pod("a", priorityClassName="high")
    dry: dict[str, Any] = {"method": "POST", "query": {"dryRun": "All"}}
    await r.until(PODS, lambda answer: answer.status == 201, body=named, **dry)
    await r("pod", "POST", PODS, named)
    await r("default-class", "POST", CLASSES,
            {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})  # fmt: skip
    await r.until(PODS, lambda answer: answer.json["spec"]["priority"] == 5, body=pod("x"), **dry)
    await r("by-default", "POST", PODS, pod("b"))
    await r("system-name", "POST", CLASSES, {"metadata": {"name": "system-x"}, "value": 5})
    await r("too-high", "POST", CLASSES, {"metadata": {"name": "top"}, "value": 2_000_000_000})
    limits = {"limits": {"cpu": "1", "memory": "1Gi"}}
    resources = [{"name": "main", "image": "x", "resources": limits}]
    await r("guaranteed", "POST", PODS, pod("c", containers=resources))
    for label, whole in (
        ("whole", {"limits": {"cpu": "2", "memory": "2Gi"}}),
        ("whole-request", {"requests": {"cpu": "2"}}),
    ):
        await r(label, "POST", PODS, pod(f"c-{label}", containers=resources, resources=whole))
    tolerant = [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}]
    await r("tolerant", "POST", PODS, pod("d", tolerations=tolerant))
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    spec = {"resourceAttributes": {"verb": "delete", "resource": "nodes"}}
    await r("review", "POST", reviews, {"spec": spec})
    await r("review-get", "GET", reviews)
