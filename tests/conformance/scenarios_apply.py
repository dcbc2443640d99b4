"""Scenarios of server-side apply and of the managers that writes leave behind."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.recorder import Recorder
from tests.conformance.scenarios_writes import small_objects
from tests.conformance.target import Answer
from tests.conformance.vocabulary import (
    APPLY,
    CRDS,
    JSON_PATCH,
    MAPS,
    MERGE,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    STRATEGIC,
    WIDGETS,
    node,
)

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
#: The kinds that the paths of `small_objects` take.
_KINDS = {
    "pod": ("v1", "Pod"), "node": ("v1", "Node"), "secret": ("v1", "Secret"),
    "namespace": ("v1", "Namespace"), "service": ("v1", "Service"),
    "account": ("v1", "ServiceAccount"), "event": ("v1", "Event"),
    "lease": ("coordination.k8s.io/v1", "Lease"),
    "class": ("scheduling.k8s.io/v1", "PriorityClass"),
    "claim": ("v1", "PersistentVolumeClaim"), "budget": ("policy/v1", "PodDisruptionBudget"),
}  # fmt: skip


def by(manager: str, **query: str) -> dict[str, str]:
    """The query of a write by a manager."""
    return {"fieldManager": manager, **query}


def _map(name: str = "a", **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
        **({"data": data} if data else {}),
    }  # fmt: skip


async def _apply(
    r: Recorder, label: str, path: str, body: Any, manager: str = "one", **query: str
) -> Answer:
    return await r(label, "PATCH", path, body, kind=APPLY, query=by(manager, **query))


async def p09_managers_of_every_kind(r: Recorder) -> None:
    for label, path, body in small_objects():
        name = body["metadata"]["name"]
        made = await r(f"create-{label}", "POST", path, body, query=by("maker"))
        await r(f"put-{label}", "PUT", f"{path}/{name}", made.json, query=by("same"))
        change = {"metadata": {"labels": {"changed": "yes"}, "annotations": {"a": "b"}}}
        await r(f"patch-{label}", "PATCH", f"{path}/{name}", change, kind=MERGE, query=by("other"))
        version, kind = _KINDS[label]
        applied = {"apiVersion": version, "kind": kind, **body}
        await _apply(r, f"apply-{label}", f"{path}/{name}", applied)
        await r.quietly("DELETE", f"{path}/{name}", query={"gracePeriodSeconds": "0"})
        if label != "namespace":
            await _apply(r, f"again-{label}", f"{path}/{name}-2", {
                **applied, "metadata": {**body["metadata"], "name": f"{name}-2"},
            })  # fmt: skip


async def p09_managers_of_updates(r: Recorder) -> None:
    body = _map(a="1", b="2")
    body["metadata"]["labels"] = {"x": "1", "y": "2"}
    await r("create", "POST", MAPS, body, query=by("maker"))
    path = f"{MAPS}/a"
    await r("change", "PATCH", path, {"data": {"a": "3", "c": "4"}}, kind=MERGE, query=by("two"))
    await r("nothing", "PATCH", path, {"data": {"a": "3"}}, kind=MERGE, query=by("three"))
    await r("remove", "PATCH", path, {"data": {"b": None}}, kind=MERGE, query=by("two"))
    await r("all", "PATCH", path, {"metadata": {"labels": None}}, kind=MERGE, query=by("two"))
    steps = [{"op": "add", "path": "/data/d", "value": "x"}]
    await r("json", "PATCH", path, steps, kind=JSON_PATCH, query=by("four"))
    await r("strategic", "PATCH", path, {"data": {"e": "y"}}, kind=STRATEGIC, query=by("five"))
    without = {**_map(a="9"), "metadata": {"name": "a"}}
    await r("put", "PUT", path, without, query=by("six"))
    await r("dry", "PATCH", path, {"data": {"z": "1"}}, kind=MERGE, query=by("dry", dryRun="All"))
    owners = {"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "x",
         "uid": "00000000-0000-0000-0000-000000000001"},
    ], "finalizers": ["example.dev/a"]}}  # fmt: skip
    await r("metadata", "PATCH", path, owners, kind=MERGE, query=by("seven", dryRun="All"))
    # The oldest are joined, and those of one second by name: so names come in their order.
    await r("many", "POST", MAPS, _map("many", a="1"), query=by("m10"))
    for number in range(11, 24):
        change = {"data": {f"k{number}": "x"}}
        await r(f"many-{number}", "PATCH", f"{MAPS}/many", change, kind=MERGE,
                query=by(f"m{number}"))  # fmt: skip
    await r("finish", "PATCH", path, {"metadata": {"finalizers": None}}, kind=MERGE,
            query=by("seven"))  # fmt: skip
    await r("read", "GET", path)


async def p09_managers_are_reset_and_set(r: Recorder) -> None:
    path = f"{MAPS}/a"
    made = (await r("create", "POST", MAPS, _map(a="1"), query=by("maker"))).json
    entries = made["metadata"]["managedFields"]
    await r("reset", "PATCH", path, {"metadata": {"managedFields": [{}]}}, kind=MERGE,
            query=by("x"))  # fmt: skip
    await r("untracked", "PATCH", path, {"data": {"b": "1"}}, kind=MERGE, query=by("x"))
    given = [{**entries[0], "manager": "set"}]
    await r("set", "PATCH", path, {"metadata": {"managedFields": given}}, kind=MERGE,
            query=by("y"))  # fmt: skip
    await r("empty", "PATCH", path, {"metadata": {"managedFields": []}}, kind=MERGE, query=by("y"))
    await r("set-2", "PATCH", path, {"metadata": {"managedFields": given}}, kind=MERGE,
            query=by("y"))  # fmt: skip
    steps = [{"op": "replace", "path": "/metadata/managedFields/0/manager", "value": "renamed"}]
    await r("rename", "PATCH", path, steps, kind=JSON_PATCH, query=by("y"))
    for label, change in (
        ("operation", {"operation": "Melt"}), ("version", {"apiVersion": ""}),
        ("type", {"fieldsType": "FieldsV2"}), ("no-type", {"fieldsType": None}),
        ("fields", {"fieldsV1": {"x": {}}}), ("unknown", {"fieldsV1": {"x:y": {}}}),
        ("unserved", {"apiVersion": "v0"}), ("part", {"subresource": "status"}),
    ):  # fmt: skip
        bad = [{**given[0], **change}]
        await r(f"bad-{label}", "PATCH", path, {"metadata": {"managedFields": bad}}, kind=MERGE,
                query=by("y"))  # fmt: skip
    await r("null", "PATCH", path, {"metadata": {"managedFields": None}}, kind=MERGE, query=by("y"))
    exported = _map("b", a="1")
    exported["metadata"]["managedFields"] = given
    await r("exported", "POST", MAPS, exported, query=by("import"))


async def p09_managers_of_pods_and_status(r: Recorder) -> None:
    two = [
        {"name": "a", "image": "x:1", "ports": [{"containerPort": 80}], "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
        ], "resources": {"requests": {"cpu": "1"}},
         "volumeMounts": [{"name": "v", "mountPath": "/v"}],
         "securityContext": {"privileged": False, "capabilities": {"drop": ["ALL"]}}},
        {"name": "b", "image": "y:1"},
    ]  # fmt: skip
    body = pod("p", containers=two, labels={"app": "x"}, nodeSelector={"a": "b"},
               tolerations=[{"key": "k", "operator": "Exists"}],
               volumes=[{"name": "v", "emptyDir": {}}],
               topologySpreadConstraints=[{
                   "maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway",
                   "labelSelector": {"matchLabels": {"app": "x"}},
               }])  # fmt: skip
    await r("create", "POST", PODS, body, query=by("maker"))
    spec = {"containers": [{"name": "b", "image": "y:2"}]}
    await r("image", "PATCH", f"{PODS}/p", {"spec": spec}, kind=STRATEGIC, query=by("two"))
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await r("status", "PATCH", f"{PODS}/p/status", status, kind=STRATEGIC, query=by("kubelet"))
    labels = {"metadata": {"labels": {"via": "status"}}, "spec": {"priority": 5}}
    await r("labels", "PATCH", f"{PODS}/p/status", labels, kind=MERGE, query=by("kubelet"))
    applied: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    ready = {"status": {"conditions": [{"type": "example.dev/ready", "status": "True"}]}}
    await _apply(r, "apply-status", f"{PODS}/p/status", {**applied, **ready})
    await _apply(r, "status-in-main", f"{PODS}/p", {**applied, **ready}, "main")
    taken = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await _apply(r, "conflict-status", f"{PODS}/p/status", {**applied, **taken})
    await _apply(r, "force-status", f"{PODS}/p/status", {**applied, **taken}, force="true")
    await _apply(r, "missing-status", f"{PODS}/q/status",
                 {**applied, "metadata": {"name": "q"}, **ready})  # fmt: skip
    await r("make-node", "POST", NODES, node("n"), query=by("maker"))
    cordon = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
              "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}  # fmt: skip
    await _apply(r, "node", f"{NODES}/n", cordon)


async def p19_applies(r: Recorder) -> None:
    path = f"{MAPS}/a"
    await _apply(r, "create", path, _map(a="1", b="2"))
    await _apply(r, "same", path, _map(a="1", b="2"))
    await _apply(r, "shared", path, _map(a="1"), "two")
    await _apply(r, "shared-again", path, _map(a="1"), "two")
    await _apply(r, "conflict", path, _map(a="9"), "three")
    await _apply(r, "conflicts", path, _map(a="9", b="9"), "three")
    await _apply(r, "dry-force", path, _map(a="9"), "three", force="true", dryRun="All")
    await _apply(r, "give-up", path, _map(b="2"))
    await _apply(r, "force", path, _map(a="9"), "three", force="true")
    await _apply(r, "remove", path, _map(), "three")
    await r("update", "PATCH", path, {"data": {"b": "5"}}, kind=MERGE, query=by("editor"))
    await _apply(r, "conflict-update", path, _map(b="2"))
    await _apply(r, "force-update", path, _map(b="2"), force="true")
    await _apply(r, "nothing", path, _map())
    await r("read", "GET", path)
    labelled = _map()
    labelled["metadata"] |= {"labels": {"a": "b"}, "annotations": {"c": "d"},
                             "finalizers": ["example.dev/x"]}  # fmt: skip
    await _apply(r, "metadata", path, labelled)
    labelled["metadata"]["finalizers"] = ["example.dev/y"]
    await _apply(r, "finalizers", path, labelled, "two")
    await _apply(r, "drop-metadata", path, _map())
    await r("finish", "PATCH", path, {"metadata": {"finalizers": None}}, kind=MERGE,
            query=by("two"))  # fmt: skip


async def p19_refused_applies(r: Recorder) -> None:
    path = f"{MAPS}/a"
    await r("no-manager", "PATCH", path, _map(a="1"), kind=APPLY)
    await r("empty-manager", "PATCH", path, _map(a="1"), kind=APPLY, query=by(""))
    await r("force-of-merge", "PATCH", path, {}, kind=MERGE, query={"force": "true"})
    await r("cbor", "PATCH", path, _map(), kind="application/apply-patch+cbor", query=by("x"))
    for label, change in (
        ("kind", {"kind": "Secret"}), ("no-kind", {"kind": None}),
        ("version", {"apiVersion": "v2"}), ("group", {"apiVersion": "a.b/v1"}),
        ("nothing", {"kind": None, "apiVersion": None}),
    ):  # fmt: skip
        body = {k: v for k, v in {**_map(a="1"), **change}.items() if v is not None}
        await _apply(r, f"wrong-{label}", path, body)
    for label, metadata in (
        ("name", {"name": "b"}), ("no-name", {}), ("namespace", {"name": "a", "namespace": "b"}),
        ("uid", {"name": "a", "uid": "00000000-0000-0000-0000-000000000000"}),
        ("version", {"name": "a", "resourceVersion": "1"}),
        ("managers", {"name": "a", "managedFields": []}), ("generate", {"generateName": "a"}),
    ):  # fmt: skip
        await _apply(r, f"new-{label}", path, {**_map(a="1"), "metadata": metadata})
    await _apply(r, "make", path, _map(a="1"))
    for label, metadata in (
        ("name", {"name": "b"}), ("no-name", {}),
        ("uid", {"name": "a", "uid": "00000000-0000-0000-0000-000000000000"}),
        ("managers", {"name": "a", "managedFields": [{}]}),
    ):  # fmt: skip
        await _apply(r, f"old-{label}", path, {**_map(a="2"), "metadata": metadata})
    stale = {"name": "a", "resourceVersion": "1"}
    await _apply(r, "old-version", path, {**_map(a="2"), "metadata": stale})
    for label, text in (
        ("yaml", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: '1'}\n"),
        ("text", b"nonsense"), ("list", b"[]"), ("empty", b""), ("open", b"{"),
        ("tabs", b"a:\n\t- b"),
    ):  # fmt: skip
        await _apply(r, f"body-{label}", path, text)
    twice = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: '1'\n  a: '2'\n"
    for mode in ("Ignore", "Warn", "Strict"):
        await _apply(r, f"twice-{mode}", path, twice, fieldValidation=mode, force="true")
    await _apply(r, "unknown", path, {**_map(a="1"), "dta": {}})
    await _apply(r, "type", path, {**_map(), "data": ["x"]})
    await _apply(r, "invalid", path, {**_map(), "data": {"a b": "x"}})
    await _apply(r, "nowhere", f"{NAMESPACES}/nowhere/configmaps/a", _map(a="1"))
    await _apply(r, "no-such", f"{MAPS[:-1]}z/a", _map(a="1"))
    doubled = pod("p", containers=[{"name": "a", "image": "x"}, {"name": "a", "image": "y"}])
    await _apply(r, "doubled", f"{PODS}/p", doubled)
    nameless = pod("p", containers=[{"image": "x"}])
    await _apply(r, "nameless", f"{PODS}/p", nameless)


async def p19_applied_lists(r: Recorder) -> None:
    def service(*ports: dict[str, Any], **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"clusterIP": "None", **spec, "ports": list(ports)},
        }  # fmt: skip

    path = f"{SERVICES}/s"
    web = {"name": "web", "port": 80, "protocol": "TCP"}
    tls = {"name": "tls", "port": 443, "protocol": "TCP"}
    dns = {"name": "dns", "port": 53, "protocol": "UDP"}
    await _apply(r, "create", path, service(web, tls, selector={"a": "b"}))
    await _apply(r, "second", path, service(dns), "two")
    await _apply(r, "order", path, service(tls, web, selector={"a": "b"}))
    await _apply(r, "default-key", path, service(dns, {"name": "x", "port": 99}), "two")
    await _apply(r, "change-item", path, service({**web, "targetPort": 8080}, tls,
                                                 selector={"a": "b"}))  # fmt: skip
    await _apply(r, "item-conflict", path, service({**web, "targetPort": 9}), "three")
    await _apply(r, "fewer", path, service(tls, selector={"a": "b"}))
    await _apply(r, "atomic", path, service(tls, selector={"c": "d"}), "three")
    await _apply(r, "atomic-force", path, service(tls, selector={"c": "d"}), "three", force="true")

    def applied(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
        return pod("p", containers=list(containers), **spec)

    path = f"{PODS}/p"
    main = {"name": "main", "image": "x:1", "env": [{"name": "A", "value": "1"}]}
    await _apply(r, "pod", path, applied(main, {"name": "side", "image": "y:1"}))
    await _apply(r, "pod-image", path, applied({"name": "main", "image": "x:2"}), "two")
    await _apply(r, "pod-force", path, applied({"name": "main", "image": "x:2"}), "two",
                 force="true")  # fmt: skip
    await _apply(r, "pod-immutable", path, applied(main), force="true")
    await _apply(r, "pod-tolerations", path, {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"tolerations": [{"key": "a", "operator": "Exists"}]},
    }, "three")  # fmt: skip


def typed_crd() -> dict[str, Any]:
    """The small custom kind with every kind of list and map, in two versions."""
    crd = widget_crd()
    version = crd["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    item: dict[str, Any] = {
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"type": "string"}, "zone": {"type": "string", "default": "a"},
            "weight": {"type": "integer"},
        },
    }  # fmt: skip
    schema["spec"]["properties"] |= {
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "parts": {"type": "array", "items": item, "x-kubernetes-list-type": "map",
                  "x-kubernetes-list-map-keys": ["name", "zone"]},
        "whole": {"type": "array", "items": {"type": "string"}},
        "limits": {"type": "object", "additionalProperties": {"type": "string"}},
        "ref": {"type": "object", "x-kubernetes-map-type": "atomic",
                "properties": {"name": {"type": "string"}, "kind": {"type": "string"}}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "port": {"x-kubernetes-int-or-string": True},
        "mode": {"type": "string", "default": "fast"},
        "kept": {"type": "string", "nullable": True},
    }  # fmt: skip
    second = json.loads(json.dumps(version))
    crd["spec"]["versions"].append({**second, "name": "v2", "storage": False})
    return crd


async def p19_applied_custom_resources(r: Recorder) -> None:
    await r("definition", "POST", CRDS, typed_crd(), query=by("maker"))
    await r.until(WIDGETS, lambda answer: answer.status == 200)
    path = f"{WIDGETS}/w"

    def made(**spec: Any) -> dict[str, Any]:
        return widget("w", **spec)

    full: dict[str, Any] = {
        "tags": ["b", "a"], "parts": [{"name": "x", "weight": 1}, {"name": "y", "zone": "b"}],
        "whole": ["1", "2"], "limits": {"cpu": "1"}, "ref": {"name": "n", "kind": "k"},
        "free": {"deep": {"list": [1, {"a": 2}], "n": 1}, "flat": "x"}, "port": 80,
    }  # fmt: skip
    await _apply(r, "create", path, made(**full))
    await r("created-otherwise", "POST", WIDGETS, {**widget("v", **full)}, query=by("maker"))
    await _apply(r, "over-update", f"{WIDGETS}/v", widget("v", size=2, port="http"))
    await _apply(r, "set", path, made(tags=["c", "a"]), "two")
    await _apply(r, "map", path, made(parts=[{"name": "x", "zone": "a", "weight": 2}]), "two")
    await _apply(
        r, "map-force", path, made(parts=[{"name": "x", "weight": 2}]), "two", force="true"
    )
    await _apply(r, "whole", path, made(whole=["3"]), "two")
    await _apply(r, "whole-force", path, made(whole=["3"]), "two", force="true")
    await _apply(r, "limits", path, made(limits={"memory": "1"}), "three")
    await _apply(r, "ref", path, made(ref={"name": "m"}), "three")
    await _apply(r, "free", path, made(free={"deep": {"m": 2}, "other": [1]}), "three")
    await _apply(r, "free-conflict", path, made(free={"deep": {"n": 3, "list": []}}), "three")
    await _apply(r, "fewer", path, made(tags=["b"], limits={"cpu": "1"}))
    await _apply(r, "null", path, made(kept=None, limits=None), "four")
    await _apply(r, "default", path, made(mode="slow"), "four")
    await _apply(r, "empty", path, made(limits={}, tags=[], free={}), "five")
    await _apply(r, "unknown", path, made(nope=1))
    await _apply(r, "wrong", path, made(size="big"), force="true")
    await _apply(r, "duplicate", path, made(tags=["a", "a"]))
    await _apply(r, "no-key", path, made(parts=[{"weight": 1}]))
    status = {**widget("w"), "status": {"state": "up", "replicas": 2}}
    await _apply(r, "status", f"{path}/status", status, "controller")
    in_main = {**made(limits={"cpu": "1"}), "status": {"state": "down"}}
    await _apply(r, "status-in-main", path, in_main)
    await _apply(r, "status-conflict", f"{path}/status",
                 {**widget("w"), "status": {"state": "down"}}, "other")  # fmt: skip
    await r("status-update", "PATCH", f"{path}/status", {"status": {"state": "down"}}, kind=MERGE,
            query=by("controller"))  # fmt: skip
    second = path.replace("/v1/", "/v2/")
    newer = {**made(limits={"cpu": "1"}), "apiVersion": "example.dev/v2"}
    await _apply(r, "other-version", second, newer)
    await _apply(r, "wrong-version", path, newer)
    await r("update-v2", "PATCH", second, {"spec": {"port": 5}}, kind=MERGE, query=by("editor"))
    await r("update-v1", "PATCH", path, {"spec": {"port": 6}}, kind=MERGE, query=by("editor"))
    scale = {"spec": {"replicas": 3}}
    await r("scale", "PATCH", f"{path}/scale", scale, kind=MERGE, query=by("scaler"))
    await r("scaled", "GET", path)


async def p19_apply_after_other_writes(r: Recorder) -> None:
    await r("create", "POST", MAPS, config("a", x="1"), query=by("maker"))
    await r("reset", "PATCH", f"{MAPS}/a", {"metadata": {"managedFields": [{}]}}, kind=MERGE)
    await _apply(r, "before-first", f"{MAPS}/a", _map(key="other"))
    await _apply(r, "before-force", f"{MAPS}/a", _map(key="other"), force="true")
    body = _map("k", a="1", b="2")
    text = json.dumps(body, separators=(",", ":")) + "\n"
    body["metadata"]["annotations"] = {LAST_APPLIED: text}
    client = by("kubectl-client-side-apply")
    await r("client-side", "POST", MAPS, body, query=client)
    await _apply(r, "kubectl-same", f"{MAPS}/k", _map("k", a="1", b="2"), "kubectl")
    await _apply(r, "kubectl-change", f"{MAPS}/k", _map("k", a="3"), "kubectl")
    await r("drift", "PATCH", f"{MAPS}/k", {"data": {"b": "9"}}, kind=MERGE, query=by("editor"))
    await _apply(r, "kubectl-drift", f"{MAPS}/k", _map("k", a="4", b="5"), "kubectl")
    await _apply(r, "not-kubectl", f"{MAPS}/k", _map("k", a="6"), "flux")
    created = pod("p")
    await r("pod", "POST", PODS, created, query=by("maker"))
    await r("pod-reset", "PATCH", f"{PODS}/p", {"metadata": {"managedFields": []}}, kind=MERGE)
    labelled = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}}
    await _apply(r, "pod-first", f"{PODS}/p", labelled)
