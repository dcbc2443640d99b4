"""The fast path of pruning: msgspec says in C that a value has no field that would be dropped.

Nearly every object that is written has known fields only, and to look at each of its fields in
Python costs more than the rest of the write. `known_test` derives from the schema a msgspec type
whose structs forbid unknown fields and whose leaves take anything: types are not its business. A
value that does not fit takes the slow path, which finds out why; so the type may be too strict, but
never accept a field that `compile_prune` would drop. A property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from fairlead.embedded.schema.fill import (
    EMBEDDED,
    META_FIELDS,
    PRESERVE,
    Prune,
    Pruned,
    compile_prune,
)

Json: TypeAlias = Mapping[str, Any]


class _NoType(Exception):
    """The schema says something that such a type can't."""


def fast_prune(schema: Json, *, closed_by: str = "") -> Prune | None:
    """Return `compile_prune` of the same arguments, behind the fast path."""
    full = compile_prune(schema, closed_by=closed_by)
    is_known = known_test(schema, closed_by=closed_by)
    if full is None or is_known is None:
        return full

    def prune(value: Any) -> Pruned | None:
        return None if is_known(value) else full(value)

    return prune


def known_test(schema: Json, *, closed_by: str = "") -> Callable[[Any], bool] | None:
    """Return a function that is true only for values of which nothing would be dropped.

    None when there is no type for this schema.
    """
    try:
        wanted = _type(schema, closed_by)
    except (_NoType, TypeError, ValueError):
        return None  # a field's name, say, that msgspec can't carry
    if wanted is Any:
        return None

    def is_known(value: Any) -> bool:
        try:
            msgspec.convert(value, wanted)
        except (msgspec.ValidationError, OverflowError):
            return False
        return True

    return is_known


def _type(schema: Json, closed_by: str) -> Any:
    """Follow `compile_prune` node by node; Any where it drops nothing."""
    properties: Json = schema.get("properties") or {}
    items, extra = schema.get("items"), schema.get("additionalProperties")
    inner = _type(items, closed_by) if isinstance(items, Mapping) else Any
    if schema.get("type") == "array":
        return Any if inner is Any else list[inner]
    keeps_unknown = bool(schema.get(PRESERVE)) and not (closed_by and schema.get(closed_by))
    has_extra = extra is not None and extra is not False
    keeps = bool(keeps_unknown or has_extra or schema.get("x-kubernetes-int-or-string"))
    if not keeps and schema.get("type") not in (None, "object"):
        return Any
    below = {name: _type(part, closed_by) for name, part in properties.items()}
    extra_type = _type(extra, closed_by) if isinstance(extra, Mapping) else Any
    is_open = extra_type is Any and all(part is Any for part in below.values())
    if keeps and is_open and inner is Any:
        return Any
    if inner is not Any:
        raise _NoType  # an object or an array, as it comes
    if extra_type is not Any:
        if properties:
            raise _NoType
        return dict[str, extra_type]
    if schema.get(EMBEDDED):
        below = {**dict.fromkeys(sorted(META_FIELDS), Any), **below}
    return _struct(below, forbids=not keeps)


def _struct(below: Mapping[str, Any], *, forbids: bool) -> Any:
    fields: list[Any] = []
    rename: dict[str, str] = {}
    for i, (name, part) in enumerate(below.items()):
        rename[f"f{i}"] = name
        # A null is for others to judge: it holds no unknown field.
        fields.append((f"f{i}", Any if part is Any else part | UnsetType | None, UNSET))
    return msgspec.defstruct(
        "Known", fields, rename=rename, kw_only=True, gc=False, forbid_unknown_fields=forbids
    )
