"""Requests on kept connections, against servers that say what a test has them say."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from tests.patience import PATIENCE_SECONDS

from fairlead.kube.http1 import (
    HEAD_BYTES_MAX,
    AnswerReader,
    ConnectError,
    HttpRequestError,
    HttpResponse,
)
from fairlead.kube.pool import Http1Pool
from fairlead.kube.protocol import HttpOptions

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers the requests of each connection by its script; b"" closes the connection."""

    def __init__(self, *scripts: tuple[bytes, ...]) -> None:
        self.scripts = list(scripts)
        self.requests: list[bytes] = []
        self.connections = self.closed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = iter(self.scripts[min(self.connections, len(self.scripts) - 1)])
        self.connections += 1
        try:
            for answer in script:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].split(b"\r\n", 1)[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                if not answer:
                    return
                writer.write(answer)
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            self.closed += 1
            writer.close()


@asynccontextmanager
async def pool_of(server: Server, **options: float) -> AsyncIterator[Http1Pool]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    pool = _pool(port, **options)
    async with listening:
        yield pool
        pool.retire()
        await asyncio.sleep(0)


def _pool(port: int, **options: float) -> Http1Pool:
    given = {
        "connections_max": 4, "connect_seconds": 5.0, "keep_seconds": 50.0,
        "answer_bytes_max": 1 << 20, **options,
    }  # fmt: skip
    return Http1Pool(f"http://127.0.0.1:{port}/base", None, HttpOptions(**given), lambda _: None)


def case(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await test()

    def wrapper() -> None:
        asyncio.run(main())

    wrapper.__name__ = test.__name__
    return wrapper


async def ask(pool: Http1Pool, method: str = "GET", body: bytes | None = None) -> HttpResponse:
    return await pool.request(method, "/path?a=b", [("Accept", "x")], body)


@case
async def test_a_connection_is_used_again_and_a_request_is_what_it_should_be() -> None:
    server = Server((OK, OK))
    async with pool_of(server) as pool:
        answer = await ask(pool, "POST", b"{}")
        assert (answer.status, answer.reason, answer.body) == (200, "OK", b"ok")
        assert answer.headers == {"content-length": "2"}
        await ask(pool)
    assert server.connections == 1
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    first, host, *rest = head.split(b"\r\n")
    assert first == b"POST /base/path?a=b HTTP/1.1"
    assert host.startswith(b"Host: 127.0.0.1:")
    assert rest == [b"Accept: x", b"Content-Length: 2"]
    assert body == b"{}"


@case
async def test_answers_come_in_many_forms() -> None:
    chunked = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    )
    packed = gzip.compress(b"abc" * 100)
    zipped = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b"
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    server = Server((chunked, zipped % (len(packed), packed), empty, OK))
    async with pool_of(server) as pool:
        answers = [await ask(pool) for _ in range(4)]
    assert server.connections == 1
    assert [a.status for a in answers] == [201, 200, 204, 200]
    assert [a.body for a in answers] == [b"abc", b"abc" * 100, b"", b"ok"]


@case
async def test_an_answer_may_end_with_its_connection() -> None:
    close = b"HTTP/1.1 503 Busy\r\nConnection: close\r\n\r\nnot now"
    server = Server((close, b""), (OK,))
    listening = await asyncio.start_server(_then_close(server), "127.0.0.1", 0)
    async with listening:
        pool = _pool(listening.sockets[0].getsockname()[1])
        answer = await ask(pool)
        assert (answer.status, answer.reason, answer.body) == (503, "Busy", b"not now")


def _then_close(
    server: Server,
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(server.scripts[0][0])
        writer.close()

    return serve


@case
async def test_a_get_that_meets_a_closed_connection_is_sent_once_more_and_a_post_is_not() -> None:
    for method in ("GET", "POST"):
        server = Server((OK, b""), (OK,))
        async with pool_of(server) as pool:
            await ask(pool)
            if method == "GET":
                assert (await ask(pool)).body == b"ok"
                assert (server.connections, len(server.requests)) == (2, 3)
            else:
                with pytest.raises(ConnectionError):
                    await ask(pool, "POST", b"")
                assert (server.connections, len(server.requests)) == (1, 2)
                assert (await ask(pool, "POST", b"")).status == 200


@pytest.mark.parametrize("surplus", [OK, OK[:20], b"\r\n", b""])
def test_what_came_before_a_request_is_not_its_answer(surplus: bytes) -> None:
    """Whether it came with the answer before, behind it unread, or is the connection's end."""

    async def test() -> None:
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            with suppress(asyncio.IncompleteReadError):
                while head := await reader.readuntil(b"\r\n\r\n"):
                    path = head.split(b" ", 2)[1]
                    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
                    writer.write(whole % (len(path), path))
                    if path == b"/base/one":
                        writer.write(surplus)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            pool = _pool(listening.sockets[0].getsockname()[1])
            for name in ("one", "two", "three"):
                answer = await pool.request("POST", f"/{name}", [], b"")
                assert answer.body == f"/base/{name}".encode()
                if name == "two":  # the kernel has it at once; nothing of ours has read it
                    made = socket.socket(
                        fileno=os.dup(writers[-1].get_extra_info("socket").fileno())
                    )
                    with made:
                        made.sendall(surplus) if surplus else made.shutdown(socket.SHUT_WR)
            assert len(writers) == (3 if surplus else 2)
            pool.retire()
            await asyncio.sleep(0)

    case(test)()


@case
async def test_a_new_connection_that_closes_is_no_reason_to_try_again() -> None:
    server = Server((b"",))
    async with pool_of(server) as pool:
        with pytest.raises(ConnectionError, match="closed the connection"):
            await ask(pool)
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"220 smtp ready\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n", "bytes of head"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok",
            "compression is broken",
        ),
    ],
)
def test_what_cannot_be_read_breaks_the_connection(answer: bytes, says: str) -> None:
    async def test() -> None:
        server = Server((answer,), (OK,))
        async with pool_of(server) as pool:
            with pytest.raises(ConnectionError, match=says):
                await ask(pool)
            assert (await ask(pool)).body == b"ok"
        assert server.connections == 2

    case(test)()


