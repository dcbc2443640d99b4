"""`metadata.managedFields` in the writing verbs: who owns which fields of an object.

Owners are recorded from the first write on whose client names itself: a creation with a field
manager, or an apply. Later writes keep the record up to date, whoever makes them. An object that
has no record costs a look into its metadata; what it holds by then goes to the manager
`before-first-apply` once it is applied to, as on a real server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fairlead.embedded import apply, builtins
from fairlead.embedded.apply import BadFields, FieldSet, Managers, ObjectType, Writer
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.schema.values import as_map
from fairlead.embedded.verbs.changes import put_or_drop
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.options import WriteOptions
from fairlead.embedded.verbs.strategies.kinds import strategy_of

FIELD = "managedFields"
TYPES_CACHED_MAX = 256

Obj = dict[str, Any]

#: What a write of a sub-resource leaves as it is (`GetResetFields` of the kinds' strategies).
_STATUS: FieldSet = {"f:status": {}}
_ALL_BUT_STATUS: FieldSet = {"f:spec": {}}
_ALL_BUT_POD_STATUS: FieldSet = {
    "f:spec": {},
    "f:metadata": {"f:deletionTimestamp": {}, "f:ownerReferences": {}},
}
_ALL_BUT_CUSTOM_STATUS: FieldSet = {"f:metadata": {}, "f:spec": {}}


@lru_cache(maxsize=TYPES_CACHED_MAX)
def _type_of(info: ResourceInfo) -> ObjectType:
    if info.is_builtin:
        return apply.builtin_type(info.kind)
    return apply.custom_type(info.schema.openapi if info.schema is not None else {})


def _reset(info: ResourceInfo, sub: str) -> FieldSet:
    if sub != "status":
        return _STATUS if info.has_status else {}
    if not info.is_builtin:
        return _ALL_BUT_CUSTOM_STATUS
    return _ALL_BUT_POD_STATUS if info is builtins.PODS else _ALL_BUT_STATUS


def writer_of(context: Context, info: ResourceInfo, options: WriteOptions, sub: str) -> Writer:
    """Return who writes, for `fairlead.embedded.apply`."""

    def type_in(api_version: str) -> ObjectType | None:
        if api_version == info.api_version:
            return _type_of(info)
        found = context.registry.by_kind(api_version, info.kind)
        return _type_of(found) if found is not None and found.name == info.name else None

    def convert(obj: Obj, given: str, wanted: str) -> Obj:
        known = context.registry.by_kind
        source, target = known(given, info.kind), known(wanted, info.kind)
        return obj if source is None or target is None else target.served(source.stored(obj))

    name = options.field_manager or options.user_agent
    return Writer(
        name, info.api_version, context.now_text(), type_in, convert, _reset(info, sub),
        options.part or sub,
    )  # fmt: skip


def stored_managers(obj: Mapping[str, Any]) -> Managers:
    """Return the managers of a stored object."""
    return apply.decode(as_map(obj.get("metadata")).get(FIELD), is_stored=True)


def _given_managers(entries: Any) -> Managers:
    """Return the managers that a client names; none when they make no sense."""
    try:
        return apply.decode(entries)
    except BadFields:
        return {}


def record_creation(
    context: Context, info: ResourceInfo, given: Mapping[str, Any], body: Obj, *,
    options: WriteOptions,
) -> None:  # fmt: skip
    """Set the managers of a new object that has its defaults; `given` is what the client sent."""
    metadata = body["metadata"]
    entries = metadata.pop(FIELD, None)
    if options.keeps_managers:
        put_or_drop(metadata, FIELD, apply.encode(_given_managers(entries)))
        return
    managers = {} if apply.is_reset(entries) else _given_managers(entries)
    if not managers and not options.field_manager:
        return
    added = strategy_of(info).added
    own = {
        part: _without_added(value, as_map(given.get(part)), added)
        if part in ("metadata", "spec") and isinstance(value, dict)
        else value
        for part, value in body.items()
    }
    managers = apply.updated({}, own, managers, writer_of(context, info, options, ""))
    put_or_drop(metadata, FIELD, apply.encode(managers))


def _without_added(part: Obj, given: Mapping[str, Any], added: tuple[str, ...]) -> Obj:
    return {field: part[field] for field in part if field not in added or field in given}


def record_update(
    context: Context, info: ResourceInfo, old: Obj, new: Obj, *, options: WriteOptions, sub: str
) -> None:
    """Set the managers of a changed object; what a client says of them itself counts, if it can.

    A write that changes nothing but the times of managers changes nothing.
    """
    metadata, stored = new["metadata"], old["metadata"].get(FIELD)
    given = metadata.pop(FIELD, None)
    managers: Managers = {}
    if options.keeps_managers:
        managers = _given_managers(given)
    elif sub or not apply.is_reset(given):
        managers = ({} if sub else _given_managers(given)) or stored_managers(old)
        if managers:
            known = managers
            writer = writer_of(context, info, options, sub)
            managers = apply.updated(old, new, managers, writer)
            if options.part and all(managers.get(each) == known[each] for each in known):
                managers = known  # what the part shows was nobody's, and stays so
    entries = apply.encode(managers)
    if entries and stored and apply.same_but_for_times(entries, stored):
        metadata[FIELD] = stored
        if new == old:
            return
    put_or_drop(metadata, FIELD, entries)
