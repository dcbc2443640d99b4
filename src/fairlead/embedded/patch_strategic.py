"""Strategic merge: the recursion behind `patch.apply_strategic_patch`.

A list field that the schema marks `x-kubernetes-patch-strategy: merge` is merged by its
`x-kubernetes-patch-merge-key` (or, without one, as a set of scalars); every other list is replaced.
Directives inside the patch: `$patch: replace|delete`, `$retainKeys`,
`$deleteFromPrimitiveList/<field>` and `$setElementOrder/<field>`. Rules and their order follow
apimachinery `pkg/util/strategicpatch/patch.go` and the design "preserve order in strategic merge
patch". Where that code mutates, this one copies. A patch for something that is not there is merged
into an empty value, so directives never end up in a stored object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fairlead.api.status import BadRequest, Invalid

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_PREFIX = "$deleteFromPrimitiveList"
ORDER_PREFIX = "$setElementOrder"
_BAD_DELETE = "invalid patch format of primitive list"
_BAD_ORDER = "invalid patch format of setElementOrder list"
_BAD_RETAIN = "invalid patch format of retainKeys"

Json = Mapping[str, Any]
_UNKNOWN: Json = {}


def _field(schema: Json, key: str) -> Json:
    """Return the schema of a field; unknown fields merge as maps and replace as lists."""
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        return properties.get(key, _UNKNOWN)
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) else _UNKNOWN


def _strategies(schema: Json) -> Sequence[str]:
    return str(schema.get("x-kubernetes-patch-strategy", "")).split(",")


def merge_strategic(target: Json, patch: Json, schema: Json) -> dict[str, Any]:
    """Return `target` merged with `patch`; BadRequest or Invalid when a directive is malformed."""
    if DIRECTIVE in patch:
        return _whole_map(patch, schema)
    out = dict(target)
    rest = dict(patch)
    _retain_keys(out, rest)
    for key in [k for k in rest if k.startswith(ORDER_PREFIX)]:
        _merge_ordered(out, rest, key, schema)
    for key, value in rest.items():
        if key.startswith(DELETE_PREFIX):
            _delete_primitives(out, _suffix(key, DELETE_PREFIX, _BAD_DELETE), value)
        elif value is None:
            out.pop(key, None)
        elif isinstance(value, dict):
            before = out.get(key)
            base = before if isinstance(before, dict) else {}
            out[key] = merge_strategic(base, value, _field(schema, key))
        elif isinstance(value, list):
            before = out.get(key)
            if isinstance(before, list):
                out[key] = _merge_list(before, value, _field(schema, key))
            else:
                out[key] = _new(value)
        else:
            out[key] = value
    return out


def _whole_map(patch: Json, schema: Json) -> dict[str, Any]:
    directive = patch[DIRECTIVE]
    rest = {key: value for key, value in patch.items() if key != DIRECTIVE}
    if directive == "replace":
        return merge_strategic({}, rest, schema)
    if directive == "delete":
        return {}
    raise BadRequest(
        f"unknown patch type {_short(directive)} in {DIRECTIVE}; accepted: replace, delete"
    )


def _retain_keys(out: dict[str, Any], patch: dict[str, Any]) -> None:
    """Drop the fields of `out` that a `$retainKeys` list in the patch does not name."""
    if RETAIN_KEYS not in patch:
        return
    keep = patch.pop(RETAIN_KEYS)
    if not isinstance(keep, list) or not all(isinstance(key, str) for key in keep):
        raise BadRequest(f"{_BAD_RETAIN}: want a list of field names")
    for key, value in patch.items():
        if value is not None and key not in keep and not key.startswith("$"):
            raise BadRequest(f"{_BAD_RETAIN}: '{_short(key)}' is in the patch but not in the list")
    for key in [k for k in out if k not in keep]:
        del out[key]


def _suffix(key: str, prefix: str, message: str) -> str:
    head, slash, name = key.partition("/")
    if head != prefix or not slash:
        raise BadRequest(f"{message}: want {prefix}/<field>, got '{_short(key)}'")
    return name


def _delete_primitives(out: dict[str, Any], key: str, values: Any) -> None:
    if not isinstance(values, list):
        raise BadRequest(f"{_BAD_DELETE}: {DELETE_PREFIX}/{_short(key)} must be a list")
    before = out.get(key)
    if before is None:
        return
    if not isinstance(before, list):
        _refuse(f"'{_short(key)}' is no list, nothing can be deleted from it")
    gone = {_identity(value) for value in values}
    out[key] = [value for value in before if _identity(value) not in gone]


def _merge_list(target: list[Any], patch: list[Any], schema: Json) -> list[Any]:
    """Merge by the schema's strategy; new elements first in patch order, as the original does."""
    if "merge" not in _strategies(schema):
        return _new(patch)
    merge_key = schema.get("x-kubernetes-patch-merge-key")
    if not isinstance(merge_key, str):
        _no_nesting(target + patch)
        return _in_order(_unique(target + patch), patch, target, None)
    changed, merged = _merge_items(target, patch, schema, merge_key)
    return _in_order(merged, changed, target, merge_key)


