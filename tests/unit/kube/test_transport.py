"""The transport's own parts; what it does with a server is in tests/conformance."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.api.status import NotFound, Unavailable
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.protocol import HttpOptions
from fairlead.kube.sockets import probe
from fairlead.kube.transport import Transport
from fairlead.webhook import certificates

MISSING = b'{"kind":"Status","code":404,"reason":"NotFound","message":"no such thing"}'


class Told:
    """Keeps the first lines of requests; answers {} to the first of each connection, then 404."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]
        missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b"
        answers.append(missing % (len(MISSING), MISSING))
        try:
            for answer in answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.lines.append(head.split(b"\r\n", 1)[0].decode())
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def told(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Told, int]]:
    server = Told()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
    async with listening:
        yield server, listening.sockets[0].getsockname()[1]


async def ask_twice(connection: Connection) -> None:
    transport = Transport(connection)
    try:
        assert await transport.request("GET", "/a", params={"b": "c d"}) == b"{}"
        with pytest.raises(NotFound, match="no such thing"):
            await transport.request("POST", "/a", body=b"{}")
    finally:
        await transport.close()


async def test_requests_go_through_a_proxy_when_there_is_one() -> None:
    async with told() as (server, port):
        await ask_twice(
            Connection("http://api.test:6443", "test", proxy_url=f"http://127.0.0.1:{port}")
        )
    assert server.lines == [
        "GET http://api.test:6443/a?b=c+d HTTP/1.1", "POST http://api.test:6443/a HTTP/1.1",
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "seen"), [(0.0, ["one", "two"]), (3600.0, ["one", "one"])])
async def test_a_token_file_is_read_again_once_its_token_has_that_age(
    tmp_path: Path, seconds: float, seen: list[str]
) -> None:
    """Rotated tokens are in use before the server refuses the old one."""
    got: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        got.extend(re.findall(r"Authorization: Bearer (\S+)", head))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        writer.close()

    file = tmp_path / "token"
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        connection = Connection(url, "test", token_file=file)
        transport = Transport(connection, HttpOptions(token_seconds=seconds))
        for token in ("one", "two"):
            file.write_text(token)
            await transport.request("GET", "/a")
        await transport.close()
    assert got == seen


async def test_an_answer_through_a_proxy_is_bounded_too() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        proxy = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        connection = Connection("http://api.test:6443", "test", proxy_url=proxy)
        for bytes_max in (4999, 5000):
            transport = Transport(connection, HttpOptions(answer_bytes_max=bytes_max))
            if bytes_max < 5000:
                with pytest.raises(Unavailable, match="the answer is too long"):
                    await transport.request("GET", "/a")
            else:
                assert len(await transport.request("GET", "/a")) == 5000
            await transport.close()


async def test_a_server_is_believed_for_its_certificate_only(tmp_path: Path) -> None:
    times = certificates.Times()
    authority, pair = certificates.make(["api.test"], now=time.time(), times=times)
    files = [tmp_path / name for name in ("crt", "key")]
    for path, content in zip(files, (pair.certificate, pair.key), strict=True):
        path.write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    async with told(context) as (server, port):
        url = f"https://127.0.0.1:{port}"
        known = Connection(url, "test", certificate_authority=authority, server_name="api.test")
        await ask_twice(known)
        assert server.lines == ["GET /a?b=c+d HTTP/1.1", "POST /a HTTP/1.1"]
        for wrong in (
            Connection(url, "of-test", certificate_authority=authority),
            Connection(url, "of-test", server_name="api.test"),
        ):
            transport = Transport(wrong)
            with pytest.raises(Unavailable, match=r"certificate is not trusted.*see of-test"):
                await transport.request("GET", "/a")
            await transport.close()
    assert len(server.lines) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="options of Linux")
def test_a_silent_peer_is_asked_for_a_sign_of_life_and_given_up_in_time() -> None:
    with socket.socket() as made:
        probe(made, dead_peer_seconds=30)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, interval, count, unacknowledged = (
            made.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )  # fmt: skip
        assert idle + interval * count == 30
        assert unacknowledged == 30_000
