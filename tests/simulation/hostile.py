"""Hostile objects of every kind that Fairlead reads: by hand, and by mutation from a fixed seed.

They are data, for two targets: the embedded cluster and a real API server. A server may refuse
one; what it takes must harm nothing but itself. All are in the namespace `hostile`, in a fixed
order.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fairlead.api import names
from fairlead.api.resources import (
    CONFIG_MAPS,
    FLEETS,
    JOBS,
    LEASES,
    NODE_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SERVICES,
    TEAMS,
    Resource,
)

NAMESPACE = "hostile"
SEED = 20_261_122
#: Mutations per kind.
MUTATIONS = 40
NODE = "hostile-node"


@dataclass(frozen=True, slots=True)
class Poison:
    """One object, and the status that is written on it if it is let in."""

    label: str
    resource: Resource[Any]
    body: dict[str, Any]
    status: dict[str, Any] = field(default_factory=dict[str, Any])


def nested(depth: int) -> Any:
    """Return a value of this many levels."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def job_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a good job of one member that asks for a GPU."""
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}},
    }
    role = {"name": "worker", "count": 1, "template": {"spec": {"containers": [container]}}}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"roles": [role], **spec}}


def pod_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a good pod that nobody owns."""
    container = {"name": "main", "image": "registry.example/other:1"}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"containers": [container], **spec},
    }


def node_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a good node; its status is another write."""
    return {"metadata": {"name": name, "labels": {"a": "b"}}, "spec": dict(spec)}


def _affinity(**requirement: Any) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", **requirement}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _job(label: str, *, annotations: Any = None, pod: Any = None, **spec: Any) -> Poison:
    body = job_body(f"job-{label}", **spec)
    template = body["spec"]["roles"][0]["template"] if body["spec"]["roles"] else {}
    if annotations is not None:
        template["metadata"] = {"annotations": annotations}
    for key, value in (pod or {}).items():
        template["spec"][key] = value
    return Poison(f"job/{label}", JOBS, body)


