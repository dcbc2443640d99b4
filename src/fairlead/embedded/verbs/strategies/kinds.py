"""What is special about each built-in kind but pods, and the table of all strategies.

Only what clients and controllers notice (kubernetes `pkg/apis/*/v1/defaults.go`,
`pkg/apis/*/validation`, `pkg/registry/*/strategy.go`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.values.times import format_time
from fairlead.embedded import builtins, crds
from fairlead.embedded.quota import filled_item, range_problems, spec_problems
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.storage.records import Record
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import FieldProblem, Finding, ProblemType
from fairlead.embedded.verbs.strategies import quotas
from fairlead.embedded.verbs.strategies.device_selectors import selector_problems
from fairlead.embedded.verbs.strategies.pod_defaults import spec_of
from fairlead.embedded.verbs.strategies.pod_shapes import PodShape
from fairlead.embedded.verbs.strategies.pod_strategy import PodStrategy
from fairlead.embedded.verbs.strategies.strategy import Obj, Strategy
from fairlead.embedded.webhooks import config as webhooks_config

NAMESPACE_FINALIZER = "kubernetes"
CRD_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
CONFIG_BYTES_MAX = 1024 * 1024
PRIORITY_MAX = 1_000_000_000

_UNDELETABLE = ("default", "kube-system", "kube-public")  # admission plugin NamespaceLifecycle
_CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
#: Required in the API: Go writes them when they are empty, and strict clients ask for them.
_NODE_INFO = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion",
    "kubeletVersion", "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip


class _Namespace(Strategy):
    """Has a finalizer in its spec, and a phase."""

    is_emptied_first = True
    added = ("finalizers",)

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        metadata = obj["metadata"]
        name = {"kubernetes.io/metadata.name": metadata["name"]}
        metadata["labels"] = {**(metadata.get("labels") or {}), **name}
        obj["spec"] = {"finalizers": [NAMESPACE_FINALIZER]}
        obj["status"] = {"phase": "Active"}
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        if not sub:
            new["spec"] = old.get("spec", {})
        return []

    def is_empty(self, obj: Obj) -> bool:
        return not (obj.get("spec") or {}).get("finalizers")

    def check_delete(self, name: str) -> None:
        if name in _UNDELETABLE:
            raise errors.forbidden(builtins.NAMESPACES, name, "this namespace may not be deleted")

    def mark(self, obj: Obj) -> None:
        obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}


class _Definition(Strategy):
    """A CustomResourceDefinition: its status says that the kind is served."""

    is_emptied_first = True
    added = ("finalizers",)

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        finalizers = obj["metadata"].get("finalizers") or []
        if CRD_FINALIZER not in finalizers:
            obj["metadata"]["finalizers"] = [*finalizers, CRD_FINALIZER]
        return None

    def complete(self, context: Context, obj: Obj) -> None:
        crds.admit(obj, context.now_text())

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        return crds.problems(obj)


class _Node(Strategy):
    """Its status has the fields that a Kubernetes API server always writes.

    A cordoned node has the taint that Kubernetes' node lifecycle controller would give it.
    """

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        obj.setdefault("spec", {})
        self._fill_status(obj)
        self._taint(context, {}, obj)
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        self._fill_status(new)
        self._taint(context, old, new)
        return []

    def _taint(self, context: Context, old: Obj, new: Obj) -> None:
        """Add the taint of a cordoned node, with when it was cordoned, or take it off."""
        spec = new.get("spec")
        taints = spec.get("taints") if isinstance(spec, dict) else None
        if not isinstance(spec, dict) or not isinstance(taints, list | None):
            return
        others = [t for t in taints or () if not _is_cordon(t)]
        if spec.get("unschedulable") is not True:
            if len(others) != len(taints or ()):
                spec["taints"] = others
            return
        before = old.get("spec")
        known = before.get("taints") if isinstance(before, dict) else None
        kept = [t for t in (*(taints or ()), *(known or ())) if _is_cordon(t)]
        added = {
            "key": names.TAINT_UNSCHEDULABLE, "effect": "NoSchedule",
            "timeAdded": format_time(context.clock.now()),
        }  # fmt: skip
        spec["taints"] = [*others, *(kept[:1] or [added])]

    def _fill_status(self, node: Obj) -> None:
        status = node.get("status")
        info = (status or {}).get("nodeInfo")
        if info is not None and not isinstance(info, dict):
            raise TypeError("status.nodeInfo must be an object")
        if info is None or any(name not in info for name in _NODE_INFO):
            filled = {**dict.fromkeys(_NODE_INFO, ""), **(info or {})}
            node["status"] = {**(status or {}), "nodeInfo": filled}
        if "daemonEndpoints" not in node["status"]:
            node["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": 0}}


def _is_cordon(taint: object) -> bool:
    return isinstance(taint, dict) and taint.get("key") == names.TAINT_UNSCHEDULABLE


class _ConfigMap(Strategy):
    """Bounded, with keys that can be names of files; immutable when it says so."""

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        frozen = ("data", "binaryData", "immutable") if old.get("immutable") else ()
        return _unchanged(old, new, frozen)

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        found: list[Finding] = []
        size = 0
        for field in ("data", "binaryData"):
            for key, value in (obj.get(field) or {}).items():
                is_encoded = field == "binaryData"
                size += len(value) * 3 // 4 - value.count("=") if is_encoded else len(value)
                if _CONFIG_KEY.fullmatch(key) is None or key in (".", ".."):
                    why = (
                        "a valid config key must consist of alphanumeric characters, '-', '_' or "
                        "'.'"
                    )
                    found.append(FieldProblem(f"{field}[{key}]", ProblemType.INVALID, why, key))
        if size > CONFIG_BYTES_MAX:
            why = f"may not be more than {CONFIG_BYTES_MAX} bytes"
            found.append(FieldProblem("data", ProblemType.TOO_LONG, why))
        return found


class _Secret(_ConfigMap):
    """A ConfigMap with a type, whose `stringData` is for writing only."""

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        self._move_texts(obj)
        obj.setdefault("type", "Opaque")
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        self._move_texts(new)
        found: list[Finding] = []
        if old.get("type") != new.get("type"):
            why = "field is immutable"
            found.append(FieldProblem("type", ProblemType.INVALID, why, new.get("type")))
        return [*found, *super().admit_update(context, old, new, sub=sub)]

    def _move_texts(self, obj: Obj) -> None:
        texts = obj.get("stringData")
        if texts:
            encoded = {k: base64.b64encode(v.encode()).decode() for k, v in texts.items()}
            obj["data"] = {**(obj.get("data") or {}), **encoded}
        obj.pop("stringData", None)


class _Service(Strategy):
    """Has defaults that depend on each other."""

    added = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        obj["spec"], obj["status"] = self._filled(spec_of(obj)), {"loadBalancer": {}}
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        if not sub and new.get("spec") != old.get("spec"):
            new["spec"] = self._filled(spec_of(new))
        return []

    def _filled(self, given: Mapping[str, Any]) -> Obj:
        spec: Obj = {
            "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", **given,
        }  # fmt: skip
        if spec.get("clusterIP"):
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
        if spec.get("ports"):
            spec["ports"] = [
                {"protocol": "TCP", "targetPort": port.get("port"), **port}
                for port in spec["ports"]
            ]
        return spec


class _Claim(Strategy):
    """A PersistentVolumeClaim: bound by `embedded/own_controllers/volume_binder.py`."""

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        obj["spec"] = {"volumeMode": "Filesystem", **spec_of(obj)}
        obj["status"] = {"phase": "Pending"}
        return None


class _Volume(Strategy):
    """A PersistentVolume: free until a claim is found for it."""

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        policy = {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"}
        obj["spec"] = {**policy, **spec_of(obj)}
        obj["status"] = {"phase": "Available"}
        return None


class _StorageClass(Strategy):
    """A StorageClass: it says how volumes are made, and never changes that."""

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        obj.setdefault("reclaimPolicy", "Delete")
        obj.setdefault("volumeBindingMode", "Immediate")
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        fields = ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode")
        return _unchanged(old, new, fields)


class _DeviceChoice(Strategy):
    """A claim for devices or a template: its expressions compile, what it asks for stays.

    A claim gets its devices from `embedded/own_controllers/device_allocator.py`.
    """

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        obj.pop("status", None)
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        if sub or old.get("spec") == new.get("spec"):
            return []
        return [FieldProblem("spec", ProblemType.FORBIDDEN, "field is immutable")]

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        return [
            FieldProblem(path, ProblemType.INVALID, why, expression)
            for path, expression, why in selector_problems(obj.get("spec"), "spec")
        ]


class _DeviceClass(_DeviceChoice):
    """A class of devices: its expressions compile, and it may change."""

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        return []


class _Quota(Strategy):
    """A ResourceQuota: it is in force, and counted, with the write that stores it."""

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        obj["status"] = quotas.status_of(context, obj)
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        if sub:
            return []
        new["status"] = quotas.status_of(context, new)
        before, after = (as_map(each.get("spec")).get("scopes") or () for each in (old, new))
        if set(before) == set(after):
            return []
        return [FieldProblem("spec.scopes", ProblemType.INVALID, "field is immutable", [*after])]

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        return [
            FieldProblem(path, ProblemType.INVALID, why, value)
            for path, why, value in spec_problems(obj.get("spec"))
        ]


class _Range(Strategy):
    """A LimitRange, with the defaults that follow from its bounds."""

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        self._fill(obj)
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        self._fill(new)
        return []

    def _fill(self, obj: Obj) -> None:
        spec = spec_of(obj)
        if spec.get("limits"):
            obj["spec"] = {**spec, "limits": [filled_item(item) for item in spec["limits"]]}

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        return [*range_problems(obj.get("spec"))]


class _PriorityClass(Strategy):
    """Never changes its value; names with `system-` are the server's."""

    def admit_create(self, context: Context, obj: Obj) -> PodShape | None:
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        return None

    def admit_update(self, context: Context, old: Obj, new: Obj, *, sub: str) -> list[Finding]:
        return _unchanged(old, new, ("value", "preemptionPolicy"))

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        name, value = obj["metadata"]["name"], obj.get("value", 0)
        if _SYSTEM_PRIORITIES.get(name) == value:
            return []
        found: list[Finding] = []
        if name.startswith("system-"):
            why = (
                "priority class names with 'system-' prefix are reserved for system use only. "
                f"error: {name} is not a known system priority class"
            )
            found.append(FieldProblem("metadata.name", ProblemType.FORBIDDEN, why))
        if value > PRIORITY_MAX:
            why = f"maximum allowed value of a user defined priority is {PRIORITY_MAX}"
            found.append(FieldProblem("value", ProblemType.FORBIDDEN, why))
        return found


