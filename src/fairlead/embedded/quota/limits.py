"""What quotas make of a write, what they count, and what may be written in one.

Follows apiserver `pkg/admission/plugin/resourcequota/controller.go` (`CheckRequest`) and
`pkg/apis/core/validation`. A quota here is its plain object; amounts in force are in its status.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fairlead.api.values.amounts import Amount, Amounts, added, read, read_all, written
from fairlead.api.values.quantity import CPU, MEMORY, PODS
from fairlead.embedded.quota.usage import (
    COMPUTE,
    LIMITS,
    NOTHING_SERVED,
    REQUESTS,
    Served,
    containers_of,
    has_scope,
    is_terminating,
    names_of,
    of_compute,
    usage_of,
)
from fairlead.embedded.schema.values import as_map

Obj = Mapping[str, Any]

SCOPES = (
    "BestEffort", "NotBestEffort", "Terminating", "NotTerminating", "PriorityClass",
    "CrossNamespacePodAffinity",
)  # fmt: skip
#: What a pod's container must say where a quota limits it, as ever.
_MUST_SAY = frozenset(
    (CPU, MEMORY, *(f"{p}{n}" for p in (REQUESTS, LIMITS) for n in (CPU, MEMORY)))
)
_PLAIN_NAMES = frozenset((
    *COMPUTE, *(f"{p}{n}" for p in (REQUESTS, LIMITS) for n in COMPUTE), PODS, "services",
    "requests.storage", "resourcequotas", "replicationcontrollers", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
))  # fmt: skip
_NOT_OF_PODS = _PLAIN_NAMES.difference(
    (PODS, *COMPUTE), (f"{p}{n}" for p in (REQUESTS, LIMITS) for n in COMPUTE)
)


class Excess(Exception):
    """A quota refuses a write; the text says which and why, in the API server's words."""


def _scopes(quota: Obj) -> Iterator[Obj]:
    spec = as_map(quota.get("spec"))
    for scope in spec.get("scopes") or ():
        yield {"scopeName": scope, "operator": "Exists"}
    yield from as_map(spec.get("scopeSelector")).get("matchExpressions") or ()


def _concerns(quota: Obj, table: str, obj: Obj) -> bool:
    scopes = list(_scopes(quota))
    return all(has_scope(obj, scope) for scope in scopes) if table == PODS else not scopes


def charged(
    quotas: Iterable[Obj],
    table: str,
    obj: Obj,
    *,
    old: Obj | None = None,
    served: Served = NOTHING_SERVED,
) -> list[tuple[Obj, dict[str, str]]]:
    """Return the quotas that an object, new or changed, uses of, with what is used of them then.

    `Excess` when one does not allow it.
    """
    if table == PODS and old is not None and _uses_the_same(old, obj):
        return []
    usage: Amounts | None = None
    out: list[tuple[Obj, dict[str, str]]] = []
    for quota in quotas:
        status = as_map(quota.get("status"))
        hard = read_all(status.get("hard"))
        names = names_of(table, hard, served)
        if not names or not _concerns(quota, table, obj):
            continue
        name = quota["metadata"]["name"]
        if table == PODS:
            _check_containers(name, names, as_map(obj.get("spec")))
        if usage is None:
            usage = usage_of(table, obj, served)
        delta = usage
        if old is not None and _concerns(quota, table, old):
            before = usage_of(table, old, served)
            delta = {key: amount.less(before.get(key)) for key, amount in usage.items()}
        asked = {key: delta[key] for key in names if key in delta and delta[key].value}
        if not asked:
            continue
        used = read_all(status.get("used"))
        after = added((used, asked))
        _check_limits(name, asked, used=used, hard=hard)
        out.append((quota, written(after)))
    return out


def _uses_the_same(old: Obj, pod: Obj) -> bool:
    """True for a pod that uses what it did, of the same quotas."""
    is_same = is_terminating(old) == is_terminating(pod)
    return is_same and usage_of(PODS, old) == usage_of(PODS, pod)


def freed(quota: Obj, table: str, old: Obj, new: Obj | None) -> Amounts:
    """Return what a change, or a removal, of an object gives back to a quota."""
    names = names_of(table, as_map(as_map(quota.get("status")).get("hard")))
    if not names or not _concerns(quota, table, old):
        return {}
    before = usage_of(table, old)
    is_left = new is not None and _concerns(quota, table, new)
    after = usage_of(table, new) if new is not None and is_left else {}
    given = {key: before[key].less(after.get(key)) for key in names if key in before}
    return {key: amount for key, amount in given.items() if amount.value}