def _jobs() -> Iterator[Poison]:
    for operator in ("Gt", "Lt"):
        for label, value in (
            ("digits", "9" * 5_000),
            ("word", "x"),
            ("empty", ""),
            ("big", "9" * 40),
        ):
            affinity = _affinity(operator=operator, values=[value])
            yield _job(f"{operator.lower()}-{label}", pod={"affinity": affinity})
    many = {f"example.com/r{i}": "1" for i in range(8_000)}
    yield _job(
        "many-names",
        pod={"containers": [{"name": "main", "image": "x", "resources": {"limits": many}}]},
    )
    few = {f"example.com/f{i}": "1" for i in range(60)}
    yield _job(
        "unheard-names",
        pod={"containers": [{"name": "main", "image": "x", "resources": {"limits": few}}]},
    )
    for depth in (100, 1_500):
        yield _job(f"deep-{depth}", pod={"x": nested(depth)})
        yield _job(f"deep-spec-{depth}", x=nested(depth))
    deep = '{"x":' + "[" * 20_000 + "]" * 20_000 + "}"
    yield _job("progress-deep", annotations={names.PROGRESS: deep})
    yield _job("progress-huge", annotations={names.PROGRESS: '{"step":' + "9" * 200 + "}"})
    yield _job("progress-10e30", annotations={names.PROGRESS: f'{{"step":{10**30}}}'})
    yield _job("progress-time", annotations={names.PROGRESS: '{"step":1,"reportedAt":"soon"}'})
    yield _job("seconds-none", annotations={"fairlead.dev/simulate-seconds": "nan"})
    yield _job("seconds-many", annotations={"fairlead.dev/simulate-seconds": "1e308"})
    yield _job("seconds-text", annotations={"fairlead.dev/simulate-seconds": "-" * 9_000})
    for i, amount in enumerate(("1e99", "-5", "9" * 5_000, "NaN", "", "0.0000001", "1e-99", " 1")):
        yield _job(
            f"cpu-{i}",
            pod={
                "containers": [
                    {"name": "main", "image": "x", "resources": {"requests": {"cpu": amount}}}
                ]
            },
        )
    for seconds in (10**9, 10**12, 2**63 - 1):
        restart = {"backoffSeconds": seconds, "backoffSecondsMax": seconds, "limit": 2**31 - 1}
        yield _job(
            f"backoff-{len(str(seconds))}",
            restart=restart,
            pod={"containers": [{"name": "main", "image": "x", "command": ["false"]}]},
        )
        yield _job(f"limit-{len(str(seconds))}", timeLimitSeconds=seconds)
        yield _job(f"ttl-{len(str(seconds))}", ttlSecondsAfterFinished=seconds)
    for priority in (2**31 - 1, -(2**31), 2**31, 10**30):
        yield _job(f"priority-{abs(priority)}-{priority > 0}".lower(), priority=priority)
    yield _job("no-roles", roles=[])
    role = job_body("x")["spec"]["roles"][0]
    yield _job("many-roles", roles=[{**role, "name": f"r{i}"} for i in range(400)])
    yield _job("twins", roles=[role, role])
    for count in (0, -1, 100_000, 10**9, 2**63):
        yield _job(f"count-{count}", roles=[{**role, "count": count}])
    values = [f"v{i}" for i in range(20_000)]
    yield _job("many-values", pod={"affinity": _affinity(operator="In", values=values)})
    yield _job("long-value", pod={"affinity": _affinity(operator="In", values=["x" * 90_000])})
    tolerations = [{"key": f"k{i}", "operator": "Exists"} for i in range(5_000)]
    yield _job("many-tolerations", pod={"tolerations": tolerations})
    yield _job("self", after=[{"job": "job-self"}])
    yield _job("after-many", after=[{"job": f"none{i}"} for i in range(3_000)])
    yield _job("cycle-a", after=[{"job": "job-cycle-b"}])
    yield _job("cycle-b", after=[{"job": "job-cycle-a"}])
    yield _job("topology", topology={"key": "x" * 9_000, "required": True})
    yield _job("adopts", adopts={"kind": "Pod", "name": "x", "apiVersion": "v1"})
    yield _job("class", priorityClassName="none-such")
    finalized = job_body("job-finalizer")
    finalized["metadata"]["finalizers"] = ["hostile.example/never"]
    yield Poison("job/finalizer", JOBS, finalized)
    labelled = job_body("job-labels")
    labelled["metadata"]["labels"] = {f"l{i}": "x" for i in range(500)}
    labelled["metadata"]["annotations"] = {"a": "x" * 200_000}
    yield Poison("job/labels", JOBS, labelled)


def _pods() -> Iterator[Poison]:
    for i, amount in enumerate(("1e99", "-1", "9" * 4_400, "1e-30")):
        resources = {"requests": {"cpu": amount}}
        yield Poison(
            f"pod/cpu-{i}",
            PODS,
            pod_body(
                f"pod-cpu-{i}",
                nodeName=NODE,
                containers=[{"name": "main", "image": "x", "resources": resources}],
            ),
        )
    many = {f"example.com/p{i}": "1" for i in range(3_000)}
    yield Poison(
        "pod/names",
        PODS,
        pod_body(
            "pod-names",
            nodeName=NODE,
            containers=[{"name": "main", "image": "x", "resources": {"limits": many}}],
        ),
    )
    for number in ("9" * 20, "9" * 63, "-1", "x", "0"):
        for phase in ("Running", "Failed", "Succeeded", "Weird"):
            body = pod_body(f"pod-member-{len(number)}{number[0]}-{phase}".lower(), nodeName=NODE)
            body["metadata"]["labels"] = {
                names.JOB_NAME: "canary",
                names.JOB_UID: "u",
                names.ROLE: "worker",
                names.INDEX: number,
                names.ATTEMPT: number,
                names.RANK: number,
            }
            body["metadata"]["ownerReferences"] = [
                {
                    "apiVersion": names.API_VERSION,
                    "kind": "Job",
                    "name": "canary",
                    "uid": "u",
                    "controller": True,
                }
            ]
            status = {
                "phase": phase,
                "podIP": "not an address",
                "containerStatuses": [
                    {
                        "name": "main",
                        "image": "",
                        "imageID": "",
                        "ready": False,
                        "restartCount": 2**31 - 1,
                        "state": {"terminated": {"exitCode": 2**31 - 1, "signal": -5}},
                    }
                ],
            }
            yield Poison(f"pod/member-{number[:9]}-{phase}", PODS, body, {"status": status})
    for key in (names.PROGRESS, names.GROUP_SIZE, names.GANG_SCHEDULING):
        for i, text in enumerate(('{"x":' + "[" * 9_000, "9" * 9_000, "\u0000" * 3, "enabled")):
            body = pod_body(f"pod-note-{key.rpartition('/')[2]}-{i}")
            body["metadata"]["annotations"] = {key: text}
            yield Poison(f"pod/note-{key}-{i}", PODS, body)
    body = pod_body("pod-gang", schedulingGates=[{"name": names.GANG_GATE}])
    body["metadata"]["labels"] = {names.GANG_NAME: "g" * 63}
    body["metadata"]["annotations"] = {names.GROUP_SIZE: "9" * 5_000}
    yield Poison("pod/gang", PODS, body)


