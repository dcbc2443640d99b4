"""Tables for a terminal (pure): sized to content, cut at the end, ids and codes never cut.

A terminal breaks a line that is too long in the middle of a word. So a table that is too wide even
when it is cut is folded: the columns that have no room go to further lines of the same row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from fairlead.cli.formats.text import cut_end
from fairlead.terminal import one_line

GAP = "  "
#: Where the further lines of a folded row begin.
FOLD_INDENT = 4
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
    a `width` the cuttable columns are cut, the widest first, until a line fits; where it does not
    even when only codes such as "Fragmented:" are left, it is folded. None never cuts, as for a
    pipe. No rows give only the header.
    """
    chosen = [i for i, column in enumerate(columns) if wide or not column.wide_only]
    lines = [[columns[i].title for i in chosen]] if headers else []
    lines += [_printable([row[i] for i in chosen]) for row in rows]
    if not lines:
        return ""
    shown = [columns[i] for i in chosen]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    parts = [slice(0, len(shown))]
    if width is not None:
        least = [max(_least(line[j]) for line in lines) for j in range(len(shown))]
        if _total(_shrunk(shown, widths, least, width)) > width:
            parts = _fold(shown, widths, least, width)
        for part in parts:
            room = width - FOLD_INDENT if part.start else width
            widths[part] = _shrunk(shown[part], widths[part], least[part], room)
    forms = [(part, _form(shown[part], widths[part], part)) for part in parts]
    cut = [(j, widths[j]) for j, column in enumerate(shown) if column.may_cut and width is not None]
    for line in lines if cut else ():
        for j, most in cut:
            line[j] = cut_end(line[j], most)
    return "".join(
        [f"{form.format(*line[part]).rstrip()}\n" for line in lines for part, form in forms]
    )


def _printable(cells: list[str]) -> list[str]:
    """Return the cells of a row without what is not printable."""
    return cells if "".join(cells).isprintable() else [one_line(cell) for cell in cells]


def _form(columns: Sequence[Column], widths: Sequence[int], part: slice) -> str:
    """Return the format of one line of a row."""
    sides = (">" if column.align is Align.RIGHT else "<" for column in columns)
    cells = (f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return " " * (FOLD_INDENT if part.start else 0) + GAP.join(cells)


def _least(cell: str) -> int:
    """Return the width below which a cell is not cut: its code, or something that can be read."""
    code, colon, _ = cell.partition(": ")
    return max(CUT_MIN, len(code) + 2 if colon and " " not in code else 0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fold(
    columns: Sequence[Column], widths: Sequence[int], least: Sequence[int], width: int
) -> list[slice]:
    """Return which columns go to each line of a row: as many as have room, a cuttable one with as
    much as can be read.
    """
    starts, used = [0], 0
    for j, column in enumerate(columns):
        needed = min(widths[j], max(least[j], width // 3)) if column.may_cut else widths[j]
        if j > starts[-1] and used + len(GAP) + needed > width:
            starts.append(j)
            used = FOLD_INDENT
        used += needed + (len(GAP) if j > starts[-1] else 0)
    return [slice(*ends) for ends in zip(starts, [*starts[1:], len(columns)], strict=True)]


def _shrunk(
    columns: Sequence[Column], widths: Sequence[int], least: Sequence[int], width: int
) -> list[int]:
    """Return the widths with which a line fits, or the least ones."""
    out, excess = list(widths), _total(widths) - width
    while excess > 0:
        cuttable = [
            (out[j], j) for j, column in enumerate(columns)
            if column.may_cut and out[j] > max(least[j], len(column.title))
        ]  # fmt: skip
        if not cuttable:
            break
        out[max(cuttable)[1]] -= 1
        excess -= 1
    return out
