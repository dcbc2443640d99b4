"""Scenarios of writing: objects of every kind, patches, sub-resources, deletes.

A scenario is a function of a `Recorder`. It starts from an empty cluster, and does not look at the
answers except to go on from them.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.http_server import config, pod
from tests.conformance.recorder import Recorder
from tests.conformance.vocabulary import (
    BUDGETS,
    CLAIMS,
    CLASSES,
    EVENTS,
    HOLD,
    JSON_PATCH,
    LEASES,
    MAPS,
    MERGE,
    NAMESPACES,
    NODES,
    NS,
    PODS,
    SECRETS,
    SERVICES,
    STRATEGIC,
    TABLE,
    held,
    node,
)


def small_objects() -> tuple[tuple[str, str, dict[str, Any]], ...]:
    """A small object of each kind: a label, the path of its kind, the object."""
    return (
        ("pod", PODS, pod("a", labels={"app": "x"})),
        ("node", NODES, node("a")),
        ("secret", SECRETS, {"metadata": {"name": "a"}, "stringData": {"k": "v"}}),
        ("namespace", NAMESPACES, {"metadata": {"name": "team-a"}}),
        ("service", SERVICES, {
            "metadata": {"name": "a"},
            "spec": {"selector": {"app": "x"}, "clusterIP": "None", "ports": [{"port": 80}]},
        }),
        ("account", f"{NS}/serviceaccounts", {"metadata": {"name": "a"}}),
        ("event", EVENTS, {
            "metadata": {"name": "a"}, "reason": "Made", "message": "it is made", "type": "Normal",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"},
        }),
        ("lease", LEASES, {
            "metadata": {"name": "a"},
            "spec": {"holderIdentity": "me", "renewTime": "2026-01-01T00:00:00.123456Z"},
        }),
        ("class", CLASSES, {"metadata": {"name": "high"}, "value": 100}),
        ("claim", CLAIMS, {"metadata": {"name": "a"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }}),
        ("budget", BUDGETS, {"metadata": {"name": "a"}, "spec": {
            "minAvailable": 1, "selector": {"matchLabels": {"app": "x"}},
        }}),
    )  # fmt: skip


async def p01_p06_objects_of_every_kind(r: Recorder) -> None:
    for label, path, body in small_objects():
        made = await r(f"create-{label}", "POST", path, body)
        name = body["metadata"]["name"]
        await r(f"get-{label}", "GET", f"{path}/{name}")
        again = made.json
        await r(f"put-{label}", "PUT", f"{path}/{name}", again)
        change = {"metadata": {"labels": {"changed": "yes"}}}
        await r(f"patch-{label}", "PATCH", f"{path}/{name}", change, kind=MERGE)
        await r(f"missing-{label}", "GET", f"{path}/nope")
        await r(f"table-{label}", "GET", f"{path}/{name}", accept=TABLE)


async def p04_p08_what_is_not_trusted_and_names(r: Recorder) -> None:
    body = config("a")
    body["metadata"] |= {
        "uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z", "selfLink": "/x",
    }  # fmt: skip
    await r("owned", "POST", MAPS, body)
    body["metadata"] = {"name": "b", "resourceVersion": "5"}
    await r("version", "POST", MAPS, body)
    await r("no-name", "POST", MAPS, {"metadata": {}})
    for label, name in (("upper", "Upper"), ("under", "a_b"), ("dash", "-a"), ("dots", "a..b"),
                        ("long", "x" * 254)):  # fmt: skip
        await r(f"name-{label}", "POST", MAPS, config(name))
    await r("namespace-name", "POST", NAMESPACES, {"metadata": {"name": "a.b"}})
    await r("service-name", "POST", SERVICES, {
        "metadata": {"name": "1a"}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}
    })  # fmt: skip
    await r("generate-bad", "POST", MAPS, {"metadata": {"generateName": "Bad-"}})
    other = config("c")
    other["metadata"]["namespace"] = "other"
    await r("other-namespace", "POST", MAPS, other)
    await r("no-namespace", "POST", f"{NAMESPACES}/nowhere/configmaps", config("a"))
    await r("kind", "POST", MAPS, config("d") | {"kind": "Secret"})
    await r("version-of-kind", "POST", MAPS, config("d") | {"apiVersion": "v2"})
    labels = config("e") | {"data": {"a b": "c"}}
    labels["metadata"] |= {"labels": {"a b": "c", "ok": "no space here"}, "annotations": {"-": "x"}}
    await r("labels", "POST", MAPS, labels)
    owners = config("f")
    owners["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "x"}]
    await r("owners", "POST", MAPS, owners)
    finalizers = config("g")
    finalizers["metadata"]["finalizers"] = ["nonsense"]
    await r("finalizers", "POST", MAPS, finalizers)


async def p11_p13_puts(r: Recorder) -> None:
    first = (await r("create", "POST", MAPS, config("a"))).json
    await r("put", "PUT", f"{MAPS}/a", {**first, "data": {"key": "new"}})
    await r("stale", "PUT", f"{MAPS}/a", {**first, "data": {"key": "lost"}})
    await r("no-version", "PUT", f"{MAPS}/a", config("a"))
    await r("other-name", "PUT", f"{MAPS}/b", config("a"))
    await r("missing", "PUT", f"{MAPS}/b", config("b"))
    other = config("a")
    other["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    await r("other-uid", "PUT", f"{MAPS}/a", other)
    await r("no-such-name", "PUT", f"{MAPS}/a", {"data": {}})
    await r("taken", "POST", MAPS, config("a"))
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}}
    await r("lease-create-on-put", "PUT", f"{LEASES}/l", lease)
    await r("lease-put-without-version", "PUT", f"{LEASES}/l", lease)
    await r("lease-bad", "POST", LEASES, {"metadata": {"name": "m"},
                                          "spec": {"leaseDurationSeconds": 0}})  # fmt: skip
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
    await r("event-create-on-put", "PUT", f"{EVENTS}/e", event)
    await r("event-elsewhere", "POST", EVENTS, {"metadata": {"name": "f"},
                                                "involvedObject": {"namespace": "x"}})  # fmt: skip


async def p16_p20_patches(r: Recorder) -> None:
    body = config("a", x="1", y="2")
    body["metadata"]["finalizers"] = ["example.dev/a", "example.dev/b"]
    made = (await r("create", "POST", MAPS, body)).json
    path = f"{MAPS}/a"
    await r("merge", "PATCH", path, {"metadata": {"labels": {"x": None}, "finalizers": None}},
            kind=MERGE)  # fmt: skip
    steps = [{"op": "replace", "path": "/data/key", "value": "new"}]
    await r("json", "PATCH", path, steps, kind=JSON_PATCH)
    for label, step in (
        ("test", {"op": "test", "path": "/data/key", "value": "other"}),
        ("pointer", {"op": "remove", "path": "/data/nope"}),
        ("deep", {"op": "add", "path": "/spec/a/b", "value": 1}),
        ("op", {"op": "melt", "path": "/data"}),
        ("no-path", {"op": "remove"}),
    ):
        await r(f"json-{label}", "PATCH", path, [step], kind=JSON_PATCH)
    await r("json-no-list", "PATCH", path, {"op": "remove"}, kind=JSON_PATCH)
    await r("merge-list", "PATCH", path, [], kind=MERGE)
    await r("not-json", "PATCH", path, b"{", kind=MERGE)
    await r("type", "PATCH", path, b"{}", kind="text/plain")
    await r("no-change", "PATCH", path, {"data": {"key": "new"}}, kind=MERGE)
    version = made["metadata"]["resourceVersion"]
    await r("conditional", "PATCH", path, {"metadata": {"resourceVersion": version}}, kind=MERGE)
    await r("missing", "PATCH", f"{MAPS}/nope", {}, kind=MERGE)
    await r("rename", "PATCH", path, {"metadata": {"name": "b"}}, kind=MERGE)
    await r("kind", "PATCH", path, {"kind": "Secret"}, kind=MERGE)
    two = [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}]
    await r("pod", "POST", PODS, pod("p", containers=two, labels={"old": "label"}))
    spec = {"containers": [{"name": "b", "image": "y:2"}]}
    await r("strategic", "PATCH", f"{PODS}/p", {"spec": spec}, kind=STRATEGIC)
    reorder = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
    await r("strategic-order", "PATCH", f"{PODS}/p", {"spec": reorder}, kind=STRATEGIC)
    toleration = {"key": "k", "operator": "Exists"}
    await r("strategic-tolerations", "PATCH", f"{PODS}/p", {"spec": {"tolerations": [toleration]}},
            kind=STRATEGIC)  # fmt: skip
    condition = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await r("strategic-status", "PATCH", f"{PODS}/p/status", condition, kind=STRATEGIC)
    delete = {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}
    await r("strategic-delete", "PATCH", f"{PODS}/p/status", delete, kind=STRATEGIC)
    await r(
        "strategic-labels",
        "PATCH",
        f"{PODS}/p",
        {"metadata": {"labels": {"$patch": "replace", "only": "this"}}},
        kind=STRATEGIC,
    )
    await r("strategic-bad", "PATCH", f"{PODS}/p", {"spec": {"containers": [{"image": "z"}]}},
            kind=STRATEGIC)  # fmt: skip


async def p15_bindings_and_evictions(r: Recorder) -> None:
    uid = (await r("create", "POST", PODS, pod("p"))).json["metadata"]["uid"]
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    wrong = {**binding, "metadata": {"name": "p", "uid": "other"}}
    await r("other-uid", "POST", f"{PODS}/p/binding", wrong)
    await r("no-target", "POST", f"{PODS}/p/binding", {"metadata": {"name": "p"}})
    right = {**binding, "metadata": {"name": "p", "uid": uid}}
    await r("bind", "POST", f"{PODS}/p/binding", right)
    await r("bound", "GET", f"{PODS}/p")
    await r("bind-again", "POST", f"{PODS}/p/binding", right)
    await r("bind-missing", "POST", f"{PODS}/q/binding", {**binding, "metadata": {"name": "q"}})
    gated = pod("g", schedulingGates=[{"name": "example.dev/wait"}])
    await r("gated", "POST", PODS, gated)
    await r("bind-gated", "POST", f"{PODS}/g/binding", {**binding, "metadata": {"name": "g"}})
    await r("ungate", "PATCH", f"{PODS}/g", {"spec": {"schedulingGates": None}}, kind=MERGE)
    await r("gate-again", "PATCH", f"{PODS}/g",
            {"spec": {"schedulingGates": [{"name": "a.b/c"}]}}, kind=MERGE)  # fmt: skip
    await r("evict-pending", "POST", f"{PODS}/g/eviction",
            {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "g"}})  # fmt: skip
    await r(
        "evict-missing",
        "POST",
        f"{PODS}/nope/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "nope"}},
    )
    await r(
        "status-put",
        "PUT",
        f"{PODS}/p/status",
        {**(await r.quietly("GET", f"{PODS}/p")).json, "status": {"phase": "Running"}},
    )


async def p21_p24_dry_runs_immutable_fields_and_sizes(r: Recorder) -> None:
    dry = {"dryRun": "All"}
    await r("dry-create", "POST", PODS, pod("p"), query=dry)
    await r("dry-nothing", "GET", f"{PODS}/p")
    await r("dry-invalid", "POST", PODS, pod("P"), query=dry)
    await r("dry-value", "POST", PODS, pod("p"), query={"dryRun": "Some"})
    await r("create", "POST", PODS, pod("p"))
    await r("dry-patch", "PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, query=dry,
            kind=MERGE)  # fmt: skip
    await r("dry-delete", "DELETE", f"{PODS}/p", query=dry)
    for label, change in (
        ("node", {"nodeName": "n"}), ("restart", {"restartPolicy": "Never"}),
        ("network", {"hostNetwork": True}), ("selector", {"nodeSelector": {"a": "b"}}),
        ("containers", {"containers": [{"name": "main", "image": "none", "command": ["x"]}]}),
        ("grace", {"terminationGracePeriodSeconds": 5}), ("none", {"containers": None}),
        ("deadline", {"activeDeadlineSeconds": 5}), ("priority", {"priority": 4}),
    ):  # fmt: skip
        await r(f"pod-{label}", "PATCH", f"{PODS}/p", {"spec": change}, kind=MERGE)
    frozen = config("frozen") | {"immutable": True}
    await r("immutable", "POST", MAPS, frozen)
    await r("immutable-data", "PATCH", f"{MAPS}/frozen", {"data": {"key": "x"}}, kind=MERGE)
    await r("immutable-off", "PATCH", f"{MAPS}/frozen", {"immutable": False}, kind=MERGE)
    await r("class", "POST", CLASSES, {"metadata": {"name": "high"}, "value": 1})
    await r("class-value", "PATCH", f"{CLASSES}/high", {"value": 2}, kind=MERGE)
    await r("secret", "POST", SECRETS, {"metadata": {"name": "s"}, "type": "Opaque"})
    await r("secret-type", "PATCH", f"{SECRETS}/s", {"type": "other"}, kind=MERGE)
    notes = config("notes")
    notes["metadata"]["annotations"] = {"a": "x" * (256 * 1024)}
    await r("annotations", "POST", MAPS, notes)
    await r("large-data", "POST", MAPS, config("large") | {"data": {"k": "x" * (1024 * 1024 + 1)}})
    await r("too-large", "POST", MAPS, config("huge") | {"data": {"k": "x" * (3 * 1024 * 1024)}})


async def p22_field_validation(r: Recorder) -> None:
    unknown = config("a") | {"dta": {}}
    for mode in ("Strict", "Warn", "Ignore"):
        await r(f"unknown-{mode}", "POST", MAPS, unknown,
                query={"fieldValidation": mode, "dryRun": "All"})  # fmt: skip
    await r("unknown-default", "POST", MAPS, unknown)
    twice = (
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"b"},"data":{"a":"1","a":"2"}}'
    )
    for mode in ("Strict", "Warn", "Ignore"):
        await r(f"twice-{mode}", "POST", MAPS, twice,
                query={"fieldValidation": mode, "dryRun": "All"})  # fmt: skip
    deep = pod("p", containers=[{"name": "m", "image": "i", "imagee": "x", "ports": [{"prt": 1}]}])
    await r("deep", "POST", PODS, deep, query={"fieldValidation": "Strict"})
    await r("wrong-mode", "POST", PODS, deep, query={"fieldValidation": "Maybe"})
    await r("patch", "PATCH", f"{MAPS}/a", {"dta": 1}, query={"fieldValidation": "Strict"},
            kind=MERGE)  # fmt: skip


async def p08_pods_that_are_wrong(r: Recorder) -> None:
    main = {"name": "main", "image": "i"}
    for label, spec in (
        ("empty", {"containers": []}),
        ("restart", {"restartPolicy": "Sometimes"}),
        ("name", {"containers": [{**main, "name": "A"}]}),
        ("no-image", {"containers": [{"name": "main"}]}),
        ("twice", {"containers": [main, main]}),
        ("request", {"containers": [
            {**main, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]}),
        ("quantity", {"containers": [{**main, "resources": {"requests": {"cpu": "x"}}}]}),
        ("device", {"containers": [{**main, "resources": {"requests": {"a.b/gpu": "1"}}}]}),
        ("whole-device", {"resources": {"limits": {"a.b/gpu": "1"}}}),
        ("whole-less", {"resources": {"requests": {"cpu": "500m"}}, "containers": [
            {**main, "resources": {"requests": {"cpu": "1"}}}]}),
        ("whole-limit", {"resources": {"limits": {"cpu": "1"}}, "containers": [
            {**main, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}]}),
        ("whole-pages", {"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}),
        ("mount", {"containers": [{**main, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}),
        ("port", {"containers": [{**main, "ports": [{"containerPort": 70000}]}]}),
        ("env", {"containers": [{**main, "env": [{"name": ""}]}]}),
        ("grace", {"terminationGracePeriodSeconds": -1}),
        ("node", {"nodeName": "Bad Name"}),
        ("toleration", {"tolerations": [{"key": "a", "operator": "Near"}]}),
        ("priority", {"priorityClassName": "none"}),
        ("priority-set", {"priority": 7}),
        ("type", {"containers": [{**main, "image": 5}]}),
        ("type-spec", {"containers": "main"}),
    ):  # fmt: skip
        await r(label, "POST", PODS, pod(f"p-{label}", **spec))


async def p25_p34_deletes(r: Recorder) -> None:
    await r("held", "POST", MAPS, held("a"))
    await r("delete-held", "DELETE", f"{MAPS}/a")
    await r("delete-again", "DELETE", f"{MAPS}/a")
    await r("marked", "GET", f"{MAPS}/a")
    await r("taken", "POST", MAPS, config("a"))
    await r("more", "PATCH", f"{MAPS}/a", {"metadata": {"finalizers": [HOLD, "a.b/c"]}}, kind=MERGE)
    await r("revive", "PATCH", f"{MAPS}/a", {"metadata": {"deletionTimestamp": None}}, kind=MERGE)
    await r("free", "PATCH", f"{MAPS}/a", {"metadata": {"finalizers": None}}, kind=MERGE)
    await r("gone", "GET", f"{MAPS}/a")
    await r("missing", "DELETE", f"{MAPS}/a")
    made = (await r("plain", "POST", MAPS, config("b"))).json["metadata"]
    for label, precondition in (("uid", {"uid": "other"}), ("version", {"resourceVersion": "1"})):
        await r(f"pre-{label}", "DELETE", f"{MAPS}/b", {"preconditions": precondition})
    right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
    await r("pre-right", "DELETE", f"{MAPS}/b", {"preconditions": right})
    await r("policy", "DELETE", f"{MAPS}/b", {"propagationPolicy": "Sideways"})
    await r("policy-query", "DELETE", f"{MAPS}/b", query={"propagationPolicy": "Sideways"})
    await r("pod", "POST", PODS, pod("p", nodeName="n"))
    await r("pod-delete", "DELETE", f"{PODS}/p")
    await r("pod-again", "DELETE", f"{PODS}/p")
    await r("pod-sooner", "DELETE", f"{PODS}/p", query={"gracePeriodSeconds": "5"})
    await r("pod-later", "DELETE", f"{PODS}/p", query={"gracePeriodSeconds": "60"})
    await r("pod-now", "DELETE", f"{PODS}/p", query={"gracePeriodSeconds": "0"})
    await r("pod-gone", "GET", f"{PODS}/p")
    await r("pending", "POST", PODS, pod("q"))
    await r("pending-delete", "DELETE", f"{PODS}/q")
    for name, team in (("c", "red"), ("d", "blue"), ("e", "red")):
        await r.quietly("POST", MAPS, config(name, team=team))
    await r("collection", "DELETE", MAPS, query={"labelSelector": "team=red"})
    await r("left", "GET", MAPS)
    await r("node", "POST", NODES, node("n"))
    await r("node-delete", "DELETE", f"{NODES}/n")
    await r("namespaces", "DELETE", NAMESPACES)


async def p29_p30_owners(r: Recorder) -> None:
    parent = (await r("parent", "POST", MAPS, config("parent"))).json["metadata"]
    child = held("child")
    child["metadata"]["ownerReferences"] = [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "uid": parent["uid"],
        "blockOwnerDeletion": True, "controller": True,
    }]  # fmt: skip
    await r("child", "POST", MAPS, child)
    await r("foreground", "DELETE", f"{MAPS}/parent", query={"propagationPolicy": "Foreground"})
    await r.until(f"{MAPS}/child", lambda a: "deletionTimestamp" in a.json["metadata"])
    await r("child-marked", "GET", f"{MAPS}/child")
    await r("parent-waits", "GET", f"{MAPS}/parent")
    free = {"metadata": {"finalizers": None}}
    await r("child-free", "PATCH", f"{MAPS}/child", free, kind=MERGE)
    await r.until(f"{MAPS}/parent", lambda a: a.status == 404)
    again = (await r("parent-again", "POST", MAPS, config("parent"))).json["metadata"]
    child["metadata"]["ownerReferences"][0]["uid"] = again["uid"]
    del child["metadata"]["finalizers"]
    await r("child-again", "POST", MAPS, child)
    await r("orphan", "DELETE", f"{MAPS}/parent", query={"propagationPolicy": "Orphan"})
    await r.until(f"{MAPS}/parent", lambda a: a.status == 404)
    await r("orphaned", "GET", f"{MAPS}/child")


async def p32_namespaces(r: Recorder) -> None:
    await r("create", "POST", NAMESPACES, {"metadata": {"name": "team"}})
    maps = f"{NAMESPACES}/team/configmaps"
    await r.quietly("POST", maps, held("held"))
    await r("delete", "DELETE", f"{NAMESPACES}/team")
    await r("late", "POST", maps, config("late"))
    await r("terminating", "GET", f"{NAMESPACES}/team")
    free = {"metadata": {"finalizers": None}}
    await r.quietly("PATCH", f"{maps}/held", free, headers={"Content-Type": MERGE})
    await r("default", "DELETE", f"{NAMESPACES}/default")
    await r(
        "finalize-missing", "PUT", f"{NAMESPACES}/nope/finalize", {"metadata": {"name": "nope"}}
    )
