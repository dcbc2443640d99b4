"""WebSockets of the API server: the handshake, and noticing that a client is gone.

Which sub-protocols a path speaks is its own; what all share is here: bounds on messages, no
compression, back-pressure both ways, and a look at the connection a few times a second. That look
matters when nothing is read since a program does not take its input: a closed connection has no
other way to show then.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from fairlead.api.status import BadRequest

#: A message, as golang.org/x/net/websocket bounds it for Kubernetes: tools send archives whole.
MESSAGE_BYTES_MAX = 32 << 20
CLOSE_SECONDS_MAX = 5.0
_LOOK_SECONDS = 0.5
_REASON_BYTES_MAX = 120  # of 125 that a control frame holds


class ClientGone(Exception):
    """The client has closed the connection, or the server is stopping."""


class ClientFault(Exception):
    """The client breaks the protocol; the text goes into the closing frame."""


def chosen_protocol(request: web.BaseRequest, known: Sequence[str]) -> str:
    """Return the first protocol of the client's that is known, the last known one if it names none.

    BadRequest when this is no WebSocket's handshake, or for other protocols.
    """
    if request.headers.get("Upgrade", "").lower() != "websocket" or request.method != "GET":
        raise BadRequest("this path speaks WebSocket: send an upgrade request by GET")
    header = request.headers.get("Sec-WebSocket-Protocol", "")
    asked = [name.strip() for name in header.split(",") if name.strip()]
    chosen = next((name for name in asked if name in known), known[-1] if not asked else "")
    if not chosen:
        raise BadRequest(
            f"unsupported WebSocket protocol '{', '.join(asked)[:80]}', "
            f"accepted: {', '.join(known)}"
        )
    return chosen


class Socket:
    """One WebSocket; `run` does its work until that ends or the client goes."""

    def __init__(self, request: web.BaseRequest, is_stopping: Callable[[], bool]) -> None:
        self._request = request
        self._is_stopping = is_stopping
        self._response = web.WebSocketResponse()

    async def open(self, protocol: str) -> None:
        """Answer the handshake; `protocol` is one that the client named, or its default."""
        is_named = protocol in self._request.headers.get("Sec-WebSocket-Protocol", "")
        self._response = web.WebSocketResponse(
            protocols=(protocol,) if is_named else (), compress=False,
            timeout=CLOSE_SECONDS_MAX, max_msg_size=MESSAGE_BYTES_MAX,
        )  # fmt: skip
        await self._response.prepare(self._request)

    async def send(self, data: bytes) -> None:
        """Send one message; waits while the client does not read. ClientGone."""
        try:
            await self._response.send_bytes(data)
        except (ConnectionError, RuntimeError) as error:  # closed, or closing
            raise ClientGone from error

    async def receive(self) -> bytes:
        """Return the next message, of text as UTF-8; ClientGone at the end."""
        message = await self._response.receive()
        match message.type:
            case WSMsgType.BINARY:
                return message.data
            case WSMsgType.TEXT:
                return message.data.encode()
            case _:
                raise ClientGone

    async def run(self, work: Coroutine[Any, Any, None]) -> web.StreamResponse:
        """Do the work, to its end or until the client goes, and close the connection."""
        fault = ""
        try:
            async with asyncio.TaskGroup() as group:
                looking = group.create_task(self._look())
                working = group.create_task(work)
                working.add_done_callback(lambda _: looking.cancel())
        except* ClientGone:
            pass
        except* ClientFault as group_:
            fault = str(group_.exceptions[0])
        return await self.close(fault)

    async def close(self, fault: str) -> web.StreamResponse:
        """Close the connection; `fault` is what the client did wrong, or empty."""
        code = WSCloseCode.PROTOCOL_ERROR if fault else WSCloseCode.OK
        await self._response.close(code=code, message=fault.encode()[:_REASON_BYTES_MAX])
        return self._response

    async def _look(self) -> None:
        """Raise ClientGone once the client has gone or the server stops."""
        transport = self._request.transport
        made = transport.get_extra_info("socket") if transport is not None else None
        poll = select.poll()
        if made is not None and made.fileno() >= 0:
            poll.register(made.fileno(), select.POLLRDHUP)
        while True:
            if transport is None or transport.is_closing() or self._is_stopping() or poll.poll(0):
                raise ClientGone
            await asyncio.sleep(_LOOK_SECONDS)