def _merge_items(
    target: list[Any], patch: list[Any], schema: Json, merge_key: str
) -> tuple[list[Any], list[Any]]:
    """Return (the elements of the patch that are no directives, the merged elements)."""
    items = schema.get("items")
    item_schema: Json = items if isinstance(items, Mapping) else _UNKNOWN
    merged = [_element(item, merge_key, required=False) for item in target]
    changed: list[dict[str, Any]] = []
    replaces = False
    for item in patch:
        element = _element(item, merge_key, required=False)
        directive = element.get(DIRECTIVE)
        if directive is None:
            changed.append(_element(item, merge_key, required=True))
        elif directive == "replace":
            replaces = True
        elif directive == "delete":
            gone = _identity(_element(item, merge_key, required=True)[merge_key])
            merged = [e for e in merged if not _has_key(e, merge_key, gone)]
        elif directive == "merge":
            _refuse("merging lists cannot yet be specified in the patch")
        else:
            raise BadRequest(
                f"unknown patch type {_short(directive)} in a list element; "
                "accepted: delete, replace"
            )
    if replaces:
        merged = []
    places: dict[object, int] = {}
    for i, element in enumerate(merged):
        if merge_key in element:
            places.setdefault(_identity(element[merge_key]), i)
    for element in changed:
        identity = _identity(element[merge_key])
        place = places.setdefault(identity, len(merged))
        if place == len(merged):
            merged.append({})
        merged[place] = merge_strategic(merged[place], element, item_schema)
    return list(changed), list(merged)


def _merge_ordered(out: dict[str, Any], patch: dict[str, Any], key: str, schema: Json) -> None:
    """Merge the list that a `$setElementOrder` directive names, then sort it as it says.

    Order: elements that the directive names in its order, the server's own ones between them
    where they stood. Takes the directive and its list out of `patch`.
    """
    order = patch.pop(key)
    name = _suffix(key, ORDER_PREFIX, _BAD_ORDER)
    if not isinstance(order, list):
        raise BadRequest(f"{_BAD_ORDER}: {_short(key)} must be a list")
    before, change = out.get(name), patch.pop(name, None)
    field = _field(schema, name)
    if before is None and change is None:
        return
    target = [] if before is None else before
    patch_list = [] if change is None else change
    if not isinstance(target, list) or not isinstance(patch_list, list):
        raise BadRequest(f"{_BAD_ORDER}: '{_short(name)}' is no list")
    raw_key = field.get("x-kubernetes-patch-merge-key")
    merge_key = raw_key if isinstance(raw_key, str) else None
    wanted = [_key_of(item, merge_key) for item in order]
    _check_order(patch_list, wanted, merge_key)
    if before is None:
        merged = _new(patch_list)
    else:
        merged = _merge_list(target, patch_list, field) if patch_list else list(target)
    out[name] = _in_order(merged, order, target, merge_key)


