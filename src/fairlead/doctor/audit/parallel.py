"""Reads the parts of a set of logs, in several processes, and merges their tallies."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from fairlead.doctor.audit.files import Piece, batches, pieces_of
from fairlead.doctor.audit.lines import LineReader
from fairlead.doctor.audit.tally import Tally


def read_piece(piece: Piece) -> Tally:
    """Return the tally of one part."""
    tally = Tally()
    reader = LineReader(tally)
    for batch in batches(piece, tally):
        reader.read(batch)
    reader.flush()
    return tally


def read_logs(paths: list[str], *, processes: int = 0) -> Tally:
    """Return the tally of all files; `processes` 0 means one per core. UnreadableLog."""
    pieces = pieces_of(paths)
    workers = min(processes or _cores(), len(pieces))
    whole = Tally()
    if workers <= 1:
        for piece in pieces:
            whole.merge(read_piece(piece))
        return whole
    # Forking is safe here: a command has one thread. It spares each process the imports.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for tally in pool.map(read_piece, pieces):
            whole.merge(tally)
    return whole


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
