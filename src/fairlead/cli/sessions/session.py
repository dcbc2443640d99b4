"""A program beside a member, joined with this process's streams or with its terminal.

The terminal is in raw mode while the program has one, so that keys, Ctrl-C among them, reach the
program; it is restored whatever ends the session.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from types import FrameType

import msgspec

from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import PODS
from fairlead.api.status import InternalError, Status, Unavailable
from fairlead.input.errors import Code, fail
from fairlead.kube.websocket import PodSocket, SocketServer, pod_socket
from fairlead.terminal import printable

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
CHUNK_BYTES = 64 * 1024
MESSAGE_MAX = 2_000
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
Write = Callable[[bytes], object]
Given = bool | bytes | AsyncGenerator[bytes]


@dataclass(frozen=True, slots=True)
class Streams:
    """What is joined with the program: this process's stdin, a text or nothing; and where output
    goes.

    `sizes` are those of a terminal that is not this process's own, columns and lines. `until_room`
    is awaited after each piece of output.
    """

    stdin: Given
    tty: bool
    out: Write
    error: Write
    sizes: AsyncGenerator[tuple[int, int]] | None = None
    until_room: Callable[[], Awaitable[object]] | None = None


async def run_session(
    server: SocketServer, pod: Pod, command: Sequence[str], streams: Streams
) -> int:
    """Run a program beside the pod's first container; return its exit code. ApiError, CliError."""
    query = [("container", pod.spec.containers[0].name), ("stdout", "true")]
    query += [("command", word) for word in command]
    wanted = (("stdin", bool(streams.stdin)), ("tty", streams.tty), ("stderr", not streams.tty))
    query += [(name, "true") for name, is_wanted in wanted if is_wanted]
    path = PODS.path(*pod.metadata.key, "exec")
    protocols = (V5, V4)
    try:
        async with (
            pod_socket(server, path, query, protocols) as socket,
            asyncio.TaskGroup() as group,
        ):
            return await _joined(socket, streams, group)
    except BaseExceptionGroup as errors:  # of the group: what ended it comes first
        raise errors.exceptions[0] from errors


async def _joined(socket: PodSocket, streams: Streams, group: asyncio.TaskGroup) -> int:
    beside = [group.create_task(socket.keep_alive())]
    if streams.stdin:
        beside.append(group.create_task(_send_input(socket, streams.stdin)))
    if streams.tty:
        sizes = streams.sizes or _own_sizes()
        beside.append(group.create_task(_send_sizes(socket, sizes)))
    try:
        return await _receive(socket, streams)
    finally:
        for task in beside:
            task.cancel()


async def _receive(socket: PodSocket, streams: Streams) -> int:
    """Write what comes until the program has ended; Unavailable when the end does not come."""
    while (message := await socket.receive()) is not None:
        channel, data = message[:1], message[1:]
        if channel == bytes((_STDOUT,)):
            streams.out(data)
        elif channel == bytes((_STDERR,)):
            streams.error(data)
        elif channel == bytes((_ERROR,)) and data:
            return exit_code_of(data)
        if streams.until_room is not None:
            await streams.until_room()
    raise Unavailable("the connection was lost before the command ended")


def exit_code_of(data: bytes) -> int:
    """Return the exit code of a status; CliError when the program could not be run."""
    try:
        status = msgspec.json.decode(data, type=Status)
    except ValueError as error:
        raise InternalError(f"the server's status cannot be read: {error}") from error
    if status.status == "Success":
        return 0
    causes = status.details.causes if status.details is not None else ()
    for cause in causes:
        if cause.reason == "ExitCode" and cause.message.isascii() and cause.message.isdigit():
            return int(cause.message)
    raise fail(Code.REFUSED, printable(status.message, MESSAGE_MAX))


async def _send_input(socket: PodSocket, given: Given) -> None:
    try:
        if isinstance(given, bytes):
            await socket.send(_STDIN, given)
        elif not isinstance(given, bool):
            async for data in given:
                await socket.send(_STDIN, data)
        else:
            descriptor = sys.stdin.fileno()
            while data := await read_ready(descriptor):
                await socket.send(_STDIN, data)
    except Unavailable:
        return  # the reading side knows why
    if socket.protocol == V5:
        await socket.send(_CLOSE, bytes((_STDIN,)))


async def read_ready(descriptor: int, bytes_max: int = CHUNK_BYTES) -> bytes:
    """Return what can be read next, of a file at once."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except PermissionError:  # a regular file
        return os.read(descriptor, bytes_max)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, bytes_max)


async def _send_sizes(socket: PodSocket, sizes: AsyncGenerator[tuple[int, int]]) -> None:
    async with aclosing(sizes):
        async for columns, lines in sizes:
            content = msgspec.json.encode({"Width": columns, "Height": lines})
            await socket.send(_RESIZE, content)


async def _own_sizes() -> AsyncGenerator[tuple[int, int]]:
    """Yield the size of this process's terminal, now and when it changes."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    changed.set()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            yield os.get_terminal_size(sys.stdin.fileno())  # $COLUMNS may be of another one
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextmanager
def ended_by_signals() -> Generator[None]:
    """Have a terminal that goes, and SIGTERM, end what runs as Ctrl-C does."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, _end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def raw_terminal() -> Generator[None]:
    """Have stdin, a terminal, pass keys on as they are; restore it at the end."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    with ended_by_signals():
        tty.setraw(descriptor, termios.TCSADRAIN)  # what was typed ahead stays
        try:
            yield
        finally:
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _end(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
