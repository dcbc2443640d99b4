"""A task as a process: with pipes, or with a terminal of its own (`srun --pty`).

With pipes it is a process group of its own. With a terminal it leads a session, whose controlling
terminal that is, as a shell wants it; what else is in that session ends with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import termios
from asyncio import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

READ_BYTES_MAX = 64 << 10
#: In a session of its own: opens its terminal, which makes it the controlling one.
_ON_TERMINAL = ("/bin/sh", "-c", 'exec 3<"$0" 3<&-; exec "$@"')
Read = Callable[[], Awaitable[bytes]]


class TaskProcess:
    """A process whose streams are pipes."""

    def __init__(self, process: subprocess.Process, descriptor: int) -> None:
        """`descriptor`: where what the process reads is written, without blocking."""
        self.process = process
        self._input = descriptor
        self._is_open = True

    @property
    def outputs(self) -> dict[int, Read]:
        """How to read the next piece of each stream; b"" at its end."""
        found = {1: self.process.stdout, 2: self.process.stderr}
        return {
            number: lambda reader=reader: reader.read(READ_BYTES_MAX)
            for number, reader in found.items()
            if reader is not None
        }

    async def write(self, data: bytes) -> None:
        """Give the process something to read, and return once it is taken; b"" ends its input."""
        if not data:
            self.close()
        while data and self._is_open:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _ready(self._input, loop.add_writer, loop.remove_writer)
            except OSError:  # it reads no more
                return

    def resize(self, rows: int, columns: int) -> None:
        """Say how large the terminal is, if there is one."""

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def kill_rest(self) -> None:
        """Kill what an ended process has left behind in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close what the process reads."""
        if self._is_open:
            self._is_open = False
            os.close(self._input)


class TerminalProcess(TaskProcess):
    """A process with a terminal, of which this holds the other end."""

    _is_line_begun = False

    @property
    def outputs(self) -> dict[int, Read]:
        """Everything is on the terminal."""
        return {1: self._read}

    async def _read(self) -> bytes:
        while True:
            try:
                return os.read(self._input, READ_BYTES_MAX)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await _ready(self._input, loop.add_reader, loop.remove_reader)
            except OSError:  # EIO: no process has the terminal any more
                return b""

    async def write(self, data: bytes) -> None:
        """Type something; b"" is Ctrl-D, which ends a line that has begun, or the input."""
        typed = data or (b"\x04\x04" if self._is_line_begun else b"\x04")
        self._is_line_begun = not typed.endswith((b"\n", b"\r", b"\x04"))
        await super().write(typed)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size; the processes in the foreground get SIGWINCH."""
        _set_size(self._input, rows, columns)

    def kill_rest(self) -> None:
        """Kill what is left of the session, whatever groups a shell has made of it."""
        for pid in _of_session(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def start_task(
    command: Sequence[str], variables: Mapping[str, str], directory: str,
    size: Sequence[int] | None,
) -> TaskProcess:  # fmt: skip
    """Start a task; with `size`, the rows and columns, it has a terminal. OSError."""
    if size is None:
        theirs, ours = os.pipe()
        streams, words = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}, command
    else:
        ours, theirs = pty.openpty()
        _set_size(ours, *size)
        streams = {"stdout": theirs, "stderr": theirs}
        words = (*_ON_TERMINAL, os.ttyname(theirs), *command)
    group: dict[str, Any] = {"process_group": 0} if size is None else {"start_new_session": True}
    try:
        process = await asyncio.create_subprocess_exec(
            *words, env=variables, cwd=directory or None, stdin=theirs, **streams, **group
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    os.set_blocking(ours, False)
    return TaskProcess(process, ours) if size is None else TerminalProcess(process, ours)


async def _ready(
    descriptor: int, add: Callable[[int, Callable[[], None]], None],
    remove: Callable[[int], bool],
) -> None:  # fmt: skip
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


def _set_size(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _of_session(leader: int) -> list[int]:
    """Return the processes of a session."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(ProcessLookupError, ValueError):
                if os.getsid(int(entry.name)) == leader:
                    found.append(int(entry.name))
    return found
