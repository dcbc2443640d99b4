"""In-place resize: what a write of `pods/resize` may change of a pod (KEP-1287).

Rules, words and paths as the API server has them (kubernetes 1.36 `ValidatePodResize` in
`pkg/apis/core/validation`, `pkg/registry/core/pod/strategy.go`,
`plugin/pkg/admission/podresize`). Whether the pod's node can carry it out is for the node to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fairlead.api.kubernetes import core
from fairlead.api.pods.pod_asks import POD_LEVEL, requests_of
from fairlead.api.status import StatusCause
from fairlead.api.values import quantity
from fairlead.api.values.amounts import read
from fairlead.embedded.builtins import NODES, PODS
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.verbs import errors
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import FieldProblem, ProblemType
from fairlead.embedded.verbs.strategies.pod_defaults import qos_class

Obj = Mapping[str, Any]

SUBRESOURCE = "resize"
_LISTS = ("containers", "initContainers")
_KINDS = ("requests", "limits")
_MIRROR, _OS = "kubernetes.io/config.mirror", "kubernetes.io/os"
#: The path of a pod itself, as Go writes it.
_WHOLE = "[]"
_ONLY = "only cpu and memory resources are mutable"


def resized(old: Obj, new: Obj) -> dict[str, Any]:
    """Return a pod's spec with what of `new` a resize may change; both have their defaults.

    Where containers were added, removed, renamed or moved, it is `new`, for the rules to refuse.
    """
    if any(_names(old, field) != _names(new, field) for field in _LISTS):
        return dict(new)
    out = dict(old)
    _put(out, "resources", new)
    for field in _LISTS:
        if old.get(field):
            pairs = zip(old[field], new[field], strict=True)
            out[field] = [_with_resources(before, after) for before, after in pairs]
    return out


def _names(spec: Obj, field: str) -> list[Any]:
    return [container.get("name") for container in spec.get(field) or ()]


def _with_resources(old: Obj, new: Obj) -> dict[str, Any]:
    out = dict(old)
    _put(out, "resizePolicy", new)
    _put(out, "resources", new)
    return out


def _put(out: dict[str, Any], field: str, new: Obj) -> None:
    if field not in new:
        out.pop(field, None)
    elif field != "resources" or _amounts(out.get(field)) != _amounts(new[field]):
        out[field] = new[field]  # amounts that are the same keep their words


def resize_problems(old: Obj, new: Obj) -> Iterator[FieldProblem]:
    """Yield which rules a resized pod breaks, beside those of every pod's spec."""
    before, after = old["spec"], new["spec"]
    if _MIRROR in (old["metadata"].get("annotations") or {}):
        yield _forbidden(_WHOLE, "static pods cannot be resized")
        return
    if as_map(before.get("os")).get("name") == "windows":
        yield _forbidden(_WHOLE, "windows pods cannot be resized")
        return
    given = as_map(old.get("status")).get("qosClass") or qos_class(before)
    if given != qos_class(after):
        why = "Pod QOS Class may not change as a result of resizing"
        yield FieldProblem("spec", ProblemType.INVALID, why, given)
    if not _is_supported(as_map(old.get("status"))):
        yield _forbidden("spec", "Pod running on node without support for resize")
    yield from _pod_level_problems(before.get("resources"), after.get("resources"))
    moved = [problem for field in _LISTS for problem in _order_problems(before, after, field)]
    if moved:
        yield from moved
        return
    for field in _LISTS:
        pairs = zip(before.get(field) or (), after.get(field) or (), strict=True)
        for i, (own, wanted) in enumerate(pairs):
            path = f"spec.{field}[{i}]"
            yield from _removals(own.get("resources"), wanted.get("resources"), path)
            if not _is_same_but_for_amounts(own, wanted):
                is_init = field == "initContainers"
                why = "only cpu and memory resources for init or sidecar containers are mutable"
                yield _forbidden(path if is_init else "spec", why if is_init else _ONLY)


def _forbidden(path: str, why: str) -> FieldProblem:
    return FieldProblem(path, ProblemType.FORBIDDEN, why)


def _is_supported(status: Obj) -> bool:
    """True unless the node reports no amounts of the first container that runs."""
    for state in status.get("containerStatuses") or ():
        if as_map(state.get("state")).get("running") is not None:
            return state.get("resources") is not None
    return True


