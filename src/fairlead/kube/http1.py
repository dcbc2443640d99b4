"""Requests over HTTP/1.1 whose answers are read whole, on kept connections to one server.

What controllers send by the thousand. aiohttp's client spends twice the CPU on such a request
(docs/design/performance.md), and the controllers are one thread; so this part of it, and no more,
is done here on httptools' parser. Streams and proxies stay with aiohttp (`transport.py`). A
connection carries one request at a time; whoever gives up on a request closes its connection.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

#: Of one answer; servers of the field send less than a kilobyte.
HEAD_BYTES_MAX = 256 * 1024
_GZIP = 16 + zlib.MAX_WBITS  # as `zlib.decompress` has it


class ConnectError(OSError):
    """No connection was made; the cause says why."""


class RequestError(ValueError):
    """This would be no HTTP request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Names of headers are in lower case; of two of a name the last is kept."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Http1Options:
    """Limits of a pool."""

    connections_max: int
    connect_seconds: float
    #: A connection that was not used for so long is not used again.
    keep_seconds: float
    #: Sets the options of a new connection's socket.
    prepare: Callable[[socket.socket], None]


class Http1Pool:
    """The connections to one server. Make and use it in one event loop."""

    def __init__(
        self, server: str, tls: ssl.SSLContext | None, options: Http1Options, server_name: str = ""
    ) -> None:
        """`server` is `http(s)://host[:port][/path]`; its certificate may be of `server_name`."""
        parts = urlsplit(server)
        self._host, self._port = parts.hostname or "", parts.port or (443 if tls else 80)
        self._netloc, self._base = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._tls = tls
        self._server_name = (server_name or self._host) if tls else None
        self._options = options
        self._free = asyncio.Semaphore(options.connections_max)
        #: The one used last comes last.
        self._idle: list[_Connection] = []
        self._is_retired = False

    async def request(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Send a request; `target` is path and query, quoted. No time limit but for connecting.

        ConnectError; ConnectionError when the connection breaks or what comes is not HTTP;
        RequestError.
        """
        data = self._encode(method, target, headers, body)
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

    def _encode(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        lines = [f"{method} {self._base}{target} HTTP/1.1", f"Host: {self._netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        text = "\r\n".join(lines)
        ends = len(lines) - 1
        if text.count("\n") != ends or text.count("\r") != ends or lines[0].count(" ") != 2:
            raise RequestError("a path or a header holds a space or a line end")
        return text.encode() + b"\r\n\r\n" + (body or b"")

    def _take(self) -> _Connection | None:
        oldest = asyncio.get_running_loop().time() - self._options.keep_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.used_at > oldest:
                return connection
            connection.close()
        return None

    async def _exchange(self, connection: _Connection, data: bytes) -> Answer:
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
                    _Connection, self._host, self._port, ssl=self._tls,
                    server_hostname=self._server_name,
                )  # fmt: skip
        except OSError as error:  # TimeoutError is one
            raise ConnectError(str(error)) from error
        connection.prepare(self._options.prepare)
        return connection


class _Connection(asyncio.Protocol):
    """One connection. The methods `on_...` are called by the parser."""

    def __init__(self) -> None:
        self.is_open = False
        self.used_at = 0.0
        #: True when something of the current answer has come.
        self.has_begun = False
        self._answer: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        """Forget the answer that was read; the parser goes on with the next one by itself."""
        self._reason = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._has_head = False
        self._parts: list[bytes] = []

    async def exchange(self, data: bytes) -> Answer:
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
        prepare(self._transport.get_extra_info("socket"))

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
        if exc is None and self._has_head and not _has_length(self._headers):
            self._complete()  # its end is the end of the answer
        self._fail(exc if isinstance(exc, OSError) else None)

    def data_received(self, data: bytes) -> None:
        self.has_begun = True
        if self._answer is None:
            self.abort()  # nothing was asked: the peer is about to close, or no HTTP server
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"this is no HTTP: {error}"))
            self.abort()

    def _fail(self, error: OSError | None) -> None:
        if self._answer is not None and not self._answer.done():
            text = "the server closed the connection"
            broken = ConnectionError(str(error) if error is not None else text)
            broken.__cause__ = error
            self._answer.set_exception(broken)

    # httptools.HttpResponseParser

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES_MAX:
            self._fail(ConnectionError(f"the answer's head is longer than {HEAD_BYTES_MAX} bytes"))
            self.abort()
            return
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # informational: the answer comes after it
            self._reset()
            return
        if not self._parser.should_keep_alive():
            self.close()
        self._complete()

    def _complete(self) -> None:
        answer, body = self._answer, b"".join(self._parts)
        if answer is None or answer.done():
            return
        headers = self._headers
        try:
            if headers.get("content-encoding") == "gzip":
                body = zlib.decompress(body, _GZIP)
        except zlib.error as error:
            self._fail(ConnectionError(f"the answer's compression is broken: {error}"))
            return
        status = self._parser.get_status_code()
        answer.set_result(Answer(status, self._reason.decode("latin-1"), headers, body))
        self._reset()


def _has_length(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers
