"""Columns as Slurm prints them: `%.8i`, `JobID:12`, `State%20`, and what stands between bars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.cli.slurm_tools.options import GivenOptions, ToolError, split_list
from fairlead.terminal import one_line, say_as_is

_PERCENT = re.compile(r"%(\.?)(\d{0,4})([A-Za-z])")
_WIDE = re.compile(r"([\w-]+)(?::(\.?)(\d{0,4})(.*))?", re.DOTALL)
_SACCT = re.compile(r"(\w+)(?:%(-?)(\d{1,4}))?")
WIDE_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Cell:
    """A column: of which field, how wide (0: as wide as the text), on which side, and the literal
    text behind it. `mark` stands at the end of a text that is cut.
    """

    field: str
    width: int = 0
    is_right: bool = False
    after: str = ""
    mark: str = ""

    def text(self, value: str) -> str:
        """Return a value in the column, without what is not printable in it."""
        value = one_line(value)
        if not self.width:
            return value + self.after
        if len(value) > self.width:
            value = value[: self.width - len(self.mark)] + self.mark
        side = value.rjust(self.width) if self.is_right else value.ljust(self.width)
        return side + self.after


def parse_percent(text: str) -> tuple[str, list[Cell]]:
    """Return the literal text before the first column, and the columns of `%[.][WIDTH]LETTER`."""
    found = list(_PERCENT.finditer(text))
    if not found:
        return text, []
    before = text[: found[0].start()]
    ends = [match.start() for match in found[1:]] + [len(text)]
    cells = [
        Cell(match[3], int(match[2] or 0), bool(match[1]), text[match.end() : end])
        for match, end in zip(found, ends, strict=True)
    ]
    return before, cells


def parse_wide(text: str) -> list[Cell]:
    """Return the columns of `NAME[:[.][WIDTH][SUFFIX]],...`; ToolError."""
    cells: list[Cell] = []
    for part in text.split(","):
        match = _WIDE.fullmatch(part.strip(" "))
        if match is None:
            raise ToolError(f"Invalid job format specification: {part}")
        width = int(match[3]) if match[3] else (0 if match[4] else WIDE_WIDTH)
        cells.append(Cell(match[1].lower(), width, bool(match[2]), match[4] or ""))
    return cells


def parse_sacct(text: str) -> list[Cell]:
    """Return the columns of `NAME[%[-]WIDTH],...`, 0 wide where no width is given; ToolError."""
    cells: list[Cell] = []
    for part in split_list(text):
        match = _SACCT.fullmatch(part)
        if match is None:
            raise ToolError(f'Invalid field requested: "{part}"')
        width = int(match[3] or 0)
        cells.append(Cell(match[1].lower(), width, not match[2], " ", "+"))
    return cells


def table(before: str, cells: Sequence[Cell], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of rows with a value for each column."""
    return [
        before + "".join(cell.text(value) for cell, value in zip(cells, row, strict=True))
        for row in rows
    ]


def print_listing(
    given: GivenOptions, cells: Sequence[Cell], titles: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Print rows as sacct does: in columns under their titles, or between bars."""
    shows_titles = not given.has("noheader")
    if given.has("parsable", "parsable2"):
        bar = given.last("delimiter", default="|")
        end = bar if given.has("parsable") else ""
        shown = [titles, *rows] if shows_titles else rows
        lines = [bar.join(map(one_line, row)) + end for row in shown]
    else:
        head = [titles, ["-" * cell.width for cell in cells]] if shows_titles else []
        lines = table("", cells, [*head, *rows])
    say_as_is("".join(f"{line}\n" for line in lines))
