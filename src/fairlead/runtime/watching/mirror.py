"""Mirror: a local, always nearly current copy of one kind, fed by one list and one watch.

The cycle is list → watch → watch → ...: a watch that ends, normally or broken, is resumed from the
last version that was seen (an event's or a bookmark's), so a start costs exactly one LIST. Only
`Expired` (410) or `relist` lead to another list, which is then compared with what is held: what
vanished meanwhile is reported as a deletion, what did not change is not reported at all.

An object that cannot be decoded is set aside and keeps its place: what is held of it stays, with
its new metadata where there are any, so that its deletion is seen. Nothing is held of one that was
never readable.

Handlers run synchronously and in order, so that state which follows a mirror is never between two
versions when it is read. An exception in a handler is a fault of ours and ends `run`.

A dormant mirror costs nothing: it counts as synced, and without objects, until somebody wakes it.

A kind that a cluster may lack and that the server does not know (404) counts as one without
objects, and is asked for again. What was held before stays: a server may not know it yet.

Source: KEP-365 (pages), KEP-956 (bookmarks), KEP-5504 (versions compare as integers); what a client
must expect of a watch was measured in the wild: a stream just ends, with no error event.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import replace

from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import Resource
from fairlead.api.status import ApiError, Expired, NotFound, Unavailable
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.backoff import Backoff, BackoffOptions
from fairlead.runtime.client import Client, EventType, ObjectList, Unreadable, WatchEvent
from fairlead.runtime.clock import Clock
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.watching.set_aside import AsideStage, SetAside


class HasMetadata(Protocol):
    """Any API object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Name, namespace, version ..."""
        ...


T = TypeVar("T", bound=HasMetadata)


class Change(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):
    """One change: created (`old` None), modified, or deleted (`new` None). Never both None."""

    old: T | None
    new: T | None

    @property
    def key(self) -> ObjectKey:
        """(namespace, name) of the object."""
        obj = self.new if self.new is not None else self.old
        return cast("T", obj).metadata.key


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """What to mirror, and how patiently."""

    #: Only objects of this namespace; "": of all.
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    #: A watch is asked to end after one to two times this, so that a dead connection is noticed.
    watch_seconds: int = 300
    #: A watch that ended empty and sooner than this counts as a failure (the server is in trouble).
    watch_seconds_min: float = 1.0
    #: Lists older than what was seen are asked again this often; then the store was put back.
    stale_lists_max: int = 5
    #: The definition of a kind that the cluster lacks is looked for again after this.
    undefined_seconds: float = 30.0
    #: Other tasks get a turn after this many objects.
    batch_max: int = 256
    #: Nothing is listed or watched before `wake` is called.
    is_dormant: bool = False
    backoff: BackoffOptions = field(default_factory=BackoffOptions)


class Mirror(Generic[T]):
    """A copy of the objects of one resource. Reads are synchronous and never touch the API."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        *,
        clock: Clock,
        rng: random.Random,
        options: MirrorOptions | None = None,
        log: Logger = SILENT,
        set_aside: SetAside | None = None,
    ) -> None:
        """Make an empty mirror, which `run` fills.

        `set_aside` takes the objects that cannot be decoded.
        """
        self.resource = resource
        self.options = options or MirrorOptions()
        self.list_count = 0
        self.set_aside = set_aside or SetAside(f"mirror of {resource.kind}", log=log)
        self._client = client
        self._clock = clock
        self._rng = rng
        self._backoff = Backoff(rng, self.options.backoff)
        self._log = log
        self._objects: dict[ObjectKey, T] = {}
        self._sorted_keys: list[ObjectKey] | None = None
        self._handlers: tuple[Callable[[Change[T]], None], ...] = ()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._is_notifying = False
        self._waiters: list[asyncio.Future[None]] = []
        self._version = 0
        self._expected_version = 0
        self._list_wanted = True
        self._stale_lists = 0
        self._synced = False
        self._is_dormant = self.options.is_dormant
        #: True while the cluster has no definition of the kind.
        self.is_undefined = False
        self._running = False
        self._contact_at: float | None = None
        self._watch_scope: asyncio.Timeout | None = None

    # Reading

    @property
    def kind(self) -> str:
        """The kind's name, for metrics and logs."""
        return self.resource.kind

    @property
    def synced(self) -> bool:
        """True once the first list is in; it stays true. And before a dormant mirror is woken."""
        return self._synced or self._is_dormant

    @property
    def resource_version(self) -> int:
        """The version reached: every change up to it has been applied. 0 before the first list."""
        return self._version

    @property
    def is_behind(self) -> bool:
        """True until every change is applied that `expect` named."""
        return self._version < self._expected_version

    def expect(self, version: int) -> None:
        """Note that another object names `version` of this kind, so it exists.

        A list that is still older is the truth (the store was put back), and ends the expectation.
        """
        self._expected_version = max(self._expected_version, version)

    @property
    def seconds_since_contact(self) -> float | None:
        """Staleness: seconds since the API last said anything; None before it ever did."""
        if self._contact_at is None:
            return None
        return max(0.0, self._clock.now() - self._contact_at)

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, namespace: str, name: str) -> T | None:
        """Return the object, or None; the namespace of cluster-scoped objects is ""."""
        return self._objects.get((namespace, name))

    def items(self) -> tuple[T, ...]:
        """Return all objects in (namespace, name) order."""
        if self._sorted_keys is None:
            self._sorted_keys = sorted(self._objects)
        return tuple(self._objects[key] for key in self._sorted_keys)

    # Following

    def on_change(self, handler: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Call `handler` for each change, in order; what is held already is reported at once.

        Returns a function that ends the calls.
        """
        self._handlers = (*self._handlers, handler)
        for obj in self.items():
            handler(Change(None, obj))

        def remove() -> None:
            self._handlers = tuple(h for h in self._handlers if h is not handler)

        return remove

    def on_changes(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` once after changes, when all handlers have seen them.

        Returns a function that ends the calls.
        """
        self._listeners = (*self._listeners, listener)

        def remove() -> None:
            self._listeners = tuple(one for one in self._listeners if one is not listener)

        return remove

    def _notify(self) -> None:
        self._is_notifying = False
        for listener in self._listeners:
            listener()

    async def wait_synced(self) -> None:
        """Return once the first list is in."""
        while not self.synced:
            await self.advanced()

    async def advanced(self) -> None:
        """Return after the next list, event or bookmark."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def relist(self) -> None:
        """List again soon, as what is held is in doubt; differences are reported as changes."""
        self._list_wanted = True
        if self._watch_scope is not None:
            self._watch_scope.reschedule(asyncio.get_running_loop().time())
            self._watch_scope = None  # it must not be moved again once it has begun to expire

    # Running

    def wake(self) -> None:
        """Begin to list and watch, where the mirror is dormant; harmless when repeated."""
        if self._is_dormant:
            self._is_dormant = False
            self._advance()

    async def run(self) -> None:
        """List and watch until cancelled. May be run again, and then resumes where it was."""
        if self._running:
            raise RuntimeError(f"mirror of {self.kind} runs already")
        self._running = True
        expired_count = 0
        try:
            while self._is_dormant:
                await self.advanced()
            while True:
                reached = self._version
                try:
                    if self._list_wanted:
                        await self._list()
                    else:
                        await self._watch()
                        expired_count = 0
                except Expired as error:
                    self._list_wanted = True
                    expired_count = 1 if self._version > reached > 0 else expired_count + 1
                    if expired_count > 1:  # a list did not help: do not hammer
                        await self._pause(error)
                except NotFound as error:
                    self._list_wanted = True
                    if self.resource.is_optional and not self._objects:
                        await self._do_without()
                    else:
                        await self._pause(error)
                except ApiError as error:
                    expired_count = 0  # what is expired next is so for another reason
                    await self._pause(error)
        finally:
            self._running = False

    async def _pause(self, error: ApiError) -> None:
        seconds = self._backoff.next(error.retry_after_seconds)
        self._log.warning(
            "Mirror lost contact",
            kind=self.kind,
            reason=error.status.reason,
            error=error.message,
            retry_seconds=round(seconds, 3),
        )
        await asyncio.sleep(seconds)

    async def _do_without(self) -> None:
        """Be in step with a cluster that has no such kind, for a while."""
        if not self.is_undefined:
            self._log.warning(
                "Kind is not defined", kind=self.kind, resource=self.resource.name,
                look_again_seconds=self.options.undefined_seconds,
            )  # fmt: skip
        self.is_undefined = self._synced = True
        self._touch()
        await asyncio.sleep(self.options.undefined_seconds)

    async def _list(self) -> None:
        self._list_wanted = False
        first = not self._synced
        try:
            listed = await self._client.list(
                self.resource,
                namespace=self.options.namespace,
                label_selector=self.options.label_selector,
                field_selector=self.options.field_selector,
            )
            version = int(listed.resource_version or 0)
            self._refuse_old(version)
            await self._replace(listed, yielding=first)
        except BaseException:
            self._list_wanted = True
            raise
        self._version = version
        self._expected_version = 0
        self._synced = True
        self.is_undefined = False
        self.list_count += 1
        self._touch()

    def _refuse_old(self, version: int) -> None:
        """Never go back in time, unless the store itself was put back to an older state."""
        if version >= self._version:
            self._stale_lists = 0
            return
        self._stale_lists += 1
        if self._stale_lists <= self.options.stale_lists_max:
            raise Unavailable(
                f"list of {self.kind} is at version {version}, but {self._version} was seen already"
            )
        self._log.error(
            "Store went back", kind=self.kind, version=version, version_seen=self._version
        )
        self._stale_lists = 0

    async def _replace(self, listed: ObjectList[T], *, yielding: bool) -> None:
        present = {obj.metadata.key for obj in (*listed.items, *listed.unreadable)}
        self.set_aside.keep_only(self.resource, present)
        for key in sorted(self._objects):
            if key not in present:
                self._set(key, self._objects[key], None)
        for count, obj in enumerate(listed.items, 1):
            key = obj.metadata.key
            old = self._objects.get(key)
            if old is None:
                self._set(key, None, obj)
            elif old.metadata.uid != obj.metadata.uid:
                self._set(key, old, None)
                self._set(key, None, obj)
            elif old.metadata.resource_version != obj.metadata.resource_version:
                self._set(key, old, obj)
            self.set_aside.clear(self.resource, key, AsideStage.READ)
            if yielding and count % self.options.batch_max == 0:
                await asyncio.sleep(0)
        for unreadable in listed.unreadable:
            self._set_aside(unreadable)

    async def _watch(self) -> None:
        """Follow one watch to its end. ApiErrors and faults of handlers pass through."""
        started_at, count = self._clock.now(), 0
        scope = asyncio.timeout(None)  # relist() moves its deadline to now
        try:
            async with scope:
                self._watch_scope = scope
                stream = self._open()
                try:
                    async for event in stream:
                        self._apply(event)
                        count += 1
                        if count % self.options.batch_max == 0:
                            await asyncio.sleep(0)
                finally:
                    self._watch_scope = None
                    lived = self._clock.now() - started_at >= self.options.watch_seconds_min
                    if count or lived:
                        self._backoff.reset()
                    await _close(stream)
        except TimeoutError:
            if not scope.expired():
                raise
            return
        if not count and not lived:
            raise Unavailable(f"watch of {self.kind} ended at once")
        self._contact_at = self._clock.now()

    def _open(self) -> AsyncIterator[WatchEvent[T]]:
        patience = self.options.watch_seconds
        return self._client.watch(
            self.resource,
            resource_version=str(self._version),
            namespace=self.options.namespace,
            label_selector=self.options.label_selector,
            field_selector=self.options.field_selector,
            timeout_seconds=patience + int(self._rng.random() * patience),
        )

    def _apply(self, event: WatchEvent[T]) -> None:
        version = int(event.resource_version)
        if version > self._version:
            self._version = version
        obj = event.object
        if obj is not None:
            key = obj.metadata.key
            old = self._objects.get(key)
            if event.type is EventType.DELETED:
                if old is not None and old.metadata.version <= version:
                    self._set(key, old, None)
            elif old is None or old.metadata.version < version:
                self.set_aside.clear(self.resource, key, AsideStage.READ)
                self._set(key, old, obj)
        elif event.unreadable is not None:
            old = self._objects.get(event.unreadable.metadata.key)
            if event.type is not EventType.DELETED:
                self._set_aside(event.unreadable)
            elif old is not None:
                self._set(old.metadata.key, old, None)
            else:
                self.set_aside.clear(self.resource, event.unreadable.metadata.key)
        self._touch()

    def _set_aside(self, unreadable: Unreadable) -> None:
        """Keep what is held of an object, under its new metadata; of another uid nothing."""
        metadata = unreadable.metadata
        old = self._objects.get(metadata.key)
        if old is not None and old.metadata.uid != metadata.uid:
            self._set(metadata.key, old, None)
        elif old is not None and old.metadata.version < metadata.version:
            self._set(metadata.key, old, cast("T", replace(cast("Any", old), metadata=metadata)))
        error = ValueError(unreadable.why)
        self.set_aside.note(self.resource, metadata, AsideStage.READ, error)

    def _set(self, key: ObjectKey, old: T | None, new: T | None) -> None:
        if new is None:
            self.set_aside.clear(self.resource, key)
            del self._objects[key]
            self._sorted_keys = None
        else:
            self._objects[key] = new
            if old is None:
                self._sorted_keys = None
        if self._handlers:
            change = Change(old, new)
            for handler in self._handlers:
                handler(change)
        if self._listeners and not self._is_notifying:
            self._is_notifying = True
            asyncio.get_running_loop().call_soon(self._notify)

    def _touch(self) -> None:
        self._contact_at = self._clock.now()
        self._advance()

    def _advance(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


async def _close(stream: AsyncIterator[object]) -> None:
    """Close a watch now, not when the garbage collector finds it."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