def _check_order(patch: list[Any], wanted: list[object], merge_key: str | None) -> None:
    """The patch's elements must be a subsequence of the order (deletions do not count)."""
    if not wanted or not patch:
        return
    rest = iter(wanted)
    for item in patch:
        if isinstance(item, dict) and DIRECTIVE in item:
            continue
        identity = _key_of(item, merge_key)
        if not any(identity == other for other in rest):
            _refuse(f"The order in patch list doesn't match {ORDER_PREFIX} list")


def _in_order(
    merged: list[Any], order: list[Any], live: list[Any], merge_key: str | None
) -> list[Any]:
    """Sort `merged`: what `order` names as it says; the rest keeps its place of the live list.

    Each of the others is put before the next named element that followed it in the live list.
    """
    rank = {_key_of(item, merge_key): i for i, item in reversed(list(enumerate(order)))}
    named: list[tuple[int, Any]] = []
    others: list[Any] = []
    for item in merged:
        place = rank.get(_key_of(item, merge_key))
        if place is None:
            others.append(item)
        else:
            named.append((place, item))
    named.sort(key=lambda pair: pair[0])
    was: dict[object, int] = {}
    for i, item in enumerate(live):
        was.setdefault(_key_of(item, merge_key), i)
    return _interleave([item for _, item in named], others, was, merge_key)


def _interleave(
    named: list[Any], others: list[Any], was: Mapping[object, int], merge_key: str | None
) -> list[Any]:
    """Merge two sorted lists: an element of `others` goes first when it stood first in `was`."""
    out: list[Any] = []
    i = j = 0
    while i < len(named) and j < len(others):
        left = was.get(_key_of(others[j], merge_key))
        right = was.get(_key_of(named[i], merge_key))
        if left is not None and right is not None and left < right:
            out.append(others[j])
            j += 1
        else:
            out.append(named[i])
            i += 1
    return out + named[i:] + others[j:]


def _element(item: Any, merge_key: str, *, required: bool) -> dict[str, Any]:
    if not isinstance(item, dict):
        _refuse(f"list elements must be objects with the merge key '{merge_key}'")
    if required and merge_key not in item:
        _refuse(f"map: does not contain declared merge key: {merge_key}")
    return item


def _has_key(element: Json, merge_key: str, identity: object) -> bool:
    return merge_key in element and _identity(element[merge_key]) == identity


def _key_of(item: Any, merge_key: str | None) -> object:
    """Return what identifies a list element: its merge key, or itself for scalars."""
    if merge_key is None:
        return _identity(item)
    return _identity(_element(item, merge_key, required=True)[merge_key])


def _identity(value: Any) -> object:
    """Return a hashable that keeps true, 1 and "1" apart."""
    if isinstance(value, (dict, list)):
        _refuse("a merge key, or an element of a list that is merged, must be a scalar")
    return (isinstance(value, bool), value)


def _unique(items: list[Any]) -> list[Any]:
    seen: dict[object, Any] = {}
    for item in items:
        seen.setdefault(_identity(item), item)
    return list(seen.values())


def _no_nesting(items: list[Any]) -> None:
    if any(isinstance(item, (dict, list)) for item in items):
        _refuse("cannot merge lists without merge key unless all elements are scalars")


def _new(patch: list[Any]) -> list[Any]:
    """Return the list that a patch makes where none was: as given, but for nulls and directives."""
    return [
        merge_strategic({}, item, _UNKNOWN) if isinstance(item, dict) else item
        for item in patch
        if not (isinstance(item, dict) and item.get(DIRECTIVE) in ("delete", "replace"))
    ]


def _refuse(detail: str) -> NoReturn:
    raise Invalid(f"the server rejected our request due to an error in our request: {detail}")


def _short(value: Any) -> str:
    return str(value)[:80] if isinstance(value, (str, int, float, bool)) else "a non-scalar"
