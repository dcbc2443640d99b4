r"""Printer columns of custom kinds: the JSON paths of `additionalPrinterColumns`, compiled once.

The subset that the real server accepts in practice: `.a.b`, `['a']`, `\.` inside a name, `[0]`,
`[-1]`, `[*]`, `.*`, and filters `[?(@.type=="Ready")]` with ==, !=, <, <=, >, >= or a bare path. Of
several results the first is shown, as upstream does (apiextensions
`registry/customresource/tableconvertor`). Pure.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import msgspec

from fairlead.embedded.printing import GENERIC, Cell, Cells, Object, Printer, age
from fairlead.embedded.resource_info import PrinterColumn

#: One step of a path: from values to values.
Step: TypeAlias = Callable[[list[Any]], list[Any]]

RESULTS_MAX = 10_000
COLUMNS_MAX = 64
_TOKEN = re.compile(
    r"""\.?(?P<field>(?:[^.\[\]\\'"(){}?@*]|\\.)+)
      | \[\s*(?P<quote>['"])(?P<quoted>(?:(?!(?P=quote)).)*)(?P=quote)\s*\]
      | \[\s*(?P<index>-?\d+)\s*\]
      | (?P<every>\[\s*\*\s*\]|\.\*)
      | \[\?\(\s*@(?P<path>[^=!<>]*?)\s*(?:(?P<op>==|!=|<=|>=|<|>)\s*(?P<value>.*?))?\s*\)\]""",
    re.VERBOSE,
)


class PathError(ValueError):
    """The text is no JSON path that we know; the message shows where."""


def _field(key: str, values: list[Any]) -> list[Any]:
    return [v[key] for v in values if isinstance(v, Mapping) and key in v]


def _index(index: int, values: list[Any]) -> list[Any]:
    return [v[index] for v in values if isinstance(v, list) and -len(v) <= index < len(v)]


def _nothing(values: list[Any]) -> list[Any]:
    return values[:0]


def _every(values: list[Any]) -> list[Any]:
    out: list[Any] = []
    for value in values:
        if isinstance(value, Mapping):
            out.extend(value.values())
        elif isinstance(value, list):
            out.extend(value)
    return out[:RESULTS_MAX]


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _compare(symbol: str, left: Any, right: Any) -> bool:
    """False, not an error, when the two have no order."""
    try:
        return bool(_OPERATORS[symbol](left, right))
    except TypeError:
        return False


def _filter(path: tuple[Step, ...], symbol: str, wanted: Any, values: list[Any]) -> list[Any]:
    """Return the elements of lists for which the condition holds."""

    def holds(row: Any) -> bool:
        found = evaluate(path, row)
        return any(_compare(symbol, value, wanted) for value in found) if symbol else bool(found)

    return [row for value in values if isinstance(value, list) for row in value if holds(row)]


def _literal(text: str, path: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    try:
        return msgspec.json.decode(text)
    except ValueError:
        raise PathError(f"'{path}': '{text}' is no literal: quote texts, as in \"Ready\"") from None


def _step(match: re.Match[str], path: str) -> Step:
    if match["field"] is not None:
        return partial(_field, re.sub(r"\\(.)", r"\1", match["field"]))
    if match["quoted"] is not None:
        return partial(_field, match["quoted"])
    if match["index"] is not None:
        return partial(_index, int(match["index"]))
    if match["every"] is not None:
        return _every
    symbol = match["op"] or ""
    value = _literal(match["value"], path) if symbol else None
    return partial(_filter, compile_path(match["path"]), symbol, value)


def compile_path(text: str) -> tuple[Step, ...]:
    """Return the steps of a JSON path; PathError says at which character it stops making sense."""
    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    path = path.removeprefix("$")
    steps: list[Step] = []
    position = 0
    while position < len(path) and path != ".":
        match = _TOKEN.match(path, position)
        if match is None:
            raise PathError(f"'{text}' is no JSON path from '{path[position:]}' on: want .a.b[0]")
        steps.append(_step(match, text))
        position = match.end()
    return tuple(steps)


def evaluate(steps: Sequence[Step], value: Any) -> list[Any]:
    """Return what the path finds in `value`, in order; [] when nothing."""
    values = [value]
    for step in steps:
        values = step(values)
    return values


def _cell(kind: str, value: Any, now: float) -> Cell:
    """The cell of a value; None (shown blank) when it is not of the column's type."""
    if kind == "date":
        return age(value, now)
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if kind == "integer":
        return int(value) if isinstance(value, int | float) else None
    if kind == "number":
        return float(value) if isinstance(value, int | float) else None
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def custom_printer(columns: Sequence[PrinterColumn]) -> Printer:
    """Return the printer for `additionalPrinterColumns`; Name and Age when there are none.

    A column whose path cannot be compiled shows blank: its definition was accepted.
    """
    if not columns:
        return GENERIC
    heads = [GENERIC.columns[0]]
    compiled: list[tuple[str, tuple[Step, ...]]] = []
    for column in columns[:COLUMNS_MAX]:
        try:
            steps = compile_path(column.json_path)
        except PathError:
            steps = (_nothing,)
        compiled.append((column.type, steps))
        text = f"Custom resource definition column (in JSONPath format): {column.json_path}"
        heads.append(replace(column, description=column.description or text))

    def cells_of(obj: Object, now: float) -> Cells:
        """Return the name of an object, then one cell per column."""
        cells = GENERIC.cells(obj, now)[:1]
        for kind, path in compiled:
            found = evaluate(path, obj)
            empty = not found or found[0] is None
            cells.append(None if empty else _cell(kind, found[0], now))
        return cells

    return Printer(tuple(heads), cells_of)
