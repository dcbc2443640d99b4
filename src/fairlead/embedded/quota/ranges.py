"""LimitRanges: what they fill in, what they refuse, and what may be written in one.

Follows kubernetes `plugin/pkg/admission/limitranger/admission.go`, `SetDefaults_LimitRangeItem` and
`ValidateLimitRange`. A range here is its plain object. Findings come by name of the resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fairlead.api.values.amounts import Amount, Amounts, read_all
from fairlead.api.values.quantity import PODS
from fairlead.embedded.quota.usage import CLAIMS, containers_of, pod_total
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.verbs.errors import FieldProblem, ProblemType

Obj = Mapping[str, Any]

ANNOTATION = "kubernetes.io/limit-ranger"
_CONTAINER, _POD, _CLAIM = "Container", "Pod", "PersistentVolumeClaim"
_INVALID = ProblemType.INVALID
_FIELDS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def _items(limit_range: Obj, kind: str) -> Iterator[Obj]:
    for item in as_map(limit_range.get("spec")).get("limits") or ():
        if item.get("type") == kind:
            yield item


def filled_item(item: Obj) -> dict[str, Any]:
    """Return an item with the defaults that follow from its other fields."""
    if item.get("type") != _CONTAINER:
        return dict(item)
    default = {**as_map(item.get("max")), **as_map(item.get("default"))}
    requests = {**as_map(item.get("min")), **default, **as_map(item.get("defaultRequest"))}
    given = {"default": default, "defaultRequest": requests}
    return {**item, **{field: value for field, value in given.items() if value}}


def filled_spec(ranges: Iterable[Obj], spec: Obj) -> tuple[dict[str, Any], str]:
    """Return the spec of a pod with default requests and limits, and the words for its annotation.

    The spec must have its own defaults already; the words are empty where nothing was filled in.
    """
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for limit_range in ranges:
        for item in _items(limit_range, _CONTAINER):
            requests = {**as_map(item.get("defaultRequest")), **requests}
            limits = {**as_map(item.get("default")), **limits}
    out, notes = dict(spec), list[str]()
    for field, words in (("containers", "container"), ("initContainers", "init container")):
        if out.get(field):
            out[field] = [
                _filled(container, requests, limits, notes=notes, words=words)
                for container in out[field]
            ]
    return out, f"LimitRanger plugin set: {'; '.join(notes)}" if notes else ""


def _filled(
    container: Obj, requests: Obj, limits: Obj, *, notes: list[str], words: str
) -> dict[str, Any]:
    resources = dict(as_map(container.get("resources")))
    for field, defaults, word in (("requests", requests, "request"), ("limits", limits, "limit")):
        given = as_map(resources.get(field))
        missing = sorted(name for name in defaults if name not in given)
        if missing:
            resources[field] = {**given, **{name: defaults[name] for name in missing}}
            notes.append(f"{', '.join(missing)} {word} for {words} {container.get('name', '')}")
    return {**container, "resources": resources}


def range_violations(limit_range: Obj, table: str, obj: Obj) -> list[str]:
    """Return why a range refuses an object, in the API server's words; [] where it does not."""
    spec = as_map(obj.get("spec"))
    if table == CLAIMS:
        asked = read_all(as_map(spec.get("resources")).get("requests"))
        return [
            text for item in _items(limit_range, _CLAIM) for text in _claim_violations(item, asked)
        ]
    if table != PODS:
        return []
    found: list[str] = []
    for item in _items(limit_range, _CONTAINER):
        for container in containers_of(spec):
            resources = as_map(container.get("resources"))
            amounts = (read_all(resources.get(field)) for field in ("requests", "limits"))
            found += _violations(item, _CONTAINER, *amounts)
    for item in _items(limit_range, _POD):
        amounts = (pod_total(spec, field, is_for_range=True) for field in ("requests", "limits"))
        found += _violations(item, _POD, *amounts)
    return found


def _bounds(item: Obj, field: str) -> list[tuple[str, Amount]]:
    return sorted(read_all(item.get(field)).items())


def _claim_violations(item: Obj, asked: Amounts) -> Iterator[str]:
    for name, bound in _bounds(item, "min"):
        yield from _below(_CLAIM, name, bound, requests=asked, limits={})
    for name, bound in _bounds(item, "max"):
        start = f"maximum {name} usage per {_CLAIM} is {bound}"
        if name not in asked:
            yield f"{start}.  No request is specified"
        elif asked[name].value > bound.value:
            yield f"{start}, but request is {asked[name]}"


