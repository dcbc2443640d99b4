"""Answering `pods/<name>/portforward`: connections to what a pod listens on, through one of ours.

Two sub-protocols, both Kubernetes' own. In `v4.channel.k8s.io` the query names the ports, and each
has one connection and two channels: data, and a message when it fails (k8s.io/cri-streaming
`portforward/websocket.go`); Fairlead and the official Python client speak it. kubectl tunnels
SPDY/3.1 and opens two streams per connection, as many as it wants (`httpstream.go` there); older
clients do so on a connection without WebSocket (`spdy_sockets.py`).

A connection that does not take its data holds up the others of its WebSocket, of a tunnel once
WAITING_BYTES_MAX wait: the protocols have no windows of their own. With v4 each connection can have
a WebSocket of its own.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TypeAlias

from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import ApiError, BadRequest
from fairlead.embedded.http.streams import spdy
from fairlead.embedded.http.streams.pod_streams import StreamSource
from fairlead.embedded.http.streams.spdy import SpdyError, SpdyServer
from fairlead.embedded.http.streams.websockets import ClientFault, Socket

SPDY, V4 = "SPDY/3.1+portforward.k8s.io", "v4.channel.k8s.io"
PROTOCOLS = (SPDY, V4)
#: What SPDY without a WebSocket calls it.
SPDY_ALONE = "portforward.k8s.io"
#: Of one WebSocket: ports of v4, connections of SPDY.
PORTS_MAX, CONNECTIONS_MAX = 64, 256
#: Of one tunnel: what may wait for connections, and a message more; a piece counts as more by this.
WAITING_BYTES_MAX, _PIECE_BYTES = 1 << 20, 256
_CHUNK_BYTES = 64 * 1024

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def ports_of(texts: Sequence[str]) -> tuple[int, ...]:
    """Return the ports that a query names; BadRequest for what is none, or too many."""
    words = [word for text in texts for word in text.split(",")]
    if not 0 < len(words) <= PORTS_MAX:
        raise BadRequest(f'query parameter "ports" is required, with at most {PORTS_MAX} ports')
    return tuple(_port(word) for word in words)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 1 << 16):
        raise BadRequest(f"unable to parse {text[:40]!r} as a port")
    return int(text)


class Forwarding:
    """The connections of one WebSocket to one pod."""

    def __init__(self, socket: Socket, source: StreamSource, pod: Pod) -> None:
        self._socket = socket
        self._source = source
        self._pod = pod

    async def run(self, ports: tuple[int, ...] | None) -> None:
        """Forward these ports until all connections have ended; None: what the client opens by
        SPDY, until it goes.
        """
        if ports is None:
            await _Tunnel(self, self._socket).run()
        else:
            await self._run_channels(ports)

    async def connect(self, port: int) -> Connection | str:
        """Return a connection to the port, or why there is none."""
        try:
            return await self._source.connect(self._pod, port)
        except (OSError, ApiError) as error:
            name, uid = self._pod.metadata.name, self._pod.metadata.uid
            return f"error forwarding port {port} to pod {name}, uid {uid}: {error}"

    async def _run_channels(self, ports: tuple[int, ...]) -> None:
        """Join each port with its two channels: 2n has data, 2n + 1 what went wrong."""
        made = [await self.connect(port) for port in ports]
        writers = {2 * n: each[1] for n, each in enumerate(made) if not isinstance(each, str)}
        try:
            for channel in range(2 * len(ports)):
                await self._socket.send(struct.pack("<BH", channel, ports[channel // 2]))
            async with asyncio.TaskGroup() as group:
                receiving = group.create_task(self._receive(writers, 2 * len(ports)))
                async with asyncio.TaskGroup() as connections:
                    for number, each in enumerate(made):
                        connections.create_task(self._channel(2 * number, each))
                receiving.cancel()
        finally:
            for writer in writers.values():
                writer.close()

    async def _channel(self, channel: int, made: Connection | str) -> None:
        if isinstance(made, str):
            await self._socket.send(bytes((channel + 1,)) + made.encode())
            return
        async for data in _pieces(made[0]):
            await self._socket.send(bytes((channel,)) + data)

    async def _receive(self, writers: dict[int, asyncio.StreamWriter], count: int) -> None:
        while True:
            message = await self._socket.receive()
            channel = message[0] if message else count
            if channel >= count:
                raise ClientFault(f"channel {channel} is not open to you")
            if channel in writers:
                await _write(writers[channel], message[1:])


class _Tunnel:
    """The SPDY connection, inside a WebSocket or alone."""

    def __init__(self, forwarding: Forwarding, socket: Socket) -> None:
        self._forwarding = forwarding
        self._socket = socket
        self._spdy = SpdyServer()
        self._errors: dict[str, int] = {}  # by request: its stream for errors
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by data stream
        #: What connections are still to be given, so that none waits for another one's peer.
        self._inputs: dict[int, asyncio.Queue[spdy.Data]] = {}
        self._waiting_bytes = 0
        self._has_moved = asyncio.Event()

    async def run(self) -> None:
        """Serve streams until the client goes."""
        async with asyncio.TaskGroup() as group:
            while True:
                message = await self._socket.receive()
                try:
                    for event in self._spdy.feed(message):
                        await self._take(event, group)
                except SpdyError as error:
                    raise ClientFault(str(error)) from error

    async def _take(self, event: spdy.Event, group: asyncio.TaskGroup) -> None:
        match event:
            case spdy.Opened():
                await self._opened(event, group)
            case spdy.Data(stream) if stream in self._inputs:
                await self._hand_over(event)
            case spdy.Reset(stream) if stream in self._tasks:
                self._tasks[stream].cancel()
            case spdy.Ping(answer):
                await self._socket.send(answer)
            case spdy.Data() | spdy.Reset() | spdy.GoAway():
                return

    async def _opened(self, opened: spdy.Opened, group: asyncio.TaskGroup) -> None:
        """Accept a stream; with the second of a request its connection begins."""
        stream, headers = opened.stream, opened.headers
        request, kind = headers.get("requestid", ""), headers.get("streamtype", "")
        is_full = len(self._errors) + len(self._tasks) >= 2 * CONNECTIONS_MAX
        is_known = kind == "error" or (kind == "data" and request in self._errors)
        try:
            port = _port(headers.get("port", ""))
        except BadRequest:
            port = 0
        if is_full or not is_known or not port:
            await self._socket.send(self._spdy.reset(stream, spdy.REFUSED_STREAM))
            return
        await self._socket.send(self._spdy.reply(stream))
        if kind == "error":
            self._errors[request] = stream
            return
        errors = self._errors.pop(request)
        self._inputs[stream] = asyncio.Queue()
        self._tasks[stream] = group.create_task(self._connection(stream, errors, port))
        self._tasks[stream].add_done_callback(lambda _: self._forget(stream))

    def _forget(self, stream: int) -> None:
        del self._tasks[stream]
        inputs = self._inputs.pop(stream)
        while not inputs.empty():
            self._has_left(inputs.get_nowait())

    async def _hand_over(self, piece: spdy.Data) -> None:
        """Have a piece wait for its connection, once not too much waits for all of them."""
        while self._waiting_bytes > WAITING_BYTES_MAX:
            self._has_moved.clear()
            await self._has_moved.wait()
        if piece.stream in self._inputs:  # it may have ended meanwhile
            self._waiting_bytes += _PIECE_BYTES + len(piece.data)
            self._inputs[piece.stream].put_nowait(piece)

    def _has_left(self, piece: spdy.Data) -> None:
        self._waiting_bytes -= _PIECE_BYTES + len(piece.data)
        self._has_moved.set()

    async def _fill(self, writer: asyncio.StreamWriter, inputs: asyncio.Queue[spdy.Data]) -> None:
        """Write what comes for a connection, until cancelled."""
        while True:
            piece = await inputs.get()
            try:
                await _write(writer, piece.data, is_last=piece.is_last)
            finally:
                self._has_left(piece)

    async def _connection(self, stream: int, errors: int, port: int) -> None:
        """Carry one connection; when the pod ends it, so do both of its streams."""
        made = await self._forwarding.connect(port)
        if isinstance(made, str):
            await self._socket.send(self._spdy.data(errors, made.encode(), is_last=True))
            await self._socket.send(self._spdy.reset(stream, spdy.CANCEL))
            return
        reader, writer = made
        async with asyncio.TaskGroup() as group:
            filling = group.create_task(self._fill(writer, self._inputs[stream]))
            try:
                async for data in _pieces(reader):
                    await self._socket.send(self._spdy.data(stream, data))
                for each in (stream, errors):
                    await self._socket.send(self._spdy.data(each, b"", is_last=True))
            finally:
                filling.cancel()
                writer.close()


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield what comes, to the end of the connection, in good order or not."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            yield data


async def _write(writer: asyncio.StreamWriter, data: bytes, *, is_last: bool = False) -> None:
    """Write, as fast as the peer takes it; dropped when it has closed."""
    with suppress(OSError):
        writer.write(data)
        await writer.drain()
        if is_last:
            writer.write_eof()
