"""The embedded server as a conformance target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.conformance.http_server import Running, running
from tests.conformance.over_http import HttpTarget

from fairlead.embedded.storage.store import Store


class EmbeddedTarget(HttpTarget):
    """The embedded server behind its socket; `server` is for what only a test of it may touch."""

    def __init__(self, server: Running) -> None:
        super().__init__(server.session, server.server.url)
        self.server = server


@asynccontextmanager
async def embedded_target(
    store: Store | None = None, *, with_tls: bool = False
) -> AsyncIterator[EmbeddedTarget]:
    """A fresh embedded server, set up and torn down in one task, as task groups demand."""
    ready: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def hold() -> None:
        async with running(store, with_tls=with_tls) as server:
            ready.set_result(server)
            await done.wait()

    task = asyncio.create_task(hold())
    await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        await task  # raises what went wrong
    server = await ready
    try:
        yield EmbeddedTarget(server)
    finally:
        done.set()
        await task
