"""Sending changes to all watchers: encoded once per group, written straight to the connections.

Watches of the same kind, namespace, selectors and form are one group. The store's events are
collected for a few milliseconds (longer under load, up to `tick_seconds_max`), and then each
group's are encoded and framed once and the same bytes written to every transport of the group, past
the web framework: that is what lets one core deliver a million events per second to a thousand
watchers. The price is that back-pressure is ours: a watcher whose transport holds more than
`buffer_bytes_max` unsent is cut off, and only that one; it resumes from the last version it saw.

One sweep several times a second ends what is over its time or disconnected, and sends bookmarks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from fairlead.embedded.http.answering.render import Rendering, chunk, event_line
from fairlead.embedded.registry import Registry
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.store import Record, StoreEvent
from fairlead.runtime.client import EventType

#: What a watch sees of one store event; None when it does not concern it.
Filter = Callable[[StoreEvent], tuple[EventType, Record] | None]


class WatchEnding(Enum):
    """Why a watch is over."""

    TIMEOUT = "timeout"
    SLOW = "slow"
    CLOSED = "closed"
    WITHDRAWN = "withdrawn"  # its kind is no longer served in that shape
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class WatchLimits:
    """Bounds and rhythm of watches."""

    watchers_max: int = 10_000
    buffer_bytes_max: int = 8 * 1024 * 1024
    tick_seconds_min: float = 0.002
    tick_seconds_max: float = 0.020
    sweep_seconds: float = 0.25
    bookmark_seconds: float = 60.0
    timeout_seconds_default: int = 1800


@dataclass(slots=True, eq=False)
class Watcher:
    """One watch connection. `from_version` is what it has been sent already when it joins."""

    transport: asyncio.Transport
    from_version: int
    bookmarks: bool
    bookmark_at: float
    deadline: float
    ended: asyncio.Future[WatchEnding]
    #: False until its first event: of Tables that one alone has the columns.
    has_begun: bool = False

    def end(self, ending: WatchEnding) -> None:
        """Wake the request's handler, once."""
        if not self.ended.done():
            self.ended.set_result(ending)


@dataclass(slots=True, eq=False)
class WatcherGroup:
    """Watchers that are sent the same bytes; in the order in which they came."""

    info: ResourceInfo
    filter: Filter
    rendering: Rendering
    watchers: dict[Watcher, None] = field(default_factory=dict)
    fresh: list[Watcher] = field(default_factory=list)

    @property
    def later(self) -> Rendering:
        """How a stream goes on after its first event."""
        return self.rendering.after_first()

    def encode(self, events: Sequence[StoreEvent], watcher: Watcher | None = None) -> bytes:
        """Return the lines of the events that concern this group; of them, what a watcher lacks."""
        lines: list[bytes] = []
        after = watcher.from_version if watcher is not None else 0
        is_first = watcher is not None and not watcher.has_begun
        rendering, later = self.rendering, self.later
        for event in events:
            if event.version <= after:
                continue
            seen = self.filter(event)
            if seen is not None:
                form = rendering if is_first and not lines else later
                lines.append(event_line(seen[0].value, form.one(seen[1])))
        return b"".join(lines)


