"""Logs of several members in one stream: every line begins with the member's name.

A progress bar goes back to the start of its line with a carriage return. On one terminal the bars
of several members would write over each other, so of a line that is rewritten its last state is
shown, as a line of its own; while it is followed, a state also every few seconds.
"""

from __future__ import annotations

import re

LINE_BYTES_MAX = 64 * 1024
#: Between two states of one member's progress bar that are shown.
STATE_SECONDS = 10.0
_END = re.compile(rb"\r?\n")


class LineCutter:
    """Cuts the bytes of one member into lines with a prefix; the last, unended one is kept.

    What comes out does not depend on where the chunks are cut, but for states while it is followed.
    """

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._rest = b""
        #: Of the unended line: the latest state that a carriage return has ended.
        self._state = b""
        self._next_state = 0.0

    def feed(self, chunk: bytes, now: float | None = None) -> bytes:
        """Return the lines that are complete with this chunk, b"" when none is.

        `now`, in seconds, where somebody looks on: then it also has a state of a progress bar.
        """
        data = self._rest + chunk
        lines: list[bytes] = []
        start = 0
        for end in _END.finditer(data):
            lines.append(self._last(data[start : end.start()]) + end[0])
            self._state = b""
            start = end.end()
        self._rest = data[start:]
        # A carriage return at the end of the data may be half of a line's end.
        turn = self._rest.rfind(b"\r", 0, -1)
        if turn >= 0:
            self._state = self._last(self._rest[:turn])
            self._rest = self._rest[turn + 1 :]
            if self._state and now is not None and now >= self._next_state:
                self._next_state = now + STATE_SECONDS
                lines.append(self._state + b"\n")
        if len(self._rest) > LINE_BYTES_MAX:
            lines.append(self._rest + b"\n")
            self._rest = b""
        return b"".join(self._prefix + line for line in lines)

    def _last(self, line: bytes) -> bytes:
        """Return the last state of a line that is not empty."""
        return next((state for state in reversed(line.split(b"\r")) if state), self._state)

    def end(self) -> bytes:
        """Return the last line, with a line feed."""
        last = self._last(self._rest)
        self._rest = self._state = b""
        return self._prefix + last + b"\n" if last else b""
