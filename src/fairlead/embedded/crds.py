"""CustomResourceDefinitions: rules, the status that says "served", and the kinds that they define.

A definition is served with the write that stores it: its conditions NamesAccepted and
Established are set on the way in (apiextensions `pkg/apiserver/customresource_handler.go`,
`pkg/controller/{status,establish}`). Versions share one storage. Objects of this project's kinds
are converted as its webhook converts them, without a call; those of others are the same in all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fairlead.api import names as api_names
from fairlead.api.schema.conversion import renamed_path, renames_of
from fairlead.api.schema.crd import definition_names
from fairlead.embedded.resource_info import (
    PrinterColumn,
    ResourceInfo,
    ScalePaths,
    SelectableField,
    VersionNames,
    version_rank,
)
from fairlead.embedded.schema.schema import Schema, SchemaError, compile_schema
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.verbs.errors import FieldProblem, Finding, ProblemType

_CONVERTED = 'and in definitions of this project "Webhook", between v1alpha1, stored, and v1beta1'
_META = {"metadata.name": SelectableField(("metadata", "name"))}
_NAMESPACED_META = {**_META, "metadata.namespace": SelectableField(("metadata", "namespace"))}


class _Part(msgspec.Struct, rename="camel", gc=False):
    """The types of what is read of a definition; null means missing."""


class _Names(_Part):
    plural: str
    kind: str
    singular: str | None = None
    list_kind: str | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None


class _Column(_Part):
    name: str
    type: str
    json_path: str
    format: str | None = None
    description: str | None = None
    priority: int | None = None


class _Scale(_Part):
    spec_replicas_path: str
    status_replicas_path: str
    label_selector_path: str | None = None


class _Subresources(_Part):
    status: dict[str, Any] | None = None
    scale: _Scale | None = None


class _Selectable(_Part):
    json_path: str


class _Version(_Part):
    name: str = ""
    served: bool = True
    storage: bool = False
    schema: dict[str, Any] | None = None
    subresources: _Subresources | None = None
    additional_printer_columns: list[_Column] | None = None
    selectable_fields: list[_Selectable] | None = None
    deprecated: bool | None = None
    deprecation_warning: str | None = None


class _Spec(_Part):
    group: str
    scope: str
    names: _Names
    versions: list[_Version]
    conversion: dict[str, Any] | None = None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def problems(crd: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with a definition."""
    spec = as_map(crd.get("spec"))
    names, group = as_map(spec.get("names")), spec.get("group")
    found: list[Finding] = []
    for path, value in (
        ("spec.group", group),
        ("spec.names.plural", names.get("plural")),
        ("spec.names.kind", names.get("kind")),
        ("spec.scope", spec.get("scope")),
        ("spec.versions", spec.get("versions")),
    ):
        if not value:
            found.append(FieldProblem(path, ProblemType.REQUIRED))
    if found:
        return found
    try:
        msgspec.convert(spec, _Spec)
    except msgspec.ValidationError as error:
        why, _, where = str(error).partition(" - at `$")
        path = f"spec{where.rstrip('`')}"
        return [FieldProblem(path, ProblemType.INVALID, why[:1].lower() + why[1:])]
    wanted = f"{names['plural']}.{group}"
    if crd["metadata"].get("name") != wanted:
        why = 'must be spec.names.plural+"."+spec.group'
        name = crd["metadata"].get("name")
        found.append(FieldProblem("metadata.name", ProblemType.INVALID, why, name))
    if "." not in str(group):
        why = "should be a domain with at least one dot"
        found.append(FieldProblem("spec.group", ProblemType.INVALID, why, group))
    if spec["scope"] not in ("Namespaced", "Cluster"):
        why = 'supported values: "Cluster", "Namespaced"'
        found.append(FieldProblem("spec.scope", ProblemType.NOT_SUPPORTED, why, spec["scope"]))
    strategy = _strategy(spec)
    if strategy != "None" and not _is_converted(wanted, spec):
        why = f'this server calls no webhook to convert; supported values: "None", {_CONVERTED}'
        path = "spec.conversion.strategy"
        found.append(FieldProblem(path, ProblemType.NOT_SUPPORTED, why, strategy))
    return [*found, *_version_problems(_list(spec["versions"]))]


def _strategy(spec: Mapping[str, Any]) -> Any:
    return as_map(spec.get("conversion")).get("strategy", "None")


def _is_converted(name: str, spec: Mapping[str, Any]) -> bool:
    """True where a definition of our own asks for the conversion that its webhook does."""
    versions = [as_map(each) for each in _list(spec["versions"])]
    stored = [each.get("name") for each in versions if each.get("storage") is True]
    return (
        _strategy(spec) == "Webhook"
        and name in definition_names()
        and stored == [api_names.VERSION]
        and {each.get("name") for each in versions} <= {api_names.VERSION, api_names.BETA_VERSION}
    )


