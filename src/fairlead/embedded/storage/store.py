"""Versioned objects, a history window and subscribers; no Kubernetes knowledge beyond metadata.

One integer counts all writes of the store: an object's resourceVersion is the count at its write. A
write is logged first (`wal.py`) and becomes visible, to reads and subscribers alike, when its log
record is on disk; until then only other writes see it (`latest`), so that compare-and-swap holds
among writes that are still on their way. Without a log a write is visible at once.

Each table (one per kind) keeps its objects by key, the sorted keys for lists, and the last
`history_max` events. From these a watch resumes, and a past snapshot is rebuilt by undoing events,
so that no page of a list has to be kept.
"""

from __future__ import annotations

import asyncio
import gc
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.api.status import InternalError, TooLarge, TooManyRequests
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Key, Record, StoreEvent, pack, record_of
from fairlead.embedded.storage.wal import (
    Log,
    LoggedWrite,
    WalOptions,
    WalRecovery,
    lock_directory,
    replay,
)
from fairlead.runtime.client import EventType
from fairlead.runtime.wake_up import WakeUp

HISTORY_MAX = 8192
HISTORY_BYTES_MAX = 64 << 20
#: What etcd takes of one object (`--max-request-bytes`).
OBJECT_BYTES_MAX = 3 << 19
#: Past versions that stay decoded, the latest: who watches in this process is still to read them.
PAST_DECODED_MAX = 256
PAST_DECODED_BYTES_MAX = 2 << 20
#: Past versions that are compressed together, what they hold, and the time between two such blocks:
#: 800 versions in a second, in less than a hundredth of one. Of more, the rest stays as it is.
PACKED_TOGETHER, PACKED_BYTES_MAX, PACK_PAUSE_SECONDS = 16, 256 << 10, 0.02


Subscriber = Callable[[Sequence[StoreEvent]], None]


