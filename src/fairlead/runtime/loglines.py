"""Logs of several members in one stream: every line begins with the member's name.

A carriage return ends a piece as a line feed does, so that a progress bar is shown while it moves,
and each of its states begins with the prefix that the terminal's cursor has gone back over.
"""

from __future__ import annotations

import re

LINE_BYTES_MAX = 64 * 1024
#: What ends a piece. A carriage return at the end of the data may be half of a line's end.
_ENDS = re.compile(rb"\r\n|\n|\r(?=[^\n])")


class LineCutter:
    """Cuts the bytes of one member into pieces with a prefix; the last, unended one is kept."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return what is complete with this chunk, b"" when nothing is."""
        data = self._rest + chunk
        pieces: list[bytes] = []
        start = 0
        for end in _ENDS.finditer(data):
            pieces.append(data[start : end.end()])
            start = end.end()
        self._rest = data[start:]
        if len(self._rest) > LINE_BYTES_MAX:
            pieces.append(self._rest + b"\n")
            self._rest = b""
        return b"".join(self._prefix + piece for piece in pieces)

    def end(self) -> bytes:
        """Return the last piece, with a line feed."""
        rest, self._rest = self._rest, b""
        return self._prefix + rest + b"\n" if rest else b""