def _version_problems(versions: list[Any]) -> Iterable[Finding]:
    storage = sum(as_map(version).get("storage") is True for version in versions)
    if storage != 1:
        why = "must have exactly one version marked as storage version"
        yield FieldProblem("spec.versions", ProblemType.INVALID, why, storage)
    for i, version in enumerate(versions):
        path = f"spec.versions[{i}]"
        if not as_map(version).get("name"):
            yield FieldProblem(f"{path}.name", ProblemType.REQUIRED)
        text = as_map(version).get("deprecationWarning")
        if text is not None and not as_map(version).get("deprecated"):
            why = "can only be set for deprecated versions"
            yield FieldProblem(f"{path}.deprecationWarning", ProblemType.INVALID, why, text)
        openapi = as_map(as_map(version).get("schema")).get("openAPIV3Schema")
        if openapi is None:
            why = "schemas are required"
            yield FieldProblem(f"{path}.schema.openAPIV3Schema", ProblemType.REQUIRED, why)
            continue
        try:
            compile_schema(openapi, f"{path}.schema.openAPIV3Schema")
        except SchemaError as error:
            yield from error.causes


def admit(crd: dict[str, Any], now: str) -> None:
    """Fill in names and say in the status that the kind is served. Changes `crd` in place."""
    spec = as_map(crd.get("spec"))
    names = dict(as_map(spec.get("names")))
    kind = str(names.get("kind", ""))
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    conversion = spec.get("conversion") or {"strategy": "None"}
    crd["spec"] = {**spec, "names": names, "conversion": conversion}
    old = as_map(crd.get("status"))
    status: dict[str, Any] = dict(old)
    status["acceptedNames"] = names
    stored = _list(old.get("storedVersions"))
    for version in _list(spec.get("versions")):
        name = as_map(version).get("name")
        if as_map(version).get("storage") is True and name not in stored:
            stored = [*stored, name]
    status["storedVersions"] = stored
    status["conditions"] = _list(old.get("conditions")) or [
        {
            "type": "NamesAccepted", "status": "True", "lastTransitionTime": now,
            "reason": "NoConflicts", "message": "no conflicts found",
        },
        {
            "type": "Established", "status": "True", "lastTransitionTime": now,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]  # fmt: skip
    crd["status"] = status


def infos_of(crd: Mapping[str, Any]) -> list[ResourceInfo]:
    """Return what a valid definition serves: one info per served version."""
    spec, names = crd["spec"], crd["spec"]["names"]
    return [
        _info(spec, names, version) for version in spec["versions"] if version.get("served", True)
    ]


def _version_names(kind: str) -> VersionNames:
    return VersionNames(api_names.VERSION, renames_of(kind), renames_of(kind, to_beta=False))


def _info(
    spec: Mapping[str, Any], names: Mapping[str, Any], version: Mapping[str, Any]
) -> ResourceInfo:
    below = as_map(version.get("subresources"))
    namespaced = spec["scope"] == "Namespaced"
    is_stored = _strategy(spec) == "None" or version["storage"] is True
    kind: str = names["kind"]
    selectable = {
        path.lstrip("."): SelectableField(
            _path(path if is_stored else renamed_path(path, kind, to_beta=False))
        )
        for path in (field["jsonPath"] for field in _list(version.get("selectableFields")))
    }
    return ResourceInfo(
        spec["group"], version["name"], names["plural"], kind,
        singular=names.get("singular") or "",
        namespaced=namespaced,
        list_kind=names.get("listKind") or "",
        short_names=tuple(_list(names.get("shortNames"))),
        categories=tuple(_list(names.get("categories"))),
        subresources=tuple(name for name in ("status", "scale") if below.get(name) is not None),
        is_builtin=False,
        selectable={**(_NAMESPACED_META if namespaced else _META), **selectable},
        unconditional_update_allowed=False,
        tracks_generation=True,
        schema=compile_schema(version["schema"]["openAPIV3Schema"]),
        status_schema=_status_schema(version),
        printer_columns=tuple(
            PrinterColumn(
                c["name"], c.get("description") or "", c["type"], c.get("format") or "",
                c.get("priority") or 0, c["jsonPath"],
            )
            for c in _list(version.get("additionalPrinterColumns"))
        ),
        scale=_scale(below.get("scale")),
        warnings=_warnings(spec, version),
        version_names=None if is_stored else _version_names(kind),
    )  # fmt: skip


def _warnings(spec: Mapping[str, Any], version: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what is said of a deprecated version, and that a better one is served.

    Source: apiextensions `pkg/apiserver/customresource_handler.go`, `defaultDeprecationWarning`.
    """
    if not version.get("deprecated"):
        return ()
    if text := version.get("deprecationWarning"):
        return (text,)
    group, kind = spec["group"], spec["names"]["kind"]
    text = f"{group}/{version['name']} {kind} is deprecated"
    current = [each["name"] for each in spec["versions"]
               if each.get("served", True) and not each.get("deprecated")]  # fmt: skip
    best = min(current, key=version_rank, default=version["name"])
    is_better = version_rank(best) < version_rank(version["name"])
    return (f"{text}; use {group}/{best} {kind}" if is_better else text,)


def _status_schema(version: Mapping[str, Any]) -> Schema | None:
    status = as_map(version["schema"]["openAPIV3Schema"].get("properties")).get("status")
    if status is None:
        return None
    return compile_schema({"type": "object", "properties": {"status": status}})


def _scale(scale: Any) -> ScalePaths | None:
    if not isinstance(scale, Mapping):
        return None
    selector = scale.get("labelSelectorPath")
    return ScalePaths(
        _path(scale["specReplicasPath"]),
        _path(scale["statusReplicasPath"]),
        _path(selector) if selector else None,
    )


def _path(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(".") if part)
