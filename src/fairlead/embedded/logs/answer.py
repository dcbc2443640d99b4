"""Answering /fairlead/v1/namespaces/{namespace}/jobs/{job}/logs from the archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import msgspec
from aiohttp import web

from fairlead.api.status import BadRequest
from fairlead.embedded.logs.archive import LogArchive, parse_query

LOOK_SECONDS = 0.5


async def answer_job_logs(
    archive: LogArchive,
    request: web.BaseRequest,
    key: tuple[str, str],
    parameters: Mapping[str, str],
) -> web.StreamResponse:
    """Stream a job's logs as text, or, with `list=1`, say as JSON what there is.

    `key` is (namespace, job). Raises ApiError before the first byte is sent.
    """
    namespace, job = key
    query = parse_query(parameters)
    wants_list = parameters.get("list", "0").lower()
    if wants_list not in ("0", "1", "true", "false"):
        raise BadRequest(f"invalid log query: list={wants_list!r}, accepted: 0, 1, true, false")
    if wants_list in ("1", "true"):
        body = msgspec.json.encode(await archive.describe_job(namespace, job))
        return web.Response(body=body, content_type="application/json")
    pieces = await archive.read_job(namespace, job, query)
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    async with asyncio.TaskGroup() as group:
        copying = group.create_task(_copy(pieces, response))
        looking = group.create_task(_look(request, copying))
        copying.add_done_callback(lambda _: looking.cancel())
    return response


async def _look(request: web.BaseRequest, copying: asyncio.Task[None]) -> None:
    """Stop the copying when its reader is gone: nothing else notices while the log is quiet."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        transport = request.transport
        if transport is None or transport.is_closing():
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
