"""Binding, eviction and scale: writes that name what is wanted rather than the object.

An eviction asks the pod's disruption budget. Nothing keeps the budgets' status here, so what a
budget allows is computed when it is asked, from its spec and its pods (kubernetes
`pkg/controller/disruption`, `pkg/registry/core/pod/storage/eviction.go`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.api.kubernetes import core
from fairlead.api.kubernetes.selectors import OPERATORS, Operator, Requirement, Selector
from fairlead.api.status import (
    BadRequest,
    Conflict,
    InternalError,
    StatusCause,
    StatusDetails,
    TooManyRequests,
)
from fairlead.embedded import builtins
from fairlead.embedded.resource_info import FieldPath, ResourceInfo, ScalePaths
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.storage.records import Key, Record
from fairlead.embedded.verbs import changes, errors, writes
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.disruption import DisruptionCause, disrupt
from fairlead.embedded.verbs.errors import FieldProblem, ProblemType
from fairlead.embedded.verbs.options import DeleteOptions, DeleteResult, WriteOptions


def bind(context: Context, key: Key, binding: Mapping[str, Any], options: WriteOptions) -> Record:
    """Give a pod its node. Conflict when it has one, is going away, is gated or has another uid."""
    node = as_map(binding.get("target")).get("name")
    if not isinstance(node, str) or not node:
        problem = FieldProblem("target.name", ProblemType.REQUIRED)
        raise errors.invalid(builtins.PODS, key[1], [problem])
    given = as_map(binding.get("metadata"))

    def change(pod: dict[str, Any]) -> dict[str, Any]:
        _check_bindable(pod, key[1], given)
        annotations = {
            **as_map(pod["metadata"].get("annotations")),
            **as_map(given.get("annotations")),
        }
        if annotations:
            pod["metadata"]["annotations"] = annotations
        pod["spec"]["nodeName"] = node
        status = pod.setdefault("status", {})
        scheduled = {
            "type": "PodScheduled", "status": "True",
            "lastProbeTime": None, "lastTransitionTime": context.now_text(),
        }  # fmt: skip
        conditions = [c for c in status.get("conditions") or () if c["type"] != "PodScheduled"]
        status["conditions"] = [*conditions, scheduled]
        return pod

    return writes.overwrite(context, builtins.PODS, key, change, options=options)


def _check_bindable(pod: Mapping[str, Any], name: str, given: Mapping[str, Any]) -> None:
    why = ""
    spec, metadata = pod.get("spec") or {}, pod["metadata"]
    changes.check_preconditions(builtins.PODS, name, metadata, {"uid": given.get("uid")})
    if "deletionTimestamp" in metadata:
        why = f"pod {name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {name} has non-empty .spec.schedulingGates"
    if why:
        raise Conflict(
            f'Operation cannot be fulfilled on pods/binding "{name}": {why}',
            details=StatusDetails(name=name, kind="pods/binding"),
        )


# ---------------------------------------------------------------------- eviction


def evict(context: Context, key: Key, options: DeleteOptions) -> DeleteResult:
    """Delete a pod if its disruption budget allows it; TooManyRequests when it does not."""
    record = context.store.latest(builtins.PODS.name, key)
    if record is None:
        raise errors.not_found(builtins.PODS, key[1])
    pod = record.typed(core.Pod)
    free = pod.is_terminal or record.is_deleting or pod.status.phase == "Pending"
    budgets = [] if free else _budgets_of(context, record)
    if len(budgets) > 1:
        raise InternalError(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
    for budget in budgets:
        name = budget["metadata"]["name"]
        allowed, healthy, needed = _allowed(context, key[0], budget)
        if allowed <= 0 and _is_ready(pod):
            cause = StatusCause(
                reason="DisruptionBudget",
                message=f"The disruption budget {name} needs {needed} healthy pods and has "
                f"{healthy} currently",
            )
            raise TooManyRequests(
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details=StatusDetails(causes=(cause,)),
            )
    return disrupt(context, key, options, DisruptionCause.EVICTION)


def _is_ready(pod: core.Pod) -> bool:
    """True when the pod counts as healthy: condition Ready."""
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)


def _budgets_of(context: Context, pod: Record) -> list[dict[str, Any]]:
    budgets = [r.plain() for r in context.store.records(builtins.BUDGETS.name, pod.namespace)]
    return [b for b in budgets if _selector(b.get("spec") or {}).matches(pod.labels)]


def _selector(spec: Mapping[str, Any]) -> Selector:
    """The label selector object of a budget; without one, one that nothing matches."""
    value = spec.get("selector")
    if value is None:
        return Selector((Requirement("fairlead.dev/none", Operator.EXISTS),))
    found = [
        Requirement(key, Operator.IN, (text,))
        for key, text in sorted((value.get("matchLabels") or {}).items())
    ]
    for term in value.get("matchExpressions") or ():
        values = tuple(sorted(term.get("values") or ()))
        found.append(Requirement(term["key"], OPERATORS[term["operator"]], values))
    return Selector(tuple(found))


def _allowed(context: Context, namespace: str, budget: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return (disruptions allowed, healthy pods, healthy pods needed)."""
    spec = budget["spec"]
    selector = _selector(spec)
    expected = healthy = 0
    for record in context.store.records(builtins.PODS.name, namespace):
        if not selector.matches(record.labels):
            continue
        pod = record.typed(core.Pod)
        if pod.is_terminal:
            continue
        expected += 1
        healthy += _is_ready(pod) and not record.is_deleting
    if spec.get("maxUnavailable") is not None:
        needed = max(0, expected - _scaled(spec["maxUnavailable"], expected))
    else:
        needed = _scaled(spec.get("minAvailable", 1), expected)
    return healthy - needed, healthy, needed


