"""Who manages which fields of an object: `metadata.managedFields`, from and to the wire.

A manager is a name with an operation, for updates with the version that they were in, and with
the sub-resource. Follows apimachinery `pkg/util/managedfields/internal/managedfields.go` and
`capmanagers.go`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from fairlead.embedded.apply import field_set
from fairlead.embedded.apply.field_set import BadFields, FieldSet

UPDATE_MANAGERS_MAX = 10  # older ones are joined, by version
ANCIENT = "ancient-changes"
FIELDS_TYPE = "FieldsV1"


class ManagerOperation:
    """How a manager writes, as it is named on the wire."""

    APPLY: Literal["Apply"] = "Apply"
    UPDATE: Literal["Update"] = "Update"


class ManagedFieldsEntry(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """One entry on the wire; null means missing."""

    manager: str | None = None
    operation: str | None = None
    api_version: str | None = None
    time: str | None = None
    fields_type: str | None = None
    fields_v1: dict[str, Any] | None = msgspec.field(name="fieldsV1", default=None)
    subresource: str | None = None


class Manager(NamedTuple):
    """Tells managers apart; `api_version` is empty for one that applies."""

    name: str
    operation: str
    api_version: str = ""
    subresource: str = ""

    def __str__(self) -> str:
        text = f'"{self.name}"'
        if self.subresource:
            text += f' with subresource "{self.subresource}"'
        if self.operation == ManagerOperation.UPDATE:
            text += f" using {self.api_version}"
        return text


class OwnedFields(NamedTuple):
    """The fields that a manager has, in which version, and since when ("": not known)."""

    fields: FieldSet
    api_version: str
    time: str = ""


Managers = dict[Manager, OwnedFields]


def is_reset(entries: Any) -> bool:
    """True for the two forms that ask to forget all managers: `[]` and `[{}]`."""
    return isinstance(entries, list) and entries in ([], [{}])


def decode(entries: Sequence[Any] | None, *, is_stored: bool = False) -> Managers:
    """Return the managers of an object; BadFields when an entry makes no sense.

    What `is_stored` has come from `encode`, so its fields are in canonical form.
    """
    out: Managers = {}
    for raw in entries or ():
        try:
            entry = msgspec.convert(raw, ManagedFieldsEntry)
        except msgspec.ValidationError as error:
            raise BadFields(str(error)) from None
        if entry.operation not in (ManagerOperation.APPLY, ManagerOperation.UPDATE):
            raise BadFields("operation must be `Apply` or `Update`")
        if not entry.api_version:
            raise BadFields("apiVersion must not be empty")
        if entry.fields_type != FIELDS_TYPE:
            raise BadFields(f"fieldsType must be {FIELDS_TYPE}")
        is_update = entry.operation == ManagerOperation.UPDATE
        manager = Manager(
            entry.manager or "", entry.operation,
            entry.api_version if is_update else "", entry.subresource or "",
        )  # fmt: skip
        fields = entry.fields_v1 or {}
        if not is_stored:
            fields = field_set.decode(fields)
        out[manager] = OwnedFields(fields, entry.api_version, entry.time or "")
    return out


def encode(managers: Managers) -> list[dict[str, Any]]:
    """Return the entries, in their order: applied first, then by age, name, version and part."""

    def order(item: tuple[Manager, OwnedFields]) -> tuple[str, ...]:
        manager, owned = item
        return (
            manager.operation, owned.time, manager.name, owned.api_version, manager.subresource,
        )  # fmt: skip

    return [_entry(*item) for item in sorted(managers.items(), key=order)]


def _entry(manager: Manager, owned: OwnedFields) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "manager": manager.name, "operation": manager.operation, "apiVersion": owned.api_version,
        "time": owned.time, "fieldsType": FIELDS_TYPE, "fieldsV1": owned.fields,
        "subresource": manager.subresource,
    }  # fmt: skip
    return {name: value for name, value in entry.items() if value or name == "fieldsV1"}


def same_but_for_times(a: Iterable[Any], b: Iterable[Any]) -> bool:
    """True when two lists of entries say the same, whenever it was."""
    one, other = ([{**entry, "time": ""} for entry in entries] for entries in (a, b))
    return len(one) == len(other) and all(entry in other for entry in one)


def capped(managers: Managers) -> Managers:
    """Return the managers with the oldest of too many updates joined into one of their version."""
    updates = [m for m in managers if m.operation == ManagerOperation.UPDATE]
    left = len(updates)
    if left <= UPDATE_MANAGERS_MAX:
        return managers
    out = dict(managers)
    first: dict[str, Manager] = {}
    for manager in sorted(updates, key=lambda m: (managers[m].time, m)):
        if left <= UPDATE_MANAGERS_MAX:
            break
        owned = managers[manager]
        version = owned.api_version
        if version not in first:
            first[version] = manager
            continue
        bucket = Manager(ANCIENT, ManagerOperation.UPDATE, version)
        if bucket not in out:
            out[bucket] = out.pop(first[version])
        fields = field_set.union(owned.fields, out[bucket].fields)
        del out[manager]
        out[bucket] = OwnedFields(fields, version, owned.time)
        left -= 1
    return out
