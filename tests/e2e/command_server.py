"""Runs `fairlead` command lines in processes that are forked from one that has imported them.

To start an interpreter and to import a command takes 0.1 to 0.3 s of CPU, and a cluster 0.8 s: more
than nearly all that they do for a test. The schemas of our kinds take half of what is left of the
start of a cluster, and are compiled before, too. A forked process has an environment, a working
directory, streams, signals and an end of its own, as one that was started has, and a session of its
own where it has a terminal. `Shell.start`, the demo, and the commands of README's own test
(test_readme.py) start interpreters, as do commands of Slurm that other programs start with a
process group to look after.

`python -m tests.e2e.command_server LISTENER LIFELINE` answers on a listening socket: a connection
brings a `Command` with three descriptors (stdin, stdout, stderr) and gets two messages: the id of
the process, and, once it has ended, its exit code. The server ends with the other end of LIFELINE.
For shells there is a program `fairlead` in `CommandServer.programs`, which asks it, and
`CommandServer.slurm`, which does so for Slurm's commands.
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
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from multiprocessing.context import ForkProcess
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryDirectory
from typing import IO

import msgspec
from tests.patience import PATIENCE_SECONDS

from fairlead.api.schema.crd import manifests
from fairlead.cli.main import main
from fairlead.cli.slurm_tools import __main__ as slurm_tools
from fairlead.embedded.crds import infos_of
from fairlead.embedded.virtual.profile import load_profile

ROOT = Path(__file__).resolve().parents[2]
SLURM = "fairlead.cli.slurm_tools"
MESSAGE_BYTES_MAX = 1 << 17
#: Starts in a sixth of the time of `fairlead`, since it imports nothing that is installed.
PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys

asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asking.connect({path!r})
command = dict(
    arguments=sys.argv[1:], directory=os.getcwd(), environment=dict(os.environ), module={module!r},
)
socket.send_fds(asking, [json.dumps(command).encode()], [0, 1, 2])
pid = int(asking.recv(64))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(asking.recv(64))
sys.exit(code if code >= 0 else 128 - code)
"""


class Command(msgspec.Struct, frozen=True):
    """A command line, and what its process is given."""

    arguments: list[str]
    directory: str
    environment: dict[str, str]
    module: str = "fairlead"
    #: A session of its own, as the command of a terminal has.
    is_session: bool = False


class Started:
    """The process of a command, as `subprocess.Popen` shows one."""

    def __init__(self, command: Command, pid: int, asking: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._command, self._asking = command, asking

    def wait(self, timeout: float) -> int:
        """Return the exit code once the process has ended; TimeoutExpired when it does not."""
        if self.returncode is None:
            self._asking.settimeout(timeout)
            try:
                self.returncode = int(self._asking.recv(64))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self._command.arguments, timeout) from None
            self._asking.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal; one that has been waited for gets none."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, unseen
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


#: The modules that are run, with their `main`.
MAINS = {"fairlead": main, SLURM: slurm_tools.main}


class CommandServer:
    """The process that forks, seen by the tests."""

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="fairlead-commands-")
        self.programs = Path(self._directory.name)
        self._path = str(self.programs / "socket")
        self._program("fairlead", "fairlead")
        self.slurm = self._program(SLURM, SLURM)
        self._lifeline, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._path)
            listener.listen()
            descriptors = [listener.fileno(), theirs.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, descriptors)],
                cwd=ROOT, pass_fds=descriptors, stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # what forks has one thread
                start_new_session=True,
            )  # fmt: skip

    def _program(self, name: str, module: str) -> Path:
        program = self.programs / name
        text = PROGRAM.format(python=sys.executable, path=self._path, module=module)
        program.write_text(text)
        program.chmod(0o755)
        return program

    def start(self, command: Command, streams: Sequence[int]) -> Started:
        """Start a command with the descriptors of stdin, stdout and stderr."""
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            asking.settimeout(PATIENCE_SECONDS)
            asking.connect(self._path)
            socket.send_fds(asking, [msgspec.json.encode(command)], streams)
            return Started(command, int(asking.recv(64)), asking)
        except BaseException:
            asking.close()
            raise

    def run(self, command: Command, streams: Sequence[IO[str]], *, seconds_max: float) -> int:
        """Run a command to its end and return its exit code, as `subprocess` would."""
        started = self.start(command, [stream.fileno() for stream in streams])
        try:
            return started.wait(seconds_max)
        except subprocess.TimeoutExpired:
            started.kill()
            raise

    def close(self) -> None:
        """End the server; commands that run go on.

        The lifeline ends it when this process dies. A process that this one has forked may hold it
        as well, and is not waited for.
        """
        self._process.kill()
        self._process.wait()
        self._lifeline.close()
        self._directory.cleanup()


@cache
def command_server() -> CommandServer:
    """Return the server of this process."""
    server = CommandServer()
    atexit.register(server.close)
    return server


def _preload() -> None:
    """Import what commands import, at the start and while they run, and make what each cluster
    makes of constants: the schemas of its kinds, and the default profile.
    """
    import fairlead.cli

    commands = [each.name for each in walk_packages(fairlead.cli.__path__, "fairlead.cli.")]
    for name in ("structlog.dev", "uvloop", "fairlead.app.local.embedded_process", *commands):
        import_module(name)
    for definition in manifests():
        infos_of(definition)
    load_profile("")
    gc.freeze()  # the children share its pages


def _serve(listener: socket.socket, lifeline: socket.socket) -> None:
    """Fork a process for each command until the other end of the lifeline is closed."""
    fork = multiprocessing.get_context("fork")
    running: dict[int, tuple[ForkProcess, socket.socket]] = {}
    while True:
        for ready in select.select([listener, lifeline, *running], [], [])[0]:
            if ready is lifeline:
                return
            if ready is not listener:
                process, asking = running.pop(ready)
                process.join()
                with contextlib.suppress(OSError), asking:  # who asked may have ended
                    asking.send(str(process.exitcode).encode())
                continue
            asking, _ = listener.accept()
            message, descriptors, _, _ = socket.recv_fds(asking, MESSAGE_BYTES_MAX, 3)
            if not message:  # who asks has been killed
                asking.close()
                continue
            command = msgspec.json.decode(message, type=Command)
            process = fork.Process(target=_run, args=(command, descriptors))
            process.start()
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                asking.send(str(process.pid).encode())
            running[process.sentinel] = process, asking


def _run(command: Command, streams: list[int]) -> None:
    """Become the command."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has put /dev/null there
    if command.is_session:
        os.setsid()
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    os.chdir(command.directory)
    os.environ.clear()
    os.environ.update(command.environment)
    sys.argv = [command.module, *command.arguments]
    MAINS[command.module]()


if __name__ == "__main__":
    _preload()
    _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
