"""Which kinds the embedded API serves, found by path or by kind.

Built-in kinds are there from the start (`builtins.py`); custom ones come and go with their
CustomResourceDefinition objects (`crds.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fairlead.api.resources import Resource
from fairlead.embedded.builtins import BUILTINS
from fairlead.embedded.resource_info import ResourceInfo


class Registry:
    """The served kinds. `revision` grows with each change, so that documents can be cached."""

    def __init__(self, infos: Iterable[ResourceInfo] = ()) -> None:
        self.revision = 0
        self._by_path: dict[tuple[str, str, str], ResourceInfo] = {}
        self._by_kind: dict[tuple[str, str], ResourceInfo] = {}
        self._versions: dict[str, tuple[ResourceInfo, ...]] = {}  # by table, as they were asked for
        for info in infos:
            self.add(info)

    @classmethod
    def with_builtins(cls) -> Registry:
        """Return a registry of the built-in kinds."""
        return cls(BUILTINS)

    def find(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        """Return what is served at that path, or None."""
        return self._by_path.get((group, version, plural))

    def by_kind(self, api_version: str, kind: str) -> ResourceInfo | None:
        """Return what is served as that kind, or None."""
        return self._by_kind.get((api_version, kind))

    def of(self, resource: Resource[Any]) -> ResourceInfo | None:
        """Return what is served for a client's resource, or None."""
        return self._by_path.get((resource.group, resource.version, resource.plural))

    def versions(self, name: str) -> tuple[ResourceInfo, ...]:
        """Return all served versions of the table `name`, in the order of `all`."""
        found = self._versions.get(name)
        if found is None:
            found = tuple(info for info in self.all() if info.name == name)
            self._versions[name] = found
        return found

    def all(self) -> tuple[ResourceInfo, ...]:
        """Return everything served, sorted by (group, version, plural)."""
        return tuple(self._by_path[path] for path in sorted(self._by_path))

    def add(self, info: ResourceInfo) -> None:
        """Serve `info` from now on, in the place of what was served at its path."""
        self._by_path[info.group, info.version, info.plural] = info
        self._by_kind[info.api_version, info.kind] = info
        self._changed()

    def remove(self, info: ResourceInfo) -> None:
        """Stop serving `info`."""
        del self._by_path[info.group, info.version, info.plural]
        self._by_kind.pop((info.api_version, info.kind), None)
        self._changed()

    def _changed(self) -> None:
        self._versions.clear()
        self.revision += 1
