"""What the API server adds to new objects: defaults, priority, tolerations, namespaces.

Only what clients and controllers notice (kubernetes `pkg/apis/core/v1/defaults.go`,
`plugin/pkg/admission/{priority,defaulttolerationseconds}`, `pkg/registry/*/strategy.go`). Only the
top level and the metadata of an object are changed in place: what lies below belongs to the caller.
The structure is not checked yet; a body of another one makes these functions stumble.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from fairlead.api import core, quantity
from fairlead.api.status import Forbidden, StatusCause, StatusDetails
from fairlead.embedded import builtins
from fairlead.embedded.registry import ResourceInfo
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.context import Context

TOLERATION_SECONDS = 300
_DEFAULT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
NAMESPACE_FINALIZER = "kubernetes"
CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_COMPUTE = (quantity.CPU, quantity.MEMORY)


def check_namespace(context: Context, info: ResourceInfo, namespace: str, name: str) -> None:
    """Refuse to create in a namespace that is not there (404) or going away (403)."""
    if not info.namespaced:
        return
    record = context.store.latest(builtins.NAMESPACES.name, ("", namespace))
    if record is None:
        raise errors.not_found(builtins.NAMESPACES, namespace)
    if record.is_deleting:
        why = (
            f"unable to create new content in namespace {namespace} because it is being terminated"
        )
        cause = StatusCause(
            reason="NamespaceTerminating",
            message=f"namespace {namespace} is being terminated",
            field="metadata.namespace",
        )
        raise errors.forbidden(info, name, why, cause)


def admit_create(context: Context, info: ResourceInfo, obj: dict[str, Any]) -> None:
    """Default a new object of a built-in kind; Forbidden when a pod's priority can't be."""
    if info is builtins.PODS:
        _admit_pod(context, obj)
    elif info is builtins.NAMESPACES:
        metadata = obj["metadata"]
        name = {"kubernetes.io/metadata.name": metadata["name"]}
        metadata["labels"] = {**(metadata.get("labels") or {}), **name}
        obj["spec"] = {"finalizers": [NAMESPACE_FINALIZER]}
        obj["status"] = {"phase": "Active"}
    elif info is builtins.CRDS:
        finalizers = obj["metadata"].get("finalizers") or []
        if CRD_FINALIZER not in finalizers:
            obj["metadata"]["finalizers"] = [*finalizers, CRD_FINALIZER]
    elif info is builtins.SECRETS:
        admit_secret(obj)
        obj.setdefault("type", "Opaque")
    elif info is builtins.PRIORITY_CLASSES:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
    elif info is builtins.SERVICES:
        obj["spec"] = _default_service(_spec_of(obj))
        obj["status"] = {"loadBalancer": {}}
    elif info is builtins.CLAIMS:
        obj["spec"] = {"volumeMode": "Filesystem", **_spec_of(obj)}
        obj["status"] = {"phase": "Pending"}
    elif info is builtins.NODES:
        obj.setdefault("spec", {})


def _spec_of(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec; TypeError when it is something else, even something empty."""
    spec = obj.get("spec")
    if spec is not None and not isinstance(spec, dict):
        raise TypeError("spec must be an object")
    return spec or {}


def admit_secret(obj: dict[str, Any]) -> None:
    """Move `stringData`, which is for writing only, into `data`."""
    texts = obj.pop("stringData", None)
    if texts:
        encoded = {k: base64.b64encode(v.encode()).decode() for k, v in texts.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}


def _default_service(spec: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", **spec,
    }  # fmt: skip
    if out.get("clusterIP"):
        out.setdefault("clusterIPs", [out["clusterIP"]])
    if out.get("ports"):
        out["ports"] = [
            {"protocol": "TCP", "targetPort": port.get("port"), **port} for port in out["ports"]
        ]
    return out


def _admit_pod(context: Context, pod: dict[str, Any]) -> None:
    spec = default_pod_spec(_spec_of(pod))
    _set_priority(context, pod["metadata"]["name"], spec)
    add_tolerations(spec)
    status: dict[str, Any] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastProbeTime": None, "lastTransitionTime": context.now_text(),
            }
        ]  # fmt: skip
    pod["spec"] = spec
    pod["status"] = status


_SPEC_DEFAULTS: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "enableServiceLinks": True,
}


def default_pod_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec with what it leaves open filled in."""
    out = dict(spec)
    for field, value in _SPEC_DEFAULTS.items():
        if out.get(field) in (None, ""):
            out[field] = value
    grace = out["terminationGracePeriodSeconds"]
    if isinstance(grace, int) and grace < 0:  # `pkg/apis/core/v1/defaults.go`
        out["terminationGracePeriodSeconds"] = 1
    for field in ("containers", "initContainers"):
        if out.get(field):
            out[field] = [_default_container(container) for container in out[field]]
    return out


def _default_container(container: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(container)
    put = out.setdefault
    image = out.get("image")
    if image:
        _, _, tag = image.rpartition("/")[2].partition(":")
        latest = tag in ("", "latest") and "@" not in image
        put("imagePullPolicy", "Always" if latest else "IfNotPresent")
    put("terminationMessagePath", "/dev/termination-log")
    put("terminationMessagePolicy", "File")
    resources = out.get("resources") or {}
    limits = resources.get("limits")
    if limits:
        resources = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    out["resources"] = resources
    if out.get("ports"):
        out["ports"] = [{"protocol": "TCP", **port} for port in out["ports"]]
    return out


def add_tolerations(spec: dict[str, Any]) -> None:
    """Add the tolerations that every pod has for five minutes (DefaultTolerationSeconds)."""
    tolerations: list[dict[str, Any]] = list(spec.get("tolerations") or ())
    for key in _DEFAULT_TOLERATIONS:
        if not any(
            t.get("key", "") in ("", key) and t.get("effect", "") in ("", "NoExecute")
            for t in tolerations
        ):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": TOLERATION_SECONDS,
                }
            )
    spec["tolerations"] = tolerations


def _set_priority(context: Context, pod_name: str, spec: dict[str, Any]) -> None:
    name = spec.get("priorityClassName")
    table = builtins.PRIORITY_CLASSES.name
    found: core.PriorityClass | None = None
    if name:
        record = context.store.latest(table, ("", name))
        if record is None:
            why = f"no PriorityClass with name {name} was found"
            raise errors.forbidden(builtins.PODS, pod_name, why)
        found = record.typed(core.PriorityClass)
    else:
        for record in context.store.records(table):
            candidate = record.typed(core.PriorityClass)
            if candidate.global_default and (found is None or candidate.value < found.value):
                found = candidate
    value, policy = (found.value, found.preemption_policy) if found else (0, "PreemptLowerPriority")
    asked = spec.get("priority")
    if asked is not None and asked != value:
        why = (
            f"the integer value of priority ({asked}) must not be provided in pod spec; priority "
            f"admission controller computed {value} from the given PriorityClass name"
        )
        raise Forbidden(
            f'pods "{pod_name}" is forbidden: {why}',
            details=StatusDetails(name=pod_name, kind="pods"),
        )
    if found:
        spec["priorityClassName"] = found.metadata.name
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", policy)


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return the quality-of-service class of a defaulted pod spec (`pkg/apis/core/v1/helper`)."""
    any_set, guaranteed = False, True
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            resources = container.get("resources") or {}
            limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
            for name in _COMPUTE:
                limit, request = limits.get(name), requests.get(name)
                any_set = any_set or limit is not None or request is not None
                if limit is None or str(limit) != str(request):
                    guaranteed = False
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
