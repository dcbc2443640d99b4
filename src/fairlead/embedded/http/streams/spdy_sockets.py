"""Connections that HTTP upgrades to SPDY/3.1: `exec`, `attach` and `port-forward` before WebSocket.

`kubectl` below 1.30, and programs that call `remotecommand.NewSPDYExecutor` of client-go in any
version, know nothing else. A session has a stream for each of its channels, named by the header
`streamtype`; the client opens them, all before the first data (k8s.io/client-go
`tools/remotecommand/v4.go`, k8s.io/kubelet `pkg/cri/streaming/remotecommand/httpstream.go`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web

from fairlead.api.status import BadRequest
from fairlead.embedded.http.streams import spdy
from fairlead.embedded.http.streams.pod_streams import CLOSE, Channel, ExecOptions
from fairlead.embedded.http.streams.spdy import SpdyError, SpdyServer
from fairlead.embedded.http.streams.websockets import ClientFault, ClientGone, Socket

UPGRADE = "SPDY/3.1"
PROTOCOL_HEADER = "X-Stream-Protocol-Version"
#: For the client to open its streams, as kubelet waits.
OPEN_SECONDS_MAX = 30.0
SIZE_BYTES_MAX = 1024
_PIECE_BYTES = 64 * 1024


def is_spdy(request: web.BaseRequest) -> bool:
    """Return whether the request asks for SPDY."""
    return request.headers.get("Upgrade", "").lower() == UPGRADE.lower()


def require_protocol(request: web.BaseRequest, accepted: str) -> str:
    """Return `accepted`; BadRequest where the client names other versions only, or none."""
    texts = request.headers.getall(PROTOCOL_HEADER, ())
    asked = [name.strip() for text in texts for name in text.split(",")]
    if accepted not in asked:
        raise BadRequest(
            f"unable to upgrade: unable to negotiate protocol: client supports "
            f"[{' '.join(asked)[:80]}], server accepts [{accepted}]"
        )
    return accepted


class SpdySocket(Socket):
    """The connection as pieces of bytes, cut anywhere."""

    def __init__(self, request: web.BaseRequest, is_stopping: Callable[[], bool]) -> None:
        """See `Socket`."""
        super().__init__(request, is_stopping)
        self._incoming = asyncio.StreamReader(limit=_PIECE_BYTES)
        self._answer = web.StreamResponse(status=101)

    async def open(self, protocol: str) -> None:
        """Answer the upgrade."""
        self._answer.headers.update(
            {"Connection": "Upgrade", "Upgrade": UPGRADE, PROTOCOL_HEADER: protocol}
        )
        if self._request.transport is None:
            raise ClientGone
        self._incoming.set_transport(self._request.transport)
        # It gets all further bytes. aiohttp names the one parser that it has itself.
        self._request.protocol.set_parser(cast("Any", self))
        await self._answer.prepare(self._request)

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes of the connection; called by aiohttp. It never ends by itself."""
        self._incoming.feed_data(data)
        return False, b""

    def feed_eof(self) -> None:
        """Take the end of the connection; called by aiohttp."""
        self._incoming.feed_eof()

    async def send(self, data: bytes) -> None:
        """See `Socket`."""
        try:
            await self._answer.write(data)
        except ConnectionError as error:
            raise ClientGone from error

    async def receive(self) -> bytes:
        """Return what comes next; ClientGone at the end."""
        if data := await self._incoming.read(_PIECE_BYTES):
            return data
        raise ClientGone

    async def close(self, fault: str) -> web.StreamResponse:
        """End the connection; SPDY has no words for a fault."""
        del fault
        self._answer.force_close()
        return self._answer


class SpdySession(SpdySocket):
    """The channels of a session, each a stream; messages are those of `v5.channel.k8s.io`."""

    def __init__(
        self, request: web.BaseRequest, is_stopping: Callable[[], bool], options: ExecOptions
    ) -> None:
        """See `Socket`."""
        super().__init__(request, is_stopping)
        inputs = ((Channel.STDIN, options.stdin), (Channel.RESIZE, options.tty))
        wanted = (Channel.ERROR, *options.outputs, *(each for each, is_open in inputs if is_open))
        self._wanted = {channel.name.lower(): channel for channel in wanted}
        self._outputs = options.outputs
        self._spdy = SpdyServer()
        self._streams: dict[Channel, int] = {}
        self._messages = deque[bytes]()
        self._size = b""

    async def send(self, data: bytes) -> None:
        """Send a message, the first once all streams are open; that of ERROR is the last."""
        if self._wanted:
            await self._be_opened()
        channel, content = Channel(data[0]), data[1:]
        if not content:
            return
        is_end = channel is Channel.ERROR
        ends = (self._frame(each, b"", is_last=True) for each in (self._outputs if is_end else ()))
        await super().send(b"".join(ends) + self._frame(channel, content, is_last=is_end))

    def _frame(self, channel: Channel, data: bytes, *, is_last: bool) -> bytes:
        return self._spdy.data(self._streams[channel], data, is_last=is_last)

    async def receive(self) -> bytes:
        """Return the next message: input, its end, a size."""
        while not self._messages:
            await self._read()
        return self._messages.popleft()

    async def _be_opened(self) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                while self._wanted:
                    await self._read()
        except TimeoutError:
            raise ClientFault("timed out waiting for client to create streams") from None

    async def _read(self) -> None:
        piece = await super().receive()
        try:
            for event in self._spdy.feed(piece):
                await self._take(event)
        except SpdyError as error:
            raise ClientFault(str(error)) from error

    async def _take(self, event: spdy.Event) -> None:
        match event:
            case spdy.Opened(stream, headers):
                channel = self._wanted.pop(headers.get("streamtype", ""), None)
                if channel is None:
                    await super().send(self._spdy.reset(stream, spdy.REFUSED_STREAM))
                    return
                self._streams[channel] = stream
                await super().send(self._spdy.reply(stream))
            case spdy.Data(stream, data, is_last):
                self._take_data(stream, data, is_last=is_last)
            case spdy.Reset(stream):
                self._take_data(stream, b"", is_last=True)
            case spdy.Ping(answer):
                await super().send(answer)
            case spdy.GoAway():
                return

    def _take_data(self, stream: int, data: bytes, *, is_last: bool) -> None:
        if self._wanted:
            raise ClientFault("data before all streams are open")
        if stream == self._streams.get(Channel.STDIN):
            if data:
                self._messages.append(bytes((Channel.STDIN,)) + data)
            if is_last:
                self._messages.append(bytes((CLOSE, Channel.STDIN)))
        elif stream == self._streams.get(Channel.RESIZE):
            *sizes, self._size = (self._size + data).split(b"\n")
            self._messages.extend(bytes((Channel.RESIZE,)) + size for size in sizes if size)
            if len(self._size) > SIZE_BYTES_MAX:
                raise ClientFault("no size of a terminal")
