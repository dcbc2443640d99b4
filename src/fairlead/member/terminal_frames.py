"""What the viewer of a held terminal and its holder say to each other, and modes of terminals.

Both ends use it: the command line, and Python in a member, to which this file is sent as text. So
it needs the standard library only, of version 3.8. Numbers are in network order; offsets count the
bytes of a session's output, and those that one viewer has typed.
"""

from __future__ import annotations

import re
import struct

#: Variables that say whose member a process is.
WHOSE = ("FAIRLEAD_JOB_UID", "FAIRLEAD_ATTEMPT", "FAIRLEAD_ROLE", "FAIRLEAD_INDEX")
#: What the way writes before anything else.
MAGIC = b"fairlead-session 1\n"
#: Exit codes of the way: no such session; a log that takes nothing; a holder that does not answer;
#: no Python, or no place for a socket.
NO_SESSION, NOT_LOGGED, NO_ANSWER, NOT_HELD = 3, 4, 5, 125
HELLO, INPUT, SIZE, ACK, PING, LEAVE, LIST = b"h", b"i", b"s", b"a", b"p", b"l", b"q"
WELCOME, OUTPUT, TAKEN, END, TAKEN_OVER, INFO = b"w", b"o", b"t", b"e", b"x", b"n"
HEAD, OFFSET, ROWS_COLUMNS = struct.Struct("!cI"), struct.Struct("!Q"), struct.Struct("!HH")
FRAME_BYTES_MAX = 72 << 10
CHUNK_BYTES = 64 << 10
#: Output that the viewer has not said it has: the program waits beyond.
WINDOW_BYTES = 256 << 10
#: Of past output shown to a new viewer; and input that the program has not read.
SCROLLBACK_BYTES, INPUT_BYTES_MAX = 64 << 10, 64 << 10
#: Modes that a program may leave a terminal in: cursor keys, cursor, mouse, screens, paste.
_MODES = {1: False, 25: True, 47: False, 1000: False, 1002: False, 1003: False, 1004: False,
          1006: False, 1047: False, 1049: False, 2004: False}  # fmt: skip
_SCREENS = (47, 1047, 1049)
_MODE = re.compile(rb"\x1b(?:c|\[\?([0-9;]{1,32})([hl]))")
_MODE_BYTES_MAX = 36


def frame(kind: bytes, data: bytes = b"") -> bytes:
    """Return one message."""
    return HEAD.pack(kind, len(data)) + data


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the messages that are whole now; ValueError for one that is too long."""
        self._data += data
        found: list[tuple[bytes, bytes]] = []
        while len(self._data) >= HEAD.size:
            kind, size = HEAD.unpack_from(self._data)
            if size > FRAME_BYTES_MAX:
                raise ValueError("a message is too long")
            if len(self._data) < HEAD.size + size:
                break
            found.append((kind, bytes(self._data[HEAD.size : HEAD.size + size])))
            del self._data[: HEAD.size + size]
        return found


class Modes:
    """The modes of a terminal that what was written to it has left on."""

    def __init__(self) -> None:
        self._changed: dict[int, bool] = {}
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take what is written next; sequences may be split."""
        text = self._tail + data
        end = 0
        for found in _MODE.finditer(text):
            end = found.end()
            if found[1] is None:
                self._changed.clear()
                continue
            for word in found[1].split(b";"):
                number, is_on = int(word or b"0"), found[2] == b"h"
                if number in _MODES:
                    self._changed.pop(number, None)
                    if is_on != _MODES[number]:
                        self._changed[number] = is_on
        self._tail = text[max(end, len(text) - _MODE_BYTES_MAX) :]

    @property
    def is_full_screen(self) -> bool:
        """True while the program draws on a screen of its own."""
        return any(self._changed.get(number) for number in _SCREENS)

    def entering(self) -> bytes:
        """Return what puts a fresh terminal in these modes."""
        return b"".join(_mode(number, is_on) for number, is_on in self._changed.items())

    def leaving(self) -> bytes:
        """Return what takes a terminal out of these modes."""
        undone = [_mode(number, not is_on) for number, is_on in self._changed.items()]
        return b"\x1b[0m" + b"".join(reversed(undone))


def _mode(number: int, is_on: bool) -> bytes:  # noqa: FBT001
    return b"\x1b[?%d%c" % (number, ord("h" if is_on else "l"))
