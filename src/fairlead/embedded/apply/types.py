"""How the fields of a kind merge: which parts are owned as a whole, and which item by item.

A type is a leaf (scalars, atomic lists and maps), an `ObjectType`, a `ListType`, or deduced from
the value: objects by field, all else as a whole. Types of custom kinds follow from their schema
(`x-kubernetes-list-type`, `-list-map-keys`, `-map-type`), as in kube-openapi `pkg/schemaconv`;
those of built-in kinds from `builtin_types.json`, which `tools/kubernetes/field_types.py` derives
from the published OpenAPI documents. Its words for a field:

    (empty)         a leaf
    Name            an object of the table
    {Word}          a map
    [] set          a set of scalars
    [Word] by a, b  a list with keys; `a="x"` gives what is meant where an item leaves the key out
    ?               deduced
    WORD!           such a field, which Go writes also where it is empty: as {}, a list as null
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import msgspec

#: What JSON leaves out, where null is something else.
ABSENT: Any = msgspec.UNSET


@dataclass(slots=True, eq=False)
class ObjectType:
    """Fields with types of their own, and `element` for any other; None: there is no other.

    `always` has what stands for a field that is absent, where that is not nothing.
    """

    fields: dict[str, FieldType] = field(default_factory=dict)
    element: FieldType | None = None
    always: dict[str, Any] = field(default_factory=dict[str, Any])

    def of(self, name: str) -> FieldType:
        """Return the type of a field; that of an unknown one is deduced."""
        found = self.fields.get(name) or self.element
        return DEDUCED if found is None else found


@dataclass(slots=True, eq=False)
class ListType:
    """Items found by key, with the value of a key that is left out; without keys, a set."""

    element: FieldType
    keys: tuple[tuple[str, Any], ...] = ()


@dataclass(slots=True, eq=False)
class Leaf:
    """Owned as a whole, or where `deduced`, as an object by field if it is one."""

    deduced: bool = False


FieldType: TypeAlias = ObjectType | ListType | Leaf
LEAF, DEDUCED = Leaf(), Leaf(deduced=True)
_ANY_OBJECT = ObjectType(element=DEDUCED)


def resolved(type_: FieldType, value: Any, other: Any = None) -> FieldType:
    """Return the type as these values use it: a leaf where one is of another kind, or none is set.

    Null and what is absent fit everything.
    """
    if type_ is DEDUCED:
        type_ = _ANY_OBJECT
    if isinstance(type_, Leaf):
        return LEAF
    wanted = dict if isinstance(type_, ObjectType) else list
    if isinstance(value, wanted):
        fits = other is None or other is ABSENT or isinstance(other, wanted)
    else:
        fits = (value is None or value is ABSENT) and isinstance(other, wanted)
    return type_ if fits else LEAF


# ---------------------------------------------------------------------- built-in kinds


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    data = resources.files("fairlead.embedded.apply").joinpath("builtin_types.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, dict[str, str]])


@cache
def builtin_type(name: str) -> ObjectType:
    """Return the type of a built-in kind or of a part of one; KeyError for an unknown name."""
    words = _table()[name]
    return ObjectType(
        {key: _of_word(word) for key, word in words.items()},
        always={
            key: {} if word[0].isalpha() else None
            for key, word in words.items()
            if word.endswith("!")
        },
    )


def _of_word(word: str) -> FieldType:
    word = word.rstrip("!")
    if word.startswith("{"):
        return ObjectType(element=_of_word(word[1:-1]))
    if word.startswith("["):
        item, _, rule = word[1:].partition("] ")
        keys = rule.removeprefix("by ").split(", ") if rule != "set" else ()
        return ListType(_of_word(item), tuple(map(_key, keys)))
    if word in ("", "?"):
        return DEDUCED if word else LEAF
    return builtin_type(word)


def _key(text: str) -> tuple[str, Any]:
    name, given, default = text.partition("=")
    return name, msgspec.json.decode(default) if given else ABSENT


# ---------------------------------------------------------------------- custom kinds

_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def custom_type(openapi: Mapping[str, Any]) -> ObjectType:
    """Return the type of a custom kind, from the root of its structural schema."""
    out = _object(openapi, keeps=False)
    out.fields.update(_embedded())
    return out


def _embedded() -> dict[str, FieldType]:
    return {"apiVersion": LEAF, "kind": LEAF, "metadata": builtin_type("ObjectMeta")}


def _of_schema(schema: Mapping[str, Any], *, keeps: bool) -> FieldType:
    keeps = keeps or schema.get(_PRESERVE) is True
    kind = schema.get("type")
    if schema.get("x-kubernetes-map-type") == "atomic":
        return LEAF
    if kind == "object":
        return _object(schema, keeps=keeps)
    if kind == "array":
        return _list(schema, keeps=keeps)
    is_open = kind is None and not schema.get("x-kubernetes-int-or-string")
    return DEDUCED if is_open else LEAF


def _object(schema: Mapping[str, Any], *, keeps: bool) -> ObjectType:
    keeps = keeps or schema.get(_PRESERVE) is True
    properties: Mapping[str, Any] = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    out = ObjectType({key: _of_schema(below, keeps=keeps) for key, below in properties.items()})
    if schema.get("x-kubernetes-embedded-resource"):
        out.fields.update(_embedded())
    if isinstance(extra, Mapping):
        out.element = _of_schema(extra, keeps=keeps)
    elif extra is True or (extra is None and (keeps or not properties)):
        out.element = DEDUCED
    return out


def _list(schema: Mapping[str, Any], *, keeps: bool) -> FieldType:
    kind = schema.get("x-kubernetes-list-type")
    items: Mapping[str, Any] = schema.get("items") or {}
    if kind == "set":
        return ListType(LEAF)
    if kind != "map":
        return LEAF
    properties: Mapping[str, Any] = items.get("properties") or {}
    keys = tuple(
        (key, (properties.get(key) or {}).get("default", ABSENT))
        for key in schema.get("x-kubernetes-list-map-keys") or ()
    )
    return ListType(_of_schema(items, keeps=keeps), keys)
