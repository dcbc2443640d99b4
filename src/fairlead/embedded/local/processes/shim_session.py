"""Further programs in a container, for the shim: see `shim.py`. It needs nothing of Fairlead.

The shim is their parent, as it is the container's own program's: they are in its control group,
are measured with it, and end with it, whatever becomes of the server that asked for them.
"""

# Importing pathlib would make the shims' server larger for nothing, hence os.path here.
# ruff: noqa: PTH208
from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

#: The socket in the directory of a run.
DOOR = "door.sock"
SESSIONS_MAX = 64
#: The variable of further programs that has the number of the container's own
#: (`member/terminal_log.py`).
FIRST_PROGRAM = "FAIRLEAD_FIRST_PROGRAM"
REQUEST_BYTES_MAX = 128 * 1024
#: How long a program whose client is gone has between SIGHUP and SIGKILL.
HANG_UP_SECONDS = 2.0


def session_members(session: int) -> list[int]:
    """Return the processes of a session; its number is not used again while any of them lives."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[3]) == session:
                        found.append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


class SessionHost(Protocol):
    """What a session needs of its shim."""

    launch: dict[str, Any]
    child: int
    sessions: dict[int, ShimSession]
    watched: dict[int, Callable[[], None]]

    def become(
        self, launch: dict[str, Any], report: int, streams: list[int], *, tty: bool = False
    ) -> None:
        """In a child: become the program; never returns."""

    def reap(self) -> None:
        """Reap all that has ended."""


class ShimSession:
    """One further program in the container, and the connection of who asked for it.

    The request is one message, `{"argv": [...], "tty": false}`, with three descriptors for the
    program's stdin, stdout and stderr; the answer one at its end: `{"exitCode": 0, "signal": 0,
    "error": ""}`. The program leads a session of its own. When the connection ends first, all of
    that session is ended. What has left it (setsid) stays until the container ends.
    """

    def __init__(self, shim: SessionHost, connection: socket.socket) -> None:
        self.shim = shim
        self.connection = connection
        self.pid = 0
        self.report = -1  # the end of the pipe that says why the program could not be executed
        self.ended_descriptor = -1
        self.kill_at: float | None = None  # its client is gone
        shim.watched[connection.fileno()] = self.read

    def read(self) -> None:
        """Take the request, or note that the client is gone."""
        request, streams = b"", list[int]()
        try:
            request, streams, _, _ = socket.recv_fds(
                self.connection, REQUEST_BYTES_MAX, 3, socket.MSG_CMSG_CLOEXEC
            )
            if request and not self.pid:
                self._start(json.loads(request), streams)
                return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._answer(exit_code=0, signal=0, error=str(error))
        finally:
            for descriptor in streams:
                os.close(descriptor)
        self._close()
        if self.pid:
            self.kill_at = time.monotonic() + HANG_UP_SECONDS
            self._signal(signal.SIGHUP)

    def _start(self, asked: dict[str, Any], streams: list[int]) -> None:
        argv = [str(word) for word in asked["argv"]]
        if not argv or len(streams) != 3:
            raise ValueError("a request has a program and comes with three descriptors")
        terminal = {"TERM": "xterm"} if asked["tty"] else {}
        env = {**terminal, **self.shim.launch["env"], FIRST_PROGRAM: str(self.shim.child)}
        launch: dict[str, Any] = {**self.shim.launch, "argv": argv, "env": env}
        self.report, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                self.shim.become(launch, write_end, streams, tty=bool(asked["tty"]))
        except OSError:
            os.close(self.report)
            raise
        finally:
            os.close(write_end)
        self.shim.sessions[self.pid] = self
        self.ended_descriptor = os.pidfd_open(self.pid)
        self.shim.watched[self.ended_descriptor] = self.shim.reap

    def look(self) -> None:
        """Kill what did not end when its client had gone."""
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self._signal(signal.SIGKILL)

    def ending(self) -> None:
        """The program has ended and is about to be reaped; until then its number is its own."""
        if self.kill_at is not None:
            self._signal(signal.SIGKILL)

    def ended(self, status: int) -> None:
        """Tell how the program ended."""
        code = os.waitstatus_to_exitcode(status)
        error = os.read(self.report, REQUEST_BYTES_MAX).decode(errors="replace")
        del self.shim.watched[self.ended_descriptor]
        os.close(self.report)
        os.close(self.ended_descriptor)
        self._answer(exit_code=max(code, 0), signal=max(-code, 0), error=error)
        self._close()

    def _signal(self, number: int) -> None:
        """Send a signal to the session of the program, which is not reaped yet."""
        for pid in session_members(self.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _answer(self, *, exit_code: int, signal: int, error: str) -> None:
        value = {"exitCode": exit_code, "signal": signal, "error": error[:2000]}
        try:
            self.connection.send(json.dumps(value).encode())
        except OSError:
            return  # the client is gone

    def _close(self) -> None:
        if self.connection.fileno() >= 0:
            del self.shim.watched[self.connection.fileno()]
            self.connection.close()