class _Lease(Strategy):
    """Lasts some time."""

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        seconds = (obj.get("spec") or {}).get("leaseDurationSeconds")
        if seconds is None or seconds > 0:
            return []
        path = "spec.leaseDurationSeconds"
        return [FieldProblem(path, ProblemType.INVALID, "must be greater than 0", seconds)]


class _Event(Strategy):
    """Lies beside the object that it is about."""

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        value = (obj.get("involvedObject") or {}).get("namespace", "")
        if (value or "default") == obj["metadata"].get("namespace"):
            return []
        why = "does not match event.namespace"
        return [FieldProblem("involvedObject.namespace", ProblemType.INVALID, why, value)]


class _WebhookConfiguration(Strategy):
    """One of the two kinds that name admission webhooks."""

    def __init__(self, info: ResourceInfo) -> None:
        self._info = info

    def complete(self, context: Context, obj: Obj) -> None:
        webhooks_config.admit(self._info, obj, can_call=context.can_call_webhooks())

    def problems(self, obj: Obj, record: Record, shape: PodShape | None) -> list[Finding]:
        return [*webhooks_config.problems(self._info, obj)]


def _unchanged(old: Obj, new: Obj, fields: Sequence[str]) -> list[Finding]:
    """Return a finding for each of the top-level fields that changed."""
    return [
        FieldProblem(field, ProblemType.FORBIDDEN, "field is immutable")
        for field in fields
        if old.get(field) != new.get(field)
    ]


