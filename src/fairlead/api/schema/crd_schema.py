"""OpenAPI v3 schemas of our own kinds, generated from the wire structs.

msgspec describes a struct's fields; this module adds what a type can't say: the sentences of
`builtin_schemas` for the fields of pods, and the keys by which lists merge. The schemas are
structural (KEP "CRD structural schema") and refer to nothing; pod templates keep unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from fairlead.api.meta import ObjectMeta
from fairlead.api.schema.builtin_schemas import OpenApi, described, sentences

QUANTITY_PATTERN = r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
#: Types of Kubernetes, of which we read a part: what else they have passes through. All others are
#: ours: unknown fields are mistakes, and defaults are written in.
_FOREIGN_MODULES = frozenset(
    f"fairlead.api.{name}" for name in ("meta", "kubernetes.core", "kubernetes.pod_parts")
)
#: (struct, field) → keys by which the list merges, unique: only where pods are as strict.
_LIST_KEYS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("PodSpec", "containers"): ("name",),
    ("PodSpec", "initContainers"): ("name",),
    ("PodSpec", "volumes"): ("name",),
    ("PodSpec", "schedulingGates"): ("name",),
    ("JobSpec", "roles"): ("name",),
    ("JobSpec", "after"): ("job",),
    ("JobStatus", "attempts"): ("number",),
    ("Placement", "roles"): ("role",),
    ("NodePoolSpec", "domains"): ("name",),
    ("NodePoolStatus", "launches"): ("token",),
    ("FleetSpec", "overrides"): ("name",),
}


@dataclass(frozen=True, slots=True)
class Generator:
    """Turns structs into schemas."""

    with_defaults: bool = False

    def struct(self, cls: type) -> OpenApi:
        """Return the schema of a struct, written out, without kind and apiVersion."""
        info = inspect.type_info(cls)
        assert isinstance(info, inspect.StructType)
        return self._struct(info)

    def _struct(self, info: inspect.StructType) -> OpenApi:
        cls = info.cls
        required = [item.encode_name for item in info.fields if item.required]
        return {
            "description": _first_paragraph(cls.__doc__),
            "type": "object",
            "properties": {item.encode_name: self._field(cls, item) for item in info.fields},
            **({"required": required} if required else {}),
            **(_anything() if cls.__module__ in _FOREIGN_MODULES else {}),
        }

    def _field(self, cls: type, item: inspect.Field) -> OpenApi:
        schema = self._type(item.type)
        name = item.encode_name
        text = sentences(cls.__name__).get(name)
        if text is not None:
            schema = described(schema, text)
        if schema.get("type") == "array":
            schema.update(_list_rule(cls.__name__, name))
        if self.with_defaults and cls.__module__ not in _FOREIGN_MODULES:
            default = _default(item)
            if default is not None:
                schema["default"] = default
        return schema

    def _type(self, info: inspect.Type) -> OpenApi:
        if isinstance(info, inspect.Metadata):
            extra = dict(info.extra_json_schema or {})
            description = extra.pop("description", None)
            if extra.get("format") == "quantity":
                # Not x-kubernetes-int-or-string: `cpu: 0.5` is a number, and pods accept it.
                schema = {**_anything(), "pattern": QUANTITY_PATTERN}
            elif extra.get("format") == "int-or-string":
                either = [{"type": "integer"}, {"type": "string"}]
                schema = {"anyOf": either, "x-kubernetes-int-or-string": True}
            else:
                schema = {**self._type(info.type), **extra}
            return schema if description is None else described(schema, description)
        if isinstance(info, inspect.UnionType):
            parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
            # Scalars of several types: anything goes, as far as a structural schema can say.
            return self._type(parts[0]) if len(parts) == 1 else _anything()
        if isinstance(info, inspect.StructType):
            return _template_metadata() if info.cls is ObjectMeta else self._struct(info)
        if isinstance(info, (inspect.VarTupleType, inspect.ListType)):
            return _compact(
                type="array", items=self._type(info.item_type),
                minItems=info.min_length, maxItems=info.max_length,
            )  # fmt: skip
        if isinstance(info, inspect.DictType):
            if isinstance(info.value_type, inspect.AnyType):
                return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            return {"type": "object", "additionalProperties": self._type(info.value_type)}
        return _scalar(info)


def _list_rule(struct: str, name: str) -> OpenApi:
    keys = ("type",) if name == "conditions" else _LIST_KEYS.get((struct, name))
    if keys is None:
        return {"x-kubernetes-list-type": "atomic"}
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def _scalar(info: inspect.Type) -> OpenApi:
    if isinstance(info, inspect.StrType):
        return _compact(
            type="string", minLength=info.min_length, maxLength=info.max_length,
            pattern=info.pattern,
        )  # fmt: skip
    if isinstance(info, inspect.BoolType):
        return {"type": "boolean"}
    if isinstance(info, inspect.IntType):
        return _compact(type="integer", format="int64", minimum=info.ge, maximum=info.le)
    if isinstance(info, inspect.FloatType):
        return _compact(type="number", minimum=info.ge, maximum=info.le)
    if isinstance(info, inspect.EnumType):
        return {"type": "string", "enum": [member.value for member in info.cls]}
    if isinstance(info, inspect.AnyType):
        return _anything()
    raise TypeError(f"no schema is known for {info}")


def _anything() -> OpenApi:
    return {"x-kubernetes-preserve-unknown-fields": True}


def _compact(**members: Any) -> OpenApi:
    return {key: value for key, value in members.items() if value is not None}


def _template_metadata() -> OpenApi:
    texts: OpenApi = {"type": "object", "additionalProperties": {"type": "string"}}
    docs = sentences("ObjectMeta")
    return {
        "description": "Labels and annotations of the pods.",
        "type": "object",
        "properties": {
            name: {"description": docs[name], **texts} for name in ("labels", "annotations")
        },
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _default(item: inspect.Field) -> Any:
    """Return the default worth writing into a CRD: not None, false, "" or an empty list."""
    if item.default is msgspec.NODEFAULT or item.default is None:
        return None
    value = item.default
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        # An empty object: the defaults of its fields then apply.
        return {}
    if isinstance(value, (tuple, dict)) or value in (False, "", 0):
        return None
    return value


def _first_paragraph(doc: str | None) -> str:
    """Return the docstring's first paragraph on one line, without markup."""
    return " ".join((doc or "").strip().split("\n\n")[0].split()).replace("`", "")
