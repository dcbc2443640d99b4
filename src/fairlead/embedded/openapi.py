"""The OpenAPI documents: v3 (an index and one document per group and version) and v2.

Made for what clients do with them: `kubectl explain` finds the schema of a kind by its path and
`x-kubernetes-group-version-kind`; `kubectl apply` looks at the PATCH operation for the parameter
`fieldValidation` and for the media types that the kind takes, and at list fields for
`x-kubernetes-patch-strategy` and `-merge-key`. Names of components are those of Kubernetes
(kube-openapi, `pkg/util/proto`); built-in kinds are cut into named components, custom ones inlined.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from fairlead import __version__
from fairlead.api.schema import builtin_schemas
from fairlead.api.schema.builtin_schemas import COMPLETE, METADATA, schema_of
from fairlead.embedded.resource_info import ResourceInfo

__all__ = ["openapi_v2", "openapi_v3_group", "openapi_v3_index"]

Document: TypeAlias = dict[str, Any]

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_PACKAGES = {
    "": "io.k8s.api.core.v1",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
}
_META_STRUCTS = ("ObjectMeta", "OwnerReference", "Condition")
_STRUCT_PACKAGES = (
    ("Lease", "io.k8s.api.coordination.v1"),
    ("EndpointSlice", "io.k8s.api.discovery.v1"),
    ("PriorityClass", "io.k8s.api.scheduling.v1"),
    ("PodDisruptionBudget", "io.k8s.api.policy.v1"),
    ("CustomResourceDefinition", _PACKAGES["apiextensions.k8s.io"]),
    *(
        (name, "io.k8s.api.admissionregistration.v1")
        for name in (
            "MutatingWebhook",
            "ValidatingWebhook",
            "RuleWithOperations",
            "WebhookClientConfig",
            "ServiceReference",
            "MatchCondition",
        )
    ),
)
_OPEN = "x-kubernetes-preserve-unknown-fields"
_NOT_IN_V2 = ("oneOf", "anyOf", "allOf", "not", "nullable")
#: For kinds whose schema does not describe them, in the words that people know.
_API_VERSION = "APIVersion defines the versioned schema of this representation of an object."
_KIND = "Kind is a string value representing the REST resource this object represents."
_PATCHES = ("application/json-patch+json", "application/merge-patch+json")
_STRATEGIC = "application/strategic-merge-patch+json"
_APPLY = "application/apply-patch+yaml"


def openapi_v3_index(served: Sequence[ResourceInfo]) -> Document:
    """Return `/openapi/v3`: for each group and version, the URL of its document, with its hash.

    `served` is in the order of `Registry.all`, here and below.
    """
    paths: Document = {}
    for group, version in sorted({(info.group, info.version) for info in served}):
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        body = msgspec.json.encode(openapi_v3_group(served, group, version))
        digest = hashlib.sha256(body).hexdigest()[:32].upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def openapi_v3_group(served: Sequence[ResourceInfo], group: str, version: str) -> Document | None:
    """Return the OpenAPI 3.0 document of one group and version, None when it is not served."""
    infos = [i for i in served if (i.group, i.version) == (group, version)]
    if not infos:
        return None
    components = _Components("#/components/schemas/")
    for info in infos:
        components.add_kind(info)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Fairlead", "version": __version__},
        "paths": _paths(infos, _operation_v3),
        "components": {"schemas": components.sorted()},
    }


def openapi_v2(served: Sequence[ResourceInfo]) -> Document:
    """Return the Swagger 2.0 document of everything served, as JSON values.

    kubectl asks for it in protobuf only, and only where v3 is missing; other tools take JSON.
    """
    components = _Components("#/definitions/", is_v2=True)
    for info in served:
        components.add_kind(info)
    return {
        "swagger": "2.0",
        "info": {"title": "Fairlead", "version": __version__},
        "paths": _paths(served, _operation_v2),
        "definitions": components.sorted(),
    }


# --- components -------------------------------------------------------------------------------


def _package(group: str, version: str, *, is_builtin: bool) -> str:
    if group in _PACKAGES:
        return _PACKAGES[group]
    if is_builtin:
        return f"io.k8s.api.{group.split('.')[0]}.{version}"
    return ".".join([*reversed(group.split(".")), version])


def _component_name(info: ResourceInfo) -> str:
    return f"{_package(info.group, info.version, is_builtin=info.is_builtin)}.{info.kind}"


def _gvk(info: ResourceInfo) -> dict[str, str]:
    return {"group": info.group, "version": info.version, "kind": info.kind}


@dataclass(slots=True)
class _Components:
    """Collects named schemas; structs refer to each other by `prefix` and name."""

    prefix: str
    is_v2: bool = False
    schemas: Document = field(default_factory=dict[str, Any])

    def sorted(self) -> Document:
        return {name: self.schemas[name] for name in sorted(self.schemas)}

    def reference(self, struct: str) -> Document:
        """Return a `$ref` to a struct's component, which is made when it is not there yet."""
        name = _struct_name(struct)
        if name not in self.schemas:
            self.schemas[name] = {}
            self.schemas[name] = self._clean(schema_of(struct, self.reference))
        return self._ref(name)

    def add_kind(self, info: ResourceInfo) -> None:
        """Add a kind and its list."""
        name = _component_name(info)
        schema: Document
        if info.is_builtin and info.kind in builtin_schemas.names():
            schema = schema_of(info.kind, self.reference)
        elif info.schema is not None:
            schema = dict(info.schema.openapi)
        else:
            schema = {"type": "object", _OPEN: True}
        metadata = {"description": METADATA, "allOf": [self.reference("ObjectMeta")]}
        rest: Mapping[str, Any] = schema.get("properties") or {}
        schema["properties"] = {**_type_meta(), **rest, "metadata": metadata}
        if self.is_v2 and not info.is_builtin and schema.get(_OPEN):
            schema = {"type": "object"}  # with any property, kubectl would refuse all others
        schema = self._clean(schema)
        schema["x-kubernetes-group-version-kind"] = [_gvk(info)]
        self.schemas[name] = schema
        self._add_list(info, name)

    def _add_list(self, info: ResourceInfo, name: str) -> None:
        list_meta = f"{_META}.ListMeta"
        texts = ("continue", "resourceVersion", "selfLink")
        self.schemas.setdefault(list_meta, {
            "description": "Metadata of a list.",
            "type": "object",
            "properties": {
                **{text: {"type": "string"} for text in texts},
                "remainingItemCount": {"type": "integer", "format": "int64"},
            },
        })  # fmt: skip
        gvk = {**_gvk(info), "kind": f"{info.kind}List"}
        self.schemas[f"{name}List"] = {
            "description": f"A list of objects of the kind {info.kind}.",
            "type": "object",
            "required": ["items"],
            "properties": {
                **_type_meta(),
                "metadata": {"description": "Version of the list.", **self._ref(list_meta)},
                "items": {
                    "description": "The objects.", "type": "array", "items": self._ref(name),
                },
            },
            "x-kubernetes-group-version-kind": [gvk],
        }  # fmt: skip

    def _ref(self, name: str) -> Document:
        return {"$ref": self.prefix + name}

    def _scalar(self, name: str, schema: Document) -> Document:
        self.schemas.setdefault(name, schema)
        return self._ref(name)

    def _clean(self, schema: Mapping[str, Any]) -> Document:
        """Return the schema in the words of the document's version, without our own marks."""
        out: Document = {
            key: value for key, value in schema.items() if key not in ("title", COMPLETE)
        }
        if out.get("format") == "quantity" or out.get("x-kubernetes-int-or-string"):
            return self._union(out)
        for key in ("items", "additionalProperties"):
            if isinstance(out.get(key), Mapping):
                out[key] = self._clean(out[key])
        if "properties" in out:
            out["properties"] = {k: self._clean(v) for k, v in out["properties"].items()}
        if self.is_v2:
            out = self._for_v2(out)
        return out

    def _union(self, schema: Document) -> Document:
        """Refer to Quantity or IntOrString, which accept texts and numbers."""
        is_quantity = schema.get("format") == "quantity"
        kinds = [{"type": "string"}, {"type": "number" if is_quantity else "integer"}]
        shape: Document = {"type": "string"} if self.is_v2 else {"oneOf": kinds}
        if is_quantity:
            description = "An amount such as 500m, 8, 1.5Gi or 2e3."
            ref = self._scalar(_QUANTITY, {"description": description, **shape})
        else:
            description = "An integer, or a text such as 50%."
            ref = self._scalar(
                _INT_OR_STRING,
                {"description": description, "format": "int-or-string", **shape},
            )
        text = schema.get("description")
        if text is None:
            return ref
        return {"description": text, **ref} if self.is_v2 else {"description": text, "allOf": [ref]}

    def _for_v2(self, schema: Document) -> Document:
        """Swagger 2 knows no unions and no nulls: say less rather than something wrong."""
        parts = schema.get("allOf")
        out = {key: value for key, value in schema.items() if key not in _NOT_IN_V2}
        if schema.get("nullable"):
            for key in ("type", "items", "properties"):
                out.pop(key, None)
        if parts and "$ref" in parts[0]:
            out |= parts[0]
        return out


