"""OpenAPI v3 schemas generated from the wire structs, so that the types are written down once.

msgspec describes a struct's fields; this module adds what a type can't say: the descriptions of
`core_docs`, the keys by which lists merge, and the fields that are served but not read
(`core_more`). Two styles exist: `OWN` for our own kinds, which must be structural (KEP "CRD
structural schema") and stand for themselves; `BUILTIN` for the core kinds, where unknown fields are
kept and named parts may be references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from fairlead.api import core_docs
from fairlead.api.core_more import MORE
from fairlead.api.meta import ObjectMeta

QUANTITY_PATTERN = r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_OWN_MODULE = "fairlead.api.job"

OpenApi = dict[str, Any]


class Style(Enum):
    """What the schema is for."""

    OWN = "a CRD"
    BUILTIN = "a built-in kind"


@dataclass(frozen=True, slots=True)
class ListRule:
    """How a list merges: by these keys, as a set, or (retain) a map whose unnamed keys go."""

    keys: tuple[str, ...] = ()
    is_set: bool = False


def _by(*keys: str) -> ListRule:
    return ListRule(keys)


#: (struct, field) → how the list merges; kubernetes `staging/src/k8s.io/api/core/v1/types.go`.
LISTS: Mapping[tuple[str, str], ListRule] = {
    ("ObjectMeta", "ownerReferences"): _by("uid"),
    ("ObjectMeta", "finalizers"): ListRule(is_set=True),
    ("NodeSpec", "podCIDRs"): ListRule(is_set=True),
    ("NodeStatus", "conditions"): _by("type"),
    ("NodeStatus", "addresses"): _by("type"),
    ("Container", "env"): _by("name"),
    ("Container", "ports"): _by("containerPort", "protocol"),
    ("Container", "volumeMounts"): _by("mountPath"),
    ("Container", "volumeDevices"): _by("devicePath"),
    ("EphemeralContainer", "env"): _by("name"),
    ("PodSpec", "containers"): _by("name"),
    ("PodSpec", "initContainers"): _by("name"),
    ("PodSpec", "ephemeralContainers"): _by("name"),
    ("PodSpec", "volumes"): _by("name"),
    ("PodSpec", "imagePullSecrets"): _by("name"),
    ("PodSpec", "hostAliases"): _by("ip"),
    ("PodSpec", "schedulingGates"): _by("name"),
    ("PodSpec", "resourceClaims"): _by("name"),
    ("PodSpec", "topologySpreadConstraints"): _by("topologyKey", "whenUnsatisfiable"),
    ("PodStatus", "conditions"): _by("type"),
    ("PodStatus", "podIPs"): _by("ip"),
    ("PodStatus", "resourceClaimStatuses"): _by("name"),
    ("PodStatus", "hostIPs"): _by("ip"),
    ("NamespaceStatus", "conditions"): _by("type"),
    ("ServiceSpec", "ports"): _by("port", "protocol"),
    ("ServiceAccount", "secrets"): _by("name"),
    ("PodDisruptionBudgetStatus", "conditions"): _by("type"),
    ("MutatingWebhookConfiguration", "webhooks"): _by("name"),
    ("ValidatingWebhookConfiguration", "webhooks"): _by("name"),
    ("MutatingWebhook", "matchConditions"): _by("name"),
    ("ValidatingWebhook", "matchConditions"): _by("name"),
    ("JobSpec", "roles"): _by("name"),
    ("JobSpec", "after"): _by("job"),
    ("JobStatus", "conditions"): _by("type"),
    ("JobStatus", "attempts"): _by("number"),
    ("Placement", "roles"): _by("role"),
}
#: Structs of which every upstream field is known here, so that an unknown one is a mistake.
_COMPLETE = frozenset((
    "ObjectMeta", "OwnerReference", "Taint", "Toleration", "ResourceRequirements", "KeySelector",
    "FieldSelector", "EnvVarSource", "EnvVar", "VolumeMount", "Container", "Volume",
    "SchedulingGate", "NodeSelectorRequirement", "NodeSelectorTerm", "NodeSelector", "NodeAffinity",
    "Affinity", "PodSpec", "Pod", "PodTemplate", "ConfigMap", "Namespace", "ServicePort",
    "ServiceSpec", "Service", "PriorityClass", "LeaseSpec", "Lease", "Node", "NodeSpec", "Secret",
    "ContainerPort", "HostAlias", "MutatingWebhookConfiguration", "MutatingWebhook",
    "ValidatingWebhookConfiguration", "ValidatingWebhook", "RuleWithOperations",
    "WebhookClientConfig", "ServiceReference", "LabelSelector", "LabelSelectorRequirement",
    "MatchCondition",
))  # fmt: skip
#: Marks the schema of such a struct.
COMPLETE = "x-fairlead-complete"
#: Map fields whose strategic merge replaces the keys that are not named (`$retainKeys`).
_RETAIN_KEYS = {
    ("PodSpec", "volumes"),
    ("PodSpec", "resourceClaims"),
    ("PodStatus", "resourceClaimStatuses"),
}
#: Map fields that a strategic merge replaces as a whole.
_REPLACED = {("PodDisruptionBudgetSpec", "selector")}
_STRUCTS_WHOSE_LISTS_ARE_MAPS_IN_CRDS = ("JobSpec", "JobStatus", "Placement", "PodSpec")


@dataclass(frozen=True, slots=True)
class Generator:
    """Turns structs into schemas. `reference` may answer a named part by a `$ref` instead."""

    style: Style
    with_defaults: bool = False
    reference: Callable[[type], OpenApi | None] = field(default=lambda _: None)

    def struct(self, cls: type) -> OpenApi:
        """Return the schema of a struct, written out, without kind and apiVersion."""
        info = inspect.type_info(cls)
        assert isinstance(info, inspect.StructType)
        own = cls.__module__ == _OWN_MODULE
        properties: OpenApi = {}
        required: list[str] = []
        for item in info.fields:
            properties[item.encode_name] = self._field(cls, item)
            if item.required:
                required.append(item.encode_name)
        more = MORE.get(cls)
        if more is not None and self.style is Style.BUILTIN:
            extra = inspect.type_info(more)
            assert isinstance(extra, inspect.StructType)
            for item in extra.fields:
                properties[item.encode_name] = self._field(cls, item)
        schema: OpenApi = {
            "description": _first_paragraph(cls.__doc__),
            "type": "object",
            "properties": properties,
        }
        if required:
            schema["required"] = required
        if not own:
            schema["x-kubernetes-preserve-unknown-fields"] = True
        if self.style is Style.BUILTIN:
            schema["title"] = cls.__name__
            if cls.__name__ in _COMPLETE:
                schema[COMPLETE] = True
        return schema

    def _field(self, cls: type, item: inspect.Field) -> OpenApi:
        schema = self._type(item.type)
        name = item.encode_name
        doc = core_docs.DOCS.get(cls.__name__, {}).get(name)
        if name == "metadata" and self.style is Style.BUILTIN:
            doc = core_docs.METADATA
        if doc is None and "description" not in schema:
            doc = core_docs.KEPT
        if doc is not None:
            schema = _described(schema, doc)
        if schema.get("type") == "array":
            schema.update(self._list_rule(cls.__name__, name))
        if (cls.__name__, name) in _REPLACED and self.style is Style.BUILTIN:
            schema["x-kubernetes-patch-strategy"] = "replace"
        if self.with_defaults and cls.__module__ == _OWN_MODULE:
            default = _default(item)
            if default is not None:
                schema["default"] = default
        return schema

    def _list_rule(self, struct: str, name: str) -> OpenApi:
        rule = LISTS.get((struct, name))
        if self.style is Style.OWN:
            # Uniqueness that the API server of a CRD enforces: only where pods are as strict.
            if rule and rule.keys and struct in _STRUCTS_WHOSE_LISTS_ARE_MAPS_IN_CRDS:
                return {
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": list(rule.keys),
                }
            return {"x-kubernetes-list-type": "atomic"}
        if rule is None:
            return {"x-kubernetes-list-type": "atomic"}
        if rule.is_set:
            return {"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}
        retain = ",retainKeys" if (struct, name) in _RETAIN_KEYS else ""
        return {
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": list(rule.keys),
            "x-kubernetes-patch-strategy": "merge" + retain,
            "x-kubernetes-patch-merge-key": rule.keys[0],
        }

    def _type(self, info: inspect.Type) -> OpenApi:
        if isinstance(info, inspect.Metadata):
            extra = dict(info.extra_json_schema or {})
            if extra.get("format") == "quantity":
                return self._quantity()
            if extra.get("x-kubernetes-int-or-string"):
                return {"x-kubernetes-int-or-string": True}
            description = extra.pop("description", None)
            schema = self._type(info.type)
            schema.update(extra)
            return schema if description is None else _described(schema, description)
        if isinstance(info, inspect.UnionType):
            parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
            # Scalars of several types: anything goes, as far as a structural schema can say.
            return self._type(parts[0]) if len(parts) == 1 else _anything()
        if isinstance(info, inspect.StructType):
            if info.cls is ObjectMeta and self.style is Style.OWN:
                return _template_metadata()
            return self.reference(info.cls) or self.struct(info.cls)
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

    def _quantity(self) -> OpenApi:
        if self.style is Style.BUILTIN:
            return {"x-kubernetes-preserve-unknown-fields": True, "format": "quantity"}
        # Not x-kubernetes-int-or-string: `cpu: 0.5` is a number, and pods accept it.
        return {"x-kubernetes-preserve-unknown-fields": True, "pattern": QUANTITY_PATTERN}


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


def _described(schema: OpenApi, description: str) -> OpenApi:
    """Put the description first; beside a reference it needs an allOf, as the API server does
    it.
    """
    if "$ref" in schema:
        return {"description": description, "allOf": [schema]}
    rest = {key: value for key, value in schema.items() if key != "description"}
    return {"description": description, **rest}


def _template_metadata() -> OpenApi:
    texts: OpenApi = {"type": "object", "additionalProperties": {"type": "string"}}
    docs = core_docs.DOCS["ObjectMeta"]
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
