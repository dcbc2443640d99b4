"""Scenarios of in-place resize: what `pods/resize` changes, and what it refuses."""

from __future__ import annotations

from typing import Any

from tests.conformance.http_server import pod
from tests.conformance.recorder import Recorder
from tests.conformance.scenarios_quota import QUOTAS, RANGES, quota
from tests.conformance.vocabulary import MERGE, PODS, STRATEGIC

NODES = "/api/v1/nodes"


def amounts(cpu: str, memory_: str, /, **limits: str) -> dict[str, Any]:
    """Requests, and limits where there are any."""
    asked = {"requests": {"cpu": cpu, "memory": memory_}}
    return {**asked, "limits": limits} if limits else asked


def resized(resources: dict[str, Any], name: str = "main") -> dict[str, Any]:
    """A strategic merge patch of one container's resources."""
    return {"spec": {"containers": [{"name": name, "resources": resources}]}}


def two(name: str, **spec: Any) -> dict[str, Any]:
    """A pod of a container, a sidecar and an init container."""
    initial = [
        {"name": "first", "image": "none", "resources": amounts("100m", "64Mi")},
        {"name": "side", "image": "none", "restartPolicy": "Always",
         "resources": amounts("100m", "64Mi")},
    ]  # fmt: skip
    main = {"name": "main", "image": "none", "resources": amounts("1", "1Gi", memory="2Gi")}
    return pod(name, containers=[main], initContainers=initial, **spec)


async def p15_resizes(r: Recorder) -> None:
    size = {"cpu": "4", "memory": "8Gi", "pods": "9"}
    node = {"metadata": {"name": "n"}, "status": {"capacity": size, "allocatable": size}}
    await r.quietly("POST", NODES, node)
    await r("create", "POST", PODS, two("p"))
    at = f"{PODS}/p/resize"
    await r("get", "GET", at)
    await r("post", "POST", at, two("p"))
    await r("delete", "DELETE", at)
    await r("missing", "PATCH", f"{PODS}/q/resize", resized(amounts("2", "1Gi")), kind=STRATEGIC)
    await r("waiting", "PATCH", at, resized(amounts("2", "1Gi")), kind=STRATEGIC)
    await r("same", "PATCH", at, resized(amounts("2000m", "1024Mi")), kind=STRATEGIC)
    await r("dry", "PATCH", at, resized(amounts("3", "1Gi")), kind=STRATEGIC,
            query={"dryRun": "All"})  # fmt: skip
    sides = {"spec": {"initContainers": [{"name": "side", "resources": amounts("200m", "64Mi")}]}}
    await r("sidecar", "PATCH", at, sides, kind=STRATEGIC)
    firsts = {"spec": {"initContainers": [{"name": "first", "resources": amounts("200m", "64Mi")}]}}
    await r("init", "PATCH", at, firsts, kind=STRATEGIC)
    whole = (await r.quietly("GET", f"{PODS}/p")).json
    for label, change in (
        ("others", {"metadata": {"labels": {"a": "b"}, "finalizers": ["a.b/c"]},
                    "spec": {"nodeName": "n", "activeDeadlineSeconds": 9, "tolerations": []},
                    "status": {"phase": "Running"}}),
        ("spec-of-another-type", {"spec": []}), ("no-spec", {"spec": None}),
        ("no-containers", {"spec": {"containers": None}}),
        ("containers-of-another-type", {"spec": {"containers": {"a": 1}}}),
        ("annotations", {"metadata": {"annotations": {"a": "b"}}}),
    ):  # fmt: skip
        await r(label, "PATCH", at, change, kind=MERGE)
    put = {**whole, "metadata": {"name": "p"}}
    put["spec"]["containers"][0]["resources"] = amounts("1", "1Gi", memory="2Gi")
    await r("put", "PUT", at, put)
    await r("put-stale", "PUT", at, {**put, "metadata": {"name": "p", "resourceVersion": "1"}})
    await r("after", "GET", f"{PODS}/p")