def _nodes() -> Iterator[Poison]:
    amounts: tuple[Any, ...] = ("1e30", "NaN", "-5", "", "Infinity", str(2**31 - 1), "9" * 4_400)
    for i, amount in enumerate(amounts):
        status = {"allocatable": {"cpu": amount, "pods": amount, "nvidia.com/gpu": amount}}
        status["capacity"] = status["allocatable"]
        yield Poison(f"node/amount-{i}", NODES, node_body(f"node-{i}"), {"status": status})
    many = {f"example.com/n{i}": "1" for i in range(5_000)}
    yield Poison("node/names", NODES, node_body("node-names"), {"status": {"allocatable": many}})
    taints = [{"key": f"t{i}", "effect": "NoSchedule"} for i in range(1_000)]
    yield Poison("node/taints", NODES, node_body("node-taints", taints=taints))
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": "soon"}]
    yield Poison("node/time", NODES, node_body("node-time"), {"status": {"conditions": conditions}})
    labelled = node_body("node-labels")
    labelled["metadata"]["labels"] = {f"l{i}": "9" * 60 for i in range(1_000)}
    labelled["metadata"]["annotations"] = {"a": "x" * 100_000}
    yield Poison("node/labels", NODES, labelled)
    binding = node_body("node-binding")
    binding["metadata"]["labels"] = {names.BINDING: "nonsense", names.HOSTNAME: "other"}
    yield Poison("node/binding", NODES, binding)


def _others() -> Iterator[Poison]:
    for i, value in enumerate((2**31 - 1, -(2**31), 10**9, 2**63)):
        body: dict[str, Any] = {"metadata": {"name": f"class-{i}"}, "value": value}
        body["globalDefault"] = i == 2
        yield Poison(f"class/{i}", PRIORITY_CLASSES, body)
    for i, data in enumerate(({"hosts": "x" * 500_000}, {"k": "\u0000"}, {})):
        body = {"metadata": {"name": f"map-{i}", "namespace": NAMESPACE}, "data": data}
        body["metadata"]["labels"] = {
            names.JOB_UID: "u",
            names.JOB_NAME: "canary",
            names.ATTEMPT: "9" * (20 + 20 * i),
        }
        body["metadata"]["ownerReferences"] = [
            {
                "apiVersion": names.API_VERSION,
                "kind": "Job",
                "name": "canary",
                "uid": "u",
                "controller": True,
            }
        ]
        yield Poison(f"map/{i}", CONFIG_MAPS, body)
    for i, spec in enumerate(
        (
            {"holderIdentity": "x" * 5_000},
            {"leaseTransitions": 2**31 - 1},
            {"renewTime": "9999-12-31T23:59:59.999999Z"},
        )
    ):
        body = {"metadata": {"name": f"lease-{i}", "namespace": NAMESPACE}, "spec": spec}
        yield Poison(f"lease/{i}", LEASES, body)


def quota_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a good quota of the tenant's namespace."""
    hard = {"pods": "100", "requests.nvidia.com/gpu": "8"}
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"hard": hard, **spec}}


