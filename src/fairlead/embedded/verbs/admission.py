"""What the API server adds to new objects: defaults, priority, tolerations, namespaces.

Only what clients and controllers notice (kubernetes `pkg/apis/core/v1/defaults.go`,
`plugin/pkg/admission/priority`, `pkg/registry/*/strategy.go`). Only the top level and the metadata
of an object are changed in place: what lies below belongs to the caller. The structure is not
checked yet; a body of another one makes these functions stumble.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from fairlead.api import core
from fairlead.api.status import Forbidden, StatusCause, StatusDetails
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.pod_defaults import add_tolerations, default_pod_spec, qos_class
from fairlead.embedded.verbs.pod_shapes import PodShape, shape_of

NAMESPACE_FINALIZER = "kubernetes"
CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"


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


def admit_create(context: Context, info: ResourceInfo, obj: dict[str, Any]) -> PodShape | None:
    """Default a new object of a built-in kind; return the shape of a pod that has one.

    Forbidden when a pod's priority can't be.
    """
    if info is builtins.PODS:
        return _admit_pod(context, obj)
    if info is builtins.NAMESPACES:
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
        complete_node(obj)
    return None


def _spec_of(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec; TypeError when it is something else, even something empty."""
    spec = obj.get("spec")
    if spec is not None and not isinstance(spec, dict):
        raise TypeError("spec must be an object")
    return spec or {}


def admit_secret(obj: dict[str, Any]) -> None:
    """Move `stringData`, which is for writing only, into `data`."""
    texts = obj.get("stringData")
    if texts:
        encoded = {k: base64.b64encode(v.encode()).decode() for k, v in texts.items()}
        obj["data"] = {**(obj.get("data") or {}), **encoded}
    obj.pop("stringData", None)


#: Required in the API: Go writes them when they are empty, and strict clients ask for them.
_NODE_INFO = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion",
    "kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip


def complete_node(node: dict[str, Any]) -> None:
    """Give a node's status the fields that a Kubernetes API server always writes."""
    status = node.get("status")
    info = (status or {}).get("nodeInfo")
    if info is not None and not isinstance(info, dict):
        raise TypeError("status.nodeInfo must be an object")
    if info is None or any(name not in info for name in _NODE_INFO):
        filled = {**dict.fromkeys(_NODE_INFO, ""), **(info or {})}
        node["status"] = {**(status or {}), "nodeInfo": filled}
    if "daemonEndpoints" not in node["status"]:
        node["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": 0}}


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


def _admit_pod(context: Context, pod: dict[str, Any]) -> PodShape | None:
    given = _spec_of(pod)
    shape = shape_of(given)
    if shape is not None:
        spec, qos = shape.filled(given), shape.qos
    else:
        spec = default_pod_spec(given)
        add_tolerations(spec)
        qos = qos_class(spec)
    _set_priority(context, pod["metadata"]["name"], spec)
    status: dict[str, Any] = {"phase": "Pending", "qosClass": qos}
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
    return shape


def _set_priority(context: Context, pod_name: str, spec: dict[str, Any]) -> None:
    name = spec.get("priorityClassName")
    if name:
        record = context.store.latest(builtins.PRIORITY_CLASSES.name, ("", name))
        if record is None:
            why = f"no PriorityClass with name {name} was found"
            raise errors.forbidden(builtins.PODS, pod_name, why)
        found = record.typed(core.PriorityClass)
    else:
        found = context.priorities.default(context.store)
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
