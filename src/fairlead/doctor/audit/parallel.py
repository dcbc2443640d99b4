"""Reads the parts of a set of logs, in several processes, and merges their tallies.

Each process has one reader, which takes the next part when it is done with one, so that what the
reader has looked up serves all its parts. The compiled reader is taken for large logs where numba
is installed: it reads several times as fast, but its first use on a machine compiles it.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from fairlead.doctor.audit.files import LineBatch, Piece, batches, is_compressed, pieces_of
from fairlead.doctor.audit.lines import LineReader
from fairlead.doctor.audit.tally import Tally
from fairlead.runtime.outside.worker_process import end_with_parent

COMPILED_BYTES_MIN = 1 << 30
_SCAN = "fairlead.doctor.audit.scan"
#: What compressed logs are taken to hold per byte.
COMPRESSION = 8


class Engine(Enum):
    """How lines are read: `AUTO` is compiled for large logs where it can be."""

    AUTO = "auto"
    PLAIN = "plain"
    COMPILED = "compiled"


class TallyReader(Protocol):
    """Reads batches of lines into a tally."""

    def read(self, batch: LineBatch) -> None:
        """Read whole lines."""
        ...

    def flush(self) -> None:
        """Add up what was read."""
        ...


def has_compiler() -> bool:
    """Return whether the compiled reader can be used: it and numba are there."""
    return all(importlib.util.find_spec(name) is not None for name in (_SCAN, "numba"))


def reader_of(engine: Engine, size: int) -> Callable[[Tally], TallyReader]:
    """Return the maker of readers for so many bytes; ImportError for an absent compiler."""
    is_large = size >= COMPILED_BYTES_MIN and has_compiler()
    if engine is Engine.PLAIN or (engine is Engine.AUTO and not is_large):
        return LineReader
    return importlib.import_module(f"{_SCAN}.compiled").CompiledReader


def read_logs(paths: list[str], *, processes: int = 0, engine: Engine = Engine.AUTO) -> Tally:
    """Return the tally of all files; `processes` 0 means one per core. UnreadableLog."""
    pieces = pieces_of(paths)
    make = reader_of(engine, sum(map(_size, pieces)))
    workers = min(processes or _cores(), len(pieces))
    if workers <= 1:
        return _read(iter(pieces), make)
    # Forking is safe here: a command has one thread. It spares each process the imports.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    taken = context.Value("q", 0)
    whole = Tally()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(taken, pieces, make)
    ) as pool:
        for tally in pool.map(_read_share, range(workers)):
            whole.merge(tally)
    return whole


def _size(piece: Piece) -> int:
    if piece.path == "-":
        return 0
    if piece.end:
        return piece.end - piece.start
    size = Path(piece.path).stat().st_size
    return size * COMPRESSION if is_compressed(piece) else size


def _read(pieces: Iterator[Piece], make: Callable[[Tally], TallyReader]) -> Tally:
    tally = Tally()
    reader = make(tally)
    for piece in pieces:
        for batch in batches(piece, tally):
            reader.read(batch)
    reader.flush()
    return tally


_share: list[Any] = []


def _begin(*share: Any) -> None:
    """Keep what all processes share; a lock can be handed over only when a process begins."""
    _share[:] = share
    end_with_parent()


def _read_share(_number: int) -> Tally:
    """Return the tally of the parts that this process took."""
    taken, pieces, make = _share

    def left() -> Iterator[Piece]:
        while True:
            with taken.get_lock():
                number = taken.value
                taken.value += 1
            if number >= len(pieces):
                return
            yield pieces[number]

    return _read(left(), make)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