def _quotas() -> Iterator[Poison]:
    amounts = ("1e99", "-5", "9" * 4_400, "NaN", "", "1e-30", "0", str(2**63))
    for i, amount in enumerate(amounts):
        hard = {"pods": amount, "requests.cpu": amount, "limits.nvidia.com/gpu": amount}
        body = quota_body(f"quota-amount-{i}", hard=hard)
        for label, used in (("used", hard), ("unused", {}), ("other", {"requests.x/y": amount})):
            body = copy.deepcopy(body)
            body["metadata"]["name"] = f"quota-{label}-{i}"
            status = {"status": {"hard": hard, "used": used}}
            yield Poison(f"quota/{label}-{i}", RESOURCE_QUOTAS, body, status)
    many = {f"requests.example.com/q{i}": "1" for i in range(5_000)}
    odd = {"requests.": "1", "count/": "1", "hugepages-": "1", "limits.limits.cpu": "1", "": "1"}
    for label, hard in (("names", many), ("odd", odd), ("none", {})):
        status = {"status": {"hard": hard, "used": hard}}
        yield Poison(
            f"quota/{label}", RESOURCE_QUOTAS, quota_body(f"quota-{label}", hard=hard), status
        )
    requirement = {"scopeName": "PriorityClass", "operator": "In"}
    for label, expressions in (
        ("values", [{**requirement, "values": [f"v{i}" for i in range(20_000)]}]),
        ("long", [{**requirement, "values": ["v" * 90_000]}]),
        ("operator", [{**requirement, "operator": "Weird", "values": [""]}]),
        ("scope", [{"scopeName": "x" * 9_000, "operator": "Exists"}]),
        ("many", [{**requirement, "values": ["x"]}] * 3_000),
        ("nested", [{**requirement, "values": nested(500)}]),
    ):
        selector = {"matchExpressions": expressions}
        body = quota_body(f"quota-scopes-{label}", scopeSelector=selector)
        yield Poison(f"quota/scopes-{label}", RESOURCE_QUOTAS, body)
    scopes = ["Terminating", "NotTerminating", "BestEffort", "x"] * 500
    yield Poison("quota/scopes", RESOURCE_QUOTAS, quota_body("quota-every-scope", scopes=scopes))


def _services() -> Iterator[Poison]:
    """Yield services that claim to be of a canary, or hold what no service has."""
    owner = {"apiVersion": names.API_VERSION, "kind": "Job", "name": "canary-1", "uid": "u",
             "controller": True}  # fmt: skip
    port = {"port": 80}
    specs: tuple[dict[str, Any], ...] = (
        {"clusterIP": "None", "selector": {names.JOB_NAME: "canary-1"}},
        {"clusterIP": "not an address", "ports": [port]},
        {"ports": [{"port": number} for number in (0, -1, 2**31, 10**40)]},
        {"ports": [{"port": 1 + i, "name": f"p{i}"} for i in range(5_000)]},
        {"ports": [{**port, "protocol": "x" * 9_000}]},
        {"ports": nested(500)},
        {"selector": {f"l{i}": "v" * 63 for i in range(20_000)}, "ports": [port]},
        {"selector": {"": ""}, "clusterIP": 7, "ports": 7},
        {"type": "ExternalName", "externalName": "canary-1.canary.svc"},
    )
    for i, spec in enumerate(specs):
        labels = {names.JOB_NAME: "canary-1", names.JOB_UID: "u", names.ATTEMPT: "9" * 20}
        meta = {"name": f"canary-{i}", "namespace": NAMESPACE, "labels": labels}
        meta["ownerReferences"] = [owner]
        yield Poison(f"service/{i}", SERVICES, {"metadata": meta, "spec": spec})


#: Labels of a share that only hostile nodes can be in.
_NO_NODES = {"hostile": "none"}