def reduced(quota: Obj, given_back: Amounts) -> dict[str, str]:
    """Return what is used of a quota when this has been given back."""
    used = read_all(as_map(quota.get("status")).get("used"))
    return written({key: amount.less(given_back.get(key)) for key, amount in used.items()})


def _check_containers(quota: str, names: Sequence[str], spec: Obj) -> None:
    if as_map(spec.get("resources")):
        return
    wanted = _MUST_SAY.intersection(names)
    missing: dict[str, set[str]] = {}
    for container in containers_of(spec) if wanted else ():
        resources = as_map(container.get("resources"))
        given = of_compute(read_all(resources.get("requests")), read_all(resources.get("limits")))
        for name in wanted.difference(given):
            missing.setdefault(name, set()).add(str(container.get("name", "")))
    if missing:
        texts = [f"{name} for: {','.join(sorted(missing[name]))}" for name in sorted(missing)]
        raise Excess(f"failed quota: {quota}: must specify {'; '.join(texts)}")


def _check_limits(quota: str, asked: Amounts, *, used: Amounts, hard: Amounts) -> None:
    over = [
        name
        for name, amount in asked.items()
        if name in hard
        and (used[name] + amount if name in used else amount).value > hard[name].value
    ]
    if not over:
        return

    def shown(amounts: Amounts) -> str:
        return ",".join(f"{name}={amounts[name]}" for name in sorted(over) if name in amounts)

    raise Excess(
        f"exceeded quota: {quota}, requested: {shown(asked)}, used: {shown(used)}, "
        f"limited: {shown(hard)}"
    )


def counted(
    quota: Obj, objects: Mapping[str, Iterable[Obj]], served: Served = NOTHING_SERVED
) -> dict[str, Any]:
    """Return the status of a quota: its limits, and what all objects of the namespace use.

    `objects` are those of each table, at least of those that the limits are about.
    """
    hard = read_all(as_map(quota.get("spec")).get("hard"))
    used: Amounts = {name: Amount(hard[name].value * 0) for name in hard}
    for table, each in objects.items():
        names = names_of(table, hard, served)
        for obj in each if names else ():
            if _concerns(quota, table, obj):
                usage = usage_of(table, obj, served)
                used = added((used, {name: usage[name] for name in names if name in usage}))
    return {"hard": written(hard), "used": written(used)}


def spec_problems(spec: Any) -> list[tuple[str, str, Any]]:
    """Return what is wrong with the spec of a quota: path, words, value."""
    spec = as_map(spec)
    found = [
        problem for each in as_map(spec.get("hard")).items() for problem in _problems_of(*each)
    ]
    scopes = list(spec.get("scopes") or ())
    selector = as_map(spec.get("scopeSelector")).get("matchExpressions") or ()
    named = [(scope, "spec.scopes", scopes) for scope in scopes]
    named += [
        (each.get("scopeName"), "spec.scopeSelector.matchExpressions", each) for each in selector
    ]
    for scope, path, value in named:
        if scope not in SCOPES:
            found.append((path, "unsupported scope", value))
            continue
        unfit = [name for name in as_map(spec.get("hard")) if not _fits(scope, name)]
        found += [(path, "unsupported scope applied to resource", value)] * len(unfit)
    names = {scope for scope, _, _ in named}
    pairs = ({"BestEffort", "NotBestEffort"}, {"Terminating", "NotTerminating"})
    found += [("spec.scopes", "conflicting scopes", scopes) for pair in pairs if pair <= names]
    return found


def _fits(scope: Any, name: str) -> bool:
    """True for names that are no plain ones: those are not looked at."""
    if scope == "BestEffort":
        return name == PODS or name not in _PLAIN_NAMES
    return name not in _NOT_OF_PODS


def _problems_of(name: str, text: Any) -> Iterator[tuple[str, str, Any]]:
    path, amount = f"spec.hard[{name}]", read(text)
    if "/" not in name and name not in _PLAIN_NAMES and "hugepages-" not in name:
        yield path, "must be a standard resource type or fully qualified", name
        yield path, "must be a standard resource for quota", name
    if amount is None:
        yield path, "must be a quantity", text
    elif amount.value < 0:
        yield path, "must be greater than or equal to 0", text
    elif amount.value.denominator != 1 and (name == PODS or name.startswith("count/")):
        yield path, "must be an integer", text
