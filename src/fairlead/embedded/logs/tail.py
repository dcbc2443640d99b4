"""A place in a log that is read while it is written: from its start or its last lines onwards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fairlead.embedded.local import logfiles

CHUNK_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class Tail:
    """A place in a log that may grow, be rotated, be truncated, or not exist yet."""

    path: Path
    tail_lines: int | None = None
    _offset: int | None = None
    _inode: int = 0

    def is_live(self) -> bool:
        """True while more may come."""
        return logfiles.live_mark(self.path).exists()

    def read(self) -> bytes:
        """Return the next piece, b"" when there is none now."""
        try:
            parts = logfiles.parts(self.path)
            inodes = [part.stat().st_ino for part in parts]
            if self._offset is None:
                at, self._offset = _tail_of_parts(parts, self.tail_lines)
            elif self._inode in inodes:
                at = inodes.index(self._inode)
            else:
                at, self._offset = 0, 0  # a restart of the container began a new log
            for place in range(at, len(parts)):
                chunk = self._read(parts[place])
                if chunk or place + 1 == len(parts):
                    return chunk
                self._offset = 0
        except FileNotFoundError:
            pass  # not there yet, or rotated this very moment: the next look finds it
        return b""

    def _read(self, part: Path) -> bytes:
        assert self._offset is not None
        with part.open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_size < self._offset:
                self._offset = 0
            self._inode = stat.st_ino
            file.seek(self._offset)
            chunk = file.read(CHUNK_BYTES)
        self._offset += len(chunk)
        return chunk


def _tail_of_parts(parts: list[Path], lines: int | None) -> tuple[int, int]:
    """Return the part and the offset in it at which the last `lines` lines begin; None: all."""
    if lines is None:
        return 0, 0
    for at in range(len(parts) - 1, -1, -1):
        offset = _tail(parts[at], lines)
        if offset or not at:
            return at, offset
        lines -= _line_count(parts[at])
        if lines <= 0:
            return at, 0
    return 0, 0


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(CHUNK_BYTES), b""))


def _tail(path: Path, lines: int) -> int:
    """Return the offset at which the last `lines` lines begin; 0 when there are fewer."""
    with path.open("rb") as file:
        end = file.seek(0, 2)
        if lines == 0:
            return end
        position, wanted = end, lines
        while position > 0:
            start = max(position - CHUNK_BYTES, 0)
            file.seek(start)
            block = file.read(position - start)
            if position == end and block.endswith(b"\n"):
                wanted += 1  # the end of the last line begins no other
            count = block.count(b"\n")
            if count >= wanted:
                place = len(block)
                for _ in range(wanted):
                    place = block.rfind(b"\n", 0, place)
                return start + place + 1
            wanted -= count
            position = start
    return 0
