"""The frames of SPDY/3.1 as clients of Kubernetes send them, server's side, without I/O.

kubectl tunnels SPDY through a WebSocket for port-forward (KEP-4006); older clients upgrade the
connection itself, for sessions too (`spdy_sockets.py`). What neither uses is passed over
(SETTINGS, HEADERS, WINDOW_UPDATE: neither side's library counts windows, so the transport's own
back-pressure is all there is). Source: "SPDY Protocol - Draft 3.1", chromium.org; the peer is
github.com/moby/spdystream.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

CONTROL_BYTES_MAX = HEADERS_BYTES_MAX = 64 * 1024
_VERSION, _FIN = 3, 1
REFUSED_STREAM, CANCEL = 3, 5
_HEAD_BYTES = 8
#: What both sides have "seen" before the first headers.
_DICTIONARY = (
    b"\x00\x00\x00\x07options\x00\x00\x00\x04head\x00\x00\x00\x04post\x00\x00\x00\x03put\x00\x00"
    b"\x00\x06delete\x00\x00\x00\x05trace\x00\x00\x00\x06accept\x00\x00\x00\x0eaccept-charset\x00"
    b"\x00\x00\x0faccept-encoding\x00\x00\x00\x0faccept-language\x00\x00\x00\x0daccept-ranges\x00"
    b"\x00\x00\x03age\x00\x00\x00\x05allow\x00\x00\x00\x0dauthorization\x00\x00\x00\x0dcache-contr"
    b"ol\x00\x00\x00\x0aconnection\x00\x00\x00\x0ccontent-base\x00\x00\x00\x10content-encoding\x00"
    b"\x00\x00\x10content-language\x00\x00\x00\x0econtent-length\x00\x00\x00\x10content-location"
    b"\x00\x00\x00\x0bcontent-md5\x00\x00\x00\x0dcontent-range\x00\x00\x00\x0ccontent-type\x00\x00"
    b"\x00\x04date\x00\x00\x00\x04etag\x00\x00\x00\x06expect\x00\x00\x00\x07expires\x00\x00\x00"
    b"\x04from\x00\x00\x00\x04host\x00\x00\x00\x08if-match\x00\x00\x00\x11if-modified-since\x00"
    b"\x00\x00\x0dif-none-match\x00\x00\x00\x08if-range\x00\x00\x00\x13if-unmodified-since\x00\x00"
    b"\x00\x0dlast-modified\x00\x00\x00\x08location\x00\x00\x00\x0cmax-forwards\x00\x00\x00\x06pra"
    b"gma\x00\x00\x00\x12proxy-authenticate\x00\x00\x00\x13proxy-authorization\x00\x00\x00\x05rang"
    b"e\x00\x00\x00\x07referer\x00\x00\x00\x0bretry-after\x00\x00\x00\x06server\x00\x00\x00\x02te"
    b"\x00\x00\x00\x07trailer\x00\x00\x00\x11transfer-encoding\x00\x00\x00\x07upgrade\x00\x00\x00"
    b"\x0auser-agent\x00\x00\x00\x04vary\x00\x00\x00\x03via\x00\x00\x00\x07warning\x00\x00\x00\x10"
    b"www-authenticate\x00\x00\x00\x06method\x00\x00\x00\x03get\x00\x00\x00\x06status\x00\x00\x00"
    b"\x06200 OK\x00\x00\x00\x07version\x00\x00\x00\x08HTTP/1.1\x00\x00\x00\x03url\x00\x00\x00\x06"
    b"public\x00\x00\x00\x0aset-cookie\x00\x00\x00\x0akeep-alive\x00\x00\x00\x06origin100101201202"
    b"205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Author"
    b"itative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 For"
    b"bidden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Fe"
    b"b Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTch"
    b"unked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/pla"
    b"in,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf"
    b"-,*,enq=0."
)


class ControlFrame(IntEnum):
    """The control frames that count here."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    PING = 6
    GOAWAY = 7
    HEADERS = 8


