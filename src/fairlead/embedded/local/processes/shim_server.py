"""The process that forks shims: a new interpreter for each would cost more than most programs do.

It is `python -I -S shim.py DATA`, started with the first container. A request names the directory
of a run; the answer is a pidfd of the shim that was forked for it. The server keeps nothing: when
it is gone another one is started, and it ends when this program does. Shims outlive both.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

SHIM = Path(__file__).with_name("shim.py")
#: Seconds that the server may take; a machine out of memory or a stopped server answers never.
ANSWER_SECONDS_MAX = 10.0
_ANSWER_BYTES_MAX = 64


class ShimServer:
    """Starts shims. Call `close` when no more will be."""

    def __init__(self, data_dir: Path) -> None:
        """`data_dir` shows in the list of processes whose shims they are."""
        self._data_dir = data_dir
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, directory: Path, started_pipe: int, errors: int) -> int:
        """Start a shim for a run and return a pidfd of it.

        OSError when there is none, TimeoutError when there may be one. Both descriptors stay open
        here: what the shim closes once the program runs, and what it writes its own errors to.
        """
        answer, descriptors = self._asked(directory, started_pipe, errors)
        if not answer and not descriptors:  # the server was killed: shims start at most once
            self.close()
            answer, descriptors = self._asked(directory, started_pipe, errors)
        if descriptors:
            return descriptors[0]
        number = int(answer or errno.EPIPE)
        raise OSError(number, f"cannot start a process: {os.strerror(number)}")

    def _asked(self, directory: Path, started_pipe: int, errors: int) -> tuple[bytes, list[int]]:
        """Return the answer of the server; nothing when it has ended."""
        channel = self._channel or self._open()
        channel.settimeout(ANSWER_SECONDS_MAX)
        try:
            socket.send_fds(channel, [os.fsencode(directory)], [started_pipe, errors])
            answer, descriptors, _, _ = socket.recv_fds(
                channel, _ANSWER_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            self.close()
            raise
        except (BrokenPipeError, ConnectionResetError):
            return b"", []
        return answer, descriptors

    def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(SHIM), str(self._data_dir)],
                    stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    cwd="/", env={}, start_new_session=True,
                )  # fmt: skip
            except OSError:
                ours.close()
                raise
        self._channel = ours
        return ours

    def close(self) -> None:
        """End the server; shims go on."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
