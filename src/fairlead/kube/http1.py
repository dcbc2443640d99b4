"""HTTP/1.1 without I/O: the bytes of a request, and the answer in the bytes that come back.

Both senders use it, the asynchronous one of the controllers (`pool.py`) and the blocking one of the
command line (`blocking.py`), on httptools' parser.

Everything that a server can make us hold is bounded: the head, the framing of chunks with their
trailer, and the body, before and after decompression. A connection may carry another request only
while both sides agree where the next answer begins (`AnswerReader.is_reusable`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


class HttpRequestError(ValueError):
    """This would be no HTTP request."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole answer. Names of headers are in lower case; of two of a name the last is kept."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ServerOrigin:
    """Where a server's URL leads to."""

    host: str
    port: int
    #: Host and port as the URL has them: the Host header.
    authority: str
    #: What the paths of requests begin with.
    base: str

    @classmethod
    def of(cls, server: str) -> ServerOrigin:
        """Read `http(s)://host[:port][/path]`."""
        parts = urlsplit(server)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        authority = parts.netloc.rpartition("@")[2]
        return cls(parts.hostname or "", port, authority, parts.path.rstrip("/"))


def encode(
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]],
    *,
    origin: ServerOrigin,
    body: bytes | None,
) -> bytes:
    """Return the bytes of a request; `target` is path and query, quoted. RequestError."""
    lines = [f"{method} {origin.base}{target} HTTP/1.1", f"Host: {origin.authority}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if method not in METHODS or lines[0].count(" ") != 2 or not "".join(lines).isprintable():
        raise HttpRequestError("a path or a header holds a space or a control character")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


class _Incoming:
    """The answer that comes in; the parser calls `on_...`, and what these raise ends it."""

    def __init__(self, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._parser = httptools.HttpResponseParser(self)
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
        self._has_head = self._has_body = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._inflate = None

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
        self._has_body = True
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


class AnswerReader(_Incoming):
    """Reads the answers of one connection, one after the other."""

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__(body_bytes_max)
        #: False once the connection may carry no other request.
        self.is_reusable = True

    def feed(self, data: bytes) -> HttpResponse | None:
        """Take what came and return the answer once it is whole.

        ConnectionError when it is no answer within the limits; the reader is of no use then.
        """
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
                raise _refusal(error) from error
        if self._framing_bytes_left < 0:
            text = f"the answer has more than {HEAD_BYTES_MAX} bytes of head and framing"
            raise ConnectionError(text)
        if not self._is_complete:
            return None
        self.is_reusable = is_last and self._is_kept
        return self._whole()

    def take(self) -> HttpResponse | None:
        """Return what came of an answer, for one that is streamed; None before its head is whole.

        What was taken is not part of the answer, nor of its limit, any more.
        """
        if not self._has_head:
            return None
        taken = b"".join(self._body)
        self._body, self._body_bytes = [], 0
        return self._answer(taken)

    def end(self) -> HttpResponse:
        """Return the answer that the end of the connection completes; ConnectionError for none."""
        self.is_reusable = False
        if not self._has_head or _has_length(self._headers):
            raise ConnectionError("the server closed the connection")
        return self._whole()

    def _whole(self) -> HttpResponse:
        if self._inflate is not None and self._has_body and not self._inflate.eof:
            raise ConnectionError("the answer's compression is broken: it is cut off")
        answer = self._answer(b"".join(self._body))
        self._reset()
        return answer

    def _answer(self, body: bytes) -> HttpResponse:
        status, reason = self._parser.get_status_code(), self._reason.decode("latin-1")
        return HttpResponse(status, reason, self._headers, body)


def _refusal(error: Exception) -> ConnectionError:
    """Return the error for what the parser raised over what the server sent."""
    cause = error.__context__
    if isinstance(cause, ConnectionError):  # raised in a method of ours
        return cause
    if isinstance(error, httptools.HttpParserUpgrade):
        return ConnectionError("the server switched to another protocol, unasked")
    return ConnectionError(f"this is no HTTP: {error}")


def _has_length(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers
