"""Conversion between v1alpha1 and v1beta1: a renaming of fields, and of nothing else (pure).

`beta_names` says what is renamed, the schemas say where. Of both a tree is made for each kind, once
for either direction; an object, a schema or a path is renamed by walking it beside its tree. Parts
without a tree are the same values as before: metadata, conditions, pod templates.

In one object the renaming is a permutation of all names: where `team` becomes `teamName`, a field
that v1alpha1 does not know, `teamName`, becomes `team`. So no two fields meet under one name, and
back and forth gives the same object, whatever is in it; what one version does not know, the other
does not know either, and its server drops it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api import names
from fairlead.api.schema import crd
from fairlead.api.schema.beta_names import ALIASES, FOREIGN, NAMES, beta_name

Object = dict[str, Any]
OpenApi = dict[str, Any]
ALPHA, BETA = names.API_VERSION, names.BETA_API_VERSION
_RULES = "x-kubernetes-validations"
_KEYS = "x-kubernetes-list-map-keys"
#: API servers refuse versions with the same selectable fields and different schemas: what is equal
#: in all versions they move to the top, where such fields need a schema beside them
#: (apiextensions-apiserver, pkg/apis/apiextensions/v1/conversion.go and validation.go).
_ONE_MORE = {"jsonPath": ".spec.suspend"}
#: A field that the text of another one names.
_MENTIONED = re.compile(r"\b(?:spec|status)(?:\.[A-Za-z]+)+")


class UnknownVersion(Exception):
    """An object that is not converted; the message says what was got and what is accepted."""


@dataclass(frozen=True, slots=True)
class Renames:
    """What an object's fields are called in the other version, and the same of what they hold.

    `names` has those that change, both ways round their cycles; `below` goes by the old names,
    `values` is that of every value of a map. The items of a list are renamed as one value is.
    """

    names: Mapping[str, str]
    below: Mapping[str, Renames]
    values: Renames | None = None

    @property
    def reverse(self) -> Renames:
        """The way back."""
        return Renames(
            {new: old for old, new in self.names.items()},
            {self.names.get(name, name): tree.reverse for name, tree in self.below.items()},
            self.values.reverse if self.values is not None else None,
        )


def converted(obj: Mapping[str, Any], api_version: str) -> Object:
    """Return an own object in another version of its kind; UnknownVersion.

    Parts that are the same in both versions are shared with `obj`.
    """
    kind, given = obj.get("kind"), obj.get("apiVersion")
    trees = _renames().get(kind) if isinstance(kind, str) else None
    if trees is None:
        raise UnknownVersion(f"kind: got {_shown(kind)}, accepted: {', '.join(_renames())}")
    if not (given in (ALPHA, BETA) and api_version in (ALPHA, BETA)):
        wrong = api_version if given in (ALPHA, BETA) else given
        raise UnknownVersion(f"apiVersion: got {_shown(wrong)}, accepted: {ALPHA}, {BETA}")
    if given == api_version:
        return dict(obj)
    return {**renamed(obj, trees[api_version == ALPHA]), "apiVersion": api_version}


def renames_of(kind: str, *, to_beta: bool = True) -> Renames:
    """Return what changes in objects of a kind; KeyError for a kind that is not ours."""
    return _renames()[kind][not to_beta]


def renamed(value: Mapping[str, Any], tree: Renames) -> Object:
    """Return an object with the names of the other version."""
    out: Object = {}
    for name, inner in value.items():
        below = tree.below.get(name, tree.values)
        out[tree.names.get(name, name)] = inner if below is None else _inner(inner, below)
    return out


def _inner(value: Any, tree: Renames) -> Any:
    if isinstance(value, dict):
        return renamed(value, tree)
    if isinstance(value, list):
        return [renamed(item, tree) if isinstance(item, dict) else item for item in value]
    return value


def renamed_path(path: str, kind: str, *, to_beta: bool = True) -> str:
    """Return a path, such as `.spec.team` or `.status.faults[0].check`, in the other version."""
    tree: Renames | None = renames_of(kind, to_beta=to_beta)
    parts: list[str] = []
    for part in re.split(r"(\[[^\]]*\]|\.)", path):
        is_name = bool(part) and part[0] not in "[."
        parts.append(tree.names.get(part, part) if is_name and tree is not None else part)
        if is_name and tree is not None:
            tree = tree.below.get(part, tree.values)
    return "".join(parts)


def with_beta(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of an own kind with v1beta1 served beside v1alpha1, which is stored.

    How a server converts is the caller's to add.
    """
    spec = manifest["spec"]
    kind: str = spec["names"]["kind"]
    [alpha] = spec["versions"]

    def column(found: Mapping[str, Any]) -> dict[str, Any]:
        return {**found, "jsonPath": renamed_path(found["jsonPath"], kind)}

    schema = _renamed_schema(alpha["schema"]["openAPIV3Schema"], renames_of(kind))
    beta = {
        **alpha,
        "name": names.BETA_VERSION,
        "storage": False,
        "schema": {"openAPIV3Schema": schema},
        **{
            part: [column(each) for each in alpha[part]]
            for part in ("additionalPrinterColumns", "selectableFields") if part in alpha
        },
    }  # fmt: skip
    fields = alpha.get("selectableFields")
    if fields is not None and fields == beta["selectableFields"]:
        beta["selectableFields"] = [*fields, _ONE_MORE]
    return {**manifest, "spec": {**spec, "versions": [alpha, beta]}}


