"""What the embedded API knows of a kind that it serves: one frozen `ResourceInfo` each.

All versions of a kind share one table of the store, whose name is `ResourceInfo.name`, because the
stored bytes hold no apiVersion. Where versions have different names of fields, the bytes have those
of the version that is stored, and an info of another one has the `VersionNames` of both.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

from fairlead.api import resources
from fairlead.api.meta import ObjectMeta, Wire
from fairlead.api.schema.conversion import Renames, renamed
from fairlead.embedded.schema.schema import Schema

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

READERS_CACHED_MAX = 256
#: A path of keys into an object's plain JSON.
FieldPath = tuple[str, ...]


class AnyObject(Wire, frozen=True):
    """The read model of kinds that have no other."""

    metadata: ObjectMeta = ObjectMeta()


_TYPES: dict[tuple[str, str, str], type[Any]] = {
    (r.group, r.version, r.plural): r.type for r in resources.ALL
}


class NameRule(Enum):
    """Which names a kind accepts (apimachinery `pkg/api/validation`)."""

    SUBDOMAIN = "a lowercase RFC 1123 subdomain"
    LABEL = "a lowercase RFC 1123 label"
    DNS_1035 = "a DNS-1035 label"
    PATH_SEGMENT = "a path segment name"


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column of a table; `priority` 0 always shows, 1 only with `-o wide`."""

    name: str
    description: str
    type: str = "string"
    format: str = ""
    priority: int = 0
    json_path: str = ""  # of an additional column of a custom resource definition


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where a custom resource keeps its replicas; paths into the object."""

    spec_replicas: FieldPath
    status_replicas: FieldPath
    label_selector: FieldPath | None = None


@dataclass(frozen=True, slots=True)
class SelectableField:
    """A field that a field selector may name; `default` is its value when absent."""

    path: FieldPath
    default: str = ""

    def text(self, value: Any) -> str:
        """Return a value of the field as text: booleans as true or false, none as the default."""
        if value is None or value is msgspec.UNSET:
            return self.default
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)


class FieldReader:
    """Reads selectable fields out of stored bytes; the rest is skipped, not decoded."""

    def __init__(self, fields: Mapping[str, SelectableField]) -> None:
        tree: dict[str, Any] = {}
        for name, field_ in fields.items():
            parent = tree
            for key in field_.path[:-1]:
                parent = parent.setdefault(key, {})
            parent[field_.path[-1]] = name
        self._fields = list(fields.items())
        paths = [".".join(map(_attribute, f.path)) for f in fields.values()]
        self._get = operator.attrgetter(*paths, *paths[:1]) if paths else None  # always a tuple
        self._decoder = msgspec.json.Decoder(_struct_of(tree, ()))

    def read(self, data: bytes) -> dict[str, str]:
        """Return the text of each field."""
        if self._get is None:
            return {}
        root = self._decoder.decode(data)
        try:
            values = self._get(root)
        except AttributeError:  # a null where an object should be
            values = [_follow(root, field_.path) for _, field_ in self._fields]
        return {
            name: value if type(value) is str else field_.text(value)
            for (name, field_), value in zip(self._fields, values, strict=False)
        }


@lru_cache(maxsize=READERS_CACHED_MAX)
def field_reader(info: ResourceInfo, names: tuple[str, ...]) -> FieldReader:
    """Return a reader of only these selectable fields of a kind."""
    return FieldReader({name: info.selectable[name] for name in names})


def _follow(value: Any, path: FieldPath) -> Any:
    for key in path:
        value = getattr(value, _attribute(key), None)
    return value


def _attribute(key: str) -> str:
    return f"f_{key}"


def _struct_of(tree: Mapping[str, Any], path: FieldPath) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    for key, below in tree.items():
        if isinstance(below, dict):
            kind = _struct_of(below, (*path, key))
            fields.append((_attribute(key), kind | None, msgspec.field(default_factory=kind)))
        else:
            fields.append((_attribute(key), Any, None))
    names = {_attribute(key): key for key in tree}
    return msgspec.defstruct("_".join(("Fields", *path)), fields, rename=names, gc=False)


@dataclass(frozen=True, slots=True)
class VersionNames:
    """How a served version renames the fields of the stored one, and back."""

    stored_version: str
    to_served: Renames
    to_stored: Renames


_VERSION = re.compile(r"^v(\d+)(?:(alpha|beta)(\d+))?$")


def version_rank(version: str) -> tuple[int, int, int]:
    """Return a key that sorts versions best first: v2, v1, v1beta1, v1alpha2, others."""
    match = _VERSION.match(version)
    if match is None:
        return (3, 0, 0)
    stage = {None: 0, "beta": 1, "alpha": 2}[match[2]]
    return (stage, -int(match[1]), -int(match[3] or 0))


@dataclass(frozen=True, slots=True, eq=False)
class ResourceInfo:
    """One served version of one kind. Compared and hashed by identity."""

    group: str
    version: str
    plural: str
    kind: str
    singular: str = ""
    namespaced: bool = True
    list_kind: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()  # "status", "scale", "binding", "eviction", "log", ...
    verbs: tuple[str, ...] = VERBS
    is_builtin: bool = True
    name_rule: NameRule = NameRule.SUBDOMAIN
    selectable: Mapping[str, SelectableField] = field(default_factory=dict)
    unconditional_update_allowed: bool = True
    create_on_update_allowed: bool = False
    tracks_generation: bool = False
    keeps_status_on_create: bool = False
    schema: Schema | None = None  # of a custom resource; `schema.openapi` is its JSON
    status_schema: Schema | None = None  # of {"status": ...} alone, for status writes
    printer_columns: tuple[PrinterColumn, ...] = ()
    scale: ScalePaths | None = None
    warnings: tuple[str, ...] = ()  # that go with every answer
    version_names: VersionNames | None = None  # None: this version has the names that are stored
    #: `plural.group`, or `plural` in the core group; also the name of the store's table.
    name: str = field(init=False)
    #: `v1` or `group/version`.
    api_version: str = field(init=False)
    #: What turns stored bytes into a whole object: `prefix + data[1:]`.
    prefix: bytes = field(init=False)
    #: The read model that in-process clients get; every stored object decodes into it.
    type: type[Any] = field(init=False)
    fields: FieldReader = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        api_version = f"{self.group}/{self.version}" if self.group else self.version
        put(self, "name", f"{self.plural}.{self.group}" if self.group else self.plural)
        put(self, "api_version", api_version)
        prefix = f'{{"kind":{json.dumps(self.kind)},"apiVersion":{json.dumps(api_version)},'
        put(self, "prefix", prefix.encode())
        put(self, "singular", self.singular or self.kind.lower())
        put(self, "list_kind", self.list_kind or f"{self.kind}List")
        stored = self.version_names.stored_version if self.version_names else self.version
        put(self, "type", _TYPES.get((self.group, stored, self.plural), AnyObject))
        put(self, "fields", FieldReader(self.selectable))

    @property
    def has_status(self) -> bool:
        """True when status is a sub-resource: then other writes ignore it."""
        return "status" in self.subresources

    def served(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object as stored with the names of this version."""
        names = self.version_names
        return obj if names is None else renamed(obj, names.to_served)

    def stored(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object of this version with the names that are stored."""
        names = self.version_names
        return obj if names is None else renamed(obj, names.to_stored)
