"""What a write does to the managers of an object, and what applying a configuration makes of it.

Follows structured-merge-diff `merge/update.go`, with what apimachinery puts around it
(`pkg/util/managedfields/internal`): fields that no manager owns, the joining of old managers, and
the way from client-side apply. The fields of a manager are those of the version that it wrote;
objects are converted to that version to be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fairlead.embedded.apply.field_set import (
    SELF,
    FieldSet,
    Path,
    difference,
    field_step,
    has,
    intersection,
    paths_of,
    shown,
    union,
    without,
)
from fairlead.embedded.apply.managers import (
    Manager,
    ManagerOperation,
    Managers,
    OwnedFields,
    capped,
)
from fairlead.embedded.apply.types import ABSENT, ObjectType
from fairlead.embedded.apply.walk import (
    Comparison,
    compare,
    fields_of,
    merge,
    named_as_members,
    problems,
    reconciled,
    remove,
)

BEFORE_FIRST_APPLY = "before-first-apply"
KUBECTL = "kubectl"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_METADATA = (
    "name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation",
    "managedFields", "resourceVersion",
)  # fmt: skip
#: No manager owns these: they say which object it is, or the server sets them.
_UNOWNED: FieldSet = {
    "f:apiVersion": {},
    "f:kind": {},
    "f:metadata": {SELF: {}, **{field_step(name): {} for name in _METADATA}},
}

Obj = Mapping[str, Any]
Made = dict[str, Any]


class ApplyConflict(Exception):
    """Others manage fields that a configuration sets to something else; nothing is forced."""

    def __init__(self, conflicts: list[tuple[Manager, Path]]) -> None:
        self.conflicts = conflicts
        super().__init__(_conflict_message(conflicts))


class BadConfig(ValueError):
    """What is to be applied does not fit the kind."""


def _conflict_message(conflicts: list[tuple[Manager, Path]]) -> str:
    if len(conflicts) == 1:
        manager, path = conflicts[0]
        return f"Apply failed with 1 conflict: conflict with {manager}: {shown(path)}"
    lines: list[str] = []
    for manager in dict.fromkeys(manager for manager, _ in conflicts):
        lines.append(f"conflicts with {manager}:")
        lines.extend(f"- {shown(path)}" for owner, path in conflicts if owner == manager)
    return f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes what: a manager's name, the version and the part of the object, and the instant.

    `type_in` gives the type of the object in a version, None for one that is not served; `convert`
    an object of the version that is named first in the one named second.
    `reset` are the fields that a write of this part leaves as they are.
    """

    name: str
    api_version: str
    time: str
    type_in: Callable[[str], ObjectType | None]
    convert: Callable[[Made, str, str], Made]
    reset: FieldSet
    subresource: str = ""

    @property
    def type(self) -> ObjectType:
        """The type in the version of the write."""
        type_ = self.type_in(self.api_version)
        assert type_ is not None, "a version that is written is served"
        return type_

    def converted(self, obj: Obj, version: str, *, back: bool = False) -> Made:
        """Return an object of the version of the write in another one, or the way back."""
        made = obj if isinstance(obj, dict) else dict(obj)
        if version == self.api_version:
            return made
        ends = (version, self.api_version) if back else (self.api_version, version)
        return self.convert(made, *ends)

    def manager(self, operation: str) -> Manager:
        """Return the manager that this is."""
        version = self.api_version if operation == ManagerOperation.UPDATE else ""
        return Manager(self.name or "unknown", operation, version, self.subresource)


def updated(old: Obj, new: Obj, managers: Managers, writer: Writer) -> Managers:
    """Return the managers after an update or a creation (from nothing) has been merged.

    The writer owns what it changed, and others lose it.
    """
    manager = writer.manager(ManagerOperation.UPDATE)
    managers, change = _change_of_owners(old, new, _reconciled(managers, writer), writer)
    fields = difference(union(change.modified, change.added), _UNOWNED)
    if fields:
        before = managers.get(manager)
        joined = fields if before is None else union(fields, before.fields)
        managers = {**managers, manager: OwnedFields(joined, writer.api_version, writer.time)}
    return capped(managers)


@dataclass(frozen=True, slots=True)
class Applied:
    """The object that a configuration makes, and its managers."""

    object: dict[str, Any]
    managers: Managers


def applied(live: Obj, config: Obj, managers: Managers, writer: Writer, *, force: bool) -> Applied:
    """Return what applying a configuration makes of an object ({} for one that is not there).

    ApplyConflict, BadConfig. kubectl takes over what it applied on the client's side before.
    """
    found = problems(config, writer.type)
    if found:
        raise BadConfig(found[0] if len(found) == 1 else "\n".join(["errors:", *found]))
    managers = _reconciled(managers, writer)
    if not managers and live:
        managers = updated({}, live, {}, replace(writer, name=BEFORE_FIRST_APPLY))
    try:
        result = _apply(live, config, managers, writer, force=force)
    except ApplyConflict as error:
        if writer.name != KUBECTL:
            raise
        allowed = _allowed_by_last_applied(live, writer)
        left = [(m, path) for m, path in error.conflicts if not has(allowed, path)]
        if left:
            raise ApplyConflict(left) from None
        result = _apply(live, config, managers, writer, force=True)
    return Applied(_with_last_applied(result.object, config, writer), capped(result.managers))


