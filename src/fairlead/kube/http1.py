"""Requests over HTTP/1.1 whose answers are read whole, on kept connections to one server.

What controllers send by the thousand. aiohttp's client spends twice the CPU on such a request
(docs/design/performance.md), and the controllers are one thread; so this part of it, and no more,
is done here on httptools' parser. Streams and proxies stay with aiohttp (`transport.py`).

A connection carries one request at a time and is kept only while both sides agree where the next
answer begins. It is closed when a request is given up, when a byte follows a complete answer, when
an answer comes before its request was sent whole, and when anything else is not as it should be.
Everything that a server can make us hold is bounded: the head, the framing of chunks with their
trailer, and the body, before and after decompression.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

#: Of one answer and those that announce it; API servers send less than a kilobyte.
HEAD_BYTES_MAX = 64 * 1024
#: The size line of a chunk with its line ends and extensions, on average.
CHUNK_FRAMING_BYTES_MAX = 64
#: HEAD and CONNECT are missing: their answers have no body, whatever the head says.
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
_GZIP = 16 + zlib.MAX_WBITS  # as `zlib.decompressobj` has it


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
    #: Of one answer's body, compressed or not.
    body_bytes_max: int
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

        ConnectError; ConnectionError when the connection breaks or what comes is not one answer
        within the limits; RequestError.
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
        if method not in METHODS or lines[0].count(" ") != 2 or not "".join(lines).isprintable():
            raise RequestError("a path or a header holds a space or a control character")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")

    def _take(self) -> _Connection | None:
        oldest = asyncio.get_running_loop().time() - self._options.keep_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.used_at > oldest and connection.is_silent():
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
                    lambda: _Connection(self._options.body_bytes_max),
                    self._host, self._port, ssl=self._tls, server_hostname=self._server_name,
                )  # fmt: skip
        except OSError as error:  # TimeoutError is one
            raise ConnectError(str(error)) from error
        connection.prepare(self._options.prepare)
        return connection


class _Connection(asyncio.Protocol):
    """One connection. The methods `on_...` are called by the parser; what they raise ends it."""

    def __init__(self, body_bytes_max: int) -> None:
        self.is_open = False
        self.used_at = 0.0
        #: True when something of the current answer has come.
        self.has_begun = False
        self._body_bytes_max = body_bytes_max
        self._answer: asyncio.Future[Answer] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._poll = select.poll()
        self._reset()

    def _reset(self) -> None:
        """Prepare for the next answer; the parser does so by itself."""
        #: What may still come beside the body.
        self._framing_bytes_left = HEAD_BYTES_MAX
        self._is_complete = self._is_kept = False
        self._reset_head()

    def _reset_head(self) -> None:
        self._reason = b""
        self._headers: dict[str, str] = {}
        self._has_head = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._inflate = None

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
        if exc is None and self._has_head and not _has_length(self._headers):
            self._finish()  # its end is the end of the answer
        self._fail(exc if isinstance(exc, OSError) else None)

    def data_received(self, data: bytes) -> None:
        self.has_begun = True
        if self._answer is None or self._answer.done():
            self.abort()  # nothing was asked: the peer is about to close, or no HTTP server
            return
        self._framing_bytes_left -= len(data)
        is_last = False
        try:
            # The parser does not say where an answer ends, and skips line ends behind it. One that
            # is complete before the last byte of what came is followed by something.
            self._parser.feed_data(memoryview(data)[:-1])
            if not self._is_complete:
                self._parser.feed_data(data[-1:])
                is_last = self._is_complete
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_complete:
                self._refuse(error)
                return
        if self._framing_bytes_left < 0:
            text = f"the answer has more than {HEAD_BYTES_MAX} bytes of head and framing"
            self._refuse(ConnectionError(text))
        elif self._is_complete:
            is_sent = self._transport.get_write_buffer_size() == 0
            if not (is_last and is_sent):
                self.abort()
            elif not self._is_kept:
                self.close()
            self._finish()

    def _refuse(self, error: Exception) -> None:
        """End the request and the connection because of what the server sent."""
        cause = error.__context__
        if isinstance(error, httptools.HttpParserUpgrade):
            error = ConnectionError("the server switched to another protocol, unasked")
        elif isinstance(cause, ConnectionError):  # raised in a method of ours
            error = cause
        elif not isinstance(error, ConnectionError):
            error = ConnectionError(f"this is no HTTP: {error}")
        self._fail(error)
        self.abort()

    def _fail(self, error: OSError | None) -> None:
        if self._answer is not None and not self._answer.done():
            text = "the server closed the connection"
            broken = ConnectionError(str(error) if error is not None else text)
            broken.__cause__ = error
            self._answer.set_exception(broken)

    def _finish(self) -> None:
        if self._answer is None or self._answer.done():
            return
        if self._inflate is not None and self._body and not self._inflate.eof:
            self._fail(ConnectionError("the answer's compression is broken: it is cut off"))
            self.abort()
            return
        status, reason = self._parser.get_status_code(), self._reason.decode("latin-1")
        self._answer.set_result(Answer(status, reason, self._headers, b"".join(self._body)))
        self._reset()

    # httptools.HttpResponseParser

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise ConnectionError("another answer follows")

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # a trailer says nothing that we read
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True
        encoding = self._headers.get("content-encoding")
        if encoding is None:
            return
        if encoding.lower() != "gzip":
            raise ConnectionError(f"the answer's compression is unknown: {encoding[:40]}")
        self._inflate = zlib.decompressobj(_GZIP)

    def on_chunk_header(self) -> None:
        self._framing_bytes_left += CHUNK_FRAMING_BYTES_MAX

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._framing_bytes_left += size
        if self._inflate is not None:
            try:
                body = self._inflate.decompress(body, self._body_bytes_max - self._body_bytes + 1)
            except zlib.error as error:
                raise ConnectionError(f"the answer's compression is broken: {error}") from error
            if self._inflate.unused_data:
                raise ConnectionError("the answer's compression is broken: something follows it")
        self._body_bytes += max(size, len(body))
        if self._body_bytes > self._body_bytes_max:
            raise ConnectionError(f"the answer has more than {self._body_bytes_max} bytes")
        self._body.append(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101:
            raise ConnectionError("the server switched to another protocol, unasked")
        if status < 200:  # informational: the answer comes after it
            self._reset_head()
            return
        self._is_complete = True
        self._is_kept = self._parser.should_keep_alive()


def _has_length(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers
