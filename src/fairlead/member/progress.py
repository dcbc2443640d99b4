"""Report progress from inside a job: one JSON line per report, read by the node.

    from fairlead.member.progress import checkpoint_directory, report, resume_step
    start = resume_step()
    ...
    report(step, checkpoint=True)      # after the checkpoint of that step is safely on disk

Outside of Fairlead these functions do nothing harmful: reports are dropped, the checkpoint
directory is the one given as default.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def report(step: int, *, checkpoint: bool = False) -> None:
    """Append one report. `checkpoint` says that a restart can go on from this step.

    A line is written with one system call, so several processes of a member may report. A full disk
    must not end a training run: the report is then dropped.
    """
    path = os.environ.get("FAIRLEAD_PROGRESS_FILE")
    if not path:
        return
    line = json.dumps({"step": step, "checkpoint": checkpoint}).encode() + b"\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError:
        return


def resume_step() -> int | None:
    """Return the step of the last reported checkpoint, or None on a first attempt."""
    text = os.environ.get("FAIRLEAD_RESUME_STEP", "")
    return int(text) if text.isdigit() else None


def checkpoint_directory(default: str = "checkpoints") -> Path:
    """Return the directory that is the same for all attempts of this job; it exists."""
    path = Path(os.environ.get("FAIRLEAD_CHECKPOINT_DIR") or default)
    path.mkdir(parents=True, exist_ok=True)
    return path
