"""One run of a program: in a process group of its own, with a time-out, its output bounded.

The program and all that it started are killed at the time-out, and what they leave is reaped. What
sleeps uninterruptibly cannot be killed: it is left behind, and the run says so. A run blocks, so it
is made in a thread.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

OUTPUT_BYTES_MAX = 4096
#: What was killed is gone by then, unless it sleeps uninterruptibly.
KILL_SECONDS = 2.0
_CHUNK_BYTES = 65_536
_REAP_SECONDS = 0.005
PROGRAM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENVIRONMENT = {"PATH": PROGRAM_PATH, "LC_ALL": "C"}
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ProgramOutcome:
    """How a run ended. `code` is None for one that was killed, or could not be started (`why`)."""

    code: int | None
    line: str = ""
    why: str = ""
    leftover: subprocess.Popen[bytes] | None = None
    #: It did not end in time.
    is_late: bool = False
    #: All of the output that is kept.
    text: str = ""


def adopt_orphans() -> None:
    """Make this process the parent of what a program leaves, so that it can be reaped."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(
    path: Path, timeout_seconds: float, *arguments: str, inherit: Sequence[str] = (),
    output_bytes_max: int = OUTPUT_BYTES_MAX,
) -> ProgramOutcome:  # fmt: skip
    """Run a program to its end; its output is kept up to a bound, the first line by itself.

    `inherit`: variables of this process that it has beside its own few.
    """
    environment = _ENVIRONMENT | {key: os.environ[key] for key in inherit if key in os.environ}
    try:
        process = subprocess.Popen(
            [path, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd="/", env=environment, start_new_session=True,
            close_fds=True,
        )  # fmt: skip
    except OSError as error:
        return ProgramOutcome(None, why=f"cannot be started: {error.strerror or error}")
    assert process.stdout is not None
    with process.stdout as output:
        try:
            deadline = time.monotonic() + timeout_seconds
            head, has_ended = _watch(process, output, deadline, output_bytes_max)
        finally:
            _end_group(process)
    if process.returncode is None:
        why = "hangs in the kernel and cannot be killed"
        return ProgramOutcome(None, why=why, leftover=process, is_late=True)
    if not has_ended:
        return ProgramOutcome(None, why=f"killed after {timeout_seconds:.4g} s", is_late=True)
    if process.returncode < 0:
        name = signal.strsignal(-process.returncode) or "unknown"
        return ProgramOutcome(None, why=f"ended by signal {-process.returncode} ({name})")
    text = head.decode("utf-8", "replace")
    return ProgramOutcome(process.returncode, text.partition("\n")[0].strip(), text=text)


def _watch(
    process: subprocess.Popen[bytes], output: IO[bytes], deadline: float, bytes_max: int
) -> tuple[bytes, bool]:
    """Return the start of the output, and whether the program ended before the deadline.

    It has ended when it has, whoever else still holds its output.
    """
    head = b""
    waiting = select.poll()
    ended = os.pidfd_open(process.pid)
    try:
        os.set_blocking(output.fileno(), False)
        waiting.register(ended, select.POLLIN)
        waiting.register(output, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = {number for number, _ in waiting.poll(left * 1000)}
            if output.fileno() in ready:
                data = os.read(output.fileno(), _CHUNK_BYTES)
                head += data[: bytes_max - len(head)]
                if not data:
                    waiting.unregister(output)
            elif ended in ready:
                return head, True
        return head, False
    finally:
        os.close(ended)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group, and reap what comes back to this process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    with suppress(ChildProcessError):  # none is left
        while time.monotonic() < deadline:
            if os.waitpid(-process.pid, os.WNOHANG) == (0, 0):
                time.sleep(_REAP_SECONDS)
