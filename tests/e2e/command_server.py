"""Runs `fairlead` command lines in processes that are forked from one that has imported them.

To start an interpreter and to import a command takes 0.1 to 0.3 s of CPU, and a cluster 0.8 s: more
than nearly all that they do for a test. A forked process has an environment, a working directory,
streams, signals and an end of its own, as one that was started has. `Shell.start`, the demo, and
the commands of README and the pages for users (test_readme.py, test_pages.py) start interpreters.

`python -m tests.e2e.command_server FD` answers on one end of a pair of sockets: each message is a
`Command`, with four descriptors: stdin, stdout, stderr, and a pipe to which the id of the process
is written, then, once it has ended, its exit code. It ends with the other end of its sockets.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from importlib import import_module
from multiprocessing.context import ForkProcess
from pathlib import Path
from pkgutil import walk_packages
from typing import IO

import msgspec

from fairlead.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
MESSAGE_BYTES_MAX = 1 << 17


class Command(msgspec.Struct, frozen=True):
    """A command line, and what its process is given."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]


class CommandServer:
    """The process that forks, seen by the tests."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # what forks has one thread
                start_new_session=True,
            )  # fmt: skip
        self._lock = threading.Lock()

    def run(
        self, command: Command, streams: tuple[IO[str], IO[str], IO[str]], *, seconds_max: float
    ) -> int:
        """Run a command to its end and return its exit code, as `subprocess` would."""
        read_end, write_end = os.pipe()
        descriptors = [*(stream.fileno() for stream in streams), write_end]
        try:
            with self._lock:
                socket.send_fds(self._socket, [msgspec.json.encode(command)], descriptors)
        finally:
            os.close(write_end)
        said, deadline = b"", time.monotonic() + seconds_max
        with open(read_end, "rb", buffering=0) as answer:
            while said.count(b"\n") < 2:
                if not select.select([answer], [], [], max(0, deadline - time.monotonic()))[0]:
                    os.kill(int(said), signal.SIGKILL)
                    raise subprocess.TimeoutExpired(command.arguments, seconds_max)
                part = answer.read(64)
                assert part, "the server of commands has ended"
                said += part
        return int(said.split()[1])

    def close(self) -> None:
        """End the server; commands that run go on."""
        self._socket.close()
        self._process.wait()


@cache
def command_server() -> CommandServer:
    """Return the server of this process."""
    server = CommandServer()
    atexit.register(server.close)
    return server


def _preload() -> None:
    """Import what commands import, at the start and while they run."""
    import fairlead.cli

    commands = [each.name for each in walk_packages(fairlead.cli.__path__, "fairlead.cli.")]
    for name in ("uvloop", "fairlead.app.embedded_process", *commands):
        import_module(name)
    gc.freeze()  # the children share its pages


def _serve(mine: socket.socket) -> None:
    """Fork a process for each command until the other end is closed."""
    fork = multiprocessing.get_context("fork")
    running: dict[int, tuple[ForkProcess, int]] = {}
    while True:
        for ready in select.select([mine, *running], [], [])[0]:
            if isinstance(ready, int):
                process, answer = running.pop(ready)
                process.join()
                with contextlib.suppress(BrokenPipeError), open(answer, "w") as end:
                    end.write(f"{process.exitcode}\n")
                continue
            message, descriptors, _, _ = socket.recv_fds(mine, MESSAGE_BYTES_MAX, 4)
            if not message:
                return
            command = msgspec.json.decode(message, type=Command)
            process = fork.Process(target=_run, args=(command, descriptors[:3]))
            process.start()
            for descriptor in descriptors[:3]:
                os.close(descriptor)
            os.write(descriptors[3], f"{process.pid}\n".encode())
            running[process.sentinel] = process, descriptors[3]


def _run(command: Command, streams: list[int]) -> None:
    """Become the command."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has put /dev/null there
    os.chdir(command.directory)
    os.environ.clear()
    os.environ.update(command.environment)
    sys.argv = ["fairlead", *command.arguments]
    main()


if __name__ == "__main__":
    _preload()
    _serve(socket.socket(fileno=int(sys.argv[1])))
