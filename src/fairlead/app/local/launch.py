"""Starting the cluster's process in the background, and ending it.

The background process is forked, so that the program is not loaded twice: a new session with its
output in the log file. A pipe tells the waiting parent when it is ready, or what went wrong and
with which exit code; the end of the pipe without a word means that it died, and then the log's last
lines are shown.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fairlead.app.run_file import LOG_FILE, RunningCluster, open_log, rotate_log
from fairlead.input.errors import CliError, Code, fail

START_SECONDS_MAX = 120.0
STOP_SECONDS = 30.0
_LOG_TAIL_LINES = 5
_REPORT_BYTES_MAX = 1 << 20


class LaunchReport(msgspec.Struct, frozen=True, rename="camel"):
    """What the background process says through the pipe: ready, or an error as it is shown."""

    ready: str = ""  # text for stdout
    error: str = ""  # text for stderr
    exit_code: int = 0


def start_detached(data: Path, run: Callable[[int], int]) -> LaunchReport:
    """Run a function in a new session and return the report that it sends.

    It gets the descriptor that `send_report` takes, and returns the exit code of its process, which
    has no other descriptors than that one and the log.
    """
    log_path = data / LOG_FILE
    rotate_log(data)
    log = open_log(data)
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _enter_background(data, log, write_end)
        sys.exit(run(write_end))
    os.close(write_end)
    os.close(log)
    try:
        report = _read_report(read_end, pid)
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGTERM)
        raise
    finally:
        os.close(read_end)
    if report is not None:
        return report
    ended, status = os.waitpid(pid, os.WNOHANG)
    how = f"ended with code {os.waitstatus_to_exitcode(status)}" if ended else "closed its pipe"
    raise fail(
        Code.START_FAILED, f"the cluster did not start: its process {how}",
        detail=_tail(log_path), help=(f"the whole log: {log_path}",),
    )  # fmt: skip


def _enter_background(data: Path, log: int, kept: int) -> None:
    os.setsid()
    os.chdir(data)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((nothing, log, log)):
        os.dup2(descriptor, number)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _read_report(descriptor: int, pid: int) -> LaunchReport | None:
    """Return the report; None when the process closed the pipe without one."""
    deadline = time.monotonic() + START_SECONDS_MAX
    data = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or len(data) > _REPORT_BYTES_MAX:
            raise fail(
                Code.START_FAILED,
                f"the cluster (process {pid}) is not ready after {START_SECONDS_MAX:g}s",
                help=("fairlead status shows how it goes on, fairlead down stops it",),
            )  # fmt: skip
        if select.select([descriptor], [], [], left)[0]:
            chunk = os.read(descriptor, 65_536)
            if not chunk:
                break
            data += chunk
    return msgspec.json.decode(data, type=LaunchReport) if data else None


def send_report(descriptor: int, report: LaunchReport) -> None:
    """Tell the waiting parent; it may have gone, which is fine."""
    try:
        os.write(descriptor, msgspec.json.encode(report))
        os.close(descriptor)
    except OSError:
        return


def _tail(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line[:300] for line in lines[-_LOG_TAIL_LINES:])


def stop(running: RunningCluster) -> None:
    """End the cluster's process in order and wait for it; CliError when it does not end in time.

    The process is signalled through a descriptor that was opened before its identity was checked,
    so a number that is reused in between is never hit.
    """
    try:
        descriptor = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    try:
        if not running.lives:
            return
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not select.select([descriptor], [], [], STOP_SECONDS)[0]:
            raise _does_not_end(running)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise fail(Code.STOP_FAILED, f"process {running.pid} belongs to another user") from error
    finally:
        os.close(descriptor)


def _does_not_end(running: RunningCluster) -> CliError:
    return fail(
        Code.STOP_FAILED,
        f"the cluster (process {running.pid}) has not ended after {STOP_SECONDS:g}s",
        help=(f"kill -9 {running.pid} ends it; the next fairlead up continues its jobs",),
    )  # fmt: skip
