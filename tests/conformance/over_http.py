"""A conformance target over HTTP: any server that a session can reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from tests.conformance.target import Answer


class HttpTarget:
    """An API server at a base URL; the session carries the token."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        given = dict(headers or {})
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            given.setdefault("Content-Type", "application/json")
        async with self.session.request(
            method, self.url + path, data=data, params=query, headers=given
        ) as response:
            raw = await response.read()
            try:
                value = msgspec.json.decode(raw)
            except msgspec.DecodeError:
                value = None  # plain text, or a stream of several values
            return Answer(response.status, value, raw, response.headers)

    @asynccontextmanager
    async def watch(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        params = {**(query or {}), "watch": "true"}
        async with self.session.get(self.url + path, params=params, headers=headers) as response:
            assert response.status == 200, await response.text()

            async def events() -> AsyncIterator[dict[str, Any]]:
                async for line in response.content:
                    yield msgspec.json.decode(line)

            yield events()
