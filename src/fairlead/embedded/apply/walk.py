"""Values with the types of their fields: which fields they have, what differs, merging, removing.

Follows structured-merge-diff (`typed/tofieldset.go`, `compare.go`, `merge.go`, `remove.go`). Values
are plain JSON and are not changed; results share parts with them. A part that does not fit its
type, such as a list whose items lack their keys, is taken as a whole: what is stored has been
checked, and only `problems` judges what a client applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from fairlead.embedded.apply.field_set import (
    SELF,
    FieldSet,
    field_step,
    is_member,
    item_step,
    node,
    shown,
    value_step,
)
from fairlead.embedded.apply.types import (
    ABSENT,
    DEDUCED,
    LEAF,
    FieldType,
    Leaf,
    ListType,
    ObjectType,
    resolved,
)

#: What lies below a step, None where nothing does.
Node: TypeAlias = FieldSet | None


class Comparison(NamedTuple):
    """What a new value did to the fields of an old one. No field is in two of them."""

    removed: FieldSet
    modified: FieldSet
    added: FieldSet


class _Change(NamedTuple):
    removed: Node = None
    modified: Node = None
    added: Node = None


_NOTHING = _Change()


class _BadItem(ValueError):
    """An item of a list cannot be told from the others."""


def _step(type_: ListType, item: Any) -> str:
    if not type_.keys:
        if item is None or isinstance(item, dict | list):
            raise _BadItem("a set holds only scalars")
        return value_step(item)
    if not isinstance(item, dict):
        raise _BadItem("may not have a null element" if item is None else "must hold objects")
    keys: dict[str, Any] = {}
    for name, default in type_.keys:
        value = item.get(name, default)
        if value is not ABSENT:
            keys[name] = value
    if not keys:
        names = ", ".join(f'"{name}"' for name, _ in type_.keys)
        raise _BadItem(f"has an element that omits all key fields ({names})")
    return item_step(keys)


def _grouped(type_: ListType, items: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the items by their step; `_BadItem`."""
    out: dict[str, list[Any]] = {}
    for item in items:
        out.setdefault(_step(type_, item), []).append(item)
    return out


# ---------------------------------------------------------------------- fields


def fields_of(value: Mapping[str, Any], type_: ObjectType) -> FieldSet:
    """Return the set of all fields that an object has."""
    return _fields(value, type_, with_containers=False) or {}


def _fields(value: Any, type_: FieldType, *, with_containers: bool) -> Node:
    """Return the fields of a value. Objects and lists are members themselves where they are empty,
    items or keys of maps, and everywhere `with_containers`.
    """
    shape = resolved(type_, value)
    children: FieldSet = {}
    if isinstance(shape, ObjectType):
        if with_containers and shape.always:
            value = {**shape.always, **value}
        for name, below in value.items():
            found = _fields(below, shape.of(name), with_containers=with_containers)
            if below is None or below == {} or name not in shape.fields:
                found = _with_self(found)
            if found is not None:
                children[field_step(name)] = found
    elif isinstance(shape, ListType):
        try:
            groups = _grouped(shape, value)
        except _BadItem:
            return {}
        for step, items in groups.items():
            one = items[0] if len(items) == 1 else ABSENT
            below = _fields(one, shape.element, with_containers=with_containers)
            children[step] = _with_self(below)
    else:
        return {}
    return node(children, is_member=with_containers)


def _with_self(below: Node) -> FieldSet:
    if below is None:
        return {}
    return below if not below or SELF in below else {SELF: {}, **below}


def named_as_members(fields: FieldSet, type_: FieldType) -> FieldSet:
    """Return the set with those fields of objects added that have something below them."""
    out: FieldSet = {}
    for step, below in fields.items():
        if step == SELF:
            out[SELF] = below
            continue
        shape = resolved(type_, _LIKE[step[0]])
        inner = named_as_members(below, _below(type_, step))
        is_named = isinstance(shape, ObjectType) and step[2:] in shape.fields
        out[step] = _with_self(inner) if is_named else inner
    return out


def reconciled(fields: FieldSet, type_: FieldType) -> FieldSet:
    """Return the set for a type that has become a leaf in places since: there it is owned whole."""
    changed: FieldSet = {}
    for step, tree in fields.items():
        if not tree:
            continue
        type_below = _below(type_, step)
        after = {} if type_below is LEAF else reconciled(tree, type_below)
        if after is not tree:
            changed[step] = after
    return {**fields, **changed} if changed else fields


