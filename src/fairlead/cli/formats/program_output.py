"""The output of programs, on its way to stdout: raw into a pipe or file, filtered for a terminal.

A terminal obeys what programs write to it: it sets its title and clipboard, answers queries as if
the answer had been typed, and keeps modes that it was put in. A log is read long after, by others,
so a terminal gets text, colours and what a progress bar needs to move on its line; all else that
controls terminals is dropped. Sequences: ECMA-48, and the manual of xterm ("Control Sequences").
"""

from __future__ import annotations

import codecs
import os
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from fairlead.terminal import OutputLost

#: Longest parameters of a sequence; what comes after them is text.
PARAMETERS_MAX = 64
#: Kept: colours (m), and erasing and moving within the line (K, C, D, G). The pattern begins with
#: a set of characters, for which the search is fast.
_CONTROLS = re.compile(
    r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f](?:"
    rf"(?:(?<=\x1b)\[|(?<=\x9b))(?:([0-9;:]{{0,{PARAMETERS_MAX}}}[mKCDG])"
    rf"|[0-?]{{0,{PARAMETERS_MAX}}}[ -/]{{0,8}}[@-~]?)"
    # Strings: titles, links, clipboard (OSC), DCS, SOS, PM, APC. A line feed ends one that has no
    # end, so that it hides no more than its line.
    r"|((?:(?<=\x1b)[\]PX^_]|(?<=[\x90\x98\x9d-\x9f]))[^\x07\n\x18\x1a\x1b\x9c]*)"
    r"[\x07\x18\x1a\x9c]?"
    r"|(?<=\x1b)[ -/]{0,8}[0-~]?"
    r"|)"
)
_UNENDED = re.compile(
    rf"(?:(?:\x1b\[|\x9b)[0-?]{{0,{PARAMETERS_MAX}}}[ -/]{{0,8}}|\x1b[ -/]{{0,8}})\Z"
)
_UNENDED_MAX = PARAMETERS_MAX + 10
_STRING_ENDS = re.compile(r"[\x07\n\x18\x1a\x1b\x9c]")
_RESET = "\x1b[0m"


class TerminalFilter:
    """Makes chunks of program output fit for a terminal; sequences may be split between chunks.

    The result does not depend on where the chunks are cut. At most _UNENDED_MAX characters wait
    for their rest.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unended = ""
        self._in_string = False
        self._is_styled = False

    def feed(self, chunk: bytes, *, is_last: bool = False) -> str:
        """Return what of this chunk a terminal may have; after the last one colours are reset."""
        text = self._unended + self._decoder.decode(chunk, is_last)
        self._unended = ""
        if self._in_string:
            end = _STRING_ENDS.search(text)
            if end is None:
                return self._reset(is_last=is_last)
            self._in_string = False
            # What ends the string is dropped with it, but for a line feed and an escape.
            text = text[end.start() + (end[0] not in "\n\x1b") :]
        if not is_last:
            tail = _UNENDED.search(text, max(len(text) - _UNENDED_MAX, 0))
            if tail is not None:
                text, self._unended = text[: tail.start()], tail[0]
        return _CONTROLS.sub(self._kept, text) + self._reset(is_last=is_last)

    def _kept(self, found: re.Match[str]) -> str:
        kept: str | None = found[1]
        if kept is not None:
            if kept.endswith("m"):
                self._is_styled = kept.strip("0;") != "m"
            return f"\x1b[{kept}"
        if found[2] is not None and found.end(2) == len(found.string):
            self._in_string = True
        return ""

    def _reset(self, *, is_last: bool) -> str:
        return _RESET if is_last and self._is_styled else ""


def discard_output() -> None:
    """Write nothing more: whoever read stdout has closed it."""
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def write_as_is(data: bytes) -> None:
    """Write what a program sends to the terminal that it has; waits for it. OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(sys.stdout.fileno(), left) :]


class ProgramOutput:
    """Writes bytes of programs to stdout, each chunk at once. OutputLost, BrokenPipeError."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        self._stream = sys.stderr if to_stderr else sys.stdout
        self._filter = TerminalFilter() if self._stream.isatty() else None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what is left, and end the colours that a program left on."""
        if self._filter is not None and not isinstance(error, (OutputLost, BrokenPipeError)):
            self._put(self._filter.feed(b"", is_last=True))

    def write(self, chunk: bytes) -> int:
        """Write a chunk; return its length."""
        self._put(chunk if self._filter is None else self._filter.feed(chunk))
        return len(chunk)

    def _put(self, piece: bytes | str) -> None:
        if isinstance(piece, str):
            piece = piece.encode(self._stream.encoding, "backslashreplace")
        try:
            self._stream.buffer.write(piece)
            self._stream.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputLost(error.strerror or str(error)) from error