class SpdyError(Exception):
    """The peer does not speak SPDY/3.1, or goes beyond a bound."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream."""

    stream: int
    headers: Mapping[str, str]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a stream, cut anywhere; after the last ones the peer sends no more on it."""

    stream: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """The peer gave a stream up."""

    stream: int


@dataclass(frozen=True, slots=True)
class Ping:
    """The peer wants its frame back: `answer`."""

    answer: bytes


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer opens no more streams."""


Event: TypeAlias = Opened | Data | Reset | Ping | GoAway


class SpdyServer:
    """One connection. `feed` returns what the peer did; the other methods what to send."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0  # bytes of the data frame that is being read
        self._stream, self._is_last = 0, False  # of that frame
        self._inflate = zlib.decompressobj(zdict=_DICTIONARY)
        self._deflate = zlib.compressobj(zdict=_DICTIONARY)

    def feed(self, received: bytes) -> Iterator[Event]:
        """Yield what the peer did; SpdyError, after which the connection is of no use."""
        self._buffer += received
        while True:
            if self._left:
                data, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
                self._left -= len(data)
                if data:
                    yield Data(self._stream, data, self._is_last and not self._left)
                if self._left:
                    return
            if len(self._buffer) < _HEAD_BYTES:
                return
            first, second = struct.unpack_from("!II", self._buffer)
            flags, length = second >> 24, second & 0xFFFFFF
            if not first >> 31:
                self._buffer = self._buffer[_HEAD_BYTES:]
                self._stream, self._left, self._is_last = first, length, bool(flags & _FIN)
                if not length:
                    yield Data(first, b"", self._is_last)
                continue
            if first >> 16 & 0x7FFF != _VERSION or length > CONTROL_BYTES_MAX:
                raise SpdyError("a control frame of another version, or too long")
            if len(self._buffer) < _HEAD_BYTES + length:
                return
            frame = self._buffer[: _HEAD_BYTES + length]
            self._buffer = self._buffer[len(frame) :]
            yield from self._control(first & 0xFFFF, flags, frame)

    def _control(self, kind: int, flags: int, frame: bytes) -> Iterator[Event]:
        body = frame[_HEAD_BYTES:]
        try:
            match kind:
                case ControlFrame.SYN_STREAM:
                    (stream,) = struct.unpack_from("!I", body)
                    yield Opened(stream, self._headers(body[10:]), bool(flags & _FIN))
                case ControlFrame.RST_STREAM:
                    yield Reset(struct.unpack_from("!I", body)[0])
                case ControlFrame.PING:
                    yield Ping(frame)
                case ControlFrame.GOAWAY:
                    yield GoAway()
                case ControlFrame.HEADERS:
                    self._headers(body[4:])  # its compression goes on from here
                case _:
                    return
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise SpdyError(f"a control frame of kind {kind}: {error}") from error

    def _headers(self, block: bytes) -> dict[str, str]:
        plain = self._inflate.decompress(block, HEADERS_BYTES_MAX)
        if self._inflate.unconsumed_tail:
            raise SpdyError("headers inflate beyond the bound")
        (count,) = struct.unpack_from("!I", plain)
        at, texts = 4, list[str]()
        for _ in range(2 * min(count, HEADERS_BYTES_MAX)):
            (length,) = struct.unpack_from("!I", plain, at)
            texts.append(plain[at + 4 : at + 4 + length].decode())
            at += 4 + length
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def reply(self, stream: int) -> bytes:
        """Return the frame that accepts a stream."""
        block = self._deflate.compress(struct.pack("!I", 0))
        block += self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(ControlFrame.SYN_REPLY, struct.pack("!I", stream) + block)

    def data(self, stream: int, data: bytes, *, is_last: bool = False) -> bytes:
        """Return a frame with these bytes, fewer than 16 MiB."""
        return struct.pack("!II", stream, is_last << 24 | len(data)) + data

    def reset(self, stream: int, status: int) -> bytes:
        """Return the frame that gives a stream up."""
        return _control(ControlFrame.RST_STREAM, struct.pack("!II", stream, status))


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack("!HHI", 0x8000 | _VERSION, kind, len(body)) + body