def _struct_name(struct: str) -> str:
    if struct in _META_STRUCTS:
        return f"{_META}.{struct}"
    for start, package in _STRUCT_PACKAGES:
        if struct.startswith(start):
            return f"{package}.{struct}"
    return f"{_PACKAGES['']}.{struct}"


def _type_meta() -> Document:
    return {
        "apiVersion": {"description": _API_VERSION, "type": "string"},
        "kind": {"description": _KIND, "type": "string"},
    }


# --- paths ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Verb:
    """How a verb of the API looks on the wire."""

    name: str
    method: str
    action: str
    writes: bool = False


_ON_COLLECTION = (
    _Verb("list", "get", "list"),
    _Verb("create", "post", "post", writes=True),
    _Verb("deletecollection", "delete", "deletecollection"),
)
_ON_OBJECT = (
    _Verb("get", "get", "get"),
    _Verb("update", "put", "put", writes=True),
    _Verb("patch", "patch", "patch", writes=True),
    _Verb("delete", "delete", "delete"),
)
_ON_STATUS = tuple(verb for verb in _ON_OBJECT if verb.name != "delete")


def _paths(infos: Iterable[ResourceInfo], operation: Any) -> Document:
    paths: Document = {}
    for info in infos:
        root = f"/apis/{info.group}/{info.version}" if info.group else f"/api/{info.version}"
        if info.namespaced:
            everywhere = operation(info, _ON_COLLECTION[0], "ForAllNamespaces")
            paths[f"{root}/{info.plural}"] = {"get": everywhere}
            root += "/namespaces/{namespace}"
        scope = "Namespaced" if info.namespaced else ""
        collection, item = f"{root}/{info.plural}", f"{root}/{info.plural}/{{name}}"
        groups: list[tuple[str, tuple[_Verb, ...], str]] = [
            (collection, _ON_COLLECTION, scope),
            (item, _ON_OBJECT, scope),
        ]
        if "status" in info.subresources:
            groups.append((f"{item}/status", _ON_STATUS, f"{scope}Status"))
        for path, verbs, part in groups:
            in_path = [name for name in ("name", "namespace") if f"{{{name}}}" in path]
            paths[path] = {
                **{v.method: operation(info, v, part) for v in verbs if v.name in info.verbs},
                **_parameters([_parameter(name, where="path") for name in in_path]),
            }
    return paths


