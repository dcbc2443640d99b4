"""Requests over HTTP/1.1 whose answers are read whole, on kept connections to one server.

What controllers send by the thousand. aiohttp's client spends twice the CPU on such a request
(docs/design/performance.md), and the controllers are one thread; so this part of it, and no more,
is done here. Streams and proxies stay with aiohttp (`transport.py`).

A connection carries one request at a time. It is closed when a request is given up, when a byte
follows a complete answer, when an answer comes before its request was sent whole, and when anything
else is not as it should be.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import cast

from fairlead.kube.http1 import AnswerReader, ConnectError, HttpResponse, ServerOrigin, encode
from fairlead.kube.protocol import HttpOptions


class Http1Pool:
    """The connections to one server. Make and use it in one event loop."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext | None,
        options: HttpOptions,
        prepare: Callable[[socket.socket], None],
        *,
        server_name: str = "",
    ) -> None:
        """`server` is `http(s)://host[:port][/path]`; its certificate may be of `server_name`.

        `prepare` sets the options of a new connection's socket.
        """
        self._origin = ServerOrigin.of(server)
        self._tls = tls
        self._server_name = (server_name or self._origin.host) if tls else None
        self._options = options
        self._prepare = prepare
        self._free = asyncio.Semaphore(options.connections_max)
        #: The one used last comes last.
        self._idle: list[_Connection] = []
        self._is_retired = False

    async def request(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
    ) -> HttpResponse:
        """Send a request; `target` is path and query, quoted. No time limit but for connecting.

        ConnectError; ConnectionError when the connection breaks or what comes is not one answer
        within the limits; RequestError.
        """
        data = encode(method, target, headers, origin=self._origin, body=body)
        async with self._free:
            connection = self._take()
            if connection is not None:
                try:
                    return await self._exchange(connection, data)
                except ConnectionError:
                    # The server may have closed it while our request was on its way.
                    if method != "GET" or connection.has_begun:
                        raise
            return await self._exchange(await self._connect(), data)

    def retire(self) -> None:
        """Keep no connection: those in use end with their request."""
        self._is_retired = True
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> _Connection | None:
        oldest = asyncio.get_running_loop().time() - self._options.keep_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.used_at > oldest and connection.is_silent():
                return connection
            connection.close()
        return None

    async def _exchange(self, connection: _Connection, data: bytes) -> HttpResponse:
        try:
            answer = await connection.exchange(data)
        except BaseException:
            connection.abort()
            raise
        if self._is_retired:
            connection.close()
        elif connection.is_open:
            connection.used_at = asyncio.get_running_loop().time()
            self._idle.append(connection)
        return answer

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._options.connect_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._options.answer_bytes_max),
                    self._origin.host, self._origin.port,
                    ssl=self._tls, server_hostname=self._server_name,
                )  # fmt: skip
        except OSError as error:  # TimeoutError is one
            raise ConnectError(str(error)) from error
        connection.prepare(self._prepare)
        return connection


class _Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, body_bytes_max: int) -> None:
        self.is_open = False
        self.used_at = 0.0
        #: True when something of the current answer has come.
        self.has_begun = False
        self._reader = AnswerReader(body_bytes_max)
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._poll = select.poll()

    async def exchange(self, data: bytes) -> HttpResponse:
        """Send a request and return its answer; ConnectionError."""
        if not self.is_open:
            raise ConnectionResetError("the server has closed the connection")
        self._answer = asyncio.get_running_loop().create_future()
        self.has_begun = False
        self._transport.write(data)
        try:
            return await self._answer
        finally:
            self._answer = None

    def prepare(self, prepare: Callable[[socket.socket], None]) -> None:
        """Set the options of the socket."""
        made = self._transport.get_extra_info("socket")
        self._poll.register(made, select.POLLIN)
        prepare(made)

    def is_silent(self) -> bool:
        """True when a request can be sent: open, and nothing came that was not asked for.

        What arrived and was not read yet would pass for the answer to the next request.
        """
        return self.is_open and not self._poll.poll(0)

    def close(self) -> None:
        """Close in the orderly way."""
        self.is_open = False
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.is_open = False
        self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it
        self.is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if exc is not None:
            error = ConnectionError(str(exc))
            error.__cause__ = exc
            self._fail(error)
            return
        try:
            self._finish(self._reader.end())
        except ConnectionError as error:
            self._fail(error)

    def data_received(self, data: bytes) -> None:
        self.has_begun = True
        if self._answer is None or self._answer.done():
            self.abort()  # nothing was asked: the peer is about to close, or no HTTP server
            return
        try:
            answer = self._reader.feed(data)
        except ConnectionError as error:
            self._fail(error)
            self.abort()
            return
        if answer is not None:
            if self._transport.get_write_buffer_size():
                self.abort()  # the rest of the request would follow
            elif not self._reader.is_reusable:
                self.close()
            self._finish(answer)

    def _fail(self, error: ConnectionError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _finish(self, answer: HttpResponse) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)
