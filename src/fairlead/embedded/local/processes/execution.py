"""Further programs in a running container: `kubectl exec` on the local node.

The container's shim starts them (`shim_session.py`) with the ends of pipes, or of a terminal, that
are made here. So a program belongs to its container: it has its environment, its directory and its
control group, and it ends with it. It also ends when this side closes the connection to the shim,
which `kill -9` of this process does as well.

Nothing is read ahead: what a client does not take stays in the pipe, and stops the program.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from fairlead.embedded.http.streams.pod_streams import Channel, ExecEnd, ExecOptions
from fairlead.embedded.local.processes.process import Run
from fairlead.embedded.local.processes.shim_session import DOOR

#: What one read takes, and what a pipe holds where the machine lets us choose.
CHUNK_BYTES, PIPE_BYTES = 256 * 1024, 1 << 20
#: As a shell reports a program that a signal ended, and one that its container's end took along.
SIGNAL_BASE, KILLED_EXIT_CODE = 128, 137
_ANSWER_BYTES_MAX = 16 * 1024
_OUTPUTS = (Channel.STDOUT, Channel.STDERR)


class _EndFile(msgspec.Struct, frozen=True, rename="camel"):
    """The answer of the shim."""

    exit_code: int
    signal: int
    error: str


class LocalExecution:
    """An `Execution` of the local node."""

    def __init__(
        self,
        run: Run,
        command: Sequence[str],
        options: ExecOptions,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the program in a run; `closed` is called when it is over. OSError.

        Its shim does not answer then, or there is no room.
        """
        self._input: int | None = None
        self._outputs: dict[Channel, int] = {}
        self._terminal: int | None = None
        self._closed: Callable[[], None] = lambda: None
        self._opened: list[int] = []  # all that is ours to close
        self._end: asyncio.Future[ExecEnd] = asyncio.get_running_loop().create_future()
        self._shim = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        theirs: list[int] = []
        try:
            theirs += self._terminal_streams() if options.tty else self._pipes(options)
            _connect(self._shim, run)
            content = {"argv": command, "tty": options.tty}
            socket.send_fds(self._shim, [msgspec.json.encode(content)], theirs)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in set(theirs):
                os.close(descriptor)
        asyncio.get_running_loop().add_reader(self._shim.fileno(), self._ended)
        self._closed = closed

    def _terminal_streams(self) -> list[int]:
        ours, theirs = pty.openpty()
        self._opened.append(ours)
        os.set_blocking(ours, False)
        self._terminal = self._input = self._outputs[Channel.STDOUT] = ours
        return [theirs, theirs, theirs]

    def _pipes(self, options: ExecOptions) -> list[int]:
        """Make a pipe for each stream that is wanted; the others are the null device."""
        theirs: list[int] = []
        try:
            for channel in (Channel.STDIN, *_OUTPUTS):
                is_input = channel is Channel.STDIN
                if not (options.stdin if is_input else channel in options.outputs):
                    theirs.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
                    continue
                ours, other = self._pipe(is_input=is_input)
                theirs.append(other)
                if is_input:
                    self._input = ours
                else:
                    self._outputs[channel] = ours
        except BaseException:
            for descriptor in theirs:
                os.close(descriptor)
            raise
        return theirs

    def _pipe(self, *, is_input: bool) -> tuple[int, int]:
        """Return our end of a pipe, which does not block, and the other one."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        ours, other = (write_end, read_end) if is_input else (read_end, write_end)
        self._opened.append(ours)
        os.set_blocking(ours, False)
        with suppress(OSError):  # a user's pipes may have a bound in all (pipe(7))
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return ours, other

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._shim.fileno())
        try:
            answer = self._shim.recv(_ANSWER_BYTES_MAX)
        except OSError:
            answer = b""
        if self._end.done():
            return
        if not answer:  # the shim itself has ended, and all of its container with it
            self._end.set_result(ExecEnd(KILLED_EXIT_CODE))
            return
        end = msgspec.json.decode(answer, type=_EndFile)
        code = SIGNAL_BASE + end.signal if end.signal else end.exit_code
        self._end.set_result(ExecEnd(code, end.error))

    async def read(self, channel: Channel) -> bytes:
        """Return what the program wrote next; b"" at the end.

        What processes that it leaves behind write after its end is not waited for.
        """
        loop = asyncio.get_running_loop()
        descriptor = self._outputs[channel]
        while True:
            is_over = self._end.done()
            try:
                return os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                if is_over:
                    return b""
            except OSError:  # a terminal that no program has open any more
                return b""
            await _until(
                self._end, partial(loop.add_reader, descriptor),
                partial(loop.remove_reader, descriptor),
            )  # fmt: skip

    async def write(self, data: bytes) -> None:
        """Give the program input, as fast as it takes it; dropped when it takes no more."""
        loop = asyncio.get_running_loop()
        left, descriptor = memoryview(data), self._input
        while left and descriptor is not None and not self._end.done():
            try:
                left = left[os.write(descriptor, left) :]
                continue
            except BlockingIOError:
                pass
            except OSError:  # it has closed its input
                return
            await _until(
                self._end, partial(loop.add_writer, descriptor),
                partial(loop.remove_writer, descriptor),
            )  # fmt: skip

    def close_input(self) -> None:
        """Let the program read the end of its input; a terminal's has none."""
        if self._input is not None and self._terminal is None:
            self._opened.remove(self._input)
            os.close(self._input)
            self._input = None

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal; the kernel then signals SIGWINCH."""
        if self._terminal is not None:
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    async def wait(self) -> ExecEnd:
        """Return once the program has ended."""
        return await asyncio.shield(self._end)

    def close(self) -> None:
        """Close the streams and the connection to the shim, which ends what runs still."""
        if self._shim.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._shim.fileno())
            self._shim.close()
        while self._opened:
            os.close(self._opened.pop())
        if not self._end.done():
            self._end.set_result(ExecEnd(KILLED_EXIT_CODE))
        closed, self._closed = self._closed, lambda: None
        closed()


def _connect(made: socket.socket, run: Run) -> None:
    """Connect to the shim of a run; OSError, ConnectionRefusedError when it has ended."""
    folder = os.open(run.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        made.connect(f"/proc/self/fd/{folder}/{DOOR}")  # paths of sockets are short
    finally:
        os.close(folder)


async def _until(
    end: asyncio.Future[ExecEnd],
    begin: Callable[[Callable[[], None]], object],
    stop: Callable[[], object],
) -> None:
    """Return when a descriptor is ready, or the program has ended."""
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(_: object = None) -> None:
        if not ready.done():
            ready.set_result(None)

    begin(note)
    end.add_done_callback(note)
    try:
        await ready
    finally:
        stop()
        end.remove_done_callback(note)