def _scaled(value: int | str, total: int) -> int:
    """A number, or a percentage of `total` rounded up."""
    if isinstance(value, str):
        return -(-int(value.rstrip("%")) * total // 100)
    return value


# ---------------------------------------------------------------------- scale


#: The replicas of an object that has none (`invalidSpecReplicas`, apiextensions-apiserver).
_NO_REPLICAS = -(2**31)


def _at(obj: Any, path: FieldPath) -> Any:
    for key in path:
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj


def _paths(info: ResourceInfo) -> ScalePaths:
    if info.scale is None:
        raise errors.method_not_allowed(info, "scale")
    return info.scale


def get_scale(context: Context, info: ResourceInfo, key: Key) -> dict[str, Any]:
    """Return the autoscaling/v1 Scale of an object; InternalError where it has no replicas."""
    scale = scale_to_change(context, info, key)
    if scale["spec"]["replicas"] == _NO_REPLICAS:
        why = f"the spec replicas field {_replicas_path(info)} does not exist"
        causes = (StatusCause(message=why),)
        raise InternalError(f"Internal error occurred: {why}", details=StatusDetails(causes=causes))
    return scale


def scale_to_change(context: Context, info: ResourceInfo, key: Key) -> dict[str, Any]:
    """Return the Scale that a patch begins with; it may have no replicas."""
    paths = _paths(info)
    record = context.store.get(info.name, key)
    if record is None:
        raise errors.not_found(info, key[1])
    scale = _scale(paths, record)
    if _at(record.plain(), paths.spec_replicas) is None:
        scale["spec"]["replicas"] = _NO_REPLICAS
    return scale


def _replicas_path(info: ResourceInfo) -> str:
    return f'"{"".join(f".{name}" for name in _paths(info).spec_replicas)}"'


def _scale(paths: ScalePaths, record: Record) -> dict[str, Any]:
    obj = record.plain()
    metadata = obj["metadata"]
    status: dict[str, Any] = {"replicas": _at(obj, paths.status_replicas) or 0}
    selector = _at(obj, paths.label_selector) if paths.label_selector else None
    if selector:
        status["selector"] = selector
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {field: metadata[field] for field in kept if field in metadata},
        "spec": {"replicas": _at(obj, paths.spec_replicas) or 0},
        "status": status,
    }


def put_scale(
    context: Context,
    info: ResourceInfo,
    key: Key,
    body: Mapping[str, Any],
    *,
    options: WriteOptions,
) -> tuple[Record, dict[str, Any]]:
    """Write the wished replicas. Conflict for another version, Invalid for a negative number."""
    paths = _paths(info)
    replicas = _at(body, ("spec", "replicas")) or 0
    if replicas == _NO_REPLICAS:
        raise BadRequest(f"the spec replicas field {_replicas_path(info)} cannot be empty")
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        why = "must be a whole number greater than or equal to 0"
        problem = FieldProblem("spec.replicas", ProblemType.INVALID, why, replicas)
        raise errors.invalid(info, key[1], [problem])
    version = _at(body, ("metadata", "resourceVersion"))

    def change(obj: dict[str, Any]) -> dict[str, Any]:
        parent = obj
        for name in paths.spec_replicas[:-1]:
            parent = parent.setdefault(name, {})
        parent[paths.spec_replicas[-1]] = replicas
        if version:
            obj["metadata"]["resourceVersion"] = version
        return obj

    record = writes.patch(
        context, info, key, lambda obj: change(changes.copy(obj)),
        options=replace(options, part="scale"),
    )  # fmt: skip
    return record, _scale(paths, record)
