"""Streams pieces of text, a log say, until they end or their reader is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from aiohttp import web

_LOOK_SECONDS = 0.5


async def stream_text(
    request: web.BaseRequest,
    pieces: AsyncIterator[bytes],
    *,
    content_type: str,
    is_stopping: Callable[[], bool] = lambda: False,
) -> web.StreamResponse:
    """Answer with the pieces, which are closed at the end; `is_stopping` ends the answer."""
    response = web.StreamResponse(headers={"Content-Type": content_type})
    response.enable_chunked_encoding()
    await response.prepare(request)
    async with asyncio.TaskGroup() as group:
        copying = group.create_task(_copy(pieces, response))
        looking = group.create_task(_look(request, copying, is_stopping))
        copying.add_done_callback(lambda _: looking.cancel())
    return response


async def _look(
    request: web.BaseRequest, copying: asyncio.Task[None], is_stopping: Callable[[], bool]
) -> None:
    """Stop the copying when its reader is gone: a quiet log does not notice by itself."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        transport = request.transport
        if transport is None or transport.is_closing() or is_stopping():
            copying.cancel()
            return


async def _copy(pieces: AsyncIterator[bytes], response: web.StreamResponse) -> None:
    try:
        await response.write(b"")  # the headers at once: a follower waits for them
        async for piece in pieces:
            await response.write(piece)
    except ConnectionError:
        return
    finally:
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()
