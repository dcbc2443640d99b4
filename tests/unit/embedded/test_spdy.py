"""The frames of SPDY: whole or in pieces, and what goes beyond a bound."""

from __future__ import annotations

import struct
import zlib

import pytest

from fairlead.embedded.http.streams import spdy
from fairlead.embedded.http.streams.spdy import (
    Data,
    GoAway,
    Opened,
    Ping,
    Reset,
    SpdyError,
    SpdyServer,
)


class Client:
    """The other side, as spdystream writes it."""

    def __init__(self) -> None:
        self.deflate = zlib.compressobj(zdict=spdy._DICTIONARY)

    def frame(self, kind: int, body: bytes, flags: int = 0) -> bytes:
        return struct.pack("!HHI", 0x8003, kind, flags << 24 | len(body)) + body

    def headers(self, **values: str) -> bytes:
        block = struct.pack("!I", len(values))
        for pair in values.items():
            block += b"".join(struct.pack("!I", len(text)) + text.encode() for text in pair)
        return self.deflate.compress(block) + self.deflate.flush(zlib.Z_SYNC_FLUSH)

    def open(self, stream: int, flags: int = 0, **values: str) -> bytes:
        head = struct.pack("!IIH", stream, 0, 0)
        return self.frame(1, head + self.headers(**values), flags)


def data(stream: int, content: bytes, flags: int = 0) -> bytes:
    return struct.pack("!II", stream, flags << 24 | len(content)) + content


def conversation() -> tuple[bytes, list[spdy.Event]]:
    client = Client()
    ping = client.frame(6, b"\0\0\0\x01")
    sent = (
        client.open(1, 1, streamtype="error", port="80") + data(3, b"hello")
        + client.frame(8, struct.pack("!I", 3) + client.headers(more="x"))
        + client.open(5, streamtype="data", port="80") + ping + client.frame(4, bytes(12))
        + data(5, b"", 1) + client.frame(3, struct.pack("!II", 5, 5)) + client.frame(7, bytes(8))
    )  # fmt: skip
    events: list[spdy.Event] = [
        Opened(1, {"streamtype": "error", "port": "80"}, True),
        Data(3, b"hello", False),
        Opened(5, {"streamtype": "data", "port": "80"}, False),
        Ping(ping), Data(5, b"", True), Reset(5), GoAway(),
    ]  # fmt: skip
    return sent, events


def test_frames_are_read_and_what_does_not_matter_is_passed_over() -> None:
    sent, events = conversation()
    assert list(SpdyServer().feed(sent)) == events


def test_frames_cut_anywhere_give_the_same_events_with_data_in_pieces() -> None:
    sent, events = conversation()
    for size in (1, 3, 7, 64):
        server, found, joined = SpdyServer(), [], b""
        for at in range(0, len(sent), size):
            found += server.feed(sent[at : at + size])
        joined = b"".join(e.data for e in found if isinstance(e, Data))
        assert joined == b"hello"
        others = [e for e in found if not isinstance(e, Data)]
        assert others == [e for e in events if not isinstance(e, Data)]
        assert [e.is_last for e in found if isinstance(e, Data)][-1]


def test_what_the_server_writes_is_what_the_peer_reads() -> None:
    server, inflate = SpdyServer(), zlib.decompressobj(zdict=spdy._DICTIONARY)
    for stream in (1, 3):
        frame = server.reply(stream)
        assert frame[:4] == b"\x80\x03\0\x02"
        assert struct.unpack("!I", frame[8:12]) == (stream,)
        assert inflate.decompress(frame[12:]) == b"\0\0\0\0"
    assert server.data(3, b"xy", is_last=True) == b"\0\0\0\x03\x01\0\0\x02xy"
    assert server.reset(3, spdy.CANCEL) == b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x03\0\0\0\x05"


def hostile() -> dict[str, bytes]:
    client = Client()
    bomb = client.deflate.compress(bytes(spdy.HEADERS_BYTES_MAX * 8))
    bomb += client.deflate.flush(zlib.Z_SYNC_FLUSH)
    many = zlib.compressobj(zdict=spdy._DICTIONARY)
    count = many.compress(b"\xff\xff\xff\xff") + many.flush(zlib.Z_SYNC_FLUSH)
    return {
        "another version": b"\x80\x02\0\x01\0\0\0\0",
        "too long": b"\x80\x03\0\x01\0\xff\xff\xff",
        "short": client.frame(1, b"\0\0"),
        "no zlib": client.frame(1, bytes(10) + b"no zlib at all"),
        "headers that inflate without end": client.frame(1, bytes(10) + bomb),
        "more headers than there are": client.frame(1, bytes(10) + count),
        "reset of nothing": client.frame(3, b"\0"),
    }


@pytest.mark.parametrize("name", hostile())
def test_hostile_frames_are_refused(name: str) -> None:
    with pytest.raises(SpdyError):
        list(SpdyServer().feed(hostile()[name]))


def test_a_frame_that_never_ends_is_not_held() -> None:
    server = SpdyServer()
    assert list(server.feed(struct.pack("!II", 1, (1 << 24) - 1))) == []
    total = 0
    for _ in range(200):
        for event in server.feed(bytes(80_000)):
            assert isinstance(event, Data)
            total += len(event.data)
        assert len(server._buffer) == 0
    assert total == 16_000_000
