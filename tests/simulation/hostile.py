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
    JOBS,
    LEASES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
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
    return (*_jobs(), *_pods(), *_nodes(), *_others(), *_mutations())