#: A value of the kind that has such steps below it.
_LIKE: Mapping[str, Any] = {"f": {"": ""}, "k": [""], "v": [""], "i": [""], SELF: ""}


def _below(type_: FieldType, step: str) -> FieldType:
    """Return the type of what a step leads to; deduced where the type has no such step."""
    shape = resolved(type_, _LIKE[step[0]])
    if isinstance(shape, ObjectType):
        return shape.of(step[2:])
    return shape.element if isinstance(shape, ListType) else DEDUCED


# ---------------------------------------------------------------------- compare


def compare(old: Mapping[str, Any], new: Mapping[str, Any], type_: ObjectType) -> Comparison:
    """Return what changed from `old` to `new`. Parts that are equal are not looked into."""
    change = _compare(old, new, type_)
    return Comparison(change.removed or {}, change.modified or {}, change.added or {})


def _compare(old: Any, new: Any, type_: FieldType) -> _Change:
    if old is ABSENT:
        return _Change(added=_fields(new, type_, with_containers=True))
    if new is ABSENT:
        return _Change(removed=_fields(old, type_, with_containers=True))
    if old is new or old == new:
        return _NOTHING
    shape = resolved(type_, old, new)
    if isinstance(shape, Leaf):
        return _compare_kinds(old, new, type_)
    if not old and not new:
        return _Change(modified={})
    if isinstance(shape, ObjectType):
        return _joined(_changes_of_fields(old or {}, new or {}, shape))
    try:
        return _joined(_changes_of_items(old or (), new or (), shape))
    except _BadItem:
        return _Change(modified={})


def _compare_kinds(old: Any, new: Any, type_: FieldType) -> _Change:
    """A leaf that changed, or something that was no leaf before or after."""
    removed = added = None
    if old is not None and not isinstance(resolved(type_, old), Leaf):
        removed = _children(_compare(old, ABSENT, type_).removed)
    if new is not None and not isinstance(resolved(type_, new), Leaf):
        added = _children(_compare(ABSENT, new, type_).added)
    return _Change(removed, {}, added)


def _children(below: Node) -> Node:
    return {step: tree for step, tree in (below or {}).items() if step != SELF} or None


def _joined(changes: Iterable[tuple[str, _Change]]) -> _Change:
    removed: FieldSet = {}
    modified: FieldSet = {}
    added: FieldSet = {}
    for step, change in changes:
        if change.removed is not None:
            removed[step] = change.removed
        if change.modified is not None:
            modified[step] = change.modified
        if change.added is not None:
            added[step] = change.added
    return _Change(removed or None, modified or None, added or None)


def _changes_of_fields(
    old: Mapping[str, Any], new: Mapping[str, Any], type_: ObjectType
) -> Iterator[tuple[str, _Change]]:
    always = type_.always
    for name in dict.fromkeys((*old, *new)):
        empty = always.get(name, ABSENT) if always else ABSENT
        before, after = old.get(name, empty), new.get(name, empty)
        if before is not after:
            yield field_step(name), _compare(before, after, type_.of(name))


def _changes_of_items(
    old: Sequence[Any], new: Sequence[Any], type_: ListType
) -> Iterator[tuple[str, _Change]]:
    before, after = _grouped(type_, old), _grouped(type_, new)
    for step in dict.fromkeys((*before, *after)):
        yield step, _compare_items(before.get(step, []), after.get(step, []), type_.element)


def _compare_items(old: list[Any], new: list[Any], type_: FieldType) -> _Change:
    """Compare the items of one key; several of them are taken as a whole."""
    if len(old) <= 1 and len(new) <= 1:
        return _compare(old[0] if old else ABSENT, new[0] if new else ABSENT, type_)
    if len(old) > 1 and len(new) > 1:
        return _NOTHING if old == new else _Change(modified={})
    if len(old) > 1:
        change = _compare(ABSENT, new[0], type_) if new else _NOTHING
        return change._replace(removed={})
    change = _compare(old[0], ABSENT, type_) if old else _NOTHING
    return change._replace(added={})


# ---------------------------------------------------------------------- merge and remove


