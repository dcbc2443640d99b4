"""The client of WebSockets, before servers that keep to the protocol and that do not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fairlead.api.status import Forbidden, Unavailable
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.websocket import PodSocket, SocketServer, masked, pod_socket

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
V5 = "v5.channel.k8s.io"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def head_of(reader: asyncio.StreamReader) -> dict[str, str]:
    text = (await reader.readuntil(b"\r\n\r\n")).decode()
    pairs = (line.partition(": ") for line in text.split("\r\n")[1:] if line)
    return {name.lower(): value for name, _, value in pairs}


def switched(head: dict[str, str], protocol: str = V5) -> bytes:
    key = head["sec-websocket-key"].encode()
    accept = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ).encode()


async def frame_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read a frame of a client: its kind and what it holds, without the mask."""
    first, second = await reader.readexactly(2)
    size = second & 0x7F
    assert second & 0x80, "a client masks"
    if size == 126:
        (size,) = struct.unpack(">H", await reader.readexactly(2))
    elif size == 127:
        (size,) = struct.unpack(">Q", await reader.readexactly(8))
    key = await reader.readexactly(4)
    return first & 0x0F, masked(await reader.readexactly(size), key)


@asynccontextmanager
async def opened(serve: Serve) -> AsyncIterator[PodSocket]:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_server(one, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        server = SocketServer(Connection(f"http://127.0.0.1:{port}", "test"), "secret")
        async with pod_socket(server, "/exec", [("command", "a b")], (V5, "v4")) as socket:
            yield socket


def frame(kind: int, data: bytes, *, final: bool = True) -> bytes:
    assert len(data) < 126
    return bytes(((0x80 if final else 0) | kind, len(data))) + data


async def test_messages_of_all_sizes_go_both_ways_and_pings_are_answered() -> None:
    pongs: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        assert head["authorization"] == "Bearer secret"
        assert head["sec-websocket-protocol"] == f"{V5}, v4"
        writer.write(switched(head))
        writer.write(frame(9, b"sign") + frame(2, b"\x01be", final=False) + frame(10, b""))
        writer.write(frame(0, b"gun"))
        for _ in range(4):
            kind, data = await frame_of(reader)
            if kind == 10:
                pongs.append(data)
                continue
            size = len(data)
            short = bytes((size,)) if size < 126 else None
            length = struct.pack(">H", size) if size < 1 << 16 else struct.pack(">Q", size)
            mark = b"\x7e" if size < 1 << 16 else b"\x7f"
            writer.write(b"\x82" + (short if short is not None else mark + length) + data)
        writer.write(frame(8, b""))
        assert (await frame_of(reader))[0] == 8

    async with opened(serve) as socket:
        assert socket.protocol == V5
        assert await socket.receive() == b"\x01begun"
        for size in (3, 60_000, 200_000):
            data = bytes(range(256)) * (size // 256 + 1)
            await socket.send(0, data)
            assert await socket.receive() == b"\x00" + data
        assert await socket.receive() is None
        assert pongs == [b"sign"]


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x82", b"\x82\x05abc", b"\x82\xff" + b"\x00" * 12, b"\x82\x7f" + b"\xff" * 8,
     b"\x81\x01x"],
    ids=["cut", "cut-in-head", "cut-in-data", "masked", "endless", "text"],
)  # fmt: skip
async def test_what_is_no_message_is_the_end(sent: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(switched(await head_of(reader)) + sent)
        await writer.drain()

    async with opened(serve) as socket:
        assert await socket.receive() is None


async def test_a_server_that_does_not_switch_is_quoted_or_named() -> None:
    status = b'{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"no"}'

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(status) + status)

    async def lies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(switched(await head_of(reader) | {"sec-websocket-key": "another"}))

    async def chooses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(switched(await head_of(reader), "v1"))

    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)

    with pytest.raises(Forbidden, match="no"):
        async with opened(refuses):
            pass
    for serve in (lies, chooses, hangs_up):
        with pytest.raises(Unavailable):
            async with opened(serve):
                pass


async def test_a_lost_connection_refuses_what_is_sent() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(switched(await head_of(reader)))
        writer.transport.abort()

    with pytest.raises(Unavailable):  # noqa: PT012 # as many as it takes to be noticed
        async with opened(serve) as socket:
            for _ in range(100):
                await socket.send(0, b"x" * 65536)
                await asyncio.sleep(0)


def test_a_mask_taken_twice_is_none() -> None:
    for size in (0, 1, 3, 4, 5, 70_000):
        data = bytes(range(251)) * (size // 251 + 1)
        assert masked(masked(data[:size], b"\x01\x80\xff\x00"), b"\x01\x80\xff\x00") == data[:size]
    assert masked(b"abcde", b"\x01\x02\x03\x04") == bytes((0x60, 0x60, 0x60, 0x60, 0x64))
