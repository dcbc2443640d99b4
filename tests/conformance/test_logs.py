"""`pods/<name>/log` over HTTP, from a log source of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conformance.http_server import Running, pod, running
from tests.patience import PATIENCE_SECONDS

from fairlead.api.status import BadRequest
from fairlead.embedded.http.streams.logs import LogOptions

PODS = "/api/v1/namespaces/default/pods"


class Source:
    """Remembers what it was asked; a followed log goes on until `more` is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, LogOptions]] = []
        self.more = asyncio.Event()
        self.closed = asyncio.Event()

    async def read(
        self, namespace: str, pod_name: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        self.asked.append((namespace, pod_name, container, options))
        if options.previous:
            raise BadRequest(f"previous terminated container {container} not found")
        return self._pieces(options)

    async def _pieces(self, options: LogOptions) -> AsyncIterator[bytes]:
        try:
            yield b"one\n"
            if options.follow:
                await self.more.wait()
            yield b"two\n"
        finally:
            self.closed.set()


async def started(api: Running, **spec: Any) -> None:
    assert (await api.call("POST", PODS, pod("p", **spec)))[0] == 201


async def test_a_log_is_plain_text_of_the_only_container() -> None:
    source = Source()
    async with running(logs=source) as api:
        await started(api)
        code, text, headers = await api.call("GET", f"{PODS}/p/log?tailLines=7&timestamps=true")
        assert (code, text, headers["Content-Type"]) == (200, "one\ntwo\n", "text/plain")
        assert source.asked == [("default", "p", "main", LogOptions(tail_lines=7, timestamps=True))]


async def test_an_init_container_has_a_log_too() -> None:
    source = Source()
    async with running(logs=source) as api:
        await started(api, initContainers=[{"name": "init", "image": "i"}])
        assert (await api.call("GET", f"{PODS}/p/log?container=init"))[0] == 200
        assert source.asked[0][2] == "init"


async def test_following_sends_each_piece_as_it_comes() -> None:
    source = Source()
    async with running(logs=source) as api:
        await started(api)
        async with api.session.get(f"{api.server.url}{PODS}/p/log?follow=true") as response:
            assert await response.content.readline() == b"one\n"
            source.more.set()
            assert await response.content.read() == b"two\n"


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_the_end_of_a_reader_or_of_the_server_ends_the_following(
    *, is_stopping: bool
) -> None:
    source = Source()
    async with running(logs=source) as api:
        await started(api)
        async with api.session.get(f"{api.server.url}{PODS}/p/log?follow=true") as response:
            await response.content.readline()
            if is_stopping:
                api.server.stop()
            else:
                response.close()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await source.closed.wait()


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("", "choose one of: [a b]"), ("container=c", "container c is not valid"),
        ("container=a&sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", "at most one of"),
        ("container=a&sinceTime=yesterday", "sinceTime"), ("container=a&tailLines=-1", "tailLines"),
        ("container=a&limitBytes=0", "limitBytes"), ("container=a&follow=perhaps", "follow"),
        ("container=a&previous=true", "previous terminated container"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_a_400_that_says_why(query: str, word: str) -> None:
    async with running(logs=Source()) as api:
        await started(api, containers=[{"name": "a", "image": "i"}, {"name": "b", "image": "i"}])
        code, status, _ = await api.call("GET", f"{PODS}/p/log?{query}")
        assert (code, status["reason"]) == (400, "BadRequest")
        assert word in status["message"]


async def test_the_log_of_a_missing_pod_is_404() -> None:
    async with running(logs=Source()) as api:
        code, status, _ = await api.call("GET", f"{PODS}/nope/log")
        assert (code, status["message"]) == (404, 'pods "nope" not found')
