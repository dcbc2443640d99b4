"""Schemas compiled into closures that change values: defaulting and pruning, by copy on write.

Defaulting (apiextensions `pkg/apiserver/schema/defaulting`): a missing field, or a null in a field
that is not nullable, gets its default; other nulls in fields that are not nullable go away, and
integers written as 3.0 become 3. Pruning
(`pkg/apiserver/schema/pruning`): fields that the schema does not name go, unless it preserves them.
A value in which nothing changes is handed back as it is, the same object; otherwise only the
containers on the way to a change are new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fairlead.embedded.schema.faults import Path

Json: TypeAlias = Mapping[str, Any]
Fill: TypeAlias = Callable[[Any], Any]
#: None when there is nothing to drop, else (the pruned value, the paths of what was dropped).
Pruned: TypeAlias = tuple[Any, list[Path]]
Prune: TypeAlias = Callable[[Any], Pruned | None]

META_FIELDS = frozenset(("apiVersion", "kind", "metadata"))
PRESERVE = "x-kubernetes-preserve-unknown-fields"
EMBEDDED = "x-kubernetes-embedded-resource"


def fresh(value: Any) -> Any:
    """Return a copy of a JSON value down to its scalars."""
    if isinstance(value, dict):
        return {key: fresh(item) for key, item in value.items()}
    return [fresh(item) for item in value] if isinstance(value, list) else value


# --- defaulting -------------------------------------------------------------------------------


def compile_fill(schema: Json) -> Fill | None:
    """Return the defaulting function of a node, None when it never changes anything."""
    properties: Json = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    items = schema.get("items")
    if schema.get("type") == "integer":
        return _to_int
    if properties or isinstance(extra, Mapping):
        return _fill_object(properties, extra if isinstance(extra, Mapping) else None)
    below = compile_fill(items) if isinstance(items, Mapping) else None
    return None if below is None else _fill_list(below)


def _to_int(value: Any) -> Any:
    """Write 3.0 as 3 where an integer is wanted, as the API server's decoder does."""
    return int(value) if type(value) is float and value.is_integer() else value


def _fill_object(properties: Json, extra: Json | None) -> Fill:
    defaults: list[tuple[str, Any]] = []
    fills: dict[str, Fill | None] = {}
    drops: set[str] = set()
    for key, schema in properties.items():
        fill = compile_fill(schema)
        fills[key] = fill
        if schema.get("default") is not None:
            value = fresh(schema["default"])
            defaults.append((key, value if fill is None else fill(value)))
        if not schema.get("nullable") and _is_typed(schema):
            drops.add(key)
    extra_fill = None if extra is None else compile_fill(extra)
    extra_drops = extra is not None and not extra.get("nullable") and _is_typed(extra)
    find = {key: fill for key, fill in fills.items() if fill is not None}.get
    known = frozenset(fills)

    def fill_object(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        out: dict[str, Any] | None = None
        for key, item in value.items():
            if item is None:
                if key in drops or (extra_drops and key not in known):
                    out = dict(value) if out is None else out
                    del out[key]
                continue
            below = find(key)
            if below is None:
                if extra_fill is None or key in known:
                    continue
                below = extra_fill
            new = below(item)
            if new is not item:
                out = dict(value) if out is None else out
                out[key] = new
        present = value if out is None else out
        for key, default in defaults:
            if key not in present:
                out = present = dict(value) if out is None else out
                out[key] = fresh(default)
        return present

    return fill_object


def _is_typed(schema: Json) -> bool:
    """True where a null would be a type error: values of free form may be null."""
    return "type" in schema or "allOf" in schema or bool(schema.get("x-kubernetes-int-or-string"))


def _fill_list(below: Fill) -> Fill:
    def fill_list(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        out: list[Any] | None = None
        for i, item in enumerate(value):
            new = below(item)
            if new is not item:
                out = list(value) if out is None else out
                out[i] = new
        return value if out is None else out

    return fill_list


# --- pruning ----------------------------------------------------------------------------------


def compile_prune(schema: Json, *, closed_by: str = "") -> Prune | None:
    """Return the pruning function of a node, None when it never drops anything.

    A node whose key `closed_by` is true drops unknown fields although the schema preserves them.
    """
    properties: Json = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    keeps_unknown = bool(schema.get(PRESERVE)) and not (closed_by and schema.get(closed_by))
    items = schema.get("items")
    item_prune = compile_prune(items, closed_by=closed_by) if isinstance(items, Mapping) else None
    prunes = {k: compile_prune(below, closed_by=closed_by) for k, below in properties.items()}
    extra_prune: Prune | None = None
    if isinstance(extra, Mapping):
        extra_prune = compile_prune(extra, closed_by=closed_by)
    has_extra = extra is not None and extra is not False
    keeps = keeps_unknown or has_extra or schema.get("x-kubernetes-int-or-string")
    if keeps and item_prune is None and extra_prune is None and not any(prunes.values()):
        return None
    if not keeps and schema.get("type") not in (None, "object", "array"):
        return None
    if schema.get("type") == "array":
        return None if item_prune is None else _prune_list(item_prune)
    embedded = META_FIELDS if schema.get(EMBEDDED) else frozenset[str]()
    prune_object = _prune_object(
        prunes, extra_prune, keeps=bool(keeps), kept=embedded - prunes.keys()
    )
    return prune_object if item_prune is None else _either(prune_object, _prune_list(item_prune))


def _either(for_objects: Prune, for_lists: Prune) -> Prune:
    return lambda value: (for_lists if isinstance(value, list) else for_objects)(value)


def _prune_object(
    prunes: Mapping[str, Prune | None],
    extra_prune: Prune | None,
    *,
    keeps: bool,
    kept: frozenset[str],
) -> Prune:
    known = frozenset(prunes) | kept
    find = {key: prune for key, prune in prunes.items() if prune is not None}.get

    def prune_object(value: Any) -> Pruned | None:
        if not isinstance(value, dict):
            return None
        out: dict[str, Any] | None = None
        dropped: list[Path] = []
        for key, item in value.items():
            if key not in known:
                if not keeps:
                    out = dict(value) if out is None else out
                    del out[key]
                    dropped.append((key,))
                    continue
                below = extra_prune
            else:
                below = find(key)
            found = None if below is None else below(item)
            if found is not None:
                out = dict(value) if out is None else out
                out[key] = found[0]
                dropped.extend((key, *path) for path in found[1])
        return None if out is None else (out, dropped)

    return prune_object


def _prune_list(below: Prune) -> Prune:
    def prune_list(value: Any) -> Pruned | None:
        if not isinstance(value, list):
            return None
        out: list[Any] | None = None
        dropped: list[Path] = []
        for i, item in enumerate(value):
            found = below(item)
            if found is not None:
                out = list(value) if out is None else out
                out[i] = found[0]
                dropped.extend((i, *path) for path in found[1])
        return None if out is None else (out, dropped)

    return prune_list
