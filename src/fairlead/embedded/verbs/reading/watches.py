"""In-process watches: one subscription to the store feeds all, each through a bounded buffer.

A watch whose buffer overflows ends there, as a slow connection does: its reader gets what was
buffered, then the end, and watches again from the last version seen.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.embedded.storage.records import Record, StoreEvent
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import WatchOptions, WatchStart
from fairlead.embedded.verbs.watch_filter import WatchFilter
from fairlead.runtime.client import EventType, WatchEvent

BOOKMARK_SECONDS = 60.0


class WatchItem(msgspec.Struct, gc=False, eq=False):
    """One thing to show to watchers; a BOOKMARK has no record. `event` caches what readers make."""

    type: EventType
    record: Record | None
    version: int
    event: WatchEvent[Any] | None = None


class Feed:
    """The hub's side of a watch: a buffer, its reader's wake-up, its timers."""

    def __init__(self, filter_: WatchFilter, buffer_max: int) -> None:
        self.filter = filter_
        self.selects_all = filter_.selects_all
        self.buffer: deque[WatchItem] = deque()
        self.buffer_max = buffer_max
        self.ended = False
        self.waiter: asyncio.Future[None] | None = None
        self.timers: list[asyncio.TimerHandle] = []

    def push(self, item: WatchItem) -> None:
        """Buffer one item, or end the feed when there is no room."""
        if len(self.buffer) >= self.buffer_max:
            self.ended = True
        else:
            self.buffer.append(item)
        self.wake()

    async def wait(self) -> None:
        """Return when there is something in the buffer; StopAsyncIteration when nothing will be."""
        while not self.buffer:
            if self.ended:
                raise StopAsyncIteration
            self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter

    def wake(self) -> None:
        """Let the reader look."""
        waiter = self.waiter
        if waiter is not None:
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)


class Watch:
    """An in-process watch: iterate it. It ends at its time-out, on overflow, or with `close`."""

    def __init__(self, hub: WatchHub, feed: Feed) -> None:
        self._hub = hub
        self.feed = feed

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchItem:
        if not self.feed.buffer:
            await self.feed.wait()
        return self.feed.buffer.popleft()

    def close(self) -> None:
        """End the watch; what is buffered can still be read."""
        self._hub.discard(self.feed)
        self.feed.ended = True
        self.feed.wake()

    async def aclose(self) -> None:
        """End the watch, for `contextlib.aclosing`."""
        self.close()

    def __del__(self) -> None:
        self._hub.discard(self.feed)


class WatchHub:
    """All in-process watches of a store, behind one subscription."""

    def __init__(self, store: Store, *, buffer_max: int) -> None:
        self._store = store
        self._buffer_max = buffer_max
        self._feeds: dict[str, list[Feed]] = {}
        store.subscribe(self._deliver)

    def open(self, start: WatchStart, options: WatchOptions, *, timeout_seconds: float) -> Watch:
        """Return a watch that begins with `start`; call it in the same step as `watch_start`."""
        feed = Feed(start.filter, max(self._buffer_max, len(start.initial)))
        for kind, record in start.initial:
            feed.buffer.append(WatchItem(kind, record, record.version))
        self._feeds.setdefault(start.filter.info.name, []).append(feed)
        loop = asyncio.get_running_loop()
        feed.timers.append(loop.call_later(timeout_seconds, self._end, feed, options))
        if options.allow_bookmarks:
            feed.timers.append(loop.call_later(BOOKMARK_SECONDS, self._bookmark, feed))
        return Watch(self, feed)

    @property
    def count(self) -> int:
        """How many watches are open."""
        return sum(len(feeds) for feeds in self._feeds.values())

    def watches(self, name: str) -> bool:
        """True when somebody watches the table `name`."""
        return bool(self._feeds.get(name))

    def discard(self, feed: Feed) -> None:
        """Feed it no more; harmless when that is so already."""
        name = feed.filter.info.name
        feeds = self._feeds.get(name, [])
        if feed in feeds:
            # A new list: the garbage collector may end a watch in the middle of a delivery.
            self._feeds[name] = [other for other in feeds if other is not feed]
        for timer in feed.timers:
            timer.cancel()
        feed.timers.clear()

    def end(self, name: str) -> None:
        """End all watches of a table, because its kind is no longer served."""
        for feed in self._feeds.pop(name, []):
            feed.ended = True
            feed.wake()

    def _deliver(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            feeds = self._feeds.get(event.info.name)
            if not feeds:
                continue
            # Watchers that see the write as it is share one item.
            plain = WatchItem(event.type, event.record, event.version)
            is_over = False
            for feed in feeds:
                item = plain
                if not feed.selects_all:
                    seen = feed.filter.transform(event)
                    if seen is None:
                        continue
                    if seen[1] is not event.record or seen[0] is not event.type:
                        item = WatchItem(seen[0], seen[1], event.version)
                if feed.waiter is None and len(feed.buffer) < feed.buffer_max:
                    feed.buffer.append(item)  # its reader is awake already: as `push`, in line
                    continue
                feed.push(item)
                is_over = is_over or feed.ended
            if is_over:
                for feed in [feed for feed in feeds if feed.ended]:
                    self.discard(feed)

    def _bookmark(self, feed: Feed) -> None:
        feed.push(WatchItem(EventType.BOOKMARK, None, self._store.version))
        timer = asyncio.get_running_loop().call_later(BOOKMARK_SECONDS, self._bookmark, feed)
        feed.timers[1:] = [timer]

    def _end(self, feed: Feed, options: WatchOptions) -> None:
        if options.allow_bookmarks:
            feed.push(WatchItem(EventType.BOOKMARK, None, self._store.version))
        self.discard(feed)
        feed.ended = True
        feed.wake()
