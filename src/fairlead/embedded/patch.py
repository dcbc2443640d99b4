"""Patches as pure functions of JSON values: merge (RFC 7386), JSON (RFC 6902), and strategic.

Every function returns a new value and leaves its inputs as they were. The result may share parts
with them: treat it as immutable, or copy before writing into it. Inputs come from the network, so
every wrong type ends in an `ApiError`, of the code that kube-apiserver answers with
(`staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go`): 400 for a document that is no
patch, 422 for a patch that does not apply, 413 for one that is too large.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, ParamSpec, TypeVar, assert_never

import msgspec

from fairlead.api.status import BadRequest, Invalid, StatusDetails, TooLarge
from fairlead.embedded.patch_strategic import merge_strategic
from fairlead.embedded.schema.schema import Schema

__all__ = ["apply_json_patch", "apply_merge_patch", "apply_strategic_patch"]

OPERATIONS_MAX = 10_000
COPIED_BYTES_MAX = 3 * 1024 * 1024

P = ParamSpec("P")
R = TypeVar("R")

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_BAD_ESCAPE = re.compile(r"~(?![01])")


def _refuse(detail: str) -> NoReturn:
    """Raise 422 the way the real server does, with the detail in the message as well."""
    raise Invalid(
        f"the server rejected our request due to an error in our request: {detail}",
        details=StatusDetails(),
    )


def _bounded(function: Callable[P, R]) -> Callable[P, R]:
    """Turn running out of stack, which only hostile nesting does, into a 400."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except RecursionError:
            raise BadRequest("the object or the patch is nested too deeply") from None

    return call


# --- RFC 7386 ---------------------------------------------------------------------------------


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    out: dict[str, Any] = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = _merge(out.get(key), value) if isinstance(value, dict) else value
    return out


@_bounded
def apply_merge_patch(target: Any, patch: Any) -> Any:
    """Return `target` with the merge patch applied: null deletes, objects merge, all else replaces.

    BadRequest when the patch is no object: an API object can't become a scalar.
    """
    if not isinstance(patch, dict):
        raise BadRequest(f"a merge patch must be a JSON object, got {_kind(patch)}")
    return _merge(target, patch)


# --- RFC 6902 ---------------------------------------------------------------------------------


class _Op(Enum):
    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    MOVE = "move"
    COPY = "copy"
    TEST = "test"


@dataclass(frozen=True, slots=True)
class _Operation:
    op: _Op
    path: tuple[str, ...]
    origin: tuple[str, ...] = ()
    value: Any = None


@_bounded
def apply_json_patch(target: Any, ops: Any) -> Any:
    """Return `target` with all operations applied, in order, or none.

    BadRequest when `ops` is no list of operations, TooLarge beyond OPERATIONS_MAX operations or
    COPIED_BYTES_MAX copied bytes, Invalid when a test fails or a pointer leads nowhere.
    """
    if not isinstance(ops, (list, tuple)):
        raise BadRequest(f"a JSON patch must be a list of operations, got {_kind(ops)}")
    if len(ops) > OPERATIONS_MAX:
        raise TooLarge(
            f"The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {len(ops)}"
        )
    operations = [_operation(raw, i) for i, raw in enumerate(ops)]
    copied_bytes = 0
    for operation in operations:
        if operation.op is _Op.COPY:
            copied_bytes += len(msgspec.json.encode(_get(target, operation.origin, _Op.COPY)))
            if copied_bytes > COPIED_BYTES_MAX:
                raise TooLarge(
                    f"the copy operations of this patch copy more than {COPIED_BYTES_MAX} bytes"
                )
        target = _apply(target, operation)
    return target


def _apply(doc: Any, operation: _Operation) -> Any:
    op, path = operation.op, operation.path
    match op:
        case _Op.ADD:
            return _put(doc, path, operation.value, op=op)
        case _Op.REPLACE:
            _get(doc, path, op)
            return _put(doc, path, operation.value, op=op)
        case _Op.REMOVE:
            return _remove(doc, path, op)
        case _Op.MOVE:
            if path[: len(operation.origin)] == operation.origin and path != operation.origin:
                _refuse(f"move operation does not apply: {_pointer(path)} lies within its origin")
            value = _get(doc, operation.origin, op)
            if path == operation.origin:
                return doc
            return _put(_remove(doc, operation.origin, op), path, value, op=op)
        case _Op.COPY:
            return _put(doc, path, _get(doc, operation.origin, op), op=op)
        case _Op.TEST:
            # A missing value equals null, as in the Go library that kube-apiserver uses.
            if not _equal(_get(doc, path, op, missing_is_null=True), operation.value):
                _refuse(f"testing value {_pointer(path)} failed: test failed")
            return doc
        case _:
            assert_never(op)


