"""What a schema of a CRD must fulfil to be structural, so that pruning and defaulting are defined.

Rules and words: apiextensions `pkg/apis/apiextensions/validation` and `pkg/apiserver/schema`
(`validation.go`, `convert.go`). CEL (`x-kubernetes-validations`) is refused, not ignored: a rule
that is not enforced would be a promise that is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

from fairlead.api.status import StatusCause
from fairlead.embedded.schema.fill import EMBEDDED, PRESERVE
from fairlead.embedded.schema.values import as_map, compile_pattern, type_name

Json: TypeAlias = Mapping[str, Any]

DEPTH_MAX = 64
INT_OR_STRING = "x-kubernetes-int-or-string"
CEL = "x-kubernetes-validations"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"

_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_STRINGS = ("type", "format", "pattern", "title", "description", LIST_TYPE, MAP_TYPE)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "multipleOf")
_FLAGS = ("nullable", "exclusiveMinimum", "exclusiveMaximum", PRESERVE, EMBEDDED, INT_OR_STRING)
_LISTS = ("required", "enum", "allOf", "anyOf", "oneOf", LIST_KEYS)
_SCHEMAS = ("items", "not")
_OTHERS = (
    "properties", "additionalProperties", "default", "example", "externalDocs", "uniqueItems", CEL,
    "$schema",
)  # fmt: skip
_KNOWN = frozenset((*_STRINGS, *_COUNTS, *_NUMBERS, *_FLAGS, *_LISTS, *_SCHEMAS, *_OTHERS))
_NOT_SUPPORTED = frozenset((
    "$ref", "id", "definitions", "dependencies", "patternProperties", "additionalItems",
    "discriminator", "readOnly", "writeOnly", "xml", "deprecated",
))  # fmt: skip
_FORBIDDEN_IN_JUNCTORS = (
    "type", "additionalProperties", "default", "title", "description", "nullable", "externalDocs",
    PRESERVE, EMBEDDED, INT_OR_STRING, LIST_KEYS, LIST_TYPE, MAP_TYPE,
)  # fmt: skip
_INT_OR_STRING_ANY = ({"type": "integer"}, {"type": "string"})


class SchemaLevel(Enum):
    """Where a node stands; completes the message about a missing type."""

    ROOT = "at the root"
    ITEM = "for specified array items"
    FIELD = "for specified object fields"


def _cause(reason: str, path: str, message: str) -> StatusCause:
    return StatusCause(reason=f"FieldValue{reason}", message=message, field=path)


def _forbidden(path: str, why: str) -> StatusCause:
    return _cause("Forbidden", path, f"Forbidden: {why}")


def _required(path: str, why: str) -> StatusCause:
    return _cause("Required", path, f"Required value: {why}")


def _invalid(path: str, value: Any, why: str) -> StatusCause:
    shown = f'"{value[:80]}"' if isinstance(value, str) else type_name(value)
    if isinstance(value, (bool, int, float)):
        shown = str(value).lower()
    return _cause("Invalid", path, f"Invalid value: {shown}: {why}")


def structural_faults(schema: Any, path: str) -> list[StatusCause]:
    """Return everything that keeps `schema` from being structural, sorted by field; [] if none."""
    if not isinstance(schema, Mapping):
        return [_required(path, "schemas are required")]
    causes = list(_node(schema, path, SchemaLevel.ROOT, 0))
    if not causes:
        causes = list(_completeness(schema, path))
    return sorted(set(causes), key=lambda cause: (cause.field, cause.message))


# --- shape: every keyword has the type that it must have --------------------------------------


def _shape(schema: Json, path: str) -> Iterator[StatusCause]:
    for key, value in schema.items():
        at = f"{path}.{key}"
        if key in _NOT_SUPPORTED:
            yield _forbidden(at, f"{key} is not supported")
        elif key not in _KNOWN and not key.startswith("x-"):
            yield _invalid(at, key, "unknown keyword")
        elif key in _STRINGS and not isinstance(value, str):
            yield _invalid(at, value, "must be a string")
        elif key in _FLAGS and not isinstance(value, bool):
            yield _invalid(at, value, "must be true or false")
        elif key in _COUNTS and (type(value) is not int or value < 0):
            yield _invalid(at, value, "must be an integer that is not negative")
        elif key in _NUMBERS and type(value) not in (int, float):
            yield _invalid(at, value, "must be a number")
        elif key in _LISTS and not isinstance(value, list):
            yield _invalid(at, value, "must be a list")
        elif key == "properties" and not isinstance(value, Mapping):
            yield _invalid(at, value, "must be an object")
        elif key in _SCHEMAS and not isinstance(value, Mapping):
            if key == "items" and isinstance(value, list):
                yield _forbidden(at, "items must be a schema object and not an array")
            else:
                yield _invalid(at, value, "must be a schema")
        elif key == "additionalProperties" and not isinstance(value, (bool, Mapping)):
            yield _invalid(at, value, "must be a schema or a boolean")
    yield from _texts(schema, path)


def _texts(schema: Json, path: str) -> Iterator[StatusCause]:
    for key in ("required", LIST_KEYS):
        for i, value in enumerate(_list(schema.get(key))):
            if not isinstance(value, str):
                yield _invalid(f"{path}.{key}[{i}]", value, "must be a string")
    for key in ("allOf", "anyOf", "oneOf"):
        for i, value in enumerate(_list(schema.get(key))):
            if not isinstance(value, Mapping):
                yield _invalid(f"{path}.{key}[{i}]", value, "must be a schema")
    for name, value in as_map(schema.get("properties")).items():
        if not isinstance(value, Mapping):
            yield _invalid(f"{path}.properties[{name}]", value, "must be a schema")
    if isinstance(schema.get("pattern"), str):
        try:
            compile_pattern(schema["pattern"])
        except ValueError as error:
            why = f"must be a valid regular expression, but isn't: {error}"
            yield _invalid(f"{path}.pattern", schema["pattern"], why)
    step = schema.get("multipleOf")
    if isinstance(step, (int, float)) and step <= 0:
        yield _invalid(f"{path}.multipleOf", step, "must be greater than 0")


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


# --- structure --------------------------------------------------------------------------------


def _node(schema: Json, path: str, level: SchemaLevel, depth: int) -> Iterator[StatusCause]:
    if depth > DEPTH_MAX:
        yield _forbidden(path, f"schemas may be nested {DEPTH_MAX} deep at most")
        return
    yield from _shape(schema, path)
    yield from _type(schema, path, level)
    yield from _extensions(schema, path)
    yield from _lists(schema, path)
    yield from _metadata(schema, path, level)
    if schema.get(CEL):
        yield _forbidden(
            f"{path}.{CEL}",
            "CEL rules are not supported by this server; state the rule with schema keywords, "
            "or leave it out",
        )
    if schema.get("uniqueItems") is True:
        yield _forbidden(
            f"{path}.uniqueItems",
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        )
    yield from _children(schema, path, level, depth)
    yield from _junctors(schema, path, depth)


def _children(schema: Json, path: str, level: SchemaLevel, depth: int) -> Iterator[StatusCause]:
    items = schema.get("items")
    if isinstance(items, Mapping):
        yield from _node(items, f"{path}.items", SchemaLevel.ITEM, depth + 1)
    elif schema.get("type") == "array":
        yield _required(f"{path}.items", "must be specified")
    for name, below in as_map(schema.get("properties")).items():
        if isinstance(below, Mapping):
            yield from _node(below, f"{path}.properties[{name}]", SchemaLevel.FIELD, depth + 1)
    extra = schema.get("additionalProperties")
    at = f"{path}.additionalProperties"
    if extra is None:
        return
    if level is SchemaLevel.ROOT:
        yield _forbidden(at, "must not be used at the root")
    if extra is False:
        yield _forbidden(at, "additionalProperties cannot be set to false")
    if schema.get("properties"):
        yield _forbidden(at, "additionalProperties and properties are mutual exclusive")
    if isinstance(extra, Mapping):
        yield from _node(extra, at, SchemaLevel.FIELD, depth + 1)


def _type(schema: Json, path: str, level: SchemaLevel) -> Iterator[StatusCause]:
    wanted = schema.get("type")
    if schema.get(EMBEDDED) and wanted != "object":
        yield _required(f"{path}.type", f"must be object if {EMBEDDED} is true")
    elif not wanted:
        if not schema.get(INT_OR_STRING) and not schema.get(PRESERVE):
            yield _required(f"{path}.type", f"must not be empty {level.value}")
    elif wanted not in _TYPES:
        words = ", ".join(f'"{name}"' for name in _TYPES)
        message = f'Unsupported value: "{str(wanted)[:80]}": supported values: {words}'
        yield _cause("NotSupported", f"{path}.type", message)
    elif level is SchemaLevel.ROOT and wanted != "object":
        yield _invalid(f"{path}.type", wanted, "must be object at the root")
    elif schema.get(INT_OR_STRING):
        yield _invalid(f"{path}.type", wanted, f"must be empty if {INT_OR_STRING} is true")
    if level is SchemaLevel.ROOT and schema.get("nullable"):
        yield _forbidden(f"{path}.nullable", "nullable cannot be true at the root")


def _extensions(schema: Json, path: str) -> Iterator[StatusCause]:
    if schema.get(PRESERVE) is False:
        yield _invalid(f"{path}.{PRESERVE}", schema[PRESERVE], "must be true or undefined")
    for key in (PRESERVE, EMBEDDED):
        if schema.get(INT_OR_STRING) and schema.get(key):
            why = f"must be false if {INT_OR_STRING} is true"
            yield _invalid(f"{path}.{key}", schema[key], why)
    if schema.get(EMBEDDED):
        if schema.get("additionalProperties") is not None:
            why = f"must not be used if {EMBEDDED} is set"
            yield _forbidden(f"{path}.additionalProperties", why)
        if not schema.get(PRESERVE) and not schema.get("properties"):
            why = f"must not be empty if {EMBEDDED} is true without {PRESERVE}"
            yield _required(f"{path}.properties", why)


def _lists(schema: Json, path: str) -> Iterator[StatusCause]:
    kind, keys = schema.get(LIST_TYPE), _list(schema.get(LIST_KEYS))
    if kind is not None:
        if schema.get("type") != "array":
            yield _invalid(f"{path}.type", schema.get("type"), f"must be array if {LIST_TYPE} is")
        if kind not in ("atomic", "set", "map"):
            message = f'Unsupported value: "{str(kind)[:80]}": supported values: "atomic", '
            yield _cause("NotSupported", f"{path}.{LIST_TYPE}", f'{message}"map", "set"')
    if keys and kind != "map":
        yield _invalid(f"{path}.{LIST_TYPE}", kind, f"must be map if {LIST_KEYS} is non-empty")
    if kind == "map":
        yield from _map_keys(schema, keys, path)
    if schema.get(MAP_TYPE) not in (None, "granular", "atomic"):
        message = 'Unsupported value: supported values: "atomic", "granular"'
        yield _cause("NotSupported", f"{path}.{MAP_TYPE}", message)


def _map_keys(schema: Json, keys: Sequence[Any], path: str) -> Iterator[StatusCause]:
    if not keys:
        yield _required(f"{path}.{LIST_KEYS}", f"must not be empty if {LIST_TYPE} is map")
    items = as_map(schema.get("items"))
    if items.get("type") != "object":
        yield _invalid(f"{path}.items.type", items.get("type"), "must be object if list is a map")
    properties, required = as_map(items.get("properties")), _list(items.get("required"))
    for i, key in enumerate(keys):
        if not isinstance(key, str) or key not in properties:
            why = f"entries in {LIST_KEYS} must all be names of item properties"
            yield _invalid(f"{path}.{LIST_KEYS}[{i}]", key, why)
        elif key not in required and as_map(properties[key]).get("default") is None:
            yield _required(
                f"{path}.items.properties[{key}].default",
                f"this property is in {LIST_KEYS}, so it must have a default or be a required "
                "property",
            )


def _metadata(schema: Json, path: str, level: SchemaLevel) -> Iterator[StatusCause]:
    if level is not SchemaLevel.ROOT and not schema.get(EMBEDDED):
        return
    properties = as_map(schema.get("properties"))
    for key, wanted in (("kind", "string"), ("apiVersion", "string"), ("metadata", "object")):
        below = properties.get(key)
        if isinstance(below, Mapping) and below.get("type") != wanted:
            at = f"{path}.properties[{key}].type"
            yield _invalid(at, below.get("type"), f"must be {wanted}")
    metadata = as_map(properties.get("metadata"))
    restricted = as_map(metadata.get("properties")).keys() - {"name", "generateName"}
    if level is SchemaLevel.ROOT and (
        restricted or metadata.keys() - {"type", "properties", "description"}
    ):
        yield _forbidden(
            f"{path}.properties[metadata]",
            "must not specify anything other than name and generateName, but metadata is "
            "implicitly specified",
        )


def _junctors(schema: Json, path: str, depth: int) -> Iterator[StatusCause]:
    for at, below in _alternatives(schema):
        skip = schema.get(INT_OR_STRING) and _is_int_or_string(at, schema, below)
        if isinstance(below, Mapping) and not skip:
            yield from _nested(below, f"{path}.{at}", depth + 1)


def _is_int_or_string(at: str, schema: Json, below: Any) -> bool:
    """The two forms in which int-or-string may say its types: anyOf, or that in the first allOf."""
    if at.startswith("anyOf"):
        return tuple(_list(schema.get("anyOf"))) == _INT_OR_STRING_ANY
    return at == "allOf[0]" and below == {"anyOf": list(_INT_OR_STRING_ANY)}


def _nested(schema: Json, path: str, depth: int) -> Iterator[StatusCause]:
    """Below a junctor only value validation may stand."""
    if depth > DEPTH_MAX:
        yield _forbidden(path, f"schemas may be nested {DEPTH_MAX} deep at most")
        return
    yield from _shape(schema, path)
    for key in _FORBIDDEN_IN_JUNCTORS:
        if schema.get(key) not in (None, False, "", []):
            yield _forbidden(f"{path}.{key}", "must be empty to be structural")
    if schema.get(CEL):
        yield _forbidden(f"{path}.{CEL}", "must be empty to be structural")
    for name, below in as_map(schema.get("properties")).items():
        at = f"{path}.properties[{name}]"
        if name == "metadata":
            yield _forbidden(at, "must not be specified in a nested context")
        if isinstance(below, Mapping):
            yield from _nested(below, at, depth + 1)
    if isinstance(schema.get("items"), Mapping):
        yield from _nested(schema["items"], f"{path}.items", depth + 1)
    yield from _junctors(schema, path, depth)


# --- completeness: what a junctor talks about must be specified outside -----------------------


def _completeness(schema: Json, path: str) -> Iterator[StatusCause]:
    for at, below in _alternatives(schema):
        yield from _covered(below, schema, f"{path}.{at}", path)
    for name, below in as_map(schema.get("properties")).items():
        yield from _completeness(below, f"{path}.properties[{name}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from _completeness(schema[key], f"{path}.{key}")


def _covered(nested: Json, outside: Json, path: str, at: str) -> Iterator[StatusCause]:
    known = as_map(outside.get("properties"))
    for name, below in as_map(nested.get("properties")).items():
        where = f"{at}.properties[{name}]"
        if name in known:
            yield from _covered(below, known[name], f"{path}.properties[{name}]", where)
        elif not outside.get(PRESERVE):
            yield _required(where, f"because it is defined in {path}.properties[{name}]")
    if isinstance(nested.get("items"), Mapping):
        items = outside.get("items")
        if isinstance(items, Mapping):
            yield from _covered(nested["items"], items, f"{path}.items", f"{at}.items")
        else:
            yield _required(f"{at}.items", f"because it is defined in {path}.items")
    for suffix, below in _alternatives(nested):
        yield from _covered(below, outside, f"{path}.{suffix}", at)


def _alternatives(schema: Json) -> Iterator[tuple[str, Any]]:
    """Yield the schemas of all junctors of a node, and where they stand below it."""
    for key in ("allOf", "anyOf", "oneOf"):
        for i, below in enumerate(_list(schema.get(key))):
            yield f"{key}[{i}]", below
    if isinstance(schema.get("not"), Mapping):
        yield "not", schema["not"]
