"""Answering `pods/<name>/log`: options in, pieces of the log out, until the reader goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from aiohttp import web

from fairlead.api.kubernetes.core import Pod
from fairlead.api.status import BadRequest, NotFound
from fairlead.api.values.times import parse_time
from fairlead.embedded.http.request import Query
from fairlead.embedded.http.streams.logs import LINES_MAX, LogOptions, LogSource
from fairlead.runtime.clock import Clock

_LOOK_SECONDS = 0.5  # between two looks whether the reader is gone


def log_options(query: Query, clock: Clock) -> LogOptions:
    """Return the options of a log request; BadRequest for wrong or contradicting ones."""
    since_seconds = query.integer("sinceSeconds", least=1)
    since_time = query.text("sinceTime")
    if since_seconds is not None and since_time:
        raise BadRequest("at most one of sinceTime or sinceSeconds may be specified")
    since: float | None = None
    if since_seconds is not None:
        since = clock.now() - since_seconds
    elif since_time:
        try:
            since = parse_time(since_time)
        except ValueError as error:
            raise BadRequest(f"query parameter sinceTime: {error}") from None
    tail_lines = query.integer("tailLines")
    return LogOptions(
        follow=query.flag("follow"),
        previous=query.flag("previous"),
        timestamps=query.flag("timestamps"),
        tail_lines=None if tail_lines is None else min(tail_lines, LINES_MAX),
        since=since,
        limit_bytes=query.integer("limitBytes", least=1),
    )


def choose_container(pod: Pod, asked: str) -> str:
    """Return the container whose log is wanted; BadRequest, worded as upstream, when unclear."""
    containers = [c.name for c in pod.spec.containers]
    initial = [c.name for c in pod.spec.init_containers]
    name = pod.metadata.name
    if asked:
        if asked not in containers and asked not in initial:
            raise BadRequest(f"container {asked} is not valid for pod {name}")
        return asked
    if len(containers) == 1:
        return containers[0]
    choices = f"choose one of: [{' '.join(containers)}]"
    if initial:
        choices += f" or one of the init containers: [{' '.join(initial)}]"
    raise BadRequest(f"a container name must be specified for pod {name}, {choices}")


class PodLogs:
    """Answers log requests from one source; `is_stopping` ends those that follow."""

    def __init__(
        self, source: LogSource | None, clock: Clock, is_stopping: Callable[[], bool]
    ) -> None:
        self._source = source
        self._clock = clock
        self._is_stopping = is_stopping

    async def answer(self, request: web.BaseRequest, pod: Pod, query: Query) -> web.StreamResponse:
        """Stream the log as plain text; errors before the first piece become a Status."""
        options = log_options(query, self._clock)
        container = choose_container(pod, query.text("container"))
        if self._source is None:
            raise NotFound(f"this server keeps no logs, so there are none of {pod.metadata.name}")
        pieces = await self._source.read(
            pod.metadata.namespace, pod.metadata.name, container, options
        )
        return await stream_text(
            request, pieces, content_type="text/plain", is_stopping=self._is_stopping
        )


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
