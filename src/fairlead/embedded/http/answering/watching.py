"""Answering a watch: first what there is to catch up with, then membership in a broadcast group.

Catching up is written with back-pressure, in pieces, so that a long list neither blocks the loop
nor fills memory. What happened meanwhile is asked for again, until so little is left that it can be
written at once; that last step and joining the group happen without an await between, so nothing is
lost or doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from aiohttp import web

from fairlead.api.status import ApiError, StatusDetails, TooManyRequests
from fairlead.embedded.http.answering.broadcast import Broadcaster, Watcher, WatcherGroup
from fairlead.embedded.http.answering.negotiate import Accepted
from fairlead.embedded.http.answering.render import (
    PIECE_BYTES,
    IncludeObject,
    Rendering,
    chunk,
    event_line,
    rendering,
    status_line,
)
from fairlead.embedded.http.answering.respond import begin_json, write_pieces
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Record
from fairlead.embedded.verbs.options import WatchOptions, WatchStart
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.clock import Clock

#: Step of the spread of default time-outs, so that watches that began together do not end together.
_SPREAD_STEP_SECONDS = 61
#: The annotation of the bookmark that closes the initial events.
_INITIAL_EVENTS_END = '{"k8s.io/initial-events-end":"true"}'


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """A parsed watch."""

    info: ResourceInfo
    namespace: str
    options: WatchOptions
    accepted: Accepted
    include: IncludeObject


class _Stream:
    """What one watch is sent before it joins its group."""

    def __init__(self, first: Rendering) -> None:
        self._rendering = first
        self.has_begun = False

    def line(self, kind: str, record: Record) -> bytes:
        """Return the line of an event."""
        return self._begin(event_line(kind, self._rendering.one(record)))

    def bookmark(self, version: int, annotations: str) -> bytes:
        """Return the line of a bookmark."""
        return self._begin(event_line("BOOKMARK", self._rendering.bookmark(version, annotations)))

    def _begin(self, line: bytes) -> bytes:
        if not self.has_begun:
            self._rendering, self.has_begun = self._rendering.after_first(), True
        return line


def _pieces(start: WatchStart, stream: _Stream) -> Iterator[bytes]:
    """Yield the lines of what is to catch up with, in pieces of about PIECE_BYTES."""
    lines: list[bytes] = []
    size = 0
    for kind, record in start.initial:
        line = stream.line(kind.value, record)
        lines.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)


class Watching:
    """Answers watch requests, all through one broadcaster."""

    def __init__(self, service: ApiService, broadcaster: Broadcaster, clock: Clock) -> None:
        self._service = service
        self._broadcaster = broadcaster
        self._clock = clock
        self._serial = 0

    async def answer(self, request: web.BaseRequest, watch: WatchQuery) -> web.StreamResponse:
        """Stream until the time-out, a disconnect, or the server's stop.

        Raises what `ApiService.watch_start` does, before anything is sent; later errors go into the
        stream as an ERROR event.
        """
        broadcaster = self._broadcaster
        if broadcaster.watcher_count >= broadcaster.limits.watchers_max:
            raise TooManyRequests(
                f"the server has {broadcaster.limits.watchers_max} watches open, its limit",
                details=StatusDetails(retry_after_seconds=5),
            )
        start = self._service.watch_start(watch.info, watch.namespace, watch.options)
        render = rendering(watch.info, watch.accepted, watch.include, self._clock)
        stream = _Stream(render)
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds(watch.options)
        response = await begin_json(request, warnings=watch.info.warnings)
        await response.write(b"")  # sends the headers now: the first event may take long to come
        try:
            start = await self._catch_up(response, start, watch, stream)
        except ApiError as error:
            await response.write(status_line(error.status.encode()))
            return response
        transport = request.transport
        if transport is None or transport.is_closing():
            return response
        # No await from the read of `start` to the end of `join`.
        rest = b"".join(_pieces(start, stream))
        if rest:
            transport.write(chunk(rest))
        watcher = Watcher(
            transport,
            start.from_version,
            watch.options.allow_bookmarks,
            asyncio.get_running_loop().time() + broadcaster.limits.bookmark_seconds,
            deadline,
            asyncio.get_running_loop().create_future(),
            stream.has_begun,
        )
        await self._stay(watcher, watch, WatcherGroup(watch.info, start.filter.transform, render))
        return response

    async def _catch_up(
        self,
        response: web.StreamResponse,
        start: WatchStart,
        watch: WatchQuery,
        stream: _Stream,
    ) -> WatchStart:
        """Write until little is left, and return that rest, unwritten.

        Raises Expired for a client that reads slower than things change.
        """
        owes_bookmark = watch.options.send_initial_events and watch.options.allow_bookmarks
        while True:
            await write_pieces(response, _pieces(start, stream))
            if owes_bookmark:  # exactly once: informers wait for it (KEP-3157)
                owes_bookmark = False
                await response.write(stream.bookmark(start.from_version, _INITIAL_EVENTS_END))
            options = replace(
                watch.options,
                resource_version=str(start.from_version),
                resource_version_match="",
                send_initial_events=None,
            )
            start = self._service.watch_start(watch.info, watch.namespace, options)
            if sum(len(record.data) for _, record in start.initial) < PIECE_BYTES:
                return start

    async def _stay(self, watcher: Watcher, watch: WatchQuery, group: WatcherGroup) -> None:
        """Be a member of the watch's group, or begin it with `group`, until the watch ends."""
        broadcaster, options = self._broadcaster, watch.options
        key = (
            watch.info,
            watch.namespace,
            options.label_selector,
            options.field_selector,
            watch.accepted,
            watch.include,
        )
        membership = broadcaster.join(key, watcher, group)
        try:
            ending = await watcher.ended
            broadcaster.ended_counts[ending] += 1
        finally:
            broadcaster.leave(membership, watcher)

    def _timeout_seconds(self, options: WatchOptions) -> int:
        if options.timeout_seconds:  # 0 means the default, as upstream
            return options.timeout_seconds
        self._serial += 1
        least = self._broadcaster.limits.timeout_seconds_default
        return least + self._serial * _SPREAD_STEP_SECONDS % least
