"""WebSockets to an API server: the streams of a pod, for the command line.

A client of RFC 6455 on asyncio's streams, no more of it than these sub-resources need: binary
messages, pings, closing. aiohttp's client does the same, and its import alone takes as much
processor time as all others of a shell's start together.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlencode

from fairlead.api.status import Unavailable
from fairlead.kube.http1 import AnswerReader, HttpResponse, ServerOrigin, encode
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import (
    HttpOptions,
    HttpRequest,
    error_of,
    headers_of,
    naming_credentials,
)
from fairlead.kube.sockets import probe, tls_context

#: Load balancers cut what is silent for 20 s to an hour; kubectl's sessions ping as often.
PING_SECONDS = 5.0
#: Of one message, all its frames together; API servers send 32 KiB at a time.
MESSAGE_BYTES_MAX = 64 << 20
#: What is read ahead.
_BUFFER_BYTES = 256 << 10
#: For the other side to confirm the end.
_CLOSE_SECONDS = 1.0
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FINAL, _MASKED, _SHORT, _LONG = 0x80, 0x80, 126, 127
_GOING_AWAY = struct.pack(">H", 1000)
_LOST = (ConnectionError, asyncio.IncompleteReadError, OSError)


@dataclass(frozen=True, slots=True)
class SocketServer:
    """Where sockets lead, and the credential of now; "" for none."""

    connection: Connection
    token: str


class PodSocket:
    """One WebSocket. Messages are a channel's number and bytes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: str
    ) -> None:  # fmt: skip
        """`protocol` is the one that the server chose."""
        self.protocol = protocol
        self._reader, self._writer = reader, writer
        self._room = asyncio.Lock()
        self._is_over = False

    async def send(self, channel: int, data: bytes) -> None:
        """Send one message; waits while the server takes none. Unavailable."""
        try:
            await self._write(_BINARY, bytes((channel,)) + data)
        except _LOST as error:
            raise Unavailable(f"the connection was lost: {error}") from error

    async def receive(self) -> bytes | None:
        """Return the next message; None at the end, in good order or not."""
        try:
            return await self._message()
        except _LOST:
            self._is_over = True
            return None

    async def keep_alive(self) -> None:
        """Ping until cancelled."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            try:
                await self._write(_PING, b"")
            except _LOST:
                return

    async def close(self) -> None:
        """Say that this is the end, and wait for a moment until the server has closed it.

        What still comes is not looked at: a message may have been read in part.
        """
        if not self._is_over:
            with suppress(*_LOST, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._write(_CLOSE, _GOING_AWAY)
                    while await self._reader.read(_BUFFER_BYTES):
                        pass
        self._writer.close()

    async def _message(self) -> bytes | None:
        """Return the next message, its frames joined; None when the server ends the socket."""
        parts, size = list[bytes](), 0
        while not self._is_over:
            first, second = await self._reader.readexactly(2)
            length = second & ~_MASKED
            if length == _SHORT:
                (length,) = struct.unpack(">H", await self._reader.readexactly(2))
            elif length == _LONG:
                (length,) = struct.unpack(">Q", await self._reader.readexactly(8))
            size += length
            if size > MESSAGE_BYTES_MAX or second & _MASKED:
                raise ConnectionError("the server sent what is no message of a WebSocket")
            data = await self._reader.readexactly(length)
            match first & 0x0F:
                case 0x2 | 0x0:
                    if first & _FINAL:
                        return b"".join((*parts, data)) if parts else data
                    parts.append(data)
                case 0x9:
                    size -= length
                    await self._write(_PONG, data)
                case 0xA:
                    size -= length
                case _:  # a close, or what no sub-protocol of Kubernetes has
                    self._is_over = True
                    with suppress(*_LOST):
                        await self._write(_CLOSE, _GOING_AWAY)
        return None

    async def _write(self, kind: int, data: bytes) -> None:
        """Send a frame, with a mask as a client must; waits while the server takes none."""
        if self._writer.is_closing():
            raise ConnectionError("it is closed")
        size = len(data)
        if size < _SHORT:
            head = bytes((_FINAL | kind, _MASKED | size))
        elif size < 1 << 16:
            head = struct.pack(">BBH", _FINAL | kind, _MASKED | _SHORT, size)
        else:
            head = struct.pack(">BBQ", _FINAL | kind, _MASKED | _LONG, size)
        key = os.urandom(4)
        self._writer.write(b"".join((head, key, masked(data, key))))
        async with self._room:
            await self._writer.drain()


def masked(data: bytes, key: bytes) -> bytes:
    """Return the bytes under the mask of four bytes, repeated (RFC 6455, 5.3)."""
    size = len(data)
    mask = int.from_bytes((key * (size // 4 + 1))[:size], "little")
    return (int.from_bytes(data, "little") ^ mask).to_bytes(size, "little")


@asynccontextmanager
async def pod_socket(
    server: SocketServer,
    path: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
) -> AsyncGenerator[PodSocket]:
    """Open a WebSocket to the sub-resource of a pod; ApiError, with the server's words."""
    options, connection = HttpOptions(), server.connection
    origin = ServerOrigin.of(connection.server)
    tls = tls_context(connection) if connection.server.startswith("https:") else None
    name = (connection.server_name or origin.host) if tls is not None else None
    try:
        async with asyncio.timeout(options.connect_seconds):
            reader, writer = await asyncio.open_connection(
                origin.host, origin.port, ssl=tls, server_hostname=name, limit=_BUFFER_BYTES
            )
    except OSError as error:  # TimeoutError is one
        raise Unavailable(f"no connection to {connection.server}: {error}") from error
    try:
        probe(writer.get_extra_info("socket"), dead_peer_seconds=options.dead_peer_seconds)
        # A kubelet refuses any type by name (406), since what it answers here has none.
        place = HttpRequest("GET", path, accept="*/*")
        key = base64.b64encode(os.urandom(16))
        headers = [
            *headers_of(place, connection, server.token, options.user_agent),
            ("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", key.decode()),
            ("Sec-WebSocket-Protocol", ", ".join(protocols)),
        ]  # fmt: skip
        writer.write(encode("GET", f"{path}?{urlencode(query)}", headers, origin=origin, body=None))
        try:
            async with asyncio.timeout(options.request_seconds):
                answer = await _answer(reader, options.answer_bytes_max)
        except (*_LOST, asyncio.LimitOverrunError) as error:
            raise Unavailable(f"{path}: no answer: {error}") from error
        if answer.status != 101:
            raise naming_credentials(error_of(answer, place.place, options), connection)
        accepted = base64.b64encode(hashlib.sha1(key + _ACCEPT).digest())  # noqa: S324 # RFC 6455
        protocol = answer.headers.get("sec-websocket-protocol", "")
        is_ours = answer.headers.get("sec-websocket-accept", "").encode() == accepted
        if not is_ours or (protocol and protocol not in protocols):
            raise Unavailable(f"{path}: the server did not switch to a WebSocket of this request")
        socket = PodSocket(reader, writer, protocol)
        try:
            yield socket
        finally:
            await socket.close()
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader, bytes_max: int) -> HttpResponse:
    """Return the answer to the request to switch: of one that switches the head, else all."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    version, _, rest = line.partition(" ")
    if version.startswith("HTTP/1.") and rest[:3] == "101":
        pairs = (each.partition(":") for each in lines)
        return HttpResponse(
            101, rest[4:], {name.strip().lower(): value.strip() for name, _, value in pairs}, b""
        )
    parser = AnswerReader(bytes_max)
    answer = parser.feed(head)
    while answer is None:
        data = await reader.read(_BUFFER_BYTES)
        answer = parser.feed(data) if data else parser.end()
    return answer
