"""Sets of field paths, in the form in which `managedFields` stores them (FieldsV1).

A set is a tree of objects. A key is one step of a path:

    f:NAME      a field of an object, or a key of a map
    k:{KEYS}    the item of a list that has these keys, as JSON, sorted by name
    v:VALUE     the item of a set, as JSON
    i:NUMBER    an item by its index

A step whose object is empty, or holds ".", is itself in the set. Functions return new sets or
share parts of old ones; none changes what it is given. The operations are those of
structured-merge-diff, `fieldpath/set.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

#: A tree of steps. Where it is empty, what leads there is a member.
FieldSet: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[str, ...]

SELF = "."
_KINDS = "fkvi"  # the order of kinds of steps
DEPTH_MAX = 100


class BadFields(ValueError):
    """What should be a set of fields is none."""


def node(children: FieldSet, *, is_member: bool) -> FieldSet | None:
    """Return the tree below a step; None where neither it nor anything below is in the set."""
    if not children:
        return {} if is_member else None
    return {SELF: {}, **children} if is_member else children


def is_member(below: Mapping[str, Any]) -> bool:
    """True when the step that leads to this tree is in the set itself."""
    return not below or SELF in below


def steps(tree: Mapping[str, Any]) -> Iterator[tuple[str, FieldSet]]:
    """Yield what lies directly below."""
    return ((step, below) for step, below in tree.items() if step != SELF)


def union(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return what is in either."""
    if not a or not b:
        return a or b
    out = dict(a)
    for step, below in b.items():
        out[step] = _both(out[step], below) if step in out else below
    return out


def _both(a: FieldSet, b: FieldSet) -> FieldSet:
    if not a and not b:
        return a
    joined = union(a, b)
    return {SELF: {}, **joined} if is_member(a) or is_member(b) else joined


def intersection(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return what is in both."""
    out: FieldSet = {}
    for step, below in steps(a):
        other = b.get(step)
        if other is None:
            continue
        kept = node(intersection(below, other), is_member=is_member(below) and is_member(other))
        if kept is not None:
            out[step] = kept
    return out


def difference(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return what is in `a` and not in `b`; what lies below a member of `b` stays."""

    def rest(below: FieldSet, other: FieldSet) -> FieldSet | None:
        stays = is_member(below) and not is_member(other)
        return node(difference(_below(below), _below(other)), is_member=stays)

    return _but(a, b, rest)


def without(a: FieldSet, b: FieldSet) -> FieldSet:
    """Return what is in `a`, neither in `b` nor below a member of `b`."""

    def rest(below: FieldSet, other: FieldSet) -> FieldSet | None:
        if is_member(other):
            return None
        return node(without(below, other), is_member=is_member(below))

    return _but(a, b, rest)


def _but(
    a: FieldSet, b: FieldSet, rest: Callable[[FieldSet, FieldSet], FieldSet | None]
) -> FieldSet:
    """Return `a`, with `rest` of what lies below the steps that `b` has, too; None for nothing."""
    if not b:
        return a
    found = {step: rest(below, b[step]) if step in b else below for step, below in steps(a)}
    return {step: below for step, below in found.items() if below is not None}


def _below(tree: FieldSet) -> FieldSet:
    return {step: below for step, below in tree.items() if step != SELF} if SELF in tree else tree


def has(tree: Mapping[str, Any], path: Path) -> bool:
    """True when the path is in the set."""
    for step in path:
        below = tree.get(step)
        if below is None:
            return False
        tree = below
    return is_member(tree)


def paths_of(tree: FieldSet, start: Path = ()) -> Iterator[Path]:
    """Yield all paths in order: at each level what is in the set, then what lies below."""
    ordered = sorted(steps(tree), key=lambda item: _rank(item[0]))
    for step, below in ordered:
        if is_member(below):
            yield (*start, step)
    for step, below in ordered:
        yield from paths_of(_below(below), (*start, step))


def _rank(step: str) -> tuple[int, Any]:
    kind = _KINDS.find(step[:1])
    if kind == 0:
        return kind, step
    value = msgspec.json.decode(step[2:])
    if isinstance(value, dict):
        return kind, [(name, _scalar_rank(each)) for name, each in value.items()]
    return kind, [("", _scalar_rank(value))]


def _scalar_rank(value: Any) -> tuple[int, Any]:
    """Numbers, texts, booleans, null, and the rest: structured-merge-diff `value.Compare`."""
    if isinstance(value, bool):
        return 2, value
    if isinstance(value, int | float):
        return 0, value
    if isinstance(value, str):
        return 1, value
    return 3, str(value)


# ---------------------------------------------------------------------- steps


def _json(value: Any) -> str:
    """JSON as Go writes it: what HTML knows is escaped, keys are sorted."""
    text = msgspec.json.encode(value, order="sorted").decode()
    for character, escape in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        if character in text:
            text = text.replace(character, escape)
    return text


def field_step(name: str) -> str:
    """Return the step to a field."""
    return f"f:{name}"


def item_step(keys: Mapping[str, Any]) -> str:
    """Return the step to the item of a list with these keys."""
    return f"k:{_json(keys)}"


def value_step(value: Any) -> str:
    """Return the step to an item of a set."""
    return f"v:{_json(value)}"


def shown(path: Path) -> str:
    """Return a path as people read it: `.spec.containers[name="main"].image`."""
    return "".join(map(_shown, path))


def _shown(step: str) -> str:
    kind, rest = step[:1], step[2:]
    if kind == "f":
        return f".{rest}"
    if kind == "k":
        keys = msgspec.json.decode(rest, type=dict[str, Any])
        return f"[{','.join(f'{name}={_go(value)}' for name, value in keys.items())}]"
    return f"[={_go(msgspec.json.decode(rest))}]" if kind == "v" else f"[{rest}]"


def _go(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# ---------------------------------------------------------------------- from the wire


def decode(fields: Any, depth: int = 0) -> FieldSet:
    """Return a set from the wire, its steps in canonical form; BadFields.

    Steps of an unknown kind are left out: a later version may know them.
    """
    if not isinstance(fields, dict) or depth > DEPTH_MAX:
        raise BadFields("fieldsV1 is no tree of fields")
    out: FieldSet = {}
    for step, below in fields.items():
        if step == SELF:
            out[SELF] = {}
            continue
        canonical = _canonical(step)
        if canonical is None:
            continue
        out[canonical] = _both(out[canonical], decode(below, depth + 1)) if canonical in out else (
            decode(below, depth + 1)
        )  # fmt: skip
    return {} if out == {SELF: {}} else out


def _canonical(step: str) -> str | None:
    kind, colon, rest = step[:1], step[1:2], step[2:]
    if colon != ":":
        raise BadFields(f"a step of fieldsV1 is {step!r}")
    if kind == "f":
        return step
    if kind not in _KINDS:
        return None
    try:
        value = msgspec.json.decode(rest)
    except ValueError:
        raise BadFields(f"a step of fieldsV1 is {step!r}") from None
    wanted = {"k": dict, "i": int}.get(kind, object)
    if not isinstance(value, wanted):
        raise BadFields(f"a step of fieldsV1 is {step!r}")
    return f"{kind}:{_json(value)}"