async def p15_resizes_that_are_refused(r: Recorder) -> None:
    await r("create", "POST", PODS, two("p"))
    main = {"name": "main", "image": "none", "resources": amounts("1", "1Gi", memory="2Gi")}
    initial = two("p")["spec"]["initContainers"]

    async def put(label: str, **spec: Any) -> None:
        await r(label, "PATCH", f"{PODS}/p/resize", {"spec": spec}, kind=MERGE)

    def mains(*resources: dict[str, Any], **more: Any) -> list[Any]:
        return [{**main, "resources": each, **more} for each in resources]

    await put("rename", containers=[{**main, "name": "other"}])
    await put("add", containers=[main, {**main, "name": "other"}])
    await put("reorder", initContainers=initial[::-1])
    await put("fewer", initContainers=initial[:1])
    await put("no-requests", containers=mains({"limits": {"memory": "2Gi"}}))
    await put("no-limits", containers=mains(amounts("1", "1Gi")))
    await put("nothing", containers=mains({}))
    guaranteed = amounts("1", "1Gi", cpu="1", memory="1Gi")
    burst = [{**each, "resources": guaranteed} for each in (*initial, main)]
    await put("quality", initContainers=burst[:2], containers=burst[2:])
    await put("above-limit", containers=mains(amounts("1", "3Gi", memory="2Gi")))
    await put("negative", containers=mains(amounts("-1", "1Gi", memory="2Gi")))
    for label, name in (("disk", "ephemeral-storage"), ("pages", "hugepages-2Mi"),
                        ("gpu", "nvidia.com/gpu")):  # fmt: skip
        added = amounts("1", "1Gi", memory="2Gi")
        added["requests"][name] = added["limits"][name] = "2Mi" if label == "pages" else "1"
        await put(label, containers=mains(added))
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    await put("policy", containers=mains(main["resources"], resizePolicy=policy))
    await put("image-only", containers=mains(main["resources"], image="other"))
    await put("add-limit", containers=mains(amounts("1", "1Gi", cpu="1", memory="2Gi")))
    await put("whole", resources={"requests": {"cpu": "4"}})
    best = pod("best")
    await r("best", "POST", PODS, best)
    await r("best-effort", "PATCH", f"{PODS}/best/resize",
            resized(amounts("1", "1Gi"), best["spec"]["containers"][0]["name"]),
            kind=STRATEGIC)  # fmt: skip
    static = two("static", nodeName="n")
    static["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    await r.quietly("POST", PODS, static)
    await r("static", "PATCH", f"{PODS}/static/resize", resized(amounts("2", "1Gi")),
            kind=STRATEGIC)  # fmt: skip
    await r.quietly("POST", PODS, two("windows", os={"name": "windows"}))
    await r("windows", "PATCH", f"{PODS}/windows/resize", resized(amounts("2", "1Gi")),
            kind=STRATEGIC)  # fmt: skip


async def p15_resizes_of_whole_pods(r: Recorder) -> None:
    asked = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}
    main = {"name": "main", "image": "none"}
    await r("create", "POST", PODS, pod("p", containers=[main], resources=asked))
    for label, resources in (
        ("more", {"requests": {"cpu": "3"}}), ("less", {"requests": {"cpu": "500m"}}),
        ("add", {"limits": {"cpu": "4"}}), ("remove", {"limits": {"memory": None}}),
        ("remove-request", {"requests": {"cpu": None}}), ("gone", None),
        ("pages", {"requests": {"hugepages-2Mi": "2Mi"}, "limits": {"hugepages-2Mi": "2Mi"}}),
        ("disk", {"requests": {"ephemeral-storage": "1Gi"}}),
        ("above-limit", {"requests": {"memory": "5Gi"}}),
    ):  # fmt: skip
        await r(label, "PATCH", f"{PODS}/p/resize", {"spec": {"resources": resources}}, kind=MERGE)


