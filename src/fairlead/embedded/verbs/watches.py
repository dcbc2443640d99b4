"""Watches: which event a watcher sees of a write, and the in-process stream with a bounded buffer.

A write may move an object into a selector (ADDED), within it (MODIFIED) or out of it (DELETED,
with the content that still matched and the new version). One subscription to the store feeds
all in-process watches; each has a buffer, and one whose buffer overflows ends there, as a slow
connection does: its reader gets what was buffered, then the end, and watches again from the
last version seen.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlead.api.selectors import EVERYTHING, Operator, Selector
from fairlead.embedded.registry import ResourceInfo, field_reader
from fairlead.embedded.storage.records import Record, StoreEvent
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.options import WatchOptions, WatchStart
from fairlead.runtime.client import EventType, WatchEvent

BOOKMARK_SECONDS = 60.0
#: Texts that JSON holds as they are; numbers, which have several forms, are not among them.
_AS_STORED = re.compile(r"[A-Za-z][-A-Za-z0-9.]*", re.ASCII)


class WatchFilter:
    """What a list or watch selects: a kind, a namespace ("" for all), labels and fields."""

    __slots__ = ("_fields", "_labels", "_needed", "fields", "has_selector", "info", "labels",
                 "namespace", "selects_all")  # fmt: skip

    def __init__(
        self,
        info: ResourceInfo,
        namespace: str = "",
        labels: Selector = EVERYTHING,
        fields: Selector = EVERYTHING,
    ) -> None:
        self.info = info
        self.namespace = namespace
        self.labels = labels
        self.fields = fields
        self._labels = labels.requirements
        self._fields = fields.requirements
        self._needed = _needed_bytes(info, fields)
        #: True when labels or fields are selected by.
        self.has_selector = bool(labels or fields)
        #: True when every object of the kind is selected.
        self.selects_all = not (namespace or self.has_selector)

    def selects(self, record: Record) -> bool:
        """Like `matches`, for lists: many objects once, so nothing is cached on them."""
        if not self._fields:
            return self.matches(record)
        if self.namespace and record.key[0] != self.namespace:
            return False
        if self._labels and not self.labels.matches(record.labels):
            return False
        for needed in self._needed:
            if needed not in record.data:
                return False
        names = tuple(requirement.key for requirement in self._fields)
        return self.fields.matches(field_reader(self.info, names).read(record.data))

    def matches(self, record: Record) -> bool:
        """True when the object is selected."""
        if self.namespace and record.key[0] != self.namespace:
            return False
        for requirement in self._labels:
            if not requirement.matches(record.labels):
                return False
        if self._fields:
            fields = record.fields(self.info)
            for requirement in self._fields:
                if not requirement.matches(fields):
                    return False
        return True

    def transform(self, event: StoreEvent) -> tuple[EventType, Record] | None:
        """Return what this watcher sees of a write; None when nothing."""
        if event.info is not self.info and event.info.name != self.info.name:
            return None
        if self.selects_all:
            return event.type, event.record
        if event.type is EventType.ADDED:
            return (EventType.ADDED, event.record) if self.matches(event.record) else None
        assert event.previous is not None
        was = self.matches(event.previous)
        if event.type is EventType.DELETED:
            return (EventType.DELETED, event.record) if was else None
        if self.matches(event.record):
            return (EventType.MODIFIED if was else EventType.ADDED), event.record
        return (EventType.DELETED, event.left()) if was else None


def _needed_bytes(info: ResourceInfo, fields: Selector) -> tuple[bytes, ...]:
    """Return what the stored bytes of any selected object contain: to search is ten times cheaper
    than to decode, and one node's pods are few among all.
    """
    needed: list[bytes] = []
    for requirement in fields.requirements:
        field = info.selectable.get(requirement.key)
        values = requirement.values
        if requirement.operator is not Operator.IN or len(values) != 1 or field is None:
            continue
        # A default may be absent from the bytes, and other characters may be escaped there.
        if not field.default and _AS_STORED.fullmatch(values[0]):
            needed.append(values[0].encode())
    return tuple(needed)


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