@case
async def test_who_gives_up_closes_the_connection_and_the_next_has_its_own() -> None:
    server = Server((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",), (OK,))
    async with pool_of(server) as pool:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask(pool))
            while not server.requests:  # noqa: ASYNC110 # the server has no event of it
                await asyncio.sleep(0.01)
            asking.cancel()
        assert asking.cancelled()
        assert (await ask(pool)).body == b"ok"
        while not server.closed:  # noqa: ASYNC110 # likewise
            await asyncio.sleep(0.01)
        assert server.closed == 1
    assert server.connections == 2


@case
async def test_connections_are_bounded_and_their_number_recovers_from_failures() -> None:
    server = Server((b"",), (b"",), (OK, OK, OK, OK))
    async with pool_of(server, connections_max=2) as pool:
        results = await asyncio.gather(*[ask(pool) for _ in range(6)], return_exceptions=True)
    assert sum(isinstance(each, ConnectionError) for each in results) == 2
    assert sum(isinstance(each, HttpResponse) for each in results) == 4
    assert server.connections <= 4


@case
async def test_an_old_connection_is_not_used_again() -> None:
    server = Server((OK, OK))
    async with pool_of(server, keep_seconds=0.0) as pool:
        await ask(pool)
        await ask(pool)
    assert server.connections == 2


@case
async def test_what_would_smuggle_in_a_header_is_not_sent() -> None:
    async with pool_of(Server((OK,))) as pool:
        for target, value in (("/a\r\nX: y", "x"), ("/a b", "x"), ("/a", "x\r\nY: z"), ("/", "\n")):
            with pytest.raises(HttpRequestError):
                await pool.request("GET", target, [("Accept", value)], None)


@case
async def test_where_nobody_listens_there_is_no_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        pool = _pool(unused.getsockname()[1])
        with pytest.raises(ConnectError) as caught:
            await ask(pool)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


@case
async def test_a_retired_pool_keeps_nothing() -> None:
    server = Server((OK,), (OK,))
    async with pool_of(server) as pool:
        await ask(pool)
        pool.retire()
        await ask(pool)
        await asyncio.sleep(0.05)
        assert server.closed == 2


def test_a_stream_may_be_longer_than_an_answer_that_is_read_whole() -> None:
    reader = AnswerReader(8)
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(10):
        reader.feed(b"4\r\nline\r\n")
        part = reader.take()
        assert part is not None
        assert part.body == b"line"
