"""Scenarios of ResourceQuotas and LimitRanges: what they count, refuse, fill in and give back."""

from __future__ import annotations

from typing import Any

from tests.conformance.http_server import config, pod
from tests.conformance.recorder import Recorder
from tests.conformance.target import Answer
from tests.conformance.vocabulary import CLAIMS, MAPS, MERGE, NS, PODS, TABLE

QUOTAS = f"{NS}/resourcequotas"
RANGES = f"{NS}/limitranges"
GPU = "nvidia.com/gpu"


def quota(name: str, hard: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A quota."""
    return {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name},
        "spec": {"hard": hard, **spec},
    }  # fmt: skip


def sized(name: str, requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pod of one container that asks for something."""
    resources: dict[str, Any] = {"requests": requests}
    if GPU in requests:
        resources["limits"] = {GPU: requests[GPU]}
    main = {"name": "main", "image": "none", "resources": resources}
    return pod(name, containers=[main], **more)


async def _limit(r: Recorder, name: str, hard: dict[str, Any], **spec: Any) -> None:
    """Make a quota and wait until it is in force: there a controller counts it first."""

    def is_counted(answer: Answer) -> bool:
        status = answer.json.get("status") or {}
        return set(status.get("used") or {}) == set(hard)

    await r(f"quota-{name}", "POST", QUOTAS, quota(name, hard, **spec))
    await r.until(f"{QUOTAS}/{name}", is_counted)
    await r(f"counted-{name}", "GET", f"{QUOTAS}/{name}")


async def _until_used(r: Recorder, label: str, name: str, **used: str) -> None:
    def is_so(answer: Answer) -> bool:
        found = answer.json["status"]["used"]
        return all(found.get(key.replace("_", ".")) == value for key, value in used.items())

    await r.until(f"{QUOTAS}/{name}", is_so)
    await r(label, "GET", f"{QUOTAS}/{name}")


async def p64_quotas(r: Recorder) -> None:
    await r("before", "POST", PODS, sized("before", {"cpu": "250m", "memory": "1Gi"}))
    hard = {"pods": "3", "requests.cpu": "1500m", "requests.memory": "3Gi",
            f"requests.{GPU}": "8", "count/configmaps": "3"}  # fmt: skip
    await _limit(r, "all", hard)
    await r("table", "GET", QUOTAS, accept=TABLE)
    await r("fits", "POST", PODS, sized("a", {"cpu": "500m", "memory": "512Mi", GPU: "4"}))
    for label, requests in (
        ("cpu", {"cpu": "0.8", "memory": "1Mi"}), ("gpu", {"cpu": 0, "memory": 0, GPU: "5"}),
        ("both", {"cpu": 2, "memory": "4Gi"}), ("no-cpu", {"memory": "1Mi"}), ("nothing", {}),
    ):  # fmt: skip
        await r(f"refused-{label}", "POST", PODS, sized("b", requests))
        await r(f"dry-{label}", "POST", PODS, sized("b", requests), query={"dryRun": "All"})
    await r("last", "POST", PODS, sized("b", {"cpu": "750m", "memory": "1536Mi"}))
    await r("full", "POST", PODS, sized("c", {"cpu": 0, "memory": 0}))
    await r("used", "GET", f"{QUOTAS}/all")
    for name in "mno":
        await r(f"map-{name}", "POST", MAPS, config(name))
    await r.quietly("DELETE", f"{PODS}/a", query={"gracePeriodSeconds": "0"})
    await _until_used(r, "deleted", "all", pods="2")
    ended = {"status": {"phase": "Succeeded"}}
    await r.quietly("PATCH", f"{PODS}/b/status", ended, headers={"Content-Type": MERGE})
    await _until_used(r, "ended", "all", pods="1")
    await r("again", "POST", PODS, sized("c", {"cpu": "1", "memory": "1Gi"}))
    wider = {"spec": {"hard": {"pods": "9", "requests.cpu": None}}}
    await r.quietly("PATCH", f"{QUOTAS}/all", wider, headers={"Content-Type": MERGE})
    await r.until(f"{QUOTAS}/all", lambda a: "requests.cpu" not in a.json["status"]["used"])
    await r("wider", "GET", f"{QUOTAS}/all")
    await r("not-cpu", "POST", PODS, sized("d", {"memory": "1Mi"}))


async def p64_quotas_with_scopes(r: Recorder) -> None:
    await _limit(r, "best", {"pods": "1"}, scopes=["BestEffort"])
    await _limit(r, "ends", {"pods": "1", "limits.cpu": "1"}, scopes=["Terminating"])
    selector = {"matchExpressions": [
        {"scopeName": "PriorityClass", "operator": "In", "values": ["system-node-critical"]},
    ]}  # fmt: skip
    await _limit(r, "critical", {"pods": "0"}, scopeSelector=selector)
    await r("best-1", "POST", PODS, pod("a"))
    await r("best-2", "POST", PODS, pod("b"))
    await r("not-best", "POST", PODS, sized("c", {"cpu": "1"}))
    await r("no-limit", "POST", PODS, sized("d", {"cpu": "1"}, activeDeadlineSeconds=5))
    await r("now-ends", "PATCH", f"{PODS}/c", {"spec": {"activeDeadlineSeconds": 50}}, kind=MERGE)
    await r("priority", "POST", PODS,
            sized("e", {"cpu": "1"}, priorityClassName="system-node-critical"))  # fmt: skip
    for name in ("best", "ends", "critical"):
        await r(f"used-{name}", "GET", f"{QUOTAS}/{name}")


async def p64_quotas_of_other_kinds(r: Recorder) -> None:
    await _limit(r, "kinds", {
        "services.loadbalancers": "1", "services.nodeports": "3",
        "persistentvolumeclaims": "2", "requests.storage": "10Gi", "secrets": "1",
        "count/persistentvolumeclaims": "5", "resourcequotas": "1",
        "fast.storageclass.storage.k8s.io/requests.storage": "5Gi",
    })  # fmt: skip
    await r("second-quota", "POST", QUOTAS, quota("other", {"pods": "1"}))
    claim = {
        "metadata": {"name": "a"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                 "resources": {"requests": {"storage": "4Gi"}}},
    }  # fmt: skip
    await r("claim", "POST", CLAIMS, claim)
    await r("claim-2", "POST", CLAIMS, {**claim, "metadata": {"name": "b"}})
    await r("used", "GET", f"{QUOTAS}/kinds")


async def p64_quotas_that_make_no_sense(r: Recorder) -> None:
    for label, hard, spec in (
        ("name", {"bananas": "1"}, {}), ("negative", {"pods": "-1"}, {}),
        ("part", {"pods": "1.5"}, {}), ("scope", {"pods": "1"}, {"scopes": ["Maybe"]}),
        ("unfit", {"requests.cpu": "1"}, {"scopes": ["BestEffort"]}),
        ("both", {"pods": "1"}, {"scopes": ["BestEffort", "NotBestEffort"]}),
    ):  # fmt: skip
        await r(f"bad-{label}", "POST", QUOTAS, quota("q", hard, **spec), query={"dryRun": "All"})
    await r("quota-good", "POST", QUOTAS, quota("q", {"pods": "1"}, scopes=["BestEffort"]))
    await r("scopes", "PATCH", f"{QUOTAS}/q", {"spec": {"scopes": None}}, kind=MERGE)


def limit_range(name: str, *items: dict[str, Any]) -> dict[str, Any]:
    """A limit range."""
    return {
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": name},
        "spec": {"limits": list(items)},
    }  # fmt: skip


async def p64_limit_ranges(r: Recorder) -> None:
    container = {
        "type": "Container", "max": {"cpu": "2", "memory": "2Gi"},
        "min": {"cpu": "100m", "memory": "64Mi"}, "default": {"cpu": "500m"},
        "defaultRequest": {"cpu": "250m"}, "maxLimitRequestRatio": {"cpu": "4"},
    }  # fmt: skip
    await r("range", "POST", RANGES, limit_range("all", container))
    await r("table", "GET", RANGES, accept=TABLE)
    # The API server reads ranges from a cache, which sees the new one a moment later.
    await r.until(
        PODS, lambda a: "annotations" in a.json["metadata"], method="POST",
        body=pod("probe"), query={"dryRun": "All"},
    )  # fmt: skip
    await r("defaults", "POST", PODS, pod("a"))
    init = [{"name": "init", "image": "none"}]
    await r("init", "POST", PODS, pod("b", initContainers=init))
    for label, requests, limits in (
        ("large", {}, {"cpu": "3"}), ("small", {"cpu": "50m"}, {}),
        ("request", {"cpu": "3"}, {"cpu": "3"}), ("ratio", {"cpu": "100m"}, {"cpu": "1"}),
        # One mistake of each bound: the real server's order of two of one bound is random.
        ("two", {"cpu": "3", "memory": "1Mi"}, {"cpu": "3", "memory": "1Gi"}),
        ("good", {"cpu": "500m", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}),
    ):  # fmt: skip
        main = {"name": "main", "image": "none", "resources": {
            "requests": requests, "limits": limits}}  # fmt: skip
        await r(f"pod-{label}", "POST", PODS, pod(f"p-{label}", containers=[main]))


async def p64_limit_ranges_of_pods_and_claims(r: Recorder) -> None:
    whole = {"type": "Pod", "max": {"cpu": "2"}, "min": {"cpu": "1"}}
    claims = {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}
    await r("range", "POST", RANGES, limit_range("all", whole, claims))
    await r.until(
        PODS, lambda a: a.status == 403, method="POST", body=pod("probe"), query={"dryRun": "All"}
    )

    def main(name: str, cpu: str) -> dict[str, Any]:
        amount = {"cpu": cpu}
        return {"name": name, "image": "none", "resources": {"requests": amount, "limits": amount}}

    for label, cpus in (("none", ()), ("few", ("500m",)), ("many", ("1", "1500m")),
                        ("good", ("1", "500m"))):  # fmt: skip
        containers = [main(f"c{i}", cpu) for i, cpu in enumerate(cpus)]
        body = pod(label, containers=containers) if containers else pod(label)
        await r(f"pod-{label}", "POST", PODS, body)
    for label, size in (("small", "1Mi"), ("large", "3Gi"), ("good", "2Gi")):
        claim = {
            "metadata": {"name": label},
            "spec": {"accessModes": ["ReadWriteOnce"],
                     "resources": {"requests": {"storage": size}}},
        }  # fmt: skip
        await r(f"claim-{label}", "POST", CLAIMS, claim)


async def p64_limit_ranges_that_make_no_sense(r: Recorder) -> None:
    for label, item in (
        ("order", {"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}}),
        ("default", {"type": "Container", "default": {"cpu": "2"}, "max": {"cpu": "1"}}),
        ("request", {"type": "Container", "defaultRequest": {"cpu": "2"}, "default": {"cpu": "1"}}),
        ("ratio", {"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}}),
        ("pod", {"type": "Pod", "default": {"cpu": "1"}}), ("type", {"type": "Thing"}),
        ("claim", {"type": "PersistentVolumeClaim"}),
    ):  # fmt: skip
        await r(f"bad-{label}", "POST", RANGES, limit_range("q", item), query={"dryRun": "All"})
    pods = {"type": "Pod", "max": {"cpu": "1"}}
    await r("twice", "POST", RANGES, limit_range("q", pods, pods), query={"dryRun": "All"})