async def p15_resizes_on_nodes(r: Recorder) -> None:
    size = {"cpu": "4", "memory": "8Gi", "pods": "9"}
    for name, labels in (("n", {}), ("w", {"kubernetes.io/os": "windows"})):
        node = {"metadata": {"name": name, "labels": labels},
                "status": {"capacity": size, "allocatable": size}}  # fmt: skip
        await r.quietly("POST", NODES, node)
    for name, node in (("fits", "n"), ("on-windows", "w"), ("lost", "nowhere")):
        await r(f"create-{name}", "POST", PODS, two(name, nodeName=node))
        for label, cpu, memory in (("more", "3", "2Gi"), ("cpu", "5", "1Gi"), ("both", "5", "9Gi")):
            await r(f"{label}-{name}", "PATCH", f"{PODS}/{name}/resize",
                    resized({"requests": {"cpu": cpu, "memory": memory},
                             "limits": {"memory": "16Gi"}}), kind=STRATEGIC)  # fmt: skip
        await r(f"label-{name}", "PATCH", f"{PODS}/{name}/resize",
                {"metadata": {"labels": {"a": "b"}}}, kind=MERGE)  # fmt: skip
    running = {
        "name": "main", "ready": True, "restartCount": 0, "image": "none", "imageID": "",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }  # fmt: skip
    for label, state in (
        ("old", running), ("new", {**running, "resources": amounts("1", "1Gi")}),
        ("empty", {**running, "resources": {}}),
    ):  # fmt: skip
        status = {"status": {"containerStatuses": [state]}}
        await r.quietly("PATCH", f"{PODS}/fits/status", status, headers={"Content-Type": MERGE})
        change = resized(amounts("1500m", "1Gi"))
        await r(f"{label}-node", "PATCH", f"{PODS}/fits/resize", change, kind=STRATEGIC)


async def p64_bounds_of_resizes(r: Recorder) -> None:
    await r("create", "POST", PODS, two("p"))
    limits = {"type": "Container", "max": {"cpu": "2"}}
    ranges = {"metadata": {"name": "l"}, "spec": {"limits": [limits]}}
    await r("quota-q", "POST", QUOTAS, quota("q", {"requests.cpu": "2500m"}))

    def used(text: str) -> Any:
        return lambda a: (a.json.get("status") or {}).get("used", {}).get("requests.cpu") == text

    await r.until(f"{QUOTAS}/q", used("1100m"))
    at = f"{PODS}/p/resize"
    await r("fits", "PATCH", at, resized(amounts("2", "1Gi")), kind=STRATEGIC)
    await r.until(f"{QUOTAS}/q", used("2100m"))
    await r("exceeds", "PATCH", at, resized(amounts("2500m", "1Gi")), kind=STRATEGIC)
    held = {"name": "main", "ready": True, "restartCount": 0, "image": "none", "imageID": "",
            "allocatedResources": {"cpu": "2", "memory": "1Gi"},
            "resources": amounts("2", "1Gi", memory="2Gi")}  # fmt: skip
    await r.quietly("PATCH", f"{PODS}/p/status", {"status": {"containerStatuses": [held]}},
                    headers={"Content-Type": MERGE})  # fmt: skip
    await r("less", "PATCH", at, resized(amounts("1", "1Gi")), kind=STRATEGIC)
    await r("still-held", "GET", f"{QUOTAS}/q")
    held = {**held, "allocatedResources": {"cpu": "1", "memory": "1Gi"},
            "resources": amounts("1", "1Gi", memory="2Gi")}  # fmt: skip
    await r.quietly("PATCH", f"{PODS}/p/status", {"status": {"containerStatuses": [held]}},
                    headers={"Content-Type": MERGE})  # fmt: skip
    await r.until(f"{QUOTAS}/q", used("1100m"))
    await r.quietly("DELETE", f"{QUOTAS}/q")
    await r("range", "POST", RANGES, ranges)
    await r.until(
        PODS, lambda a: a.status == 403, method="POST", query={"dryRun": "All"},
        body=pod("probe", containers=[{"name": "main", "image": "none",
                                       "resources": amounts("3", "1Gi", cpu="3")}]),
    )  # fmt: skip
    await r("above-range", "PATCH", at, resized(amounts("2100m", "1Gi")), kind=STRATEGIC)
    await r("in-range", "PATCH", at, resized(amounts("1500m", "1Gi")), kind=STRATEGIC)
