"""Answering `pods/<name>/exec` and `attach` over WebSocket, as Kubernetes 1.36 does.

A message is a channel's number and bytes of it (kubernetes `pkg/util/remotecommand`). At the end
the error channel has a Status with the exit code. In v5 a client ends its input with the message
255 and the channel; in v4 it cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from fairlead.api.status import Status, StatusCause, StatusDetails
from fairlead.embedded.http.streams.pod_streams import (
    CLOSE,
    Channel,
    ExecEnd,
    ExecOptions,
    Execution,
)
from fairlead.embedded.http.streams.websockets import ClientFault, Socket

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
PROTOCOLS = (V5, V4)


class _Size(msgspec.Struct, frozen=True, rename="pascal"):
    """The message of the resize channel."""

    width: int
    height: int


class StreamSession:
    """One program, or one container's output, and the client that it is joined with."""

    def __init__(self, socket: Socket, protocol: str, options: ExecOptions) -> None:
        self._socket = socket
        self._protocol = protocol
        self._options = options

    async def run(self, execution: Execution) -> None:
        """Copy both ways until the program has ended and all that it wrote is sent."""
        try:
            # As upstream: an empty message, so that the client sees that all is well.
            await self._send((*self._options.outputs, Channel.ERROR)[0], b"")
            async with asyncio.TaskGroup() as group:
                receiving = group.create_task(self._receive(execution))
                async with asyncio.TaskGroup() as outputs:
                    for channel in self._options.outputs:
                        outputs.create_task(self._copy(execution, channel))
                end = await execution.wait()
                receiving.cancel()
            await self._send(Channel.ERROR, status_of(end).encode())
        finally:
            execution.close()

    async def _send(self, channel: Channel, data: bytes) -> None:
        await self._socket.send(bytes((channel,)) + data)

    async def _copy(self, execution: Execution, channel: Channel) -> None:
        while data := await execution.read(channel):
            await self._send(channel, data)
            await asyncio.sleep(0)

    async def _receive(self, execution: Execution) -> None:
        while True:
            message = await self._socket.receive()
            channel = message[0] if message else -1
            if channel == Channel.STDIN and self._options.stdin:
                await execution.write(message[1:])
            elif channel == Channel.RESIZE and self._options.tty:
                _resize(execution, message[1:])
            elif channel == CLOSE and self._protocol == V5 and len(message) == 2:
                if message[1] == Channel.STDIN:
                    execution.close_input()
            elif len(message) > 1:  # empty ones are allowed on any channel
                raise ClientFault(f"channel {channel} is not open to you")


def _resize(execution: Execution, message: bytes) -> None:
    try:
        size = msgspec.json.decode(message, type=_Size)
    except ValueError as error:
        raise ClientFault(f"no size of a terminal: {error}") from error
    if not (0 < size.width < 1 << 16 and 0 < size.height < 1 << 16):
        return  # a window that is folded away
    execution.resize(size.width, size.height)


def status_of(end: ExecEnd) -> Status:
    """Return what the error channel says of an end; as kubelet words it."""
    if end.error:
        return Status(
            status="Failure", reason="InternalError", code=500,
            message=f"Internal error occurred: error executing command in container: {end.error}",
        )  # fmt: skip
    if not end.exit_code:
        return Status(status="Success")
    cause = StatusCause(reason="ExitCode", message=str(end.exit_code))
    return Status(
        status="Failure", reason="NonZeroExitCode", details=StatusDetails(causes=(cause,)),
        message=f"command terminated with non-zero exit code: exit status {end.exit_code}",
    )  # fmt: skip


class Attached:
    """What a container writes from now on, as an `Execution`. It takes no input."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    async def read(self, channel: Channel) -> bytes:
        """Return what it writes next; a log is one stream, and comes as stdout."""
        return await anext(self._pieces, b"") if channel is Channel.STDOUT else b""

    async def write(self, data: bytes) -> None:
        """Drop it: the program's input is closed."""

    def close_input(self) -> None:
        """Do nothing."""

    def resize(self, columns: int, rows: int) -> None:
        """Do nothing."""

    async def wait(self) -> ExecEnd:
        """Return at once: it is asked when the output has ended."""
        return ExecEnd(0)

    def close(self) -> None:
        """Do nothing: who opened the log closes it."""


async def attach(session: StreamSession, pieces: AsyncIterator[bytes]) -> None:
    """Send a log's pieces until they end, and close them."""
    try:
        await session.run(Attached(pieces))
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
