"""What a held terminal shows, as lines of the job's own log, for its holder in a member.

The lines go into the pipe that the container's first program has as its output, so they are kept
wherever its log is. They are text: sequences that move the cursor or colour it are gone, of a line
that was drawn several times the last state is kept, and of a program that draws on the whole
screen only that it ran. Nothing that is typed is kept but what the terminal shows of it. It is sent
to the member as text, so it needs the standard library only, of version 3.8.
Design: docs/design/interactive.md.
"""

from __future__ import annotations

import os
import re
import select
import stat
from collections.abc import Mapping
from contextlib import suppress

from fairlead.member.terminal_frames import WHOSE

#: The container's first program, where it is not process 1: set by the local node.
FIRST_PROGRAM = "FAIRLEAD_FIRST_PROGRAM"
#: Of one session; the rest is not kept, so that the job's own lines are.
LOG_BYTES_MAX = 4 << 20
LINE_LENGTH_MAX = 1000
_RAW_LINE_BYTES_MAX = 8 << 10
#: What waits for the pipe to be read; more is dropped.
_WAITING_BYTES_MAX = 256 << 10
#: A pipe takes so much in one piece, so that no line is torn by the job's own.
_PIECE_BYTES = 4096
_END_MILLISECONDS = 1000
_ENTERS = re.compile(rb"\x1b\[\?(?:47|1047|1049)h")
_LEAVES = re.compile(rb"\x1b\[\?(?:47|1047|1049)l")
_SWITCH_BYTES_MAX = 8
_SEQUENCE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI
    rb"|\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, to BEL or ST
    rb"|[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    rb"|[ -/]*[0-~]?)"
)


def first_output(environ: Mapping[str, str], proc: str = "/proc") -> tuple[str, str]:
    """Return the path of the output of the container's first program, or "" and why there is none.

    It is a pipe of a program of this member. Anything else is refused: process 1 may be one of the
    machine, and a file that a program writes to is no log.
    """
    pid = environ.get(FIRST_PROGRAM, "1")
    path = f"{proc}/{pid}/fd/1"
    if not environ.get(WHOSE[0]):
        return "", "this is no member of a job"
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
        theirs = {name: value for name, _, value in (each.partition("=") for each in words)}
        if any(theirs.get(n) != environ.get(n) for n in WHOSE):
            return "", f"process {pid} is not the container's first program"
        if not stat.S_ISFIFO(os.stat(path).st_mode):  # noqa: PTH116
            return "", "the job's program has sent its output elsewhere"
    except OSError as error:
        return "", f"the output of process {pid}: {error.strerror}"
    return path, ""


class PlainLines:
    """Makes lines of text of what is written to a terminal."""

    def __init__(self) -> None:
        self._raw = b""
        self._is_full_screen = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that have ended now; sequences may be split."""
        self._raw += data
        found: list[str] = []
        while self._raw:
            if self._is_full_screen:
                leaves = _LEAVES.search(self._raw)
                if leaves is None:
                    self._raw = self._raw[-_SWITCH_BYTES_MAX:]
                    break
                self._raw, self._is_full_screen = self._raw[leaves.end() :], False
                continue
            enters = _ENTERS.search(self._raw)
            shown = self._raw if enters is None else self._raw[: enters.start()]
            *lines, rest = shown.split(b"\n")
            found += map(plain, lines)
            if enters is None:
                self._raw = self._bounded(rest, found)
                break
            found += [*filter(None, [plain(rest)]), "(a program drew on the whole screen)"]
            self._raw, self._is_full_screen = self._raw[enters.end() :], True
        return found

    def end(self) -> list[str]:
        """Return what is left of a line without its end."""
        rest, self._raw = self._raw, b""
        return [] if self._is_full_screen else [*filter(None, [plain(rest)])]

    @staticmethod
    def _bounded(rest: bytes, found: list[str]) -> bytes:
        """Return the begun line; one that is drawn again and again is cut to its last state."""
        if len(rest) <= _RAW_LINE_BYTES_MAX:
            return rest
        last = rest.rfind(b"\r")
        if last > 0 and len(rest) - last <= _RAW_LINE_BYTES_MAX:
            return rest[last:]
        found.append(plain(rest))
        return b""


def plain(raw: bytes) -> str:
    """Return a line as it stood in the end, without what a terminal obeys."""
    text = _SEQUENCE.sub(b"", raw).decode(errors="replace").rstrip("\r")
    text = text.rpartition("\r")[2]
    kept: list[str] = []
    for character in text[: 4 * LINE_LENGTH_MAX]:
        if character == "\b":
            del kept[-1:]
        elif character == "\t" or character.isprintable():
            kept.append(character)
    return "".join(kept)[:LINE_LENGTH_MAX].rstrip()


class SessionLog:
    """Writes what a terminal shows into the job's log, and never waits for it."""

    def __init__(self, path: str, name: str) -> None:
        """`path` is that of `first_output`; OSError. Each line begins with the session's name."""
        # Opened again, so that the job's own writes go on as they were.
        self._output = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._begin = f"[session {name}] "
        self._lines = PlainLines()
        self._waiting = bytearray()
        self._left, self._dropped = LOG_BYTES_MAX, 0

    def feed(self, data: bytes) -> None:
        """Keep what is shown."""
        if self._left > 0:
            self._add(self._lines.feed(data))
            self.flush()

    def _add(self, lines: list[str]) -> None:
        for line in lines:
            if self._left <= 0:
                return
            if len(self._waiting) > _WAITING_BYTES_MAX:
                self._dropped += 1
                continue
            if self._dropped:
                self._put(f"(lines that the log did not take: {self._dropped})")
                self._dropped = 0
            self._put(line)
            if self._left <= 0:
                self._put("(the rest of the session is not kept)")

    def _put(self, line: str) -> None:
        data = f"{self._begin}{line}\n".encode()
        self._left -= len(data)
        self._waiting += data

    def flush(self) -> None:
        """Write what the pipe takes at once, in whole lines."""
        try:
            while self._waiting:
                end = self._waiting.rfind(b"\n", 0, _PIECE_BYTES) + 1 or _PIECE_BYTES
                del self._waiting[: os.write(self._output, self._waiting[:end])]
        except BlockingIOError:
            return
        except OSError:  # the log has no reader any more
            self._left = 0
            self._waiting.clear()

    def close(self) -> None:
        """Write the rest, as far as the log takes it within a second."""
        self._add(self._lines.end())
        poller = select.poll()
        poller.register(self._output, select.POLLOUT)
        self.flush()
        while self._waiting and poller.poll(_END_MILLISECONDS):
            self.flush()
        with suppress(OSError):
            os.close(self._output)