def _parameters(found: list[Document]) -> Document:
    """Return the field; absent where it would be empty, as Go leaves it out."""
    return {"parameters": found} if found else {}


def _parameter(name: str, *, where: str = "query", is_v2: bool = False) -> Document:
    typed: Document = {"type": "string"} if is_v2 else {"schema": {"type": "string"}}
    required: Document = {"required": True} if where == "path" else {}
    return {"name": name, "in": where, **required, **typed}


def _names(verb: _Verb) -> tuple[str, ...]:
    """Query parameters that clients look for."""
    if verb.writes:
        forced = ("force",) if verb.name == "patch" else ()
        return ("dryRun", "fieldManager", "fieldValidation", *forced)
    if verb.name == "list":
        return (
            "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit",
            "resourceVersion", "resourceVersionMatch", "timeoutSeconds", "watch",
        )  # fmt: skip
    return ("dryRun", "gracePeriodSeconds", "propagationPolicy") if verb.method == "delete" else ()


def _base(info: ResourceInfo, verb: _Verb, part: str) -> Document:
    package = "".join(word.capitalize() for word in (info.group or "core").split("."))
    return {
        "operationId": f"{verb.name}{package}{info.version.capitalize()}{part}{info.kind}",
        "tags": [f"{info.group or 'core'}_{info.version}"],
        "x-kubernetes-action": verb.action,
        "x-kubernetes-group-version-kind": _gvk(info),
    }


def _patch_types(info: ResourceInfo) -> list[str]:
    return [*_PATCHES, *((_STRATEGIC,) if info.is_builtin else ()), _APPLY]


def _operation_v3(info: ResourceInfo, verb: _Verb, part: str) -> Document:
    suffix = "List" if verb.name == "list" else ""
    schema = {"$ref": f"#/components/schemas/{_component_name(info)}{suffix}"}
    out = _base(info, verb, part)
    out |= _parameters([_parameter(name) for name in _names(verb)])
    if verb.name == "patch":
        body: Document = {media: {"schema": {"type": "object"}} for media in _patch_types(info)}
        out["requestBody"] = {"required": True, "content": body}
    elif verb.writes:
        out["requestBody"] = {"required": True, "content": {"*/*": {"schema": schema}}}
    content = {"application/json": {"schema": schema}}
    out["responses"] = {"200": {"description": "OK", "content": content}}
    return out


def _operation_v2(info: ResourceInfo, verb: _Verb, part: str) -> Document:
    suffix = "List" if verb.name == "list" else ""
    schema = {"$ref": f"#/definitions/{_component_name(info)}{suffix}"}
    out = _base(info, verb, part)
    parameters = [_parameter(name, is_v2=True) for name in _names(verb)]
    if verb.writes:
        body = {"type": "object"} if verb.name == "patch" else schema
        parameters.append({"name": "body", "in": "body", "required": True, "schema": body})
    out |= _parameters(parameters)
    if verb.name == "patch":
        out["consumes"] = _patch_types(info)
    out["produces"] = ["application/json"]
    out["responses"] = {"200": {"description": "OK", "schema": schema}}
    return out
