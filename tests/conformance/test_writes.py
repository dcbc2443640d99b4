"""Points 11 to 18, 20, 21, 23 and 64 of the checklist: writes, concurrency, patches, admission."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.conformance.http_server import config, pod, widget, widget_crd
from tests.conformance.target import Answer, Target
from tests.patience import PATIENCE_SECONDS

NS = "/api/v1/namespaces/default"
MAPS = f"{NS}/configmaps"
PODS = f"{NS}/pods"
NODES = "/api/v1/nodes"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.dev/v1/namespaces/default/widgets"


async def patch(target: Target, path: str, body: Any, kind: str = "merge-patch") -> Answer:
    headers = {"Content-Type": f"application/{kind}+json"}
    return await target.request("PATCH", path, body, headers=headers)


async def test_p11_put_with_stale_version_is_a_conflict(target: Target) -> None:
    first = (await target.request("POST", MAPS, config("a"))).json
    changed = {**first, "data": {"key": "new"}}
    assert (await target.request("PUT", f"{MAPS}/a", changed)).status == 200
    stale = await target.request("PUT", f"{MAPS}/a", {**first, "data": {"key": "lost"}})
    assert (stale.status, stale.json["reason"]) == (409, "Conflict")
    assert stale.json["details"] == {"name": "a", "kind": "configmaps"}
    assert (await target.request("GET", f"{MAPS}/a")).json["data"] == {"key": "new"}


async def test_p11_put_without_version_is_unconditional_only_for_kinds_that_allow_it(
    target: Target,
) -> None:
    await target.request("POST", CRDS, widget_crd())
    await target.request("POST", MAPS, config("a"))
    await target.request("POST", WIDGETS, widget("w"))
    assert (await target.request("PUT", f"{MAPS}/a", config("a"))).status == 200
    answer = await target.request("PUT", f"{WIDGETS}/w", widget("w", size=2))
    assert answer.status == 422
    assert answer.json["details"]["causes"][0]["field"] == "metadata.resourceVersion"


async def test_p12_put_checks_name_uid_and_existence(target: Target) -> None:
    created = (await target.request("POST", MAPS, config("a"))).json
    assert (await target.request("PUT", f"{MAPS}/b", config("a"))).status == 400
    assert (await target.request("PUT", f"{MAPS}/b", config("b"))).status == 404
    created["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    assert (await target.request("PUT", f"{MAPS}/a", created)).status == 409


async def test_p13_a_taken_name_already_exists_even_while_it_terminates(target: Target) -> None:
    body = config("a")
    body["metadata"]["finalizers"] = ["example.dev/hold"]
    await target.request("POST", MAPS, body)
    taken = await target.request("POST", MAPS, config("a"))
    assert (taken.status, taken.json["reason"]) == (409, "AlreadyExists")
    assert taken.json["message"] == 'configmaps "a" already exists'
    await target.request("DELETE", f"{MAPS}/a")
    assert (await target.request("POST", MAPS, config("a"))).json["reason"] == "AlreadyExists"


async def test_p14_spec_and_status_are_written_apart(target: Target) -> None:
    await target.request("POST", CRDS, widget_crd())
    body = widget("w") | {"status": {"state": "ignored"}}
    created = (await target.request("POST", WIDGETS, body)).json
    assert "status" not in created
    path = f"{WIDGETS}/w"
    both = {"spec": {"size": 9}, "status": {"state": "on"}, "metadata": {"labels": {"a": "b"}}}
    by_status = (await patch(target, f"{path}/status", both)).json
    assert (by_status["spec"], by_status["status"]) == ({"size": 1}, {"state": "on"})
    by_main = (await patch(target, path, {"spec": {"size": 2}, "status": {"state": "off"}})).json
    assert (by_main["spec"], by_main["status"]) == ({"size": 2}, {"state": "on"})


async def test_p14_a_status_put_of_a_pod_takes_labels_but_no_spec(target: Target) -> None:
    created = (await target.request("POST", PODS, pod("p"))).json
    created["metadata"]["labels"] = {"a": "b"}
    created["spec"]["nodeName"] = "elsewhere"
    created["status"]["phase"] = "Running"
    stored = (await target.request("PUT", f"{PODS}/p/status", created)).json
    assert stored["status"]["phase"] == "Running"
    assert stored["metadata"]["labels"] == {"a": "b"}
    assert "nodeName" not in stored["spec"]


async def test_p15_binding_gives_a_pod_its_node_once(target: Target) -> None:
    created = (await target.request("POST", PODS, pod("p"))).json
    uid = created["metadata"]["uid"]

    def binding(node: str, **metadata: str) -> dict[str, Any]:
        return {
            "kind": "Binding", "apiVersion": "v1", "metadata": {"name": "p", **metadata},
            "target": {"kind": "Node", "name": node},
        }  # fmt: skip

    path = f"{PODS}/p/binding"
    assert (await target.request("POST", path, binding("n", uid="other"))).status == 409
    assert (await target.request("POST", path, binding("n", uid=uid))).status == 201
    bound = (await target.request("GET", f"{PODS}/p")).json
    assert bound["spec"]["nodeName"] == "n"
    scheduled = [c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert [c["status"] for c in scheduled] == ["True"]
    again = await target.request("POST", path, binding("n"))
    assert (again.status, again.json["reason"]) == (409, "Conflict")
    assert 'already assigned to node "n"' in again.json["message"]


async def test_p15_a_gated_pod_cannot_be_bound(target: Target) -> None:
    await target.request("POST", PODS, pod("p", schedulingGates=[{"name": "example.dev/wait"}]))
    body = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    assert (await target.request("POST", f"{PODS}/p/binding", body)).status == 409
    assert (await patch(target, f"{PODS}/p", {"spec": {"schedulingGates": None}})).status == 200
    assert (await target.request("POST", f"{PODS}/p/binding", body)).status == 201


async def test_p15_an_eviction_asks_the_disruption_budget(target: Target) -> None:
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("a", "b"):
        await target.request("POST", PODS, pod(name, labels={"app": "x"}, nodeName="n"))
        await patch(target, f"{PODS}/{name}/status", {"status": ready})
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    budget = {
        "metadata": {"name": "x"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}},
    }
    assert (await target.request("POST", budgets, budget)).status == 201
    eviction = {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": "a"}}
    await target.request("POST", f"{PODS}/a/eviction", eviction, query={"dryRun": "All"})
    assert "deletionTimestamp" not in (await target.request("GET", f"{PODS}/a")).json["metadata"]
    async with asyncio.timeout(
        PATIENCE_SECONDS
    ):  # where a controller keeps the budget, it needs a moment
        while (  # noqa: ASYNC110 -- another process does the work
            await target.request("POST", f"{PODS}/a/eviction", eviction)
        ).status != 201:
            await asyncio.sleep(0.05)
    eviction["metadata"] = {"name": "b"}
    blocked = await target.request("POST", f"{PODS}/b/eviction", eviction)
    assert (blocked.status, blocked.json["reason"]) == (429, "TooManyRequests")
    assert blocked.json["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in (await target.request("GET", f"{PODS}/b")).json["metadata"]


async def test_p15_scale_reads_and_writes_the_replicas(target: Target) -> None:
    await target.request("POST", CRDS, widget_crd())
    await target.request("POST", WIDGETS, widget("w", replicas=2))
    scale = (await target.request("GET", f"{WIDGETS}/w/scale")).json
    assert (scale["kind"], scale["spec"], scale["status"]) == (
        "Scale", {"replicas": 2}, {"replicas": 0},
    )  # fmt: skip
    scale["spec"]["replicas"] = 5
    assert (await target.request("PUT", f"{WIDGETS}/w/scale", scale)).status == 200
    assert (await target.request("GET", f"{WIDGETS}/w")).json["spec"]["replicas"] == 5
    assert (await target.request("PUT", f"{WIDGETS}/w/scale", scale)).status == 409


async def test_p15_an_object_without_replicas_has_no_scale_until_it_is_given_some(
    target: Target,
) -> None:
    await target.request("POST", CRDS, widget_crd())
    await target.request("POST", WIDGETS, widget("w"))
    absent = await target.request("GET", f"{WIDGETS}/w/scale")
    assert (absent.status, absent.json["reason"], absent.json["message"]) == (
        500, "InternalError",
        'Internal error occurred: the spec replicas field ".spec.replicas" does not exist',
    )  # fmt: skip
    labels, two = {"metadata": {"labels": {"a": "b"}}}, {"spec": {"replicas": 2}}
    refused = await patch(target, f"{WIDGETS}/w/scale", labels)
    assert (refused.status, refused.json["message"]) == (
        400, 'the spec replicas field ".spec.replicas" cannot be empty',
    )  # fmt: skip
    scaled = await patch(target, f"{WIDGETS}/w/scale", two)
    assert (scaled.status, scaled.json["spec"]) == (200, {"replicas": 2})


async def test_p16_a_merge_patch_deletes_with_null_and_replaces_lists(target: Target) -> None:
    body = config("a", x="1", y="2")
    body["metadata"]["finalizers"] = ["example.dev/a", "example.dev/b"]
    await target.request("POST", MAPS, body)
    change = {"metadata": {"labels": {"x": None}, "finalizers": ["example.dev/c"]}}
    metadata = (await patch(target, f"{MAPS}/a", change)).json["metadata"]
    assert metadata["labels"] == {"y": "2"}
    assert metadata["finalizers"] == ["example.dev/c"]


async def test_p17_a_json_patch_is_all_or_nothing(target: Target) -> None:
    await target.request("POST", MAPS, config("a"))
    steps = [
        {"op": "replace", "path": "/data/key", "value": "new"},
        {"op": "test", "path": "/data/key", "value": "other"},
    ]
    assert (await patch(target, f"{MAPS}/a", steps, "json-patch")).status == 422
    assert (await target.request("GET", f"{MAPS}/a")).json["data"] == {"key": "value"}
    assert (await patch(target, f"{MAPS}/a", steps[:1], "json-patch")).json["data"] == {
        "key": "new"
    }


async def test_p18_a_strategic_patch_merges_lists_by_key_for_built_in_kinds(
    target: Target,
) -> None:
    containers = [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}]
    await target.request("POST", PODS, pod("p", containers=containers))
    change = {"spec": {"containers": [{"name": "b", "image": "y:2"}]}}
    spec = (await patch(target, f"{PODS}/p", change, "strategic-merge-patch")).json["spec"]
    assert [(c["name"], c["image"]) for c in spec["containers"]] == [("a", "x:1"), ("b", "y:2")]
    await target.request("POST", CRDS, widget_crd())
    await target.request("POST", WIDGETS, widget("w"))
    refused = await patch(target, f"{WIDGETS}/w", {"spec": {"size": 2}}, "strategic-merge-patch")
    assert refused.status == 415


async def test_p20_a_patch_with_a_version_is_a_compare_and_swap(target: Target) -> None:
    version = (await target.request("POST", MAPS, config("a"))).json["metadata"]["resourceVersion"]

    def claim(owner: str) -> dict[str, Any]:
        labels = {"owner": owner}
        return {"metadata": {"resourceVersion": version, "labels": labels}}

    owners = [f"o{i}" for i in range(8)]
    answers = await asyncio.gather(*(patch(target, f"{MAPS}/a", claim(o)) for o in owners))
    assert sorted(a.status for a in answers) == [200] + [409] * 7
    winner = owners[[a.status for a in answers].index(200)]
    labels = (await target.request("GET", f"{MAPS}/a")).json["metadata"]["labels"]
    assert labels == {"owner": winner}


async def test_p20_patches_without_a_version_all_take_effect(target: Target) -> None:
    await target.request("POST", MAPS, config("a"))
    changes = [{"data": {f"k{i}": "v"}} for i in range(20)]
    answers = await asyncio.gather(*(patch(target, f"{MAPS}/a", c) for c in changes))
    assert {a.status for a in answers} == {200}
    assert len((await target.request("GET", f"{MAPS}/a")).json["data"]) == 21


async def test_p21_a_dry_run_checks_and_answers_but_stores_nothing(target: Target) -> None:
    dry = {"dryRun": "All"}
    made = await target.request("POST", PODS, pod("p"), query=dry)
    assert (made.status, made.json["spec"]["restartPolicy"]) == (201, "Always")
    assert (await target.request("GET", f"{PODS}/p")).status == 404
    assert (await target.request("POST", PODS, pod("P"), query=dry)).status == 422
    stored = (await target.request("POST", MAPS, config("a"))).json
    changed = await target.request("PUT", f"{MAPS}/a", {**stored, "data": {"k": "v"}}, query=dry)
    assert changed.json["data"] == {"k": "v"}
    await target.request("DELETE", f"{MAPS}/a", query=dry)
    assert (await target.request("GET", f"{MAPS}/a")).json == stored


async def test_p23_a_pods_spec_is_immutable_but_for_a_few_fields(target: Target) -> None:
    await target.request("POST", PODS, pod("p"))
    for change in (
        {"nodeName": "n"}, {"restartPolicy": "Never"}, {"schedulingGates": [{"name": "a.b/c"}]},
        {"containers": [{"name": "main", "image": "none", "command": ["x"]}]},
        {"hostNetwork": True},
    ):  # fmt: skip
        answer = await patch(target, f"{PODS}/p", {"spec": change})
        assert answer.status == 422, change
        assert answer.json["details"]["causes"][0]["field"].startswith("spec")
    image = {"spec": {"containers": [{"name": "main", "image": "other:1"}]}}
    assert (await patch(target, f"{PODS}/p", image, "strategic-merge-patch")).status == 200


async def test_p64_a_pods_priority_comes_from_its_class(target: Target) -> None:
    high = {"metadata": {"name": "high"}, "value": 1000}
    assert (await target.request("POST", CLASSES, high)).status == 201
    by_class = pod("a", priorityClassName="high")
    async with asyncio.timeout(
        PATIENCE_SECONDS
    ):  # the real server's admission sees the class a moment later
        while (  # noqa: ASYNC110 -- another process does the work
            made := await target.request("POST", PODS, by_class)
        ).status == 403:
            await asyncio.sleep(0.05)
    assert made.json["spec"]["priority"] == 1000
    assert (await target.request("POST", PODS, pod("b"))).json["spec"]["priority"] == 0
    assert (await target.request("POST", PODS, pod("c", priorityClassName="no"))).status == 403
    assert (await target.request("POST", PODS, pod("d", priority=7))).status == 403


async def test_p64_pods_are_defaulted_as_clients_expect(target: Target) -> None:
    made = (await target.request("POST", PODS, pod("p"))).json
    spec, status = made["spec"], made["status"]
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Always", 30)
    assert (spec["dnsPolicy"], spec["schedulerName"]) == ("ClusterFirst", "default-scheduler")
    assert (status["phase"], status["qosClass"]) == ("Pending", "BestEffort")
    assert {(t["key"], t["effect"], t["tolerationSeconds"]) for t in spec["tolerations"]} == {
        ("node.kubernetes.io/not-ready", "NoExecute", 300),
        ("node.kubernetes.io/unreachable", "NoExecute", 300),
    }
    limits = {"limits": {"cpu": "1", "memory": "1Gi"}}
    body = pod("q", containers=[{"name": "main", "image": "x", "resources": limits}])
    made = (await target.request("POST", PODS, body)).json
    assert made["spec"]["containers"][0]["resources"]["requests"] == limits["limits"]
    assert made["status"]["qosClass"] == "Guaranteed"
