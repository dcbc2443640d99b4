"""Changes that were decided on a read model, carried over to the object behind it.

A read model knows some fields of an object and drops the rest, so what is made from it lacks what
the user wrote beyond. `overlay` puts that back: it is a three-way merge of plain JSON values where
`base` is what the read model saw of `raw`, and `decided` what became of `base`. Where nothing was
decided, `raw` speaks; where something was, `decided` does, to the letter, so that decoding the
outcome gives `decided` again. With only two sides one cannot tell a field that was taken away
(the `valueFrom` of a variable that got a `value`) from one that was not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

#: Lists whose items are changed, each known by its name. Items of all other lists are kept, put in,
#: left out or replaced, but never changed: two halves of a volume or a variable make no whole.
CHANGED_ITEMS = frozenset(("containers", "initContainers"))


def overlay(decided: Any, base: Any, raw: Any, *, field: str = "") -> Any:
    """Return `raw` with the changes that lead from `base` to `decided`; all three are shared.

    `base` must be the encoded read model of `raw`: without what is unknown or at its default, lists
    as long and in the same order. The outcome has the order of `decided`. Nothing is written into;
    unchanged parts are those of `raw` themselves. `field` is the name under which the value stands.
    """
    if decided == base:
        return raw
    if isinstance(decided, Mapping) and isinstance(base, Mapping) and isinstance(raw, Mapping):
        kept = {k: v for k, v in raw.items() if k in decided or k not in base}
        for key, value in decided.items():
            if key in base:
                kept[key] = overlay(value, base[key], raw.get(key), field=key)
            else:
                kept[key] = value
        return kept
    if _is_list(decided) and _is_list(base) and _is_list(raw) and len(base) == len(raw):
        return _overlay_list(decided, base, raw, are_changed=field in CHANGED_ITEMS)
    return decided


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))


def _overlay_list(
    decided: Sequence[Any], base: Sequence[Any], raw: Sequence[Any], *, are_changed: bool
) -> list[Any]:
    """Return the decided items, each with its raw one behind it where it has one."""
    out = list(decided)
    # Mostly nothing has moved: what is equal at both ends is paired off first.
    shorter = min(len(decided), len(base))
    start = 0
    while start < shorter and decided[start] == base[start]:
        out[start] = raw[start]
        start += 1
    end = 0
    while end < shorter - start and decided[-1 - end] == base[-1 - end]:
        end += 1
        out[-end] = raw[-end]
    by_name: dict[object, list[int]] = {}
    for j in range(start, len(base) - end):
        by_name.setdefault(_name(base[j]), []).append(j)
    if not by_name:
        return out
    for i in range(start, len(decided) - end):
        item = decided[i]
        candidates = by_name.get(_name(item), ())
        found = next((j for j in candidates if base[j] == item), None)
        if found is None and are_changed and candidates:
            found = candidates[0]
        if found is not None:
            out[i] = overlay(item, base[found], raw[found])
            by_name[_name(item)].remove(found)
    return out


def _name(item: Any) -> object:
    name = item.get("name") if isinstance(item, Mapping) else None
    return name if isinstance(name, str) else None
