"""Report progress from inside a job: one JSON line per report, read by the node.

A kubelet keeps the last KEPT_BYTES of the file when the container ends, so each line repeats the
latest checkpoint.

    from fairlead.member.progress import checkpoint_directory, report, resume_step
    start = resume_step()
    ...
    report(step, checkpoint=True)      # after the checkpoint of that step is safely on disk

Outside of Fairlead these functions do nothing harmful: reports are dropped, the checkpoint
directory is the one given as default.
"""

from __future__ import annotations

import atexit
import json
import os
from pathlib import Path

from fairlead.member.attempt_lock import EXIT_STOPPED, HELD, AttemptLock, Superseded, acquire

KEPT_BYTES = 4096


def report(step: int, *, checkpoint: bool = False) -> None:
    """Append one report. `checkpoint` says that a restart can go on from this step.

    A line is written with one system call, so several processes of a member may report. A full disk
    must not end a training run: the report is then dropped.
    """
    path = os.environ.get("FAIRLEAD_PROGRESS_FILE")
    if not path:
        return
    line: dict[str, int | bool] = {"step": step, "checkpoint": checkpoint}
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