def _order_problems(old: Obj, new: Obj, field: str) -> Iterable[FieldProblem]:
    before, after = _names(old, field), _names(new, field)
    if len(before) != len(after):
        yield _forbidden(f"spec.{field}", f"{field} may not be added or removed on resize")
        return
    why = f"{field} may not be renamed or reordered on resize"
    for i, (name, other) in enumerate(zip(before, after, strict=True)):
        if name != other:
            yield _forbidden(f"spec.{field}[{i}].name", why)


def _removals(old: Any, new: Any, path: str) -> Iterable[FieldProblem]:
    for kind in _KINDS:
        if _is_less(as_map(old).get(kind), as_map(new).get(kind)):
            why = f"resource {kind} cannot be removed"
            yield _forbidden(f"{path}.resources.{kind}", why)


def _is_less(old: Any, new: Any) -> bool:
    return not as_map(old).keys() <= as_map(new).keys()


def _pod_level_problems(old: Any, new: Any) -> Iterable[FieldProblem]:
    if old is not None and new is None:
        yield _forbidden("spec.resources", "pod-level resources cannot be removed")
        return
    for kind in _KINDS:
        if _is_less(as_map(old).get(kind), as_map(new).get(kind)):
            why = f"pod-level resource {kind} cannot be removed"
            yield _forbidden(f"spec.resources.{kind}", why)
    if _without_amounts(old) != _without_amounts(new):
        yield _forbidden("spec", f"{_ONLY} at pod-level")


def _is_same_but_for_amounts(old: Obj, new: Obj) -> bool:
    # The real server also refuses to resize a container that has claims for devices.
    rest = [{**container, "resources": None} for container in (old, new)]
    own, wanted = old.get("resources"), new.get("resources")
    has_claims = as_map(own).get("claims") or as_map(wanted).get("claims")
    is_same = _without_amounts(own) == _without_amounts(wanted)
    return rest[0] == rest[1] and is_same and not has_claims


def _without_amounts(resources: Any) -> list[Any]:
    """Return the amounts, by kind, that no resize may change."""
    return [{n: a for n, a in each.items() if n not in POD_LEVEL} for each in _amounts(resources)]


def _amounts(resources: Any) -> list[dict[str, Any]]:
    """Return requests and limits; what is no quantity stays as it is."""
    given = [as_map(as_map(resources).get(kind)) for kind in _KINDS]
    return [{n: read(text) or text for n, text in each.items()} for each in given]


# ---------------------------------------------------------------------- the node


def check_node(context: Context, name: str, old: Obj, new: Obj) -> None:
    """Forbidden where the pod's node is gone or never has what the pod now requests."""
    node_name = new["spec"].get("nodeName")
    if not node_name or old["spec"] == new["spec"]:
        return
    record = context.store.latest(NODES.name, ("", node_name))
    if record is None:
        raise errors.forbidden(PODS, name, f'node "{node_name}" not found')
    node = record.typed(core.Node)
    system = node.metadata.labels.get(_OS, "linux")
    if system != "linux":
        why = f'pod resize is only supported on linux nodes, node "{node_name}" is "{system}"'
        raise errors.forbidden(PODS, name, why, StatusCause(reason="UnsupportedPlatform"))
    lacking = list(_lacking(new["spec"], node.status.allocatable))
    if lacking:
        why = f"node didn't have enough allocatable resources: {'; '.join(lacking)}"
        raise errors.forbidden(PODS, name, why, StatusCause(reason="NodeCapacity"))


def _lacking(spec: Obj, allocatable: Mapping[str, Any]) -> Iterator[str]:
    typed = msgspec.convert(spec, core.PodSpec)
    asked = requests_of(typed, lambda amounts, _: _in_base_units(amounts))
    held = _in_base_units(allocatable)
    for resource in POD_LEVEL:
        amounts = asked.get(resource, 0), held.get(resource, 0)
        if amounts[0] > amounts[1]:
            yield "{}, requested: {}, allocatable: {}".format(resource, *amounts)


def _in_base_units(amounts: Mapping[str, Any]) -> dict[str, int]:
    return quantity.resources_to_base({n: amounts[n] for n in POD_LEVEL if n in amounts})
