#!/usr/bin/env python3
"""The program of a job that is a Jupyter kernel: it runs the kernel, and again when asked to.

It draws the kernel's ports and key into a directory that only the job's own user can read; more
people may read arguments and logs than may run commands in the job. What a client wants is a file
there, written by `exec`; that a client is there, is the time of another one. So a restart keeps the
job and its nodes, and a client that never returns holds them for a bounded time. It is the job's
script: standard library only, of Python 3.8. Design: docs/design/interactive.md.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

CONNECTION, STATE, ALIVE, ORDER = "connection.json", "state", "alive", "order"
AGAIN, END = "again", "end"
PORTS = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
PLACEHOLDER = "{connection_file}"
#: Exit code when no client was there for too long: 128 + SIGHUP.
LOST = 129
#: For a client that asks for a restart, after the kernel has ended.
ORDER_SECONDS = 30.0
END_SECONDS = 5.0
POLL_SECONDS = 0.1


def directory_of(environment: Any) -> Path:
    """Return the job's own directory."""
    place = environment.get("TMPDIR") or "/tmp"  # noqa: S108 # made below, and checked
    return Path(place) / f".fairlead-kernel-{environment['FAIRLEAD_JOB_UID']}"


def make_directory(path: Path) -> None:
    """Make it, or take one of an earlier attempt; SystemExit where it is another user's."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    closed = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not closed or found.st_uid != os.geteuid():
        sys.exit(f"{path} is not this job's own")
    for each in path.iterdir():
        each.unlink()


def write(path: Path, value: object) -> None:
    """Write a file of mode 0600 whole."""
    beside = path.with_name(f".{path.name}")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
    beside.replace(path)


def draw() -> dict[str, object]:
    """Return ports that are free now, and a key."""
    ports: dict[str, object] = {}
    with ExitStack() as stack:
        for name in PORTS:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            ports[name] = listener.getsockname()[1]
    return {**ports, "ip": "127.0.0.1", "transport": "tcp", "signature_scheme": "hmac-sha256",
            "key": secrets.token_hex(32)}  # fmt: skip


class KernelHolder:
    """Runs a kernel, in a process group of its own."""

    def __init__(self, directory: Path, command: list[str], lost_seconds: float) -> None:
        self._directory = directory
        self._lost_seconds = lost_seconds
        connection = str(directory / CONNECTION)
        self._command = [each.replace(PLACEHOLDER, connection) for each in command]
        self._run = 0
        self._kernel: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run it until it ends for good; return the exit code."""
        write(self._directory / CONNECTION, draw())
        self._touch()
        while True:
            (self._directory / ORDER).unlink(missing_ok=True)
            self._run += 1
            code = self._run_once()
            if code == LOST:
                return LOST
            order = self._order()
            if order == END:
                return 0
            if order != AGAIN:
                return code

    def end(self) -> None:
        """End the kernel, then kill it."""
        if self._kernel is None or self._kernel.poll() is not None:
            return
        self._kernel.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._kernel.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._kernel.pid, signal.SIGKILL)

    def _run_once(self) -> int:
        try:
            self._kernel = subprocess.Popen(self._command, start_new_session=True)
        except OSError as error:
            sys.stderr.write(f"{self._command[0]}: {error.strerror}\n")
            return 127
        state = {"run": self._run, "pid": self._kernel.pid}
        write(self._directory / STATE, {**state, "code": None})
        while (code := self._kernel.poll()) is None:
            if self._silent_seconds() > self._lost_seconds:
                sys.stderr.write(f"no Jupyter was there for {self._lost_seconds:.0f} s\n")
                self.end()
                return LOST
            time.sleep(POLL_SECONDS)
        code = code if code >= 0 else 128 - code
        write(self._directory / STATE, {**state, "code": code})
        return code

    def _order(self) -> str:
        """Return what a client wants after the end of the kernel; "" where none says so."""
        until = time.monotonic() + ORDER_SECONDS
        while time.monotonic() < until:
            with suppress(FileNotFoundError):
                return (self._directory / ORDER).read_text().strip()
            time.sleep(POLL_SECONDS)
        return ""

    def _touch(self) -> None:
        (self._directory / ALIVE).touch(0o600)

    def _silent_seconds(self) -> float:
        try:
            return time.time() - (self._directory / ALIVE).stat().st_mtime
        except FileNotFoundError:
            return 0.0


def main(arguments: list[str]) -> int:
    """Run a kernel. Arguments: the seconds for which no client may be there, and the command."""
    directory = directory_of(os.environ)
    make_directory(directory)
    holder = KernelHolder(directory, arguments[1:], float(arguments[0]))

    def stop(_number: int, _frame: object) -> None:
        holder.end()
        sys.exit(143)

    signal.signal(signal.SIGTERM, stop)
    try:
        return holder.run()
    finally:
        for each in directory.iterdir():
            each.unlink()
        directory.rmdir()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