class _Table:
    """Visible objects of one kind, and the events that led to them."""

    __slots__ = (
        "_history_bytes", "_keys", "_options", "counts", "data_bytes", "floor", "history",
        "records",
    )  # fmt: skip

    def __init__(self, floor: int, options: StoreOptions) -> None:
        self.records: dict[Key, Record] = {}
        self.counts: dict[str, int] = {}  # per namespace
        self.data_bytes = 0  # of all objects
        self.history: deque[StoreEvent] = deque()
        self.floor = floor  # all events above this version are in `history`
        self._keys: list[Key] | None = None
        self._history_bytes = 0
        self._options = options

    def load(self, record: Record) -> None:
        """Put a replayed record in."""
        self.records[record.key] = record
        self.data_bytes += len(record.data)
        self.counts[record.key[0]] = self.counts.get(record.key[0], 0) + 1

    def apply(self, event: StoreEvent) -> None:
        """Make one event visible."""
        record = event.record
        key = record.key
        if event.previous is not None:
            self.data_bytes -= len(event.previous.data)
        if event.type is not EventType.DELETED:
            self.data_bytes += len(record.data)
        if event.type is EventType.MODIFIED:
            self.records[key] = record
        elif event.type is EventType.ADDED:
            self.records[key] = record
            self.counts[key[0]] = self.counts.get(key[0], 0) + 1
            self._keys = None
        else:
            del self.records[key]
            self._keys = None
            left = self.counts[key[0]] - 1
            if left:
                self.counts[key[0]] = left
            else:
                del self.counts[key[0]]
        history, options = self.history, self._options
        self._history_bytes += record.size
        while history and (
            len(history) >= options.history_max or self._history_bytes > options.history_bytes_max
        ):
            oldest = history.popleft()
            self._history_bytes -= oldest.record.size
            self.floor = oldest.version
        history.append(event)

    def keys(self) -> list[Key]:
        """Return the sorted keys; the list is shared and stays as it is."""
        if self._keys is None:
            self._keys = sorted(self.records)
        return self._keys

    def between(self, namespace: str) -> list[Record]:
        """Return the objects of a namespace, or all for "", in key order."""
        records = self.records
        keys = self.keys()
        if namespace:
            start = bisect_left(keys, (namespace, ""))
            keys = keys[start : bisect_left(keys, (namespace + "\0", ""), start)]
        return [records[key] for key in keys]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Limits of the store."""

    history_max: int = HISTORY_MAX  # events kept per kind, for watches that resume
    history_bytes_max: int = HISTORY_BYTES_MAX  # and what they hold; fewer events when it is more
    pending_max: int = 100_000  # writes on their way to the disk
    object_bytes_max: int = OBJECT_BYTES_MAX
    log: WalOptions = field(default_factory=WalOptions)


class Store:
    """The objects of all kinds. Use one from one event loop."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.version = 0  # of the last visible write
        self.recovery: WalRecovery | None = None
        self._assigned = 0  # version of the last write, visible or not
        self._floor = 0
        self._tables: dict[str, _Table] = {}
        self._log: Log | None = None
        self._pending: deque[StoreEvent] = deque()
        self._overlay: dict[tuple[str, Key], StoreEvent] = {}
        self._past: deque[Record] = deque()  # those that may be decoded
        self._past_bytes = 0
        self._to_pack: deque[Record] | None = None
        self._packs = WakeUp()
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._subscribers: tuple[Subscriber, ...] = ()
        self._unpublished: deque[Sequence[StoreEvent]] = deque()
        self._publishing = False
        self._failure: OSError | None = None
        self._failure_listeners: list[Callable[[OSError], None]] = []
        self._compaction_listeners: list[Callable[[OSError | MemoryError | None], None]] = []

    @classmethod
    def open(cls, directory: Path | None, options: StoreOptions | None = None) -> Store:
        """Open a data directory, or an empty store in memory for None.

        Raises StoreError (directory in use, of another format, damaged) and OSError.
        """
        store = cls(options or StoreOptions())
        if directory is not None:
            store._replay(directory)
        return store

    def _replay(self, directory: Path) -> None:
        lock = lock_directory(directory)
        collecting = gc.isenabled()
        gc.disable()  # a million new containers, none of them garbage
        try:
            live: dict[tuple[str, Key], LoggedWrite] = {}

            def apply(entry: LoggedWrite) -> None:
                key = (entry.table, (entry.namespace, entry.name))
                if entry.data is None:
                    live.pop(key, None)
                else:
                    live[key] = entry

            self.recovery, number = replay(directory, apply, self.options.log)
            self.version = self._assigned = self._floor = self.recovery.version
            for (name, key), entry in live.items():
                assert entry.data is not None
                self._table(name).load(record_of(key, entry.version, entry.data))
            self._log = Log(
                directory, number, lock,
                options=self.options.log, on_durable=self._durable, on_failed=self._fail,
                on_compacted=self._compacted,
            )  # fmt: skip
        except BaseException:
            os.close(lock)
            raise
        finally:
            if collecting:
                gc.enable()

    def _table(self, name: str) -> _Table:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = _Table(self._floor, self.options)
        return table

    # ------------------------------------------------------------------ reads

    def get(self, name: str, key: Key) -> Record | None:
        """Return a visible object of the table `name` (`ResourceInfo.name`)."""
        table = self._tables.get(name)
        return table.records.get(key) if table else None

    def latest(self, name: str, key: Key) -> Record | None:
        """Return the object as the next write finds it: with writes that are not visible yet."""
        if self._overlay:
            event = self._overlay.get((name, key))
            if event is not None:
                return None if event.type is EventType.DELETED else event.record
        table = self._tables.get(name)
        return table.records.get(key) if table else None

    def records(self, name: str, namespace: str = "") -> list[Record]:
        """Return the visible objects of a namespace, or all for "", in (namespace, name) order."""
        table = self._tables.get(name)
        return table.between(namespace) if table else []

    def latest_records(self, name: str, namespace: str) -> list[Record]:
        """As `records` of a namespace, with writes that are not visible yet; in no order."""
        found = {record.key: record for record in self.records(name, namespace)}
        for (table, key), event in self._overlay.items():
            if table == name and key[0] == namespace:
                found[key] = event.record
                if event.type is EventType.DELETED:
                    del found[key]
        return list(found.values())

    def changed_at(self, name: str) -> int:
        """Return the version of the last visible write to a table."""
        table = self._tables.get(name)
        if table is None:
            return 0
        return table.history[-1].version if table.history else table.floor

    def count(self, name: str, namespace: str = "") -> int:
        """Return how many objects are visible in a namespace, or in all for ""."""
        table = self._tables.get(name)
        if table is None:
            return 0
        return table.counts.get(namespace, 0) if namespace else len(table.records)

    def table_names(self) -> list[str]:
        """Return the tables that hold or held objects, sorted."""
        return sorted(self._tables)

    def history(self, name: str, after: int) -> list[StoreEvent] | None:
        """Return the visible events with versions above `after`; None when some are forgotten."""
        table = self._table(name)
        if after < table.floor:
            return None
        found: list[StoreEvent] = []
        for event in reversed(table.history):
            if event.version <= after:
                break
            found.append(event)
        found.reverse()
        return found

    def snapshot(self, name: str, version: int, namespace: str = "") -> list[Record] | None:
        """Return the objects as they were at `version`, in key order; None when forgotten."""
        events = self.history(name, version)
        if events is None:
            return None
        records = self.records(name, namespace)
        if not events:
            return records
        then: dict[Key, Record | None] = {}
        for event in events:
            if not namespace or event.record.key[0] == namespace:
                then.setdefault(event.record.key, event.previous)
        now = {record.key: record for record in records}
        for key, record in then.items():
            if record is None:
                now.pop(key, None)
            else:
                now[key] = record
        return [now[key] for key in sorted(now)]

    # ------------------------------------------------------------------ writes

    @property
    def next_version(self) -> int:
        """The version that the next write must carry."""
        return self._assigned + 1

    def add(self, info: ResourceInfo, record: Record) -> None:
        """As `put`, of an object of which the caller knows that there is none: no `latest`."""
        self._write(StoreEvent(EventType.ADDED, info, record, None, record.version), record.data)

    def put(self, info: ResourceInfo, record: Record) -> None:
        """Write an object whose version is `next_version`; await `committed` before answering."""
        previous = self.latest(info.name, record.key)
        if previous is not None:
            record.follow(previous)
        kind = EventType.ADDED if previous is None else EventType.MODIFIED
        self._write(StoreEvent(kind, info, record, previous, record.version), record.data)

    def remove(self, info: ResourceInfo, record: Record) -> None:
        """Delete an object; `record` is its last state under `next_version`."""
        previous = self.latest(info.name, record.key)
        assert previous is not None, "only what exists can be removed"
        record.follow(previous)
        self._write(StoreEvent(EventType.DELETED, info, record, previous, record.version), None)

    def _write(self, event: StoreEvent, data: bytes | None) -> None:
        assert event.version == self._assigned + 1, "versions are given out one by one"
        if self._failure is not None:
            raise self._not_stored()
        if data is not None and len(data) > self.options.object_bytes_max:
            raise TooLarge(f"the object has {len(data):,} bytes: request is too large")
        if self._log is None:
            self._assigned = event.version
            self._commit((event,))
            return
        if len(self._pending) >= self.options.pending_max:
            raise TooManyRequests("the disk is too slow: too many writes wait for it")
        self._assigned = event.version
        name, key = event.info.name, event.record.key
        self._pending.append(event)
        self._overlay[name, key] = event
        self._log.append(LoggedWrite(event.version, name, key[0], key[1], data))

    def _commit(self, events: Sequence[StoreEvent]) -> None:
        for event in events:
            self._table(event.info.name).apply(event)
        self.version = events[-1].version
        self._publish(events)
        self._retire(events)

    def _retire(self, events: Sequence[StoreEvent]) -> None:
        """Keep of past versions only what is stored, once those who watch have read them."""
        past = self._past
        for event in events:
            if event.previous is not None:
                past.append(event.previous)
                self._past_bytes += event.previous.size
            if event.type is EventType.DELETED:
                past.append(event.record)
                self._past_bytes += event.record.size
        while len(past) > PAST_DECODED_MAX or self._past_bytes > PAST_DECODED_BYTES_MAX:
            record = past.popleft()
            self._past_bytes -= record.size
            record.retire()
            if self._to_pack is not None:
                self._to_pack.append(record)
                if len(self._to_pack) >= PACKED_TOGETHER:
                    self._packs.set()

    async def pack_past(self) -> None:
        """Compress past versions as they retire, for ever, slowly enough to be in nobody's way.

        They are a twentieth of their size then, and most of what a process holds whose objects come
        and go. Who reads one has it decompressed.
        """
        self._to_pack = waiting = deque[Record](maxlen=self.options.history_max)
        while True:
            self._packs.clear()
            while len(waiting) < PACKED_TOGETHER:
                await self._packs.wait()
                self._packs.clear()
            block = [waiting.popleft()]
            byte_count = block[0].size
            while waiting and len(block) < PACKED_TOGETHER and byte_count <= PACKED_BYTES_MAX:
                block.append(waiting.popleft())
                byte_count += block[-1].size
            pack(block)
            await asyncio.sleep(PACK_PAUSE_SECONDS)

    def _publish(self, events: Sequence[StoreEvent]) -> None:
        """Notify subscribers; a write that one of them makes is published next, to all of them."""
        if self._publishing:
            self._unpublished.append(events)
            return
        self._publishing = True
        try:
            for subscriber in self._subscribers:
                subscriber(events)
            while self._unpublished:
                events = self._unpublished.popleft()
                for subscriber in self._subscribers:
                    subscriber(events)
        finally:
            self._publishing = False

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call back with every batch of later events, in version order; returns how to stop it.

        The callback is called in the event loop, must be quick and must not raise.
        """
        self._subscribers = (*self._subscribers, callback)

        def unsubscribe() -> None:
            self._subscribers = tuple([s for s in self._subscribers if s is not callback])

        return unsubscribe

    async def committed(self, version: int) -> None:
        """Return once the write of that version is visible; InternalError if it is not stored."""
        if version <= self.version:
            return
        if self._failure is not None:
            raise self._not_stored()
        future = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(version, []).append(future)
        await future

    def _durable(self, version: int) -> None:
        events: list[StoreEvent] = []
        pending, overlay = self._pending, self._overlay
        while pending and pending[0].version <= version:
            event = pending.popleft()
            events.append(event)
            place = (event.info.name, event.record.key)
            if overlay[place] is event:
                del overlay[place]
        self._commit(events)
        if self._waiters:
            for event in events:
                for future in self._waiters.pop(event.version, ()):
                    if not future.done():
                        future.set_result(None)
        log = self._log
        if log is not None and log.needs_compaction:
            live_bytes = sum(table.data_bytes for table in self._tables.values())
            if log.log_bytes > live_bytes:
                self._compact(log)

    def _compact(self, log: Log) -> None:
        tables = [(name, list(table.records.values())) for name, table in self._tables.items()]
        hidden = dict(self._overlay)

        def entries() -> Iterator[LoggedWrite]:
            for name, records in tables:
                for record in records:
                    if not hidden or (name, record.key) not in hidden:
                        yield LoggedWrite(record.version, name, *record.key, record.data)
            for (name, key), event in hidden.items():
                if event.type is not EventType.DELETED:
                    yield LoggedWrite(event.version, name, *key, event.record.data)

        log.compact(self._assigned, entries())

    # ------------------------------------------------------------------ failure and end

    @property
    def failure(self) -> OSError | None:
        """Why nothing can be stored any more, or None."""
        return self._failure

    def on_failure(self, callback: Callable[[OSError], None]) -> None:
        """Call back once when the log fails. The process should say so and end."""
        if self._failure is not None:
            callback(self._failure)
        else:
            self._failure_listeners.append(callback)

    def on_compaction(self, callback: Callable[[OSError | MemoryError | None], None]) -> None:
        """Call back after each compaction: None, or why it failed and the directory grows."""
        self._compaction_listeners.append(callback)

    def _compacted(self, error: OSError | MemoryError | None) -> None:
        for callback in self._compaction_listeners:
            callback(error)

    def _not_stored(self) -> InternalError:
        return InternalError(f"the write is not stored: writing the log failed: {self._failure}")

    def _fail(self, error: OSError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        waiters, self._waiters = self._waiters, {}
        for futures in waiters.values():
            for future in futures:
                if not future.done():
                    future.set_exception(self._not_stored())
        for callback in self._failure_listeners:
            callback(error)

    async def close(self) -> None:
        """Finish what is on its way, and release the directory."""
        if self._log is not None:
            self._log.close()
            await asyncio.sleep(0)  # the writer thread's last reports
            self._log = None