def _renamed_schema(schema: Mapping[str, Any], tree: Renames | None) -> OpenApi:
    """Return the schema of v1beta1. A rule in CEL would name fields: there is none."""
    assert _RULES not in schema, "conversion renames no fields in rules yet"
    out = dict(schema)
    if "description" in schema:
        text = schema["description"].replace(ALPHA, BETA)
        out["description"] = _MENTIONED.sub(_renamed_mention, text)
    new: Callable[[str], str] = lambda name: name if tree is None else tree.names.get(name, name)  # noqa: E731
    below = {} if tree is None else tree.below
    if "properties" in schema:
        out["properties"] = {
            new(name): _renamed_schema(inner, below.get(name))
            for name, inner in schema["properties"].items()
        }
    if isinstance(schema.get("items"), Mapping):
        out["items"] = _renamed_schema(schema["items"], tree)
    if isinstance(schema.get("additionalProperties"), Mapping):
        values = tree.values if tree is not None else None
        out["additionalProperties"] = _renamed_schema(schema["additionalProperties"], values)
    for part in ("required", _KEYS):
        if part in schema:
            out[part] = [new(name) for name in schema[part]]
    if "default" in schema and tree is not None:
        out["default"] = _inner(schema["default"], tree)
    return out


def _renamed_mention(found: re.Match[str]) -> str:
    return ".".join(NAMES.get(word, word) for word in found[0].split("."))


@functools.cache
def _renames() -> Mapping[str, tuple[Renames, Renames]]:
    """Return by kind what changes to v1beta1, and back."""
    found: dict[str, tuple[Renames, Renames]] = {}
    for manifest in crd.manifests():
        kind: str = manifest["spec"]["names"]["kind"]
        [version] = manifest["spec"]["versions"]
        tree = _tree(version["schema"]["openAPIV3Schema"], kind) or Renames({}, {})
        found[kind] = (tree, tree.reverse)
    return found


def _tree(schema: Mapping[str, Any], path: str) -> Renames | None:
    """Return what changes below a schema of v1alpha1; None: nothing."""
    path = ALIASES.get(path, path)
    if FOREIGN.search(path):
        return None
    if schema.get("type") == "array":
        return _tree(schema["items"], path)
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        inner = _tree(values, path)
        return None if inner is None else Renames({}, {}, inner)
    properties = schema.get("properties", {})
    paths = {name: f"{path}.{name}{suffix(inner)}" for name, inner in properties.items()}
    below = {name: _tree(properties[name], each) for name, each in paths.items()}
    known = {name: tree for name, tree in below.items() if tree is not None}
    renames = _closed({name: beta_name(each) for name, each in paths.items()})
    return Renames(renames, known) if renames or known else None


def suffix(schema: Mapping[str, Any]) -> str:
    """Return what marks a list, or a map of objects, in a path."""
    if schema.get("type") == "array":
        return "[]"
    values = schema.get("additionalProperties")
    return "{}" if isinstance(values, Mapping) and "properties" in values else ""


def _closed(new_names: Mapping[str, str]) -> dict[str, str]:
    """Return the names that change, as a permutation: each chain of them ends where it begins."""
    assert len(set(new_names.values())) == len(new_names), f"two fields of one name: {new_names}"
    moved = {old: new for old, new in new_names.items() if old != new}
    first = {new: old for old, new in moved.items()}
    for last in [new for new in moved.values() if new not in moved]:
        begin = last
        while begin in first:
            begin = first[begin]
        moved[last] = begin
    return moved


def _shown(value: object) -> str:
    return repr(value[:80]) if isinstance(value, str) else "nothing" if value is None else "no text"
