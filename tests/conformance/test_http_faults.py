"""The HTTP client against a server that misbehaves on purpose (real sockets on the loopback)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from fairlead.api.resources import CONFIG_MAPS, NODES
from fairlead.api.status import (
    ApiError,
    BadRequest,
    Conflict,
    Expired,
    InternalError,
    Status,
    Timeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import Connection, KubeconfigError
from fairlead.kube.protocol import HttpOptions
from fairlead.runtime.client import EventType

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    handler: Handler, *, token_file: Path | None = None, **options: object
) -> AsyncIterator[HttpClient]:
    """Serve every path with `handler` and yield a client of it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    connection = Connection(f"http://127.0.0.1:{port}", "test", token="t", token_file=token_file)
    client = HttpClient(connection, HttpOptions(**options))
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def config_map(name: str, version: int = 1) -> dict:
    return {"metadata": {"namespace": "a", "name": name, "resourceVersion": str(version)}}


def failure(error: ApiError, **headers: str) -> web.Response:
    return web.Response(
        status=error.status.code,
        body=error.status.encode(),
        content_type="application/json",
        headers=headers,
    )


async def stream(request: web.Request, *chunks: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
        await asyncio.sleep(0.005)  # one packet each
    return response


async def empty(_request: web.Request) -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": "3"}, "items": None})


async def watched(client: HttpClient) -> list[tuple[str, str, str]]:
    return [
        (e.type.value, e.object.metadata.name if e.object else "", e.resource_version)
        async for e in client.watch(CONFIG_MAPS, resource_version="5", namespace="a")
    ]


async def test_nobody_listens() -> None:
    async with serving(empty) as client:
        pass
    alone = HttpClient(client.connection)
    with pytest.raises(Unavailable, match=r"cannot reach http://127.0.0.1:\d+: Connect"):
        await alone.get(NODES, "n")
    await alone.close()


async def test_a_server_that_accepts_and_hangs_is_given_up() -> None:
    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with serving(hang, request_seconds=0.1) as client:
        with pytest.raises(Timeout, match="no answer"):
            await client.get(NODES, "n")
        with pytest.raises(Timeout, match="no answer"):
            await watched(client)


async def test_a_watch_that_falls_silent_is_given_up() -> None:
    async def fall_silent(request: web.Request) -> web.StreamResponse:
        response = await stream(request, b"")
        await asyncio.sleep(60)
        return response

    async with serving(fall_silent, stream_idle_seconds=0.1) as client:
        with pytest.raises(ApiError) as caught:
            await watched(client)
        assert caught.value.retryable


async def test_a_quiet_log_may_be_followed_for_as_long_as_wanted() -> None:
    async def quiet(request: web.Request) -> web.StreamResponse:
        response = await stream(request, b"first\n")
        await asyncio.sleep(0.3)
        await response.write(b"second\n")
        return response

    async with serving(quiet, stream_idle_seconds=0.1) as client:
        chunks = [c async for c in client.stream("GET", "/log", idle_seconds=math.inf)]
        assert b"".join(chunks) == b"first\nsecond\n"


async def test_a_broken_connection_is_unavailable() -> None:
    async def hang_up(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            request.transport.abort()
            return web.Response()
        response = await stream(request, b'{"type":"BOOKMARK","object":{"metadata":{}}}\n')
        request.transport.abort()
        return response

    async with serving(hang_up) as client:
        with pytest.raises(Unavailable, match="broke"):
            await client.create(CONFIG_MAPS, config_map("x"))
        with pytest.raises(Unavailable, match="broke"):
            await watched(client)


async def test_events_are_split_at_line_feeds_wherever_the_chunks_end() -> None:
    separator = "\u2028".encode()
    text = (
        b'{"type":"ADDED","object":{"metadata":{"name":"x","resourceVersion":"6"},"data":{"k":"'
        + separator + b'"}}}\n\n'
        b'{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"9"}}}\n'
        b'{"type":"DELETED","object":{"metadata":{"name":"x","resourceVersion":"10"}}}\n'
    )  # fmt: skip

    async def drip(request: web.Request) -> web.StreamResponse:
        assert request.query["resourceVersion"] == "5"
        assert request.query["allowWatchBookmarks"] == "true"
        size = int(request.headers["Authorization"].rpartition("-")[2])
        return await stream(request, *(text[i : i + size] for i in range(0, len(text), size)))

    for size in (7, 60, 10_000):
        async with serving(drip) as client:
            client.transport._token = f"t-{size}"
            assert await watched(client) == [
                ("ADDED", "x", "6"), ("BOOKMARK", "", "9"), ("DELETED", "x", "10"),
            ]  # fmt: skip


async def test_an_error_event_is_raised() -> None:
    async def expire(request: web.Request) -> web.StreamResponse:
        error = Expired("too old resource version: 5 (9)").status.encode()
        return await stream(request, b'{"type":"ERROR","object":' + error + b"}\n")

    async with serving(expire) as client:
        with pytest.raises(Expired, match="too old"):
            await watched(client)


async def test_a_watch_that_ends_inside_an_event_is_a_broken_one() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        return await stream(request, b'{"type":"ADDED","obj')

    async with serving(cut) as client:
        with pytest.raises(Unavailable, match="in the middle of an event"):
            await watched(client)


async def test_an_endless_line_is_refused() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        return await stream(request, *[b"x" * 1000] * 20)

    async with serving(endless, watch_line_bytes_max=10_000) as client:
        with pytest.raises(InternalError, match="longer than 10000 bytes"):
            await watched(client)


async def test_what_does_not_decode_is_an_error_and_never_half_an_object() -> None:
    async def nonsense(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await stream(request, b'{"type":"ADDED","object":{"metadata":7}}\n')
        return web.json_response({"metadata": 7})

    async with serving(nonsense) as client:
        for call in (client.get(CONFIG_MAPS, "x", namespace="a"), watched(client)):
            with pytest.raises(InternalError, match="ConfigMap cannot be decoded"):
                await call


async def test_pages_are_joined_and_sorted_and_a_token_that_expires_restarts_once() -> None:
    asked: list[str] = []
    fail_at = {3}

    async def pages(request: web.Request) -> web.Response:
        asked.append(request.query.get("continue", ""))
        assert request.query["limit"] == "2"
        if len(asked) in fail_at:
            return failure(Expired("the continue token is too old"))
        start = int(asked[-1] or 0)
        items = [config_map(name) for name in "cabed"[start : start + 2]]
        token = str(start + 2) if start + 2 < 5 else ""
        metadata = {"resourceVersion": str(100 + len(asked)), "continue": token}
        return web.json_response({"metadata": metadata, "items": items or None})

    async with serving(pages, page_size=2) as client:
        listed = await client.list(CONFIG_MAPS, namespace="a")
        assert [item.metadata.name for item in listed.items] == ["a", "b", "c", "d", "e"]
        assert asked == ["", "2", "4", "", "2", "4"]
        assert listed.resource_version == "104"
        asked.clear()
        fail_at.clear()
        fail_at.update((2, 4))
        with pytest.raises(Expired):
            await client.list(CONFIG_MAPS, namespace="a")
        assert asked == ["", "2", "", "2"]


async def test_an_empty_list_may_be_null() -> None:
    async with serving(empty) as client:
        listed = await client.list(CONFIG_MAPS)
        assert (listed.items, listed.resource_version) == ((), "3")


@pytest.mark.parametrize(
    ("code", "body", "expected", "retryable"),
    [
        (409, Conflict("lost").status.encode(), Conflict, False),
        (502, b"<html>Bad Gateway</html>", Unavailable, True),
        (500, b"", InternalError, True),
        (418, b"teapot", ApiError, False),
        (400, Status(code=400, message="no").encode(), BadRequest, False),
        (302, b"", ApiError, False),
    ],
)
async def test_every_answer_that_is_no_success_is_raised_by_type(
    code: int, body: bytes, expected: type[ApiError], retryable: bool
) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=code, body=body, headers={"Location": "http://elsewhere/"})

    async with serving(answer) as client:
        with pytest.raises(ApiError) as caught:
            await client.get(NODES, "n")
        assert type(caught.value) is expected
        assert caught.value.retryable is retryable
        assert caught.value.status.code == code


async def test_retry_after_is_read_from_the_header() -> None:
    async def throttle(_request: web.Request) -> web.Response:
        return failure(TooManyRequests("slow down"), **{"Retry-After": "7"})

    async with serving(throttle) as client:
        with pytest.raises(TooManyRequests) as caught:
            await client.get(NODES, "n")
        assert caught.value.retry_after_seconds == 7


async def test_a_rotated_token_file_is_read_again_after_a_401(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    valid = "Bearer old"

    async def guard(request: web.Request) -> web.Response:
        if request.headers["Authorization"] != valid:
            return failure(Unauthorized("who are you?"))
        return web.json_response({"metadata": {"name": "n"}})

    async with serving(guard, token_file=file) as client:
        assert (await client.get(NODES, "n")).metadata.name == "n"
        valid = "Bearer new"
        with pytest.raises(Unauthorized):
            await client.get(NODES, "n")
        file.write_text("new\n")
        assert (await client.get(NODES, "n")).metadata.name == "n"
        file.unlink()
        valid = "Bearer newer"
        with pytest.raises(Unauthorized, match="cannot be read"):
            await client.get(NODES, "n")


async def test_no_name_leads_out_of_its_path() -> None:
    async with serving(empty) as client:
        for name in ("..", ".", "a/b", "%2e%2e"):
            with pytest.raises(BadRequest, match="is not a name"):
                await client.get(CONFIG_MAPS, name, namespace="a")


async def test_requests_use_a_bounded_number_of_connections() -> None:
    open_count = open_count_max = 0
    as_many_as_may = asyncio.Event()

    async def slow(_request: web.Request) -> web.Response:
        nonlocal open_count, open_count_max
        open_count += 1
        open_count_max = max(open_count, open_count_max)
        if open_count == 3:
            as_many_as_may.set()
        await as_many_as_may.wait()
        await asyncio.sleep(0.02)  # a fourth would come meanwhile
        open_count -= 1
        return web.json_response({"metadata": {"name": "n"}})

    async with serving(slow, connections_max=3) as client, asyncio.TaskGroup() as group:
        for _ in range(12):
            group.create_task(client.get(NODES, "n"))
    assert open_count_max == 3


async def test_a_watch_that_is_left_closes_its_connection() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = await stream(request, b'{"type":"ADDED","object":{"metadata":{}}}\n')
        await asyncio.sleep(60)
        return response

    async with serving(endless) as client:
        events = client.watch(CONFIG_MAPS, resource_version="5")
        assert (await anext(events)).type is EventType.ADDED
        await events.aclose()
        assert not client.transport._streams.connector._acquired


async def test_after_close_every_call_is_refused() -> None:
    async with serving(empty) as client:
        await client.get(CONFIG_MAPS, "x", namespace="a")
    for call in (client.get(NODES, "n"), watched(client), client.delete(NODES, "n")):
        with pytest.raises(Unavailable, match="client is closed"):
            await call


async def test_raw_requests_and_streams_carry_the_identity() -> None:
    async def echo(request: web.Request) -> web.Response:
        text = f"{request.method} {request.path_qs} {request.headers['Authorization']}"
        return web.Response(text=text)

    async with serving(echo) as client:
        assert await client.request("GET", "/version", params={"a": "b c"}) in (
            b"GET /version?a=b+c Bearer t", b"GET /version?a=b%20c Bearer t",
        )  # fmt: skip
        text = b"".join([chunk async for chunk in client.stream("GET", "/logs")])
        assert text == b"GET /logs Bearer t"


def test_unusable_certificates_are_refused_before_anything_is_sent() -> None:
    connection = Connection("https://host", "context 'x' of /f", certificate_authority=b"nonsense")
    with pytest.raises(KubeconfigError, match="context 'x' of /f: a certificate or key is not"):
        HttpClient(connection)