class Broadcaster:
    """All groups. `publish` is the store's subscriber; `run` must run beside it."""

    def __init__(self, registry: Registry, version: Callable[[], int], limits: WatchLimits) -> None:
        self.limits = limits
        self.ended_counts: dict[WatchEnding, int] = dict.fromkeys(WatchEnding, 0)
        self._registry = registry
        self._revision = registry.revision
        self._version = version
        self._loop = asyncio.get_running_loop()
        self._groups: dict[Hashable, WatcherGroup] = {}
        self._tables: dict[str, dict[Hashable, WatcherGroup]] = {}
        self._pending: dict[str, list[StoreEvent]] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._tick_seconds = limits.tick_seconds_min
        self._is_stopping = False
        self.watcher_count = 0

    def publish(self, events: Sequence[StoreEvent]) -> None:
        """Take committed events, in version order, and send them with the next tick."""
        wanted = False
        for event in events:
            pending = self._pending.get(event.info.name)
            if pending is not None:
                pending.append(event)
                wanted = True
        if wanted and self._tick is None:
            self._tick = self._loop.call_later(self._tick_seconds, self._flush)

    def join(
        self, key: Hashable, watcher: Watcher, new_group: WatcherGroup
    ) -> tuple[Hashable, WatcherGroup]:
        """Add a watcher that has been sent everything up to its `from_version`.

        To the group of this key, else to `new_group`. Must happen in the same step of the loop as
        the read that gave that version.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = new_group
            self._tables.setdefault(group.info.name, {})[key] = group
            self._pending.setdefault(group.info.name, [])
        group.fresh.append(watcher)
        group.watchers[watcher] = None
        self.watcher_count += 1
        if self._is_stopping:
            watcher.end(WatchEnding.STOPPED)
        return key, group

    def leave(self, membership: tuple[Hashable, WatcherGroup], watcher: Watcher) -> None:
        """Remove a watcher; the last one takes its group along."""
        key, group = membership
        if watcher not in group.watchers:
            return
        del group.watchers[watcher]
        if watcher in group.fresh:
            group.fresh.remove(watcher)
        self.watcher_count -= 1
        if group.watchers:
            return
        del self._groups[key]
        groups = self._tables[group.info.name]
        del groups[key]
        if not groups:
            del self._tables[group.info.name]
            del self._pending[group.info.name]

    def _flush(self) -> None:
        self._tick = None
        started = self._loop.time()
        for table, groups in self._tables.items():
            events = self._pending[table]
            if events:
                self._pending[table] = []
                for group in groups.values():
                    self._send(group, events)
        # A tick lasts at least ten times what it costs, so that fan-out leaves room for requests.
        cost = self._loop.time() - started
        self._tick_seconds = min(
            self.limits.tick_seconds_max, max(self.limits.tick_seconds_min, 10 * cost)
        )

    def _send(self, group: WatcherGroup, events: Sequence[StoreEvent]) -> None:
        fresh = group.fresh
        late = {w: group.encode(events, w) for w in fresh if not w.ended.done()}
        for watcher, own in late.items():
            watcher.has_begun = watcher.has_begun or bool(own)
        # With columns to come, a watcher is sent events of its own until it has had one.
        has_columns = group.later is not group.rendering
        group.fresh = [w for w in late if has_columns and not w.has_begun]
        payload = group.encode(events)
        framed = chunk(payload) if payload else b""
        for watcher in group.watchers:
            if watcher in late:
                own = late[watcher]
                if own:
                    self._write(watcher, framed if own == payload else chunk(own))
            elif framed:
                self._write(watcher, framed)

    def _write(self, watcher: Watcher, framed: bytes) -> None:
        transport = watcher.transport
        if watcher.ended.done():
            return
        if transport.is_closing():
            watcher.end(WatchEnding.CLOSED)
            return
        transport.write(framed)
        if transport.get_write_buffer_size() > self.limits.buffer_bytes_max:
            # A clean end would only queue up behind what it does not read.
            watcher.end(WatchEnding.SLOW)
            transport.abort()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self.limits.sweep_seconds)
            self._sweep(self._loop.time())

    def _sweep(self, now: float) -> None:
        if self._tick is not None:
            self._tick.cancel()
        self._flush()
        version = self._version()
        withdrawn = self._registry.revision != self._revision
        self._revision = self._registry.revision
        for group in self._groups.values():
            info = group.info
            served = self._registry.find(info.group, info.version, info.plural)
            if withdrawn and served is not info:
                for watcher in group.watchers:
                    watcher.end(WatchEnding.WITHDRAWN)
            self._sweep_group(group, now, version)

    def _sweep_group(self, group: WatcherGroup, now: float, version: int) -> None:
        bookmarks: dict[bool, bytes] = {}
        for watcher in group.watchers:
            if watcher.transport.is_closing():
                watcher.end(WatchEnding.CLOSED)
            timed_out = now >= watcher.deadline
            if watcher.bookmarks and (timed_out or now >= watcher.bookmark_at):
                form = group.later if watcher.has_begun else group.rendering
                line = bookmarks.get(watcher.has_begun)
                if line is None:
                    line = chunk(event_line("BOOKMARK", form.bookmark(version, "")))
                    bookmarks[watcher.has_begun] = line
                watcher.bookmark_at = now + self.limits.bookmark_seconds
                watcher.has_begun = True
                self._write(watcher, line)
            if timed_out:
                watcher.end(WatchEnding.TIMEOUT)

    def stop(self) -> None:
        """End all watches; those that join from now on end at once."""
        self._is_stopping = True
        for group in self._groups.values():
            for watcher in group.watchers:
                watcher.end(WatchEnding.STOPPED)

    def counts(self) -> Mapping[str, int]:
        """Return how many watchers each kind has, for metrics."""
        return {
            table: sum(len(group.watchers) for group in groups.values())
            for table, groups in self._tables.items()
        }
