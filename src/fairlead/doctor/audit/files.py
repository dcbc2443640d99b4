"""Opens audit logs (plain, gzip, zstd, stdin) and cuts them into batches of whole lines."""

from __future__ import annotations

import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fairlead.doctor.audit.tally import Tally

BLOCK_BYTES = 1 << 20
#: A line that is longer is counted and left out.
LINE_BYTES_MAX = 4 << 20
#: What the compiled scan may read behind the last line.
SLACK_BYTES = 256
CHUNK_BYTES = 64 << 20
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class UnreadableLog(Exception):
    """A log that cannot be opened; the message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a log: whole files (`end` 0), or the lines that begin in [start, end)."""

    path: str
    start: int = 0
    end: int = 0


class LineBatch(NamedTuple):
    """Whole lines: the first `end` bytes of a buffer, the last one a line feed.

    At least `SLACK_BYTES` follow in the buffer. It is used again for the next batch.
    """

    buffer: bytearray
    end: int

    @classmethod
    def of(cls, lines: bytes) -> LineBatch:
        """Return a batch of lines of which the last one need not end."""
        return cls(bytearray(lines + b"\n" + bytes(SLACK_BYTES)), len(lines) + 1)

    def cut(self, start: int, end: int) -> bytes:
        """Return a copy of some bytes."""
        return bytes(memoryview(self.buffer)[start:end])


def pieces_of(paths: list[str]) -> list[Piece]:
    """Return the parts that can be read apart from each other; UnreadableLog for each bad file."""
    pieces: list[Piece] = []
    for path in paths:
        if path == "-":
            pieces.append(Piece(path))
            continue
        try:
            with Path(path).open("rb") as file:
                magic = file.read(4)
                size = file.seek(0, io.SEEK_END)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UnreadableLog(f"'{path}' cannot be read: {reason}") from error
        if magic[:4] == ZSTD:
            _zstandard()
        if magic[:2] == GZIP or magic[:4] == ZSTD or size == 0:
            pieces.append(Piece(path))
            continue
        pieces += [Piece(path, start, min(start + CHUNK_BYTES, size))
                   for start in range(0, size, CHUNK_BYTES)]  # fmt: skip
    return pieces


def is_compressed(piece: Piece) -> bool:
    """True for a whole file that is compressed."""
    return not piece.end and piece.path != "-"


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise UnreadableLog(
            "a zstd log needs the package zstandard: pip install 'fairlead[zstd]', "
            "or zstd -dc FILE | fairlead doctor audit -"
        ) from error


def batches(piece: Piece, tally: Tally) -> Iterator[LineBatch]:
    """Yield whole lines in batches; damage of the file is counted and ends it."""
    if piece.path == "-":
        yield from _lines(sys.stdin.buffer, tally)
        return
    with Path(piece.path).open("rb") as file:
        if piece.end:
            yield from _range(file, piece, tally)
            return
        magic = file.read(4)
        file.seek(0)
        stream: Any = file
        if magic[:2] == GZIP:
            stream = gzip.GzipFile(fileobj=file)
        elif magic[:4] == ZSTD:
            stream = _zstandard().ZstdDecompressor().stream_reader(file, read_across_frames=True)
        yield from _lines(stream, tally)


def _range(file: BinaryIO, piece: Piece, tally: Tally) -> Iterator[LineBatch]:
    """Yield the lines that begin in the range; the last one may end after it."""
    start = piece.start
    if start:
        file.seek(start - 1)
        start += _skip_line(file) - 1
    file.seek(start)
    left = piece.end - start
    if left <= 0:
        return
    yield from _lines(_Limited(file, left), tally)


def _skip_line(file: BinaryIO) -> int:
    """Read up to the next line feed and return the number of bytes with it."""
    count = 0
    while block := file.read(65_536):
        at = block.find(b"\n")
        if at >= 0:
            return count + at + 1
        count += len(block)
    return count


class _Limited:
    """Reads a number of bytes and then on to the end of the line."""

    def __init__(self, file: BinaryIO, left: int) -> None:
        self._file: Any = file
        self._left = left
        self._is_over = False

    def readinto(self, room: memoryview) -> int:
        """Read the next bytes; 0 at the end."""
        if self._left > 0:
            size: int = self._file.readinto(room[: self._left])
            self._left -= size
            self._is_over = size > 0 and room[size - 1] == 10
            return size
        if self._is_over:
            return 0
        size = self._file.readinto(room)
        at = bytes(room[:size]).find(b"\n")
        self._is_over = at >= 0 or not size
        return at + 1 if at >= 0 else size


def _lines(stream: Any, tally: Tally) -> Iterator[LineBatch]:
    """Read into one buffer, behind the begun line of the block before."""
    buffer = bytearray(LINE_BYTES_MAX + BLOCK_BYTES + SLACK_BYTES)
    view = memoryview(buffer)
    begun = 0
    drops = False
    while size := _read_into(stream, view[begun : begun + BLOCK_BYTES], tally):
        end = begun + size
        if drops:
            at = buffer.find(b"\n", 0, end)
            if at < 0:
                continue
            end -= at + 1
            view[:end] = bytes(view[at + 1 : at + 1 + end])
            begun, drops = 0, False
        last = buffer.rfind(b"\n", begun, end) + 1
        if last:
            yield LineBatch(buffer, last)
            view[: end - last] = bytes(view[last:end])
        begun = end - last
        if begun > LINE_BYTES_MAX:
            tally.skipped[f"lines over {LINE_BYTES_MAX >> 20} MiB"] += 1
            begun, drops = 0, True
    if begun:
        buffer[begun] = 10
        yield LineBatch(buffer, begun + 1)


def _read_into(stream: Any, room: memoryview, tally: Tally) -> int:
    """Read a block and return its size; 0 at the end, and where the file is damaged."""
    read = getattr(stream, "readinto1", stream.readinto)  # hands out what precedes damage
    try:
        return read(room) or 0
    except (OSError, EOFError, zlib.error, ValueError) as error:
        tally.skipped[f"the file is damaged: {type(error).__name__}"] += 1
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        tally.skipped["the file is damaged: ZstdError"] += 1
    return 0
