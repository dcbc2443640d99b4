"""Report progress from inside a job: one JSON line per report, read by the node.

A kubelet keeps the last KEPT_BYTES of the file when the container ends, so each line repeats the
latest checkpoint.

    from fairlead.member.progress import checkpoint_directory, report, resume_step
    start = resume_step()
    ...
    report(step, checkpoint=True)      # after the checkpoint of that step is safely on disk

A gang is as slow as its slowest member. What a member does itself in a step, without the time in
which it waits for others, tells the slow one; it is written with the reports:

    with own_work():               # once a step; nothing in it waits for another member
        loss = model(batch)
        torch.cuda.synchronize()   # a GPU works on after the call

Outside of Fairlead these functions do nothing harmful: reports are dropped, the checkpoint
directory is the one given as default.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from fairlead.member.attempt_lock import EXIT_STOPPED, HELD, AttemptLock, Superseded, acquire

KEPT_BYTES = 4096
#: Own work is reported as the median of the means of so many seconds each, of so many of them.
_PIECE_SECONDS, _PIECES_MAX = 10.0, 60


class OwnWorkWindow:
    """The own work of the latest steps, in pieces: a pause of one step moves no median."""

    def __init__(self, now: float) -> None:
        #: Beginning, end, seconds of own work and steps of each piece.
        self._pieces: deque[tuple[float, float, float, int]] = deque(maxlen=_PIECES_MAX)
        self._began = now
        self._seconds = 0.0
        self._steps = 0

    def add(self, seconds: float, now: float) -> None:
        """Count the own work of one step that ends now."""
        self._seconds += seconds
        self._steps += 1
        if now - self._began >= _PIECE_SECONDS:
            self._pieces.append((self._began, now, self._seconds, self._steps))
            self._began, self._seconds, self._steps = now, 0.0, 0

    def facts(self) -> dict[str, float] | None:
        """Return what a report says of it; None before the first piece is whole."""
        if not self._pieces:
            return None
        middle = median(seconds / steps for _, _, seconds, steps in self._pieces)
        return {
            "seconds": float(f"{middle:.6g}"),
            "steps": sum(steps for *_, steps in self._pieces),
            "spanSeconds": round(self._pieces[-1][1] - self._pieces[0][0], 1),
        }


_window: OwnWorkWindow | None = None


@contextmanager
def own_work() -> Generator[None]:
    """Measure what this member does itself in a step; a block that fails does not count."""
    began = time.monotonic()
    yield
    add_own_work(time.monotonic() - began)


def add_own_work(seconds: float) -> None:
    """Count the own work of one step that was measured otherwise, such as by events of a GPU."""
    global _window  # noqa: PLW0603 - one process, one member
    now = time.monotonic()
    if _window is None:
        _window = OwnWorkWindow(now - seconds)
    _window.add(seconds, now)


def report(step: int, *, checkpoint: bool = False) -> None:
    """Append one report. `checkpoint` says that a restart can go on from this step.

    A line is written with one system call, so several processes of a member may report. A full disk
    must not end a training run: the report is then dropped.
    """
    path = os.environ.get("FAIRLEAD_PROGRESS_FILE")
    if not path:
        return
    line: dict[str, Any] = {"step": step, "checkpoint": checkpoint}
    work = _window.facts() if _window is not None else None
    if work is not None:
        line["work"] = work
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            saved = None if checkpoint else _latest_checkpoint(descriptor)
            if saved is not None:
                line["checkpointStep"] = saved
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)
    except OSError:
        return


def _latest_checkpoint(descriptor: int) -> int | None:
    """Return the step of the latest checkpoint in the last KEPT_BYTES of a file, None if none."""
    size = os.fstat(descriptor).st_size
    last = os.pread(descriptor, KEPT_BYTES, max(size - KEPT_BYTES, 0))
    for raw in reversed(last.splitlines()):
        try:
            line = json.loads(raw)
            saved = line["step"] if line.get("checkpoint") else line.get("checkpointStep")
        except (ValueError, AttributeError, KeyError):
            continue
        if isinstance(saved, int):
            return saved
    return None


def resume_step() -> int | None:
    """Return the step of the last reported checkpoint, or None on a first attempt."""
    text = os.environ.get("FAIRLEAD_RESUME_STEP", "")
    return int(text) if text.isdigit() else None


def checkpoint_directory(default: str = "checkpoints") -> Path:
    """Return the directory that is the same for all attempts of this job; it exists.

    It is returned once no member of an earlier attempt works on it; when a later attempt begins,
    this process ends with EXIT_STOPPED.
    """
    path = Path(os.environ.get("FAIRLEAD_CHECKPOINT_DIR") or default)
    path.mkdir(parents=True, exist_ok=True)
    lock = AttemptLock.of_this_member()
    if lock is not None:
        try:
            acquire(lock, lambda: os._exit(EXIT_STOPPED))
        except Superseded:
            raise SystemExit(EXIT_STOPPED) from None
        os.environ[HELD] = "1"
        atexit.register(lock.end)
    return path