def merge(old: Any, config: Any, type_: FieldType) -> Any:
    """Return `old` with all that `config` says; nothing is removed.

    Items of lists come in the order of `config`, the others where they were.
    """
    if config is ABSENT or old is ABSENT:
        return old if config is ABSENT else config
    shape = resolved(type_, old, config)
    if isinstance(shape, Leaf) or not old or not config:
        return old if not config and old and not isinstance(shape, Leaf) else config
    if isinstance(shape, ObjectType):
        out = dict(old)
        for name, value in config.items():
            out[name] = merge(old.get(name, ABSENT), value, shape.of(name))
        return out
    try:
        return _merge_lists(_stepped(shape, old), _stepped(shape, config), shape)
    except _BadItem:
        return config


def _stepped(type_: ListType, items: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(_step(type_, item), item) for item in items]


def _merge_lists(
    old: Sequence[tuple[str, Any]], config: Sequence[tuple[str, Any]], type_: ListType
) -> list[Any]:
    """Merge two lists; what both have comes in `config`'s order (`visitListItems` upstream).

    Of several old items with one key none is merged with.
    """
    before: dict[str, Any] = {}
    for step, item in old:
        before[step] = ABSENT if step in before else item
    wanted = dict(config)
    shared = iter([step for step, _ in config if step in before])
    awaited = next(shared, None)
    out: list[Any] = []
    done: set[str] = set()
    left = right = 0
    while left < len(old) or right < len(config):
        step = old[left][0] if left < len(old) else None
        is_next = right < len(config) and step == config[right][0]
        if step is not None and not is_next:
            if step not in wanted:
                out.append(old[left][1])
                left += 1
                continue
            if step in done or (right < len(config) and awaited not in (None, step)):
                left += 1
                continue
        step = config[right][0]
        done.add(step)
        out.append(merge(before.get(step, ABSENT), wanted[step], type_.element))
        left, right = left + is_next, right + 1
        if is_next or step == awaited:
            awaited = next(shared, None)
    return out


def remove(value: Any, fields: FieldSet, type_: FieldType, *, emptied: Any) -> Any:
    """Return the value without the fields and items of a set.

    Objects and lists of which nothing is left become `emptied`: null, or ABSENT to leave them out.
    """
    shape = resolved(type_, value)
    if not fields or not value or isinstance(shape, Leaf):
        return value

    def kept(part: Any, below: Node, part_type: FieldType) -> Any:
        if below is None:
            return part
        return ABSENT if is_member(below) else remove(part, below, part_type, emptied=emptied)

    if isinstance(shape, ObjectType):
        out: dict[str, Any] = {}
        for name, below in value.items():
            stays = kept(below, fields.get(field_step(name)), shape.of(name))
            if stays is not ABSENT:
                out[name] = stays
        return out or emptied
    try:
        stepped = _stepped(shape, value)
    except _BadItem:
        return value
    items = [kept(item, fields.get(step), shape.element) for step, item in stepped]
    return [item for item in items if item is not ABSENT] or emptied


# ---------------------------------------------------------------------- judge


def problems(config: Mapping[str, Any], type_: ObjectType) -> list[str]:
    """Return what is wrong with an object to apply, each with its path.

    Fields that the type does not know, and items that cannot be told apart.
    """
    return list(_problems(config, type_, ()))


def _problems(value: Any, type_: FieldType, path: tuple[str, ...]) -> Iterator[str]:
    shape = resolved(type_, value)
    if isinstance(shape, ObjectType):
        for name, below in value.items():
            at = (*path, field_step(name))
            if name not in shape.fields and shape.element is None:
                yield f"{shown(at)}: field not declared in schema"
            else:
                yield from _problems(below, shape.of(name), at)
    elif isinstance(shape, ListType):
        yield from _problems_of_items(value, shape, path)
    elif isinstance(type_, ObjectType | ListType) and value is not None:
        wanted = "map" if isinstance(type_, ObjectType) else "list"
        yield f"{shown(path)}: expected {wanted}, got {value!r:.80}"


def _problems_of_items(
    items: Sequence[Any], type_: ListType, path: tuple[str, ...]
) -> Iterator[str]:
    seen: set[str] = set()
    for number, item in enumerate(items):
        try:
            step = _step(type_, item)
        except _BadItem as error:
            yield f"{shown(path)}: element {number}: associative list {error}"
            continue
        if step in seen:
            yield f"{shown(path)}: duplicate entries for key {shown((step,))}"
        seen.add(step)
        yield from _problems(item, type_.element, (*path, step))
