"""OpenAPI schemas of the built-in kinds, read from `builtin_schemas.json`.

The file names every field of a struct with its type and, where Fairlead uses it, one sentence for
`kubectl explain`; a `*` marks a required field. A unit test holds it against the structs that
`api.kubernetes.core` and `api.kubernetes.webhooks` decode. A type is one of

    string, boolean, integer, time, quantity, int-or-string, object (open), or the name of a struct
    {T}     a map of T by text
    [T]     a list, replaced as a whole; `[T] set`, `[T] by key, ...`: merged, and how
    retain  (after these) a strategic merge drops keys that are not named (`$retainKeys`)
    replace (after object) a strategic merge replaces the object

`complete` marks structs of which every upstream field is known, so that another is a mistake.
Names and merge keys follow Kubernetes 1.34 (`staging/src/k8s.io/api/*/v1*/types.go`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

OpenApi = dict[str, Any]
#: Answers a named struct, by a `$ref` for example.
Reference = Callable[[str], OpenApi]

KEPT = "Kept as written and handed back; nothing on the embedded cluster acts on it."
KIND = "Name of the kind, in CamelCase."
API_VERSION = "Group and version of the kind, such as fairlead.dev/v1alpha1."
METADATA = "Name, labels, annotations and what else every object carries."
#: Marks the schema of a complete struct.
COMPLETE = "x-fairlead-complete"

_OPEN: Mapping[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
_SCALARS: Mapping[str, Mapping[str, Any]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer", "format": "int64"},
    "time": {"type": "string", "format": "date-time"},
    "quantity": {**_OPEN, "format": "quantity"},
    "int-or-string": {"x-kubernetes-int-or-string": True},
    "object": {"type": "object", **_OPEN},
}


class _Struct(msgspec.Struct, frozen=True):
    text: str
    complete: bool
    fields: dict[str, str | tuple[str, str]]


@cache
def _structs() -> Mapping[str, _Struct]:
    data = resources.files("fairlead.api.schema").joinpath("builtin_schemas.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, _Struct])


def names() -> frozenset[str]:
    """Return the names of all structs; those of kinds are the kinds' names."""
    return frozenset(_structs())


@cache
def sentences(name: str) -> Mapping[str, str]:
    """Return the sentences on a struct's fields; {} for a struct that is not in the file."""
    struct = _structs().get(name)
    found = {} if struct is None else struct.fields
    return {key.rstrip("*"): value[1] for key, value in found.items() if isinstance(value, tuple)}


def schema_of(name: str, reference: Reference | None = None) -> OpenApi:
    """Return the schema of a struct, without kind and apiVersion; KeyError for an unknown name.

    Structs in it are written out, or answered by `reference`.
    """
    struct = _structs()[name]
    properties: OpenApi = {}
    for key, value in struct.fields.items():
        type_, text = (value, None) if isinstance(value, str) else value
        schema = _type(type_, reference or schema_of)
        if text is None and key == "metadata":
            text = METADATA
        elif text is None and "description" not in schema:
            text = KEPT
        properties[key.rstrip("*")] = schema if text is None else described(schema, text)
    required = [key[:-1] for key in struct.fields if key.endswith("*")]
    return {
        "description": struct.text,
        "type": "object",
        "properties": properties,
        **({"required": required} if required else {}),
        **_OPEN,
        "title": name,
        **({COMPLETE: True} if struct.complete else {}),
    }


def described(schema: OpenApi, description: str) -> OpenApi:
    """Put the description first; beside a reference it needs an allOf, as in the API server."""
    if "$ref" in schema:
        return {"description": description, "allOf": [schema]}
    return {"description": description, **{k: v for k, v in schema.items() if k != "description"}}


def _type(text: str, reference: Reference) -> OpenApi:
    if text.startswith("["):
        items, _, rule = text[1:].rpartition("]")
        return {"type": "array", "items": _type(items, reference), **_list_rule(rule.strip())}
    if text.startswith("{"):
        return {"type": "object", "additionalProperties": _type(text[1:-1], reference)}
    name, _, strategy = text.partition(" ")
    if name not in _SCALARS:
        return reference(name)
    extra = {"x-kubernetes-patch-strategy": strategy} if strategy else {}
    return {**_SCALARS[name], **extra}


def _list_rule(rule: str) -> OpenApi:
    if not rule:
        return {"x-kubernetes-list-type": "atomic"}
    if rule == "set":
        return {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
    keys = rule.removeprefix("by ").removesuffix(" retain").split(", ")
    return {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": keys,
        "x-kubernetes-patch-strategy": "merge,retainKeys" if rule.endswith(" retain") else "merge",
        "x-kubernetes-patch-merge-key": keys[0],
    }