_PLAIN = Strategy()
_STRATEGIES: Mapping[ResourceInfo, Strategy] = {
    builtins.PODS: PodStrategy(),
    builtins.NODES: _Node(),
    builtins.NAMESPACES: _Namespace(),
    builtins.CRDS: _Definition(),
    builtins.CONFIG_MAPS: _ConfigMap(),
    builtins.SECRETS: _Secret(),
    builtins.SERVICES: _Service(),
    builtins.CLAIMS: _Claim(),
    builtins.VOLUMES: _Volume(),
    builtins.STORAGE_CLASSES: _StorageClass(),
    builtins.RESOURCE_CLAIMS: _DeviceChoice(),
    builtins.RESOURCE_CLAIM_TEMPLATES: _DeviceChoice(),
    builtins.DEVICE_CLASSES: _DeviceClass(),
    builtins.RESOURCE_QUOTAS: _Quota(),
    builtins.LIMIT_RANGES: _Range(),
    builtins.PRIORITY_CLASSES: _PriorityClass(),
    builtins.LEASES: _Lease(),
    builtins.EVENTS: _Event(),
    **{info: _WebhookConfiguration(info) for info in builtins.WEBHOOK_KINDS},
}


def strategy_of(info: ResourceInfo) -> Strategy:
    """Return what is special about a kind."""
    return _STRATEGIES.get(info, _PLAIN)
