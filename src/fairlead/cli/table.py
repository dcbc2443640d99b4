"""Tables for a terminal (pure): sized to content, cut at the end, ids and codes never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from fairlead.cli.text import cut_end
from fairlead.terminal import one_line

GAP = "  "
CUT_MIN = 8  # a column is never cut below this, so that something can still be read
WIDTH_DEFAULT = 80


class Align(Enum):
    """Which side a cell's text keeps to."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `may_cut` is False for ids and numbers; `wide_only` ones appear with -o wide."""

    title: str
    align: Align = Align.LEFT
    may_cut: bool = False
    wide_only: bool = False


Row = tuple[str, ...]


def render_table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    width: int | None = None,
    wide: bool = False,
    headers: bool = True,
) -> str:
    """Return the table as text, lines ended by a line feed and without spaces at their ends.

    `rows` have a cell per column, wide ones included; what is not printable in one is escaped. With
    a `width` the cuttable columns are cut, the widest first, until a line fits or only codes such
    as "Fragmented:" are left; None never cuts, as for a pipe. No rows give only the header.
    """
    chosen = [i for i, column in enumerate(columns) if wide or not column.wide_only]
    lines = [[one_line(columns[i].title) for i in chosen]] if headers else []
    lines += [[one_line(row[i]) for i in chosen] for row in rows]
    if not lines:
        return ""
    shown = [columns[i] for i in chosen]
    widths = [max(len(line[j]) for line in lines) for j in range(len(shown))]
    if width is not None:
        least = [max(_least(line[j]) for line in lines) for j in range(len(shown))]
        _shrink(shown, widths, least, width)
    return "".join(_line(shown, widths, line) for line in lines)


def _least(cell: str) -> int:
    """Return the width below which a cell is not cut: its code, or something that can be read."""
    code, colon, _ = cell.partition(": ")
    return max(CUT_MIN, len(code) + 2 if colon else 0)


def _shrink(columns: Sequence[Column], widths: list[int], least: Sequence[int], width: int) -> None:
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        cuttable = [
            (widths[j], j) for j, column in enumerate(columns)
            if column.may_cut and widths[j] > max(least[j], len(column.title))
        ]  # fmt: skip
        if not cuttable:
            return
        widest = max(cuttable)[1]
        widths[widest] -= 1
        excess -= 1


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    parts: list[str] = []
    for column, width, cell in zip(columns, widths, cells, strict=True):
        text = cut_end(cell, width) if column.may_cut else cell
        parts.append(text.rjust(width) if column.align is Align.RIGHT else text.ljust(width))
    return GAP.join(parts).rstrip() + "\n"