def _apply(live: Obj, config: Obj, managers: Managers, writer: Writer, *, force: bool) -> Applied:
    manager = writer.manager(ManagerOperation.APPLY)
    last = managers.get(manager)
    fields = without(fields_of(config, writer.type), writer.reset)
    managers = {**managers, manager: OwnedFields(fields, writer.api_version)}
    made: dict[str, Any] = merge(live, config, writer.type)
    merged = made
    if last is not None and (type_ := writer.type_in(last.api_version)) is not None:
        version = last.api_version
        there = writer.converted(made, version)
        gone = _given_up(there, managers, last, writer)
        merged = writer.converted(_left(there, gone, type_), version, back=True)
        left = remove(there, gone, type_, emptied=ABSENT)
        made = writer.converted(left, version, back=True)
    # What has been emptied counts as there until its owners are known.
    managers, _ = _change_of_owners(live, merged, managers, writer, own=manager, force=force)
    own = difference(fields, _UNOWNED)
    before = "" if last is None else last.time
    if own:
        time = before if made == live else writer.time
        managers[manager] = OwnedFields(own, writer.api_version, time)
    else:
        del managers[manager]
    return Applied(made, managers)


def _reconciled(managers: Managers, writer: Writer) -> Managers:
    """Return the managers as the types are by now, without those of versions not served."""
    out: Managers = {}
    for manager, owned in managers.items():
        type_ = writer.type_in(owned.api_version)
        if type_ is not None:
            out[manager] = owned._replace(fields=reconciled(owned.fields, type_))
    return out


def _change_of_owners(
    old: Obj,
    new: Obj,
    managers: Managers,
    writer: Writer,
    *,
    own: Manager | None = None,
    force: bool = True,
) -> tuple[Managers, Comparison]:
    """Return the managers without what they have lost, and what changed in the writer's version.

    `own` keeps what it has. ApplyConflict where another would lose something unless forced.
    Managers of versions that are no longer served go.
    """
    changes: dict[str, Comparison] = {}

    def change_in(version: str) -> Comparison | None:
        type_ = writer.type_in(version)
        if version not in changes and type_ is not None:
            before, after = writer.converted(old, version), writer.converted(new, version)
            change = compare(before, after, type_)
            changes[version] = Comparison(*(without(part, writer.reset) for part in change))
        return changes.get(version)

    own_change = change_in(writer.api_version)
    assert own_change is not None, "a version that is written is served"
    kept: Managers = {}
    conflicts: list[tuple[Manager, Path]] = []
    for manager in sorted(managers):
        owned = managers[manager]
        if manager == own:
            kept[manager] = owned
            continue
        change = change_in(owned.api_version)
        if change is None:
            continue
        lost = intersection(owned.fields, union(change.modified, change.added))
        conflicts.extend((manager, path) for path in paths_of(lost))
        left = difference(difference(owned.fields, lost), change.removed)
        if left:
            kept[manager] = owned._replace(fields=left)
    if conflicts and not force:
        raise ApplyConflict(conflicts)
    return kept, own_change


# ---------------------------------------------------------------------- what is applied no more


def _given_up(
    merged: dict[str, Any], managers: Managers, last: OwnedFields, writer: Writer
) -> FieldSet:
    """Return what its manager applied last time, not now, and nobody else has.

    `merged` and the fields are of the version of `last`.

    Items stay that others own, in any version, and those that the manager never had.
    """
    type_ = writer.type_in(last.api_version)
    assert type_ is not None, "the caller has looked"
    last_fields = named_as_members(last.fields, type_)
    pruned = _left(merged, last_fields, type_)
    by_version: dict[str, FieldSet] = {last.api_version: {}}
    for owned in managers.values():
        so_far = by_version.get(owned.api_version, {})
        by_version[owned.api_version] = union(so_far, owned.fields)
    for version, fields in by_version.items():
        in_version = writer.type_in(version)
        if in_version is None:
            continue
        before, there = (
            writer.convert(each, last.api_version, version) for each in (pruned, merged)
        )
        stays = union(_all_fields(before, in_version), named_as_members(fields, in_version))
        there = _left(there, difference(_all_fields(there, in_version), stays), in_version)
        pruned = writer.convert(there, version, last.api_version)
    gone = difference(_all_fields(merged, type_), _all_fields(pruned, type_))
    return intersection(gone, last_fields)


def _left(value: Obj, gone: FieldSet, type_: ObjectType) -> dict[str, Any]:
    return remove(value, gone, type_, emptied=None) or {}


def _all_fields(value: Obj, type_: ObjectType) -> FieldSet:
    return named_as_members(fields_of(value, type_), type_)


# ---------------------------------------------------------------------- from client-side apply


def _last_applied(obj: Obj) -> str:
    metadata = obj.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(LAST_APPLIED) if isinstance(annotations, dict) else None
    return text if isinstance(text, str) else ""


def _allowed_by_last_applied(live: Obj, writer: Writer) -> FieldSet:
    """Return the fields that kubectl applied on its own side and that are still as they were."""
    text = _last_applied(live)
    try:
        config = msgspec.json.decode(text) if text else None
    except (ValueError, RecursionError):
        return {}
    if not isinstance(config, dict) or config.get("apiVersion") != writer.api_version:
        return {}
    change = compare(config, live, writer.type)
    fields = fields_of(config, writer.type)
    for part in change:
        fields = difference(fields, part)
    return fields


def _with_last_applied(obj: dict[str, Any], config: Obj, writer: Writer) -> dict[str, Any]:
    """Return the object with kubectl's annotation brought up to date, where it has one."""
    if writer.name != KUBECTL or not _last_applied(obj):
        return obj
    metadata = dict(config.get("metadata") or {})
    annotations = dict(metadata.pop("annotations", None) or {})
    annotations.pop(LAST_APPLIED, None)
    if annotations:
        metadata["annotations"] = annotations
    text = msgspec.json.encode({**config, "metadata": metadata}, order="sorted").decode() + "\n"
    own = obj["metadata"]
    changed = {**own["annotations"], LAST_APPLIED: text}
    return {**obj, "metadata": {**own, "annotations": changed}}
