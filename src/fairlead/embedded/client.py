"""The client protocol over a service in the same process: no copies, no wire, the same exceptions.

Objects come as the structs that the store's records share, so that all readers of one version
hold one object; pods share their equal parts too (`sharing.py`). A call lets the event loop turn at
least once, as a call over a network would.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from fairlead.api.meta import to_wire
from fairlead.api.resources import Resource
from fairlead.api.status import NotFound, Unavailable
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.sharing import PodSharing
from fairlead.embedded.storage.records import Record
from fairlead.embedded.verbs.options import DeleteOptions, ListOptions, WatchOptions, WriteOptions
from fairlead.embedded.verbs.service import Service
from fairlead.embedded.verbs.watches import Watch, WatchItem
from fairlead.runtime.client import ObjectList, PatchType, Propagation, Unreadable, WatchEvent
from fairlead.runtime.unreadable import unreadable_of

T = TypeVar("T")
_UNDECODABLE = (msgspec.MsgspecError, RecursionError, ValueError)
_PLAIN = frozenset((dict, list, str, int, float, bool, type(None)))


class InProcessClient:
    """Implements `fairlead.runtime.client.Client`."""

    def __init__(self, service: Service, *, field_manager: str = "fairlead") -> None:
        self._service = service
        self._is_open = True
        self._sharing = PodSharing()
        self._write = WriteOptions(
            field_validation="Ignore", field_manager=field_manager, reads_model=True
        )
        self._dry_run = replace(self._write, dry_run=True)

    def _info(self, resource: Resource[Any]) -> ResourceInfo:
        if not self._is_open:
            raise Unavailable("the client is closed")
        info = self._service.registry.of(resource)
        if info is None:
            raise NotFound("the server could not find the requested resource")
        return info

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return the object; NotFound."""
        info = self._info(resource)
        await asyncio.sleep(0)
        return self._service.get(info, namespace, name).typed(resource.type)

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """Return all matching objects."""
        info = self._info(resource)
        await asyncio.sleep(0)
        page = self._service.list(
            info, namespace,
            ListOptions(label_selector=label_selector, field_selector=field_selector),
        )  # fmt: skip
        items: list[T] = []
        unreadable: list[Unreadable] = []
        for record in page.records:
            try:
                items.append(self._typed(record, resource.type))
            except _UNDECODABLE as error:
                unreadable.append(_unreadable(record, error))
        return ObjectList(tuple(items), page.resource_version, tuple(unreadable))

    def _typed(self, record: Record, type_: type[T]) -> T:
        """Return the record's struct, sharing parts with others if it is decoded only now."""
        if record.is_decoded(type_):
            return record.typed(type_)
        obj = record.typed(type_)
        self._sharing.share(obj)
        return obj

    def shared(self, record: Record, type_: type[T]) -> T:
        """Return the struct of a record that was just written, sharing parts with others."""
        obj = record.typed(type_)
        self._sharing.share(obj, has_shared_spec=record.has_shared_spec)
        return obj

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int | None = None,
        allow_bookmarks: bool = True,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Yield changes after `resource_version`, by default with bookmarks, until the watch ends.

        Errors of the start (Expired, NotFound ...) are raised by the first `anext`.
        """
        return _TypedWatch(
            self, resource, namespace,
            WatchOptions(
                label_selector=label_selector,
                field_selector=field_selector,
                resource_version=resource_version,
                timeout_seconds=timeout_seconds,
                allow_bookmarks=allow_bookmarks,
            ),
        )  # fmt: skip

    def open_watch(self, resource: Resource[Any], namespace: str, options: WatchOptions) -> Watch:
        """Open the service's watch behind `watch`."""
        return self._service.watch(self._info(resource), namespace, options)

    async def create(
        self,
        resource: Resource[T],
        obj: T | Mapping[str, Any],
        *,
        namespace: str = "",
        dry_run: bool = False,
    ) -> T:
        """Create and return the stored object; AlreadyExists, Invalid, Forbidden."""
        info = self._info(resource)
        body = _plain(obj)
        await asyncio.sleep(0)
        namespace = namespace or _namespace_of(body)
        options = self._dry_run if dry_run else self._write
        record = await self._service.create(info, namespace, body, options)
        return record.typed(resource.type)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        subresource: str = "",
        patch_type: PatchType = PatchType.MERGE,
        dry_run: bool = False,
    ) -> T:
        """Patch and return the stored object; NotFound, Conflict, Invalid."""
        info = self._info(resource)
        plain = to_wire(patch)
        await asyncio.sleep(0)
        record = await self._service.patch(
            info, (namespace, name), plain, self._dry_run if dry_run else self._write,
            patch_type=patch_type, subresource=subresource,
        )  # fmt: skip
        return record.typed(resource.type)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str = "",
        grace_period_seconds: int | None = None,
        propagation: Propagation | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Delete; NotFound, Conflict when the uid or the version is another one."""
        info = self._info(resource)
        await asyncio.sleep(0)
        options = DeleteOptions(grace_period_seconds, propagation, uid, resource_version)
        await self._service.delete(info, (namespace, name), options)

    async def delete_collection(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        grace_period_seconds: int | None = None,
        propagation: Propagation | None = None,
    ) -> None:
        """Delete all matching objects."""
        info = self._info(resource)
        await asyncio.sleep(0)
        selection = ListOptions(label_selector=label_selector, field_selector=field_selector)
        options = DeleteOptions(grace_period_seconds, propagation)
        await self._service.delete_collection(info, namespace, selection, options)

    async def close(self) -> None:
        """Further calls raise `Unavailable`."""
        self._is_open = False


def _plain(obj: Any) -> dict[str, Any]:
    """Return a plain object whose top level may be changed; the service changes no more."""
    if type(obj) is dict and _PLAIN.issuperset(map(type, obj.values())):
        return dict(obj)
    return to_wire(obj)


def _namespace_of(body: Any) -> str:
    metadata = body.get("metadata") if isinstance(body, dict) else None
    return str(metadata.get("namespace") or "") if isinstance(metadata, dict) else ""


def _unreadable(record: Record, error: Exception) -> Unreadable:
    found = unreadable_of(record.data, error)
    assert found is not None, "the store keeps no object without a name"
    return found


class _TypedWatch(AsyncIterator[WatchEvent[T]]):
    """Opens the watch at the first step and turns records into the reader's structs."""

    def __init__(
        self,
        client: InProcessClient,
        resource: Resource[T],
        namespace: str,
        options: WatchOptions,
    ) -> None:
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._type = resource.type
        self._options = options
        self._watch: Watch | None = None
        self._buffer: deque[WatchItem] = deque()  # the watch's, once it is open

    async def __anext__(self) -> WatchEvent[T]:
        buffer = self._buffer
        if not buffer:
            watch = self._watch
            if watch is None:
                watch = self._client.open_watch(self._resource, self._namespace, self._options)
                self._watch = watch
                buffer = self._buffer = watch.feed.buffer
            if not buffer:
                await watch.feed.wait()
        item = buffer.popleft()
        event = item.event
        if event is not None and (type(event.object) is self._type or event.object is None):
            return event
        record = item.record
        obj = unreadable = None
        try:
            obj = None if record is None else self._client.shared(record, self._type)
        except _UNDECODABLE as error:
            assert record is not None
            unreadable = _unreadable(record, error)
        event = item.event = WatchEvent(item.type, obj, str(item.version), unreadable)
        return event

    async def aclose(self) -> None:
        """End the watch, for `contextlib.aclosing`."""
        if self._watch is not None:
            self._watch.close()
