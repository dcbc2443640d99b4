"""Which columns of a table are shown, and by which one its rows are sorted (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fairlead.cli.formats.table import Column, Row
from fairlead.cli.formats.text import natural, parse_duration

#: What a cell says that has no value.
_NONE = "-"


def column_names(columns: Sequence[Column]) -> list[str]:
    """Return what people write for each column: its title in small letters, up to a blank."""
    return [column.title.lower().partition(" ")[0] for column in columns]


def chosen(
    columns: Sequence[Column], rows: Sequence[Row], names: Sequence[str]
) -> tuple[list[Column], list[Row]]:
    """Return the named columns in that order, wide ones as well; KeyError with a name of none."""
    known = {name: place for place, name in enumerate(column_names(columns))}
    places = [known[name.lower()] for name in names]
    shown = [replace(columns[place], wide_only=False) for place in places]
    return shown, [tuple(row[place] for place in places) for row in rows]


def sorted_by(columns: Sequence[Column], rows: Sequence[Row], name: str) -> list[Row]:
    """Return the rows in the order of a column, with a dash before its name the largest first;
    KeyError with a name of none. Cells without a value are last.
    """
    known = {each: place for place, each in enumerate(column_names(columns))}
    place = known[name.lower().removeprefix("-")]
    found = sorted(
        (row for row in rows if row[place] != _NONE),
        key=lambda row: _order(row[place]), reverse=name.startswith("-"),
    )  # fmt: skip
    return [*found, *(row for row in rows if row[place] == _NONE)]


def _order(cell: str) -> tuple[int, float, list[Any]]:
    """Return a key: numbers by value, durations by length, before texts with numbers in them."""
    text = cell.removesuffix(" ago")
    try:
        return 0, float(text), []
    except ValueError:
        pass
    try:
        return 0, parse_duration(text), []
    except ValueError:
        return 1, 0.0, natural(cell)
