"""A CustomResourceDefinition in protobuf, as the typed clients of Go write it.

Custom resources themselves are always JSON. Field numbers: `generated.proto` of apiextensions v1;
what differs from them in JSON: `marshal.go` there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from fairlead.embedded.http.protobuf_wire import (
    META,
    Entry,
    Malformed,
    Message,
    S,
    as_bytes,
    blob,
    boolean,
    fields,
    signed,
    text,
    time,
)


def _no_number(_: str) -> NoReturn:
    raise Malformed


def _json(value: int | bytes) -> Any:
    """Return what a `JSON` holds; null where it is empty, as Go has it."""
    raw = as_bytes(dict(fields(as_bytes(value))).get(1, b""))
    return json.loads(raw, parse_constant=_no_number) if raw else None


def _double(value: int | bytes) -> float | int:
    if len(raw := as_bytes(value)) != 8:
        raise Malformed
    (number,) = struct.unpack("<d", raw)
    if number - number != 0:  # infinite, or no number
        raise Malformed
    return int(number) if number.is_integer() else number


def _schema(value: int | bytes) -> dict[str, Any]:
    return _SCHEMA(value)


def _schema_or(number: int, read: Callable[[int | bytes], Any], *, is_list: bool) -> Any:
    """Return the reader of a schema (field 1, or 2) or of something else, field `number`."""
    schema = 3 - number

    def either(value: int | bytes) -> Any:
        found = list(fields(as_bytes(value)))
        schemas = [raw for at, raw in found if at == schema]
        if schemas:
            return _schema(schemas[-1])
        others = [read(raw) for at, raw in found if at == number]
        return others if is_list else bool(others and others[-1])

    return either


def _map_of(read: Callable[[int | bytes], Any]) -> Message:
    return Message({1: Entry("key", text), 2: Entry("value", read, S.SET)})


_OR_BOOLEAN = _schema_or(1, boolean, is_list=False)
_SCHEMAS = _map_of(_schema)
_RULE = Message({
    1: Entry("rule", text, S.SET), 2: Entry("message", text), 3: Entry("messageExpression", text),
    4: Entry("reason", text, S.SET), 5: Entry("fieldPath", text),
    6: Entry("optionalOldSelf", boolean, S.SET),
})  # fmt: skip
_SCHEMA = Message({
    1: Entry("id", text), 2: Entry("$schema", text), 3: Entry("$ref", text, S.SET),
    4: Entry("description", text), 5: Entry("type", text), 6: Entry("format", text),
    7: Entry("title", text), 8: Entry("default", _json, S.SET), 9: Entry("maximum", _double, S.SET),
    10: Entry("exclusiveMaximum", boolean), 11: Entry("minimum", _double, S.SET),
    12: Entry("exclusiveMinimum", boolean), 13: Entry("maxLength", signed, S.SET),
    14: Entry("minLength", signed, S.SET), 15: Entry("pattern", text),
    16: Entry("maxItems", signed, S.SET), 17: Entry("minItems", signed, S.SET),
    18: Entry("uniqueItems", boolean), 19: Entry("multipleOf", _double, S.SET),
    20: Entry("enum", _json, S.LIST), 21: Entry("maxProperties", signed, S.SET),
    22: Entry("minProperties", signed, S.SET), 23: Entry("required", text, S.LIST),
    24: Entry("items", _schema_or(2, _schema, is_list=True), S.SET),
    25: Entry("allOf", _schema, S.LIST), 26: Entry("oneOf", _schema, S.LIST),
    27: Entry("anyOf", _schema, S.LIST), 28: Entry("not", _schema, S.SET),
    29: Entry("properties", _SCHEMAS, S.MAP),
    30: Entry("additionalProperties", _OR_BOOLEAN, S.SET),
    31: Entry("patternProperties", _SCHEMAS, S.MAP),
    32: Entry("dependencies", _map_of(_schema_or(2, text, is_list=True)), S.MAP),
    33: Entry("additionalItems", _OR_BOOLEAN, S.SET), 34: Entry("definitions", _SCHEMAS, S.MAP),
    35: Entry("externalDocs", Message({1: Entry("description", text), 2: Entry("url", text)}),
              S.SET),
    36: Entry("example", _json, S.SET), 37: Entry("nullable", boolean),
    38: Entry("x-kubernetes-preserve-unknown-fields", boolean, S.SET),
    39: Entry("x-kubernetes-embedded-resource", boolean),
    40: Entry("x-kubernetes-int-or-string", boolean),
    41: Entry("x-kubernetes-list-map-keys", text, S.LIST),
    42: Entry("x-kubernetes-list-type", text, S.SET),
    43: Entry("x-kubernetes-map-type", text, S.SET),
    44: Entry("x-kubernetes-validations", _RULE, S.LIST),
})  # fmt: skip
_NAMES = Message({
    1: Entry("plural", text, S.SET), 2: Entry("singular", text),
    3: Entry("shortNames", text, S.LIST), 4: Entry("kind", text, S.SET),
    5: Entry("listKind", text), 6: Entry("categories", text, S.LIST),
})  # fmt: skip
_COLUMN = Message({
    1: Entry("name", text, S.SET), 2: Entry("type", text, S.SET), 3: Entry("format", text),
    4: Entry("description", text), 5: Entry("priority", signed), 6: Entry("jsonPath", text, S.SET),
})  # fmt: skip
_SUBRESOURCES = Message({
    1: Entry("status", Message({}), S.SET),
    2: Entry("scale", Message({
        1: Entry("specReplicasPath", text, S.SET), 2: Entry("statusReplicasPath", text, S.SET),
        3: Entry("labelSelectorPath", text, S.SET),
    }), S.SET),
})  # fmt: skip
_VERSION = Message({
    1: Entry("name", text, S.SET), 2: Entry("served", boolean, S.SET),
    3: Entry("storage", boolean, S.SET),
    4: Entry("schema", Message({1: Entry("openAPIV3Schema", _schema, S.SET)}), S.SET),
    5: Entry("subresources", _SUBRESOURCES, S.SET),
    6: Entry("additionalPrinterColumns", _COLUMN, S.LIST), 7: Entry("deprecated", boolean),
    8: Entry("deprecationWarning", text, S.SET),
    9: Entry("selectableFields", Message({1: Entry("jsonPath", text, S.SET)}), S.LIST),
})  # fmt: skip
_CLIENT = Message({
    1: Entry("service", Message({
        1: Entry("namespace", text, S.SET), 2: Entry("name", text, S.SET),
        3: Entry("path", text, S.SET), 4: Entry("port", signed, S.SET),
    }), S.SET),
    2: Entry("caBundle", blob), 3: Entry("url", text, S.SET),
})  # fmt: skip
_CONVERSION = Message({
    1: Entry("strategy", text, S.SET),
    2: Entry("webhook", Message({
        2: Entry("clientConfig", _CLIENT, S.SET),
        3: Entry("conversionReviewVersions", text, S.LIST),
    }), S.SET),
})  # fmt: skip
_CONDITION = Message({
    1: Entry("type", text, S.SET), 2: Entry("status", text, S.SET),
    3: Entry("lastTransitionTime", time), 4: Entry("reason", text), 5: Entry("message", text),
    6: Entry("observedGeneration", signed),
})  # fmt: skip
DEFINITION = Message({
    1: META,
    2: Entry("spec", Message({
        1: Entry("group", text, S.SET), 3: Entry("names", _NAMES, S.SET),
        4: Entry("scope", text, S.SET), 7: Entry("versions", _VERSION, S.LIST),
        9: Entry("conversion", _CONVERSION, S.SET), 10: Entry("preserveUnknownFields", boolean),
    }), S.SET),
    3: Entry("status", Message({
        1: Entry("conditions", _CONDITION, S.LIST), 2: Entry("acceptedNames", _NAMES),
        3: Entry("storedVersions", text, S.LIST), 4: Entry("observedGeneration", signed),
    })),
})  # fmt: skip
