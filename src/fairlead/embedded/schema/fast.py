"""The fast path of schemas: msgspec looks at a whole value in C, and only says whether it fits.

A value fits when it holds no field that would be dropped, no null where null is no value, every
typed field has its exact type, required fields are there, and bounds, lengths and enums of texts
are kept. `type_test` derives a msgspec type from the schema; what such a type can't say stays in
`residual_schema`, and defaults in `sparse_defaults`: both are small for real kinds. A value that
does not fit is not necessarily wrong: it takes the slow path, which finds out and words it. So the
type may be too strict, but a value that fits must be one that the slow path has nothing to say
against, beyond the residual schema; a property test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlead.api.values import quantity
from fairlead.embedded.schema.check import compile_check
from fairlead.embedded.schema.faults import Check, Faults
from fairlead.embedded.schema.fill import EMBEDDED, META_FIELDS, PRESERVE, Fill, compile_fill
from fairlead.embedded.schema.values import INT32, INT64

Json: TypeAlias = Mapping[str, Any]
Test: TypeAlias = Callable[[Any], bool]

_PROPERTIES_MAX = 1_000
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
PATCH_STRATEGY = "x-kubernetes-patch-strategy"
#: Most instants of RFC 3339, in UTC; other valid ones take the slow path, such as leap days.
_USUAL_TIME = (
    r"^[12][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)"
    r"|(?:0[13578]|1[02])-31)T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?Z\Z"
)
#: Members that say nothing about validity, or that the type has covered.
_ANNOTATIONS = frozenset((
    "description", "title", "default", "example", "externalDocs", "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource",
))  # fmt: skip
_RESIDUAL = (
    "pattern", "multipleOf", "allOf", "anyOf", "oneOf", "not", "minProperties", "maxProperties",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FastPath:
    """Defaults and checks values that fit."""

    _fits: Test
    _fill: Fill | None
    _check: Check | None

    def admit(self, value: Any) -> tuple[Any, Faults] | None:
        """Return the value with its defaults, and its faults; None when it does not fit."""
        if not self._fits(value):
            return None
        value = value if self._fill is None else self._fill(value)
        return value, (self._check(value) if self._check is not None else None) or []


def fast_path(schema: Json) -> FastPath | None:
    """Return the fast path of a schema, None when no type can be made of it."""
    fits = type_test(schema)
    if fits is None:
        return None
    return FastPath(
        fits, compile_fill(sparse_defaults(schema)), compile_check(residual_schema(schema))
    )


def type_test(schema: Json) -> Test | None:
    """Return a function that is true for values that fit, None when no type can be made."""
    return _test(_Types(), schema)


def names_test(schema: Json, *, closed_by: str) -> Test | None:
    """Return a function that is true for values of which no field is unknown, whatever their types.

    None when no type can be made. A node whose key `closed_by` is true knows all its fields
    although the schema preserves unknown ones.
    """
    return _test(_Types(only_names=True, closed_by=closed_by), schema)


def _test(types: _Types, schema: Json) -> Test | None:
    try:
        wanted = types.of(schema)
    except (TypeError, ValueError, re.error):
        # A name that msgspec can't carry, such as one with a quote: only the slow path is left.
        return None

    def fits(value: Any) -> bool:
        try:
            msgspec.convert(value, wanted)
        except (msgspec.ValidationError, OverflowError):
            return False
        return True

    return fits


@dataclass(frozen=True, slots=True)
class _Types:
    """Turns schemas into types, node by node."""

    only_names: bool = False
    closed_by: str = ""

    def of(self, schema: Json) -> Any:
        wanted = self._of(schema)
        return wanted | None if schema.get("nullable") or self.only_names else wanted

    def _of(self, schema: Json) -> Any:
        match schema.get("type"):
            case "object":
                return self._object(schema)
            case "array":
                items = schema.get("items")
                inner = self.of(items) if isinstance(items, Mapping) else Any
                return _bounded(list[inner], schema, "minItems", "maxItems")
            case None if schema.keys() & {"properties", "items", "additionalProperties"}:
                raise ValueError("an object or an array, as it comes: only the slow path knows it")
            case _ if self.only_names:
                return Any
            case "string":
                return _string(schema)
            case "boolean":
                return bool
            case "integer":
                return _integer(schema)
            case "number":
                return _number(schema)
            case _:
                is_union = schema.get("x-kubernetes-int-or-string")
                return int | str if is_union else _untyped(schema)

    def _object(self, schema: Json) -> Any:
        properties: Json = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        if properties and (extra is not None or len(properties) > _PROPERTIES_MAX):
            raise ValueError("too wide, or open and named at once: only the slow path knows it")
        is_closed = bool(self.closed_by and schema.get(self.closed_by))
        is_open = bool(schema.get(PRESERVE)) and not is_closed
        if not properties and (extra is not None or is_open):
            return dict[str, self.of(extra) if isinstance(extra, Mapping) else Any]
        below = {name: self.of(part) for name, part in properties.items()}
        if schema.get(EMBEDDED):
            below = {**dict.fromkeys(sorted(META_FIELDS), Any), **below}
        required: set[str] = set() if self.only_names else set(schema.get("required") or ())
        fields: list[Any] = [
            (f"f{i}", part) if name in required else (f"f{i}", part | UnsetType, UNSET)
            for i, (name, part) in enumerate(below.items())
        ]
        return msgspec.defstruct(
            "Fitting", fields, rename={f"f{i}": name for i, name in enumerate(below)},
            kw_only=True, gc=False, forbid_unknown_fields=not is_open,
        )  # fmt: skip


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
    if _is_time(schema):
        return Annotated[str, Meta(pattern=_USUAL_TIME)]
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
    """Return the schema of what `type_test` leaves open; {} when nothing is left to check."""
    if "type" not in schema:
        if schema.get("format") == "quantity":
            return {}
        return {key: schema[key] for key in schema if key not in _ANNOTATIONS}
    rest: dict[str, Any] = {key: schema[key] for key in _RESIDUAL if schema.get(key) is not None}
    if schema.get("format") not in (None, "int32", "int64") and not _is_time(schema):
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
    """Return the part of a schema that holds defaults: enough to fill in a value that fits."""
    rest = _children(schema, sparse_defaults)
    if schema.get("default") is not None:
        rest["default"] = schema["default"]
    return rest


def _properties(schema: Json) -> Json:
    return schema.get("properties") or {}


def _are_texts(values: Any) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _is_time(schema: Json) -> bool:
    """True for a text of which the type alone says that it is an instant."""
    others = ("enum", "minLength", "maxLength")
    is_plain = all(schema.get(key) is None for key in others)
    return schema["type"] == "string" and schema.get("format") == "date-time" and is_plain


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