def _operation(raw: Any, number: int) -> _Operation:
    if not isinstance(raw, Mapping):
        raise BadRequest(f"operation {number} of the JSON patch is {_kind(raw)}, not an object")
    name = raw.get("op")
    try:
        op = _Op(name)
    except ValueError:
        accepted = ", ".join(op.value for op in _Op)
        _refuse(f"operation {number}: unexpected op {_show(name)}; accepted: {accepted}")
    path = _parse_pointer(raw, "path", number)
    if op in (_Op.MOVE, _Op.COPY):
        return _Operation(op, path, origin=_parse_pointer(raw, "from", number))
    if op is not _Op.REMOVE and "value" not in raw:
        if op is _Op.TEST:
            return _Operation(op, path)
        _refuse(f"operation {number}: {op.value} needs a value")
    return _Operation(op, path, value=raw.get("value"))


def _parse_pointer(raw: Mapping[str, Any], field: str, number: int) -> tuple[str, ...]:
    text = raw.get(field)
    if not isinstance(text, str):
        _refuse(f"operation {number}: '{field}' must be a JSON pointer, got {_kind(text)}")
    if text == "":
        return ()
    if not text.startswith("/") or _BAD_ESCAPE.search(text):
        _refuse(
            f"operation {number}: '{field}' is no JSON pointer: {_show(text)}; it must start with "
            "/, and write ~ as ~0 and / as ~1"
        )
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/"))


def _pointer(path: tuple[str, ...]) -> str:
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def _missing(op: _Op, path: tuple[str, ...]) -> NoReturn:
    _refuse(f'{op.value} operation does not apply: doc is missing path: "{_pointer(path)}"')


def _index(token: str, length: int) -> int | None:
    """Return the index that the token names, None when it is no index below `length`."""
    if not _INDEX.fullmatch(token):
        return None
    index = int(token)
    return index if index < length else None


def _get(doc: Any, path: tuple[str, ...], op: _Op, *, missing_is_null: bool = False) -> Any:
    for depth, token in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(doc, dict):
            if token not in doc:
                if last and missing_is_null:
                    return None
                _missing(op, path)
            doc = doc[token]
        elif isinstance(doc, list) and (index := _index(token, len(doc))) is not None:
            doc = doc[index]
        else:
            _missing(op, path)
    return doc


def _put(doc: Any, path: tuple[str, ...], value: Any, *, op: _Op, depth: int = 0) -> Any:
    """Return `doc` with `value` at `path`; containers on the way are copied, not changed."""
    if depth == len(path):
        return value
    token, last = path[depth], depth == len(path) - 1
    if isinstance(doc, dict):
        if not last and token not in doc:
            _missing(op, path)
        below = _put(doc.get(token), path, value, op=op, depth=depth + 1)
        return {**doc, token: below}
    if not isinstance(doc, list):
        _missing(op, path)
    out = list(doc)
    inserts = last and op is not _Op.REPLACE
    if inserts and token == "-":  # noqa: S105 # RFC 6901's name for "past the end"
        out.append(value)
        return out
    index = _index(token, len(doc) + inserts)
    if index is None:
        _missing(op, path)
    if inserts:
        out.insert(index, value)
    else:
        out[index] = _put(doc[index], path, value, op=op, depth=depth + 1)
    return out


def _remove(doc: Any, path: tuple[str, ...], op: _Op, depth: int = 0) -> Any:
    if not path:
        _refuse(f"{op.value} operation does not apply: the whole document can't be removed")
    token, last = path[depth], depth == len(path) - 1
    if isinstance(doc, dict) and token in doc:
        mapping = dict(doc)
        if last:
            del mapping[token]
        else:
            mapping[token] = _remove(doc[token], path, op, depth + 1)
        return mapping
    if isinstance(doc, list) and (index := _index(token, len(doc))) is not None:
        items = list(doc)
        if last:
            del items[index]
        else:
            items[index] = _remove(doc[index], path, op, depth + 1)
        return items
    _missing(op, path)


def _equal(a: Any, b: Any) -> bool:
    """JSON equality: numbers by value, true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return a == b


# --- strategic --------------------------------------------------------------------------------


@_bounded
def apply_strategic_patch(target: Any, patch: Any, schema: Schema) -> Any:
    """Return `target` with the strategic merge patch applied, lists merged by the schema's keys.

    BadRequest for malformed directives, Invalid for lists that can't be merged. The caller answers
    415 for custom resources: they have no merge keys.
    """
    if not isinstance(patch, dict):
        raise BadRequest(f"a strategic merge patch must be a JSON object, got {_kind(patch)}")
    if not isinstance(target, dict):
        raise BadRequest(f"only an object can be patched, got {_kind(target)}")
    return merge_strategic(target, patch, schema.openapi)


_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"), (dict, "an object"), (list, "a list"), (str, "a string"),
    (int, "a number"), (float, "a number"),
)  # fmt: skip


def _kind(value: Any) -> str:
    """Name the JSON type of a value for people."""
    return next((name for cls, name in _KINDS if isinstance(value, cls)), "null")


def _show(value: Any) -> str:
    """Quote a short text; name the type of anything else."""
    return f"'{value[:80]}'" if isinstance(value, str) else _kind(value)
