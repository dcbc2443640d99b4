"""The fast path of schemas: msgspec looks at a whole value in C, and only says whether it is clean.

A value is clean when it holds no null where null is no value, every typed field has its exact type,
required fields are there, and bounds, lengths and enums of texts are kept. `clean_test` derives a
msgspec type from the schema; what such a type can't say stays in `residual_schema`, which is small
for real kinds. A value that is not clean is not necessarily wrong: it then takes the slow path,
which finds out and words it. So a clean value must be one that the slow path has nothing to say
against, beyond the residual schema; a property test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.api import quantity
from fairlead.embedded.schema.check import compile_check
from fairlead.embedded.schema.faults import Check, Faults
from fairlead.embedded.schema.fill import Fill, compile_fill
from fairlead.embedded.schema.values import INT32, INT64

Json: TypeAlias = Mapping[str, Any]

_PROPERTIES_MAX = 1_000
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
PATCH_STRATEGY = "x-kubernetes-patch-strategy"
#: Members that say nothing about validity, or that the clean test has covered.
_ANNOTATIONS = frozenset((
    "description", "title", "default", "example", "externalDocs", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource",
))  # fmt: skip
_RESIDUAL = (
    "pattern", "multipleOf", "allOf", "anyOf", "oneOf", "not", "minProperties", "maxProperties",
)  # fmt: skip


def clean_test(schema: Json) -> Callable[[Any], bool] | None:
    """Return a function that is true for clean values, None when no type can be made."""
    try:
        wanted = _type(schema)
    except (TypeError, ValueError, re.error):
        # A name that msgspec can't carry, such as one with a quote: only the slow path is left.
        return None

    def is_clean(value: Any) -> bool:
        try:
            msgspec.convert(value, wanted)
        except (msgspec.ValidationError, OverflowError):
            return False
        return True

    return is_clean


def _type(schema: Json) -> Any:
    wanted: Any
    match schema.get("type"):
        case "object":
            wanted = _object(schema)
        case "array":
            items = schema.get("items")
            inner = _type(items) if isinstance(items, Mapping) else Any
            wanted = _bounded(list[inner], schema, "minItems", "maxItems")
        case "string":
            wanted = _string(schema)
        case "boolean":
            wanted = bool
        case "integer":
            wanted = _integer(schema)
        case "number":
            wanted = _number(schema)
        case _:
            wanted = int | str if schema.get("x-kubernetes-int-or-string") else _untyped(schema)
    return wanted | None if schema.get("nullable") else wanted


def _object(schema: Json) -> Any:
    properties: Json = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    if properties and (extra is not None or len(properties) > _PROPERTIES_MAX):
        raise ValueError("too wide, or open and named at once: only the slow path knows it")
    if not properties:
        inner = _type(extra) if isinstance(extra, Mapping) else Any
        return dict[str, inner]
    required: set[str] = set(schema.get("required") or ())
    fields: list[Any] = []
    rename: dict[str, str] = {}
    for i, (name, below) in enumerate(properties.items()):
        field, wanted = f"f{i}", _type(below)
        rename[field] = name
        fields.append((field, wanted) if name in required else (field, wanted | UnsetType, UNSET))
    return msgspec.defstruct("Clean", fields, rename=rename, kw_only=True, gc=False)


def _bounded(base: Any, schema: Json, least: str, most: str) -> Any:
    low, high = schema.get(least), schema.get(most)
    if not low and high is None:
        return base
    return Annotated[base, Meta(min_length=low, max_length=high)]


def _string(schema: Json) -> Any:
    accepted: Any = schema.get("enum")
    if _are_texts(accepted):
        literal: Any = Literal
        return literal[tuple(accepted)]
    return _bounded(str, schema, "minLength", "maxLength")


def _untyped(schema: Json) -> Any:
    """Quantities are the one limit on values of free form that a type can say.

    A pattern in a union with a list and a dictionary is left to the residual schema: msgspec 0.22
    frees such a type wrongly and corrupts memory once the type is collected.
    """
    if schema.get("format") == "quantity":
        return Annotated[str, Meta(pattern=f"(?a)^(?:{quantity.PATTERN})\\Z")] | int | float
    return Any


def _integer(schema: Json) -> Any:
    low, high = INT32 if schema.get("format") == "int32" else INT64
    least, most = schema.get("minimum"), schema.get("maximum")
    if type(least) is int:
        low = max(low, least)
    if type(most) is int:
        high = min(high, most)
    return Annotated[int, Meta(ge=low, le=high)]


def _number(schema: Json) -> Any:
    least, most = schema.get("minimum"), schema.get("maximum")
    return Annotated[float, Meta(ge=least, le=most)]


def residual_schema(schema: Json) -> dict[str, Any]:
    """Return the schema of what `clean_test` leaves open; {} when nothing is left to check."""
    if "type" not in schema:
        if schema.get("format") == "quantity":
            return {}
        return {key: schema[key] for key in schema if key not in _ANNOTATIONS}
    rest: dict[str, Any] = {key: schema[key] for key in _RESIDUAL if schema.get(key) is not None}
    if schema.get("format") not in (None, "int32", "int64"):
        rest["format"] = schema["format"]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        limit = schema.get(bound)
        if limit is not None and (schema.get(exclusive) or type(limit) is not int):
            rest[bound], rest[exclusive] = limit, bool(schema.get(exclusive))
    accepted = schema.get("enum")
    if accepted is not None and not (schema["type"] == "string" and _are_texts(accepted)):
        rest["enum"] = accepted
    if _is_unique_list(schema):
        rest |= {key: schema[key] for key in (LIST_TYPE, LIST_KEYS) if schema.get(key)}
    unnamed = [key for key in schema.get("required") or () if key not in _properties(schema)]
    if unnamed:
        rest["required"] = unnamed
    rest |= _children(schema, residual_schema)
    if rest and schema.get("nullable"):
        rest["nullable"] = True
    return rest


def sparse_defaults(schema: Json) -> dict[str, Any]:
    """Return the part of a schema that holds defaults: enough to fill in a clean value."""
    rest = _children(schema, sparse_defaults)
    if schema.get("default") is not None:
        rest["default"] = schema["default"]
    return rest


def _properties(schema: Json) -> Json:
    return schema.get("properties") or {}


def _are_texts(values: Any) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _is_unique_list(schema: Json) -> bool:
    """Lists with a patch strategy belong to built-in kinds, which see to their lists themselves."""
    return schema.get(LIST_TYPE) in ("set", "map") and not schema.get(PATCH_STRATEGY)


def _children(schema: Json, part: Callable[[Json], dict[str, Any]]) -> dict[str, Any]:
    """Return the members of a schema that lead to a child of which `part` leaves something."""
    rest: dict[str, Any] = {}
    properties = {name: part(below) for name, below in _properties(schema).items()}
    kept = {name: below for name, below in properties.items() if below}
    if kept:
        rest["properties"] = kept
    for key in ("items", "additionalProperties"):
        below = schema.get(key)
        inner = part(below) if isinstance(below, Mapping) else {}
        if inner:
            rest[key] = inner
    return rest


# --- both paths together ----------------------------------------------------------------------


def fast_check(schema: Json) -> Check | None:
    """Return `compile_check(schema)`, behind the fast path."""
    full, is_clean = compile_check(schema), clean_test(schema)
    if full is None or is_clean is None:
        return full
    residual = compile_check(residual_schema(schema))

    def check(value: Any) -> Faults | None:
        if not is_clean(value):
            return full(value)
        return None if residual is None else residual(value)

    return check


def fast_fill(schema: Json) -> Fill | None:
    """Return `compile_fill(schema)`, behind the fast path: a clean value has no nulls to drop."""
    full, is_clean = compile_fill(schema), clean_test(schema)
    if full is None or is_clean is None:
        return full
    sparse = compile_fill(sparse_defaults(schema))

    def fill(value: Any) -> Any:
        if not is_clean(value):
            return full(value)
        return value if sparse is None else sparse(value)

    return fill