def _violations(item: Obj, kind: str, requests: Amounts, limits: Amounts) -> Iterator[str]:
    for name, bound in _bounds(item, "min"):
        yield from _below(kind, name, bound, requests=requests, limits=limits)
    for name, bound in _bounds(item, "max"):
        start = f"maximum {name} usage per {kind} is {bound}"
        if name not in limits:
            yield f"{start}.  No limit is specified"
        elif limits[name].value > bound.value:
            yield f"{start}, but limit is {limits[name]}"
        elif name in requests and requests[name].value > bound.value:
            yield f"{start}, but request is {requests[name]}"
    for name, bound in _bounds(item, "maxLimitRequestRatio"):
        start = f"{name} max limit to request ratio per {kind} is {bound}, but"
        request, limit = requests.get(name), limits.get(name)
        if request is None or not request.value:
            yield f"{start} no request is specified or request is 0"
        elif limit is None or not limit.value:
            yield f"{start} no limit is specified or limit is 0"
        elif limit.value / request.value > bound.value:
            yield f"{start} provided ratio is {float(limit.value / request.value):.6f}"


def _below(
    kind: str, name: str, bound: Amount, *, requests: Amounts, limits: Amounts
) -> Iterator[str]:
    start = f"minimum {name} usage per {kind} is {bound}"
    if name not in requests:
        yield f"{start}.  No request is specified"
    elif requests[name].value < bound.value:
        yield f"{start}, but request is {requests[name]}"
    elif name in limits and limits[name].value < bound.value:
        yield f"{start}, but limit is {limits[name]}"


# ---------------------------------------------------------------------- what may be written


def range_problems(spec: Any) -> Iterator[FieldProblem]:
    """Yield what is wrong with the spec of a range."""
    seen: set[Any] = set()
    for number, item in enumerate(as_map(spec).get("limits") or ()):
        path, kind = f"spec.limits[{number}]", item.get("type")
        if kind not in (_CONTAINER, _POD, _CLAIM) and "/" not in str(kind):
            why = "must be a standard limit type or fully qualified"
            yield FieldProblem(f"{path}.type", _INVALID, why, kind)
        if kind in seen:
            yield FieldProblem(f"{path}.type", ProblemType.DUPLICATE, value=kind)
        seen.add(kind)
        for field in ("default", "defaultRequest") if kind == _POD else ():
            if item.get(field):
                why = "may not be specified when `type` is 'Pod'"
                yield FieldProblem(f"{path}.{field}", ProblemType.FORBIDDEN, why)
        if kind == _CLAIM and not any("storage" in as_map(item.get(f)) for f in ("min", "max")):
            why = "either minimum or maximum storage value is required, but neither was provided"
            yield FieldProblem(f"{path}.limits", ProblemType.REQUIRED, why)
        yield from _item_problems(item, path)


#: (field, field that it may not exceed, words)
_ORDER = (
    ("min", "max", "min value {} is greater than max value {}"),
    ("min", "defaultRequest", "min value {} is greater than default request value {}"),
    ("defaultRequest", "max", "default request value {} is greater than max value {}"),
    (
        "defaultRequest",
        "default",
        "default request value {} is greater than default limit value {}",
    ),
    ("min", "default", "min value {} is greater than default value {}"),
    ("default", "max", "default value {} is greater than max value {}"),
)
_AT = ("min", "defaultRequest", "defaultRequest", "defaultRequest", "default", "default")


def _item_problems(item: Obj, path: str) -> Iterator[FieldProblem]:
    amounts = {field: read_all(item.get(field)) for field in _FIELDS}
    for name in sorted({name for field in _FIELDS for name in amounts[field]}):
        for (low, high, words), at in zip(_ORDER, _AT, strict=True):
            a, b = amounts[low].get(name), amounts[high].get(name)
            if a is not None and b is not None and a.value > b.value:
                value = str(amounts[at][name])
                yield FieldProblem(f"{path}.{at}[{name}]", _INVALID, words.format(a, b), value)
        ratio = amounts["maxLimitRequestRatio"].get(name)
        at = f"{path}.maxLimitRequestRatio[{name}]"
        if ratio is not None and ratio.value < 1:
            yield FieldProblem(at, _INVALID, f"ratio {ratio} is less than 1", str(ratio))
        least, most = amounts["min"].get(name), amounts["max"].get(name)
        if ratio is not None and least is not None and most is not None and least.value:
            bound = most.value / least.value
            if ratio.value > bound:
                why = f"ratio {ratio} is greater than max/min = {float(bound):.6f}"
                yield FieldProblem(at, _INVALID, why, str(ratio))
