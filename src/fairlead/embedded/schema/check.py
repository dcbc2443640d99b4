"""Schemas compiled into closures: one function per node, which answers None when all is well.

The happy path builds nothing: no paths, no lists. Only when something is wrong do the functions
return findings, each with a path relative to its node, and the callers above prepend theirs. The
same trick serves pruning: a function answers None unless there is something to drop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from fairlead.embedded.schema.faults import (
    Check,
    FaultKind,
    Faults,
    SchemaFault,
    invalid,
    join,
    under,
    wrong_type,
)
from fairlead.embedded.schema.scalars import (
    enum_check,
    int_or_string,
    only_for,
    quantity_check,
    scalar,
    scalar_checks,
)

Json: TypeAlias = Mapping[str, Any]

_OBJECT_KEYWORDS = (
    "properties", "additionalProperties", "required", "minProperties", "maxProperties",
)  # fmt: skip
_ARRAY_KEYWORDS = ("items", "minItems", "maxItems", "x-kubernetes-list-type")


def compile_check(schema: Json) -> Check | None:
    """Return the check of a schema node, None when it accepts everything."""
    wanted = schema.get("type")
    parts: list[Check] = []
    match wanted:
        case "object":
            parts.append(_object(schema, typed=True))
        case "array":
            parts.append(_array(schema, typed=True))
        case None:
            parts += _untyped(schema)
        case _:
            parts.append(scalar(str(wanted), scalar_checks(schema, str(wanted))))
    if "enum" in schema:
        parts.append(enum_check(schema["enum"]))
    parts += _junctors(schema)
    check = _all(parts)
    return _nullable(check) if check is not None and schema.get("nullable") else check


def _untyped(schema: Json) -> list[Check]:
    """Checks of a node without a type: each keyword concerns values of its own type only."""
    parts: list[Check] = []
    if schema.get("x-kubernetes-int-or-string"):
        parts.append(int_or_string)
    if schema.get("format") == "quantity":
        parts.append(quantity_check)
    if any(k in schema for k in _OBJECT_KEYWORDS):
        parts.append(_object(schema, typed=False))
    if any(k in schema for k in _ARRAY_KEYWORDS):
        parts.append(_array(schema, typed=False))
    for wanted, classes in (("string", (str,)), ("number", (int, float))):
        checks = scalar_checks(schema, wanted)
        if checks:
            parts.append(only_for(classes, checks))
    return parts


def _all(parts: Sequence[Check]) -> Check | None:
    if len(parts) <= 1:
        return parts[0] if parts else None

    def check(value: Any) -> Faults | None:
        faults: Faults = []
        for part in parts:
            found = part(value)
            if found is not None:
                faults += found
                if found[0].kind is FaultKind.TYPE and not found[0].path:
                    break
        return faults or None

    return check


def _nullable(inner: Check) -> Check:
    def check(value: Any) -> Faults | None:
        return None if value is None else inner(value)

    return check


# --- containers -------------------------------------------------------------------------------


def _object(schema: Json, *, typed: bool) -> Check:
    properties: Json = schema.get("properties") or {}
    inner = {key: compile_check(below) for key, below in properties.items()}
    checks = {key: check for key, check in inner.items() if check is not None}
    extra = schema.get("additionalProperties")
    extra_check = compile_check(extra) if isinstance(extra, Mapping) else None
    fallback = {} if extra_check is None else dict.fromkeys(properties.keys() - checks.keys())
    required = tuple(schema.get("required") or ())
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    find = checks.get

    def check(value: Any) -> Faults | None:
        if not isinstance(value, dict):
            return wrong_type(value, "object") if typed else None
        faults: Faults | None = None
        for key in required:
            if key not in value:
                faults = join(faults, [SchemaFault(FaultKind.REQUIRED, path=(key,))])
        for key, item in value.items():
            below = find(key)
            if below is None:
                if extra_check is None or key in fallback:
                    continue
                below = extra_check
            found = below(item)
            if found is not None:
                faults = join(faults, under(found, key))
        if least is not None and len(value) < least:
            detail = f"%s in body should have at least {least} properties"
            faults = join(faults, invalid("", detail))
        if most is not None and len(value) > most:
            faults = join(faults, [_too_many(len(value), most)])
        return faults

    return check


def _too_many(count: int, most: int) -> SchemaFault:
    return SchemaFault(FaultKind.TOO_MANY, count, f"must have at most {most} items")


def _array(schema: Json, *, typed: bool) -> Check:
    items = schema.get("items")
    below = compile_check(items) if isinstance(items, Mapping) else None
    least, most = schema.get("minItems"), schema.get("maxItems")
    unique = _uniqueness(schema)

    def check(value: Any) -> Faults | None:
        if not isinstance(value, (list, tuple)):  # of callers in process
            return wrong_type(value, "array") if typed else None
        faults: Faults | None = None
        if below is not None:
            for i, item in enumerate(value):
                found = below(item)
                if found is not None:
                    faults = join(faults, under(found, i))
        if least is not None and len(value) < least:
            detail = f"%s in body should have at least {least} items"
            faults = join(faults, invalid(len(value), detail))
        if most is not None and len(value) > most:
            faults = join(faults, [_too_many(len(value), most)])
        if unique is not None and (found := unique(value)):
            faults = join(faults, found)
        return faults

    return check


def _uniqueness(schema: Json) -> Check | None:
    """Return the check of `x-kubernetes-list-type` set and map, None for atomic lists."""
    kind = schema.get("x-kubernetes-list-type")
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    if kind == "set":
        return lambda value: _duplicates(value, [_hashable(item) for item in value])
    if kind != "map" or not keys or schema.get("x-kubernetes-patch-strategy"):
        # Built-in kinds validate their lists themselves; env, for one, may repeat a name.
        return None

    only = keys[0] if len(keys) == 1 else None

    def check(value: list[Any]) -> Faults | None:
        if only is not None and _are_distinct_texts(value, only):
            return None
        return _duplicate_items(value, keys)

    return check


def _are_distinct_texts(items: list[Any], key: str) -> bool:
    """True for the usual case: every item has another text under `key`."""
    seen: set[str] = set()
    for item in items:
        text = item.get(key) if isinstance(item, dict) else None
        if not isinstance(text, str):
            return False
        seen.add(text)
    return len(seen) == len(items)


def _duplicate_items(items: list[Any], keys: Sequence[str]) -> Faults | None:
    identities: list[object] = []
    shown: list[Any] = []
    for i, item in enumerate(items):
        if item is not None and not isinstance(item, dict):
            return under(invalid(item, "must be an object for an array of list-type map"), i)
        present = {key: item[key] for key in keys if key in item} if item else {}
        shown.append(present)
        identities.append(_hashable(present))
    return _duplicates(shown, identities)


def _hashable(value: Any) -> object:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, order="sorted")


def _duplicates(shown: Sequence[Any], identities: Sequence[object]) -> Faults | None:
    """Report the second appearance of each identity, as the API server does."""
    if len(set(identities)) == len(identities):
        return None
    faults: Faults = []
    times: dict[object, int] = {}
    for i, identity in enumerate(identities):
        times[identity] = times.get(identity, 0) + 1
        if times[identity] == 2:
            faults.append(SchemaFault(FaultKind.DUPLICATE, shown[i], path=(i,)))
    return faults


# --- junctors ---------------------------------------------------------------------------------


def _junctors(schema: Json) -> list[Check]:
    parts: list[Check] = []
    for below in schema.get("allOf") or ():
        check = compile_check(below)
        if check is not None:
            parts.append(check)
    if schema.get("anyOf"):
        parts.append(_any_of([compile_check(below) for below in schema["anyOf"]]))
    if schema.get("oneOf"):
        parts.append(_one_of([compile_check(below) for below in schema["oneOf"]]))
    if schema.get("not") is not None:
        parts.append(_not(compile_check(schema["not"])))
    return parts


def _any_of(checks: Sequence[Check | None]) -> Check:
    def check(value: Any) -> Faults | None:
        if any(test is None or test(value) is None for test in checks):
            return None
        return invalid("", '"%s" must validate at least one schema (anyOf)')

    return check


def _one_of(checks: Sequence[Check | None]) -> Check:
    def check(value: Any) -> Faults | None:
        count = sum(test is None or test(value) is None for test in checks)
        if count == 1:
            return None
        found = f"Found {count} valid alternatives" if count else "Found none valid"
        return invalid("", f'"%s" must validate one and only one schema (oneOf). {found}')

    return check


def _not(test: Check | None) -> Check:
    def check(value: Any) -> Faults | None:
        if test is not None and test(value) is not None:
            return None
        return invalid("", '"%s" must not validate the schema (not)')

    return check