def team_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a good team whose shares ask for nodes that no other tenant uses."""
    shares = [{"nodeSelector": _NO_NODES, "nodes": 2}, {"pool": "hostile", "gpus": 8}]
    spec = {"namespaces": [NAMESPACE], "shares": shares, **spec}
    return {"metadata": {"name": name}, "spec": spec}


def pool_body(name: str, **spec: Any) -> dict[str, Any]:
    """Return a good node pool, whose provider is a command that does not exist."""
    return {
        "metadata": {"name": name},
        "spec": {
            "provider": {"type": "Exec", "reference": "/no/such/command"},
            "template": {"resources": {"cpu": "8", "nvidia.com/gpu": "8"}},
            "max": 10,
            "mode": "Active",
            **spec,
        },
    }


def _teams() -> Iterator[Poison]:
    def team(label: str, *, status: Any = None, **spec: Any) -> Poison:
        body = team_body(f"team-{label}", **spec)
        return Poison(f"team/{label}", TEAMS, body, {"status": status} if status else {})

    for number in (2**31 - 1, 2**31, 2**63, 10**40, -1):
        sizes = [{"nodeSelector": _NO_NODES, "nodes": number}, {"pool": "hostile", "gpus": number}]
        limits = {"borrowLimitNodes": number, "lendLimitNodes": number}
        yield team(f"numbers-{len(str(number))}-{number % 7}", shares=sizes, **limits)
        yield team(f"weight-{len(str(number))}-{number % 7}", weight=number)
        yield team(f"borrow-{len(str(number))}-{number % 7}", borrowPriorityMax=number)
    for count in (64, 65, 5_000):
        shares = [{"nodeSelector": {**_NO_NODES, "i": str(i)}, "nodes": 1} for i in range(count)]
        yield team(f"shares-{count}", shares=shares)
    many = {f"example.com/k{i}": "v" for i in range(20_000)}
    for label, selector in (
        ("many", many),
        ("long", {"k" * 90_000: "v" * 90_000}),
        ("empty", {"": ""}),
        ("odd", {"a b/c/d": "\u202e", "x": "9" * 5_000}),
        ("nested", {"x": nested(500)}),
        ("taint", {names.TEAM: "canary", names.POOL: "other"}),
    ):
        yield team(f"selector-{label}", shares=[{"nodeSelector": selector, "nodes": 1}])
    yield team("neither", shares=[{"nodeSelector": _NO_NODES}])
    yield team("both", shares=[{"nodeSelector": _NO_NODES, "nodes": 1, "gpus": 1}])
    yield team("twins", shares=[{"pool": "hostile", "nodes": 1}] * 2)
    yield team("namespaces", namespaces=[f"n{i}" for i in range(20_000)])
    yield team("repeated", namespaces=[NAMESPACE] * 1_000)
    yield team("subjects", members={"users": [f"u{i}" for i in range(20_000)], "groups": [""]})
    yield team("deep", x=nested(1_500))
    for wrong in (7, "x", [], {"x": 7}):
        label = type(wrong).__name__
        yield team(f"shares-{label}", shares=wrong)
        yield team(f"members-{label}", members=wrong, admins=wrong)
        yield team(f"namespaces-{label}", namespaces=wrong)
    for i, use in enumerate(
        (
            {"dominantShareSeconds": 1e308, "asOf": "9999-12-31T23:59:59Z"},
            {"dominantShareSeconds": -1e308, "asOf": "0001-01-01T00:00:00Z"},
            {"dominantShareSeconds": 1, "asOf": "soon"},
            {"dominantShareSeconds": 10**400},
            {"gpus": 10**30, "jobsPlaced": -(10**30)},
        )
    ):
        yield team(f"use-{i}", status={"use": use})
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": "soon"}] * 500
    yield team("conditions", status={"conditions": conditions, "nodes": 10**30})
    for name in ("t" * 64, "t.t", "t" * 253):
        yield Poison(f"team/name-{len(name)}", TEAMS, team_body(name))


def _pools() -> Iterator[Poison]:
    def pool(label: str, *, status: Any = None, **spec: Any) -> Poison:
        body = pool_body(f"pool-{label}", **spec)
        return Poison(f"pool/{label}", NODE_POOLS, body, {"status": status} if status else {})

    for number in (100_000, 2**31 - 1, 2**63, 10**40, -1):
        label = f"{len(str(number))}-{number % 7}"
        yield pool(f"max-{label}", max=number)
        yield pool(f"hold-{label}", max=100_000, min=100_000, hold=number)
        yield pool(f"room-{label}", max=100_000, headroomNodes=number, weight=number)
        times = {"readySeconds": number, "expectedSeconds": number, "unavailableSeconds": number,
                 "nodesPerLaunchMax": number}  # fmt: skip
        yield pool(f"up-{label}", min=10, scaleUp=times, joinsPerMinute=number)
        yield pool(f"down-{label}", scaleDown={"idleSeconds": number})
    for i, amount in enumerate(("1e99", "-5", "9" * 5_000, "NaN", "", 1e308, -1, 2**63)):
        resources = {"cpu": amount, "nvidia.com/gpu": amount, "pods": amount}
        yield pool(f"amount-{i}", template={"resources": resources})
    many = {f"example.com/r{i}": "1" for i in range(8_000)}
    yield pool("names", template={"resources": many})
    yield pool("unheard", template={"resources": {f"example.com/u{i}": "1" for i in range(400)}})
    labels = {f"l{i}": "v" * 63 for i in range(5_000)}
    yield pool("labels", template={"resources": {"cpu": "8"}, "labels": labels})
    odd = {"": "", "a b": "\u202e", names.POOL: "canary", "x": "9" * 5_000}
    yield pool("odd", template={"resources": {"cpu": "8"}, "labels": odd})
    taints = [{"key": f"t{i}", "effect": "NoSchedule", "value": "v"} for i in range(5_000)]
    yield pool("taints", template={"resources": {"cpu": "8"}, "taints": taints})
    yield pool("effect", template={"resources": {"cpu": "8"}, "taints": [{"key": "", "effect": 7}]})
    for count in (256, 5_000):
        yield pool(f"domains-{count}", domains=[{"name": f"d{i}", "max": 3} for i in range(count)])
    yield pool("domain", domains=[{"name": "d", "max": 2**63}, {"name": "d"}, {"name": ""}])
    for i, reference in enumerate(("", "relative", "/\u0000", "/" + "x" * 9_000, "/dev/null", "/")):
        for kind in ("Exec", "Static", "Simulated", "Other"):
            provider = {"type": kind, "reference": reference}
            yield pool(f"provider-{i}-{kind}".lower(), min=1, provider=provider)
    options = {f"o{i}": "v" * 90 for i in range(5_000)}
    provider = {"type": "Exec", "reference": "/no/such", "options": options}
    yield pool("options", min=1, provider=provider)
    yield pool("deep", x=nested(1_500))
    launch = {"token": "t", "domain": "", "count": 10**30, "requestedAt": "soon"}
    for i, status in enumerate(
        (
            {"launches": [launch]},
            {"launches": [{**launch, "count": 1, "requestedAt": "9999-12-31T23:59:59Z"}] * 64},
            {"launches": [{**launch, "count": 1, "requestedAt": "soon"}]},
            {"unavailable": [{"domain": "", "reason": "", "until": "soon", "refusals": 10**9}]},
            {"recorded": 10**30, "launchNumber": 10**30},
            {"decisions": [{"at": "soon", "action": "x" * 9_000, "reason": ""}] * 50},
        )
    ):
        yield pool(f"status-{i}", status=status)
    for name in ("p" * 64, "p.p", "p" * 253):
        yield Poison(f"pool/name-{len(name)}", NODE_POOLS, pool_body(name))


def _fleets() -> Iterator[Poison]:
    override = {"name": "o", "nodes": ["n"], "expiresAt": "2099-01-01T00:00:00Z", "by": "x",
                "reason": "x"}  # fmt: skip
    removed = {"at": 0.0, "pool": "p", "domain": "d", "cause": "Idle", "count": 1}
    grant = {"pool": "p", "instance": "i", "node": "n"}
    specs: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({"overrides": [{**override, "expiresAt": "soon"}]}, {}),
        ({"overrides": [override] * 64}, {}),
        ({"overrides": [{**override, "nodes": [f"n{i}" for i in range(10_000)]}]}, {}),
        ({"freeze": {"reason": "x" * 90_000, "by": nested(50)}}, {}),
        ({"freeze": 7, "overrides": 7}, {}),
        ({"x": nested(1_500)}, {}),
        ({}, {"clock": 1e308, "removed": [removed]}),
        ({}, {"clock": 10**400}),
        ({}, {"clock": -1e308, "removed": [{**removed, "at": -1e308, "count": 10**30}] * 3_000}),
        ({}, {"grants": [grant] * 512}),
        ({}, {"grants": [{**grant, "instance": "i" * 90_000, "grantedAt": "soon"}]}),
        ({}, {"blind": ["x" * 900] * 900, "message": "x" * 90_000, "since": "soon"}),
    )
    for i, (spec, status) in enumerate(specs):
        body = {"metadata": {"name": "fleet"}, "spec": spec}
        yield Poison(f"fleet/{i}", FLEETS, body, {"status": status} if status else {})
    yield Poison("fleet/second", FLEETS, {"metadata": {"name": "second"}, "spec": {}})


def _pools_and_fleets() -> Iterator[Poison]:
    """Yield pools, and among them the fleet, of which there is one object, in all its versions."""
    fleets = list(_fleets())
    for i, pool in enumerate(_pools()):
        yield pool
        if i % 6 == 0 and fleets:
            yield fleets.pop(0)
    yield from fleets


_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    2**31,
    2**63,
    10**40,
    "",
    " ",
    "x" * 300,
    "9" * 5_000,
    "\u0000",
    "\u202e",
    "NaN",
    "../..",
    [],
    {},
    [None],
    [[]],
    {"": ""},
    {"x": {"y": []}},
    nested(70),
    ["x"] * 2_000,
    {f"k{i}": "v" for i in range(2_000)},
    "2026-13-45T99:99:99Z",
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        if isinstance(each, dict | list):
            yield from _places(each, (*at, key))
        else:
            yield (*at, key)


def _mutations() -> Iterator[Poison]:
    rng = random.Random(SEED)  # data, no secret
    full = job_body(
        "mutant",
        restart={"policy": "Gang", "limit": 1, "backoffSeconds": 1},
        topology={"key": "rack", "required": True},
        after=[{"job": "x"}],
        checkpoint={"path": "/x"},
        timeLimitSeconds=5,
        suspend=False,
    )
    pod = full["spec"]["roles"][0]["template"]["spec"]
    pod["affinity"] = _affinity(operator="In", values=["a"])
    pod["tolerations"] = [
        {
            "key": "k",
            "operator": "Equal",
            "value": "v",
            "effect": "NoExecute",
            "tolerationSeconds": 3,
        }
    ]
    pod["nodeSelector"] = {"a": "b"}
    bases = (
        ("job", JOBS, full),
        ("pod", PODS, pod_body("mutant", **pod, nodeName=NODE)),
        ("node", NODES, node_body("mutant", taints=[{"key": "k", "effect": "NoSchedule"}])),
        ("team", TEAMS, team_body("mutant", members={"users": ["a"]}, weight=2)),
        ("pool", NODE_POOLS, pool_body("mutant", min=2, domains=[{"name": "d"}], scaleUp={})),
        ("quota", RESOURCE_QUOTAS, quota_body("mutant", scopes=["BestEffort"])),
    )
    for kind, resource, base in bases:
        for i in range(MUTATIONS):
            body = copy.deepcopy(base)
            places = [p for p in _places(body) if p[0] == "spec" and len(p) > 1]
            for _ in range(rng.randint(1, 2)):
                *path, last = rng.choice(places)
                target: Any = body
                try:
                    for step in path:
                        target = target[step]
                    target[last] = copy.deepcopy(rng.choice(_VALUES))
                except (KeyError, IndexError, TypeError):
                    continue  # the first mutation took the place away
            body["metadata"]["name"] = f"mutant-{kind}-{i}"
            yield Poison(f"{kind}/mutant-{i}", resource, body)


def all_poison() -> tuple[Poison, ...]:
    """Return every hostile object, in a fixed order."""
    return (
        *_jobs(), *_pods(), *_nodes(), *_others(), *_teams(), *_pools_and_fleets(),
        *_quotas(), *_services(), *_mutations(),
    )  # fmt: skip
