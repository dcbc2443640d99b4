"""The output of programs as HTML: text and its colours, and nothing that a page would obey.

What controls terminals is dropped by the filter of the command line
(`cli/formats/program_output.py`); of what that keeps, colours become classes, and a line that was
rewritten shows its last state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from markupsafe import Markup, escape

from fairlead.cli.formats.program_output import TerminalFilter

#: Characters of a line; the rest of a longer one is left out, and that is said.
LINE_MAX = 8_192
_SEQUENCE = re.compile(r"\x1b\[([0-9;:]*)([mKCDG])")
_COLORS = {**{30 + n: f"c{n}" for n in range(8)}, **{90 + n: f"c{n}" for n in range(8)}}


class ProgramText:
    """Makes lines of HTML of chunks of output; what they are does not depend on the cuts."""

    def __init__(self) -> None:
        self._filter = TerminalFilter()
        self._rest = ""
        self._styles: tuple[str, ...] = ()

    def feed(self, chunk: bytes, *, is_last: bool = False) -> list[Markup]:
        """Return the lines that are complete with this chunk; with the last one all."""
        text = self._rest + self._filter.feed(chunk, is_last=is_last)
        *lines, rest = text.split("\n")
        if is_last and rest and _SEQUENCE.sub("", rest):
            lines.append(rest)
        elif len(rest) > 2 * LINE_MAX:  # a line without an end: its start is enough
            rest = rest[:LINE_MAX] + rest[-LINE_MAX:]
        self._rest = "" if is_last else rest
        return [self._line(each) for each in lines]

    def _line(self, line: str) -> Markup:
        """Return a line; the styles at its end are those of the next one's start."""
        shown = line.removesuffix("\r").rpartition("\r")[2]
        more = len(shown) - LINE_MAX
        pieces = list(self._pieces(shown[:LINE_MAX]))
        if more > 0:
            pieces.append(Markup("<em>… {} more characters</em>").format(f"{more:,}"))
        return Markup().join(pieces)

    def _pieces(self, text: str) -> Iterator[Markup]:
        at = 0
        for found in _SEQUENCE.finditer(text):
            yield self._styled(text[at : found.start()])
            at = found.end()
            if found[2] == "m":
                self._styles = _styles_after(self._styles, found[1])
        yield self._styled(text[at:])

    def _styled(self, text: str) -> Markup:
        text = "".join(c if c.isprintable() or c == "\t" else "" for c in text)
        if not text or not self._styles:
            return escape(text)
        return Markup('<span class="{}">{}</span>').format(" ".join(self._styles), text)


def _styles_after(styles: tuple[str, ...], parameters: str) -> tuple[str, ...]:
    """Return the classes after a sequence "Select Graphic Rendition" (ECMA-48, 8.3.117).

    Of colours the 16 named ones are kept; others, and backgrounds, stay the page's.
    """
    codes = [int(each) if each.isdigit() else 0 for each in re.split("[;:]", parameters[:64])]
    found = set(styles)
    numbers = iter(codes)
    for code in numbers:
        if code == 0:
            found = set()
        elif code == 1:
            found.add("b")
        elif code == 22:
            found.discard("b")
        elif code == 39 or code in _COLORS:
            found = {each for each in found if not each.startswith("c")}
            found |= {_COLORS[code]} if code in _COLORS else set()
        elif code in (38, 48):  # a colour by number: its parameters are no codes
            for _ in range(1 if next(numbers, 0) == 5 else 3):
                next(numbers, 0)
    return tuple(sorted(found))
