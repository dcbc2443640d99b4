"""The client protocol over a service in the same process: no copies, no wire, the same exceptions.

Objects come as the structs that the store's records share, so that all readers of one version hold
one object; pods and ended jobs share their equal parts too (`runtime/watching/sharing.py`). A call
lets the event loop turn at least once, as a call over a network would.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import AsyncIterator, Generator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.resources import Resource
from fairlead.api.status import BadRequest, NotFound, Unavailable
from fairlead.embedded.http.answering.render import PlainRendering, whole
from fairlead.embedded.http.request import resource_path, split_path
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.storage.records import Record
from fairlead.embedded.verbs.options import (
    DeleteOptions,
    ListOptions,
    ListPage,
    WatchOptions,
    WriteOptions,
)
from fairlead.embedded.verbs.reading.watches import Watch, WatchItem
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import (
    Client,
    ObjectList,
    Request,
    RequestVerb,
    Unreadable,
    WatchEvent,
    WatchRequest,
)
from fairlead.runtime.watching.sharing import JobSharing, PodSharing
from fairlead.runtime.watching.unreadable import UNDECODABLE, unreadable_of

T = TypeVar("T")
A = TypeVar("A")
#: Python 3.11 takes 0.4 us to read a member from an Enum, a tenth of a whole `get`.
_GET, _LIST, _CREATE, _PATCH, _DELETE, _DELETE_COLLECTION, _READ = RequestVerb
_PLAIN = frozenset((dict, list, str, int, float, bool, type(None)))


class InProcessClient(Client):
    """The client of a service in this process."""

    def __init__(self, service: ApiService) -> None:
        self._service = service
        self._is_open = True
        self._sharing, self._job_sharing = PodSharing(), JobSharing()
        self._write = WriteOptions(
            field_validation="Ignore", user_agent="fairlead", reads_model=True
        )
        self._dry_run = replace(self._write, dry_run=True)

    async def call(self, request: Request[A]) -> A:
        """Carry out the request on the service."""
        if request.verb is _READ and self._is_open:
            await _turn()
            return cast("A", read_path(self._service, request.name, request.body or {}))
        info = self._info(request.resource)
        verb, namespace, type_ = request.verb, request.namespace, request.resource.type
        if verb is _GET:
            await _turn()
            return self._service.get(info, namespace, request.name).typed(type_)
        options = self._dry_run if request.dry_run else self._write
        # A body is read before the event loop turns: it is the caller's.
        if verb is _PATCH:
            patch = to_wire(request.body)
            await _turn()
            record = await self._service.patch(
                info, (namespace, request.name), patch, options,
                patch_type=request.patch_type, subresource=request.subresource,
            )  # fmt: skip
            return self._answer(info, record, type_)
        if verb is _CREATE and request.subresource == "eviction":
            await _turn()
            key = (namespace, request.name)
            deletion = DeleteOptions(
                grace_period_seconds=request.grace_period_seconds, uid=request.uid,
                dry_run=request.dry_run,
            )  # fmt: skip
            await self._service.evict(key, deletion)
            return cast("A", {})
        if verb is _CREATE:
            body = _plain(request.body)
            await _turn()
            namespace = namespace or _namespace_of(body)
            record = await self._service.create(info, namespace, body, options)
            return self._answer(info, record, type_)
        await _turn()
        return await self._call_on_many(request, info)

    def _answer(self, info: ResourceInfo, record: Record, type_: type[A]) -> A:
        """Return what was written; it stays decoded only for those who watch its kind."""
        obj = record.typed(type_)
        if not self._service.is_watched(info):
            record.drop_caches()
        return obj

    async def _call_on_many(self, request: Request[Any], info: ResourceInfo) -> Any:
        """Carry out a list or a deletion."""
        namespace = request.namespace
        selection = ListOptions(
            label_selector=request.label_selector, field_selector=request.field_selector
        )
        if request.verb is _LIST:
            page = self._service.list(info, namespace, selection)
            return self._typed_list(page, request.resource.type)
        deletion = DeleteOptions(
            request.grace_period_seconds, request.propagation, request.uid, request.resource_version
        )
        if request.verb is _DELETE:
            await self._service.delete(info, (namespace, request.name), deletion)
        else:
            await self._service.delete_collection(info, namespace, selection, deletion)
        return None

    def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """Yield changes; the watch is opened by the first `anext`."""
        return _TypedWatch(self, request)

    def watch_records(self, request: WatchRequest[Any]) -> Watch:
        """Open the service's watch behind `open_watch`."""
        options = WatchOptions(
            label_selector=request.label_selector,
            field_selector=request.field_selector,
            resource_version=request.resource_version,
            timeout_seconds=request.timeout_seconds,
            allow_bookmarks=request.allow_bookmarks,
        )
        info = self._info(request.resource)
        return self._service.watch(info, request.namespace, options)

    async def close(self) -> None:
        """Further calls raise `Unavailable`."""
        self._is_open = False

    def _info(self, resource: Resource[Any]) -> ResourceInfo:
        if not self._is_open:
            raise Unavailable("the client is closed")
        info = self._service.registry.of(resource)
        if info is None:
            raise NotFound("the server could not find the requested resource")
        assert info.version_names is None, "what is read in this process is what is stored"
        return info

    def _typed_list(self, page: ListPage, type_: type[T]) -> ObjectList[T]:
        items: list[T] = []
        unreadable: list[Unreadable] = []
        for record in page.records:
            try:
                items.append(self._typed(record, type_))
            except UNDECODABLE as error:
                unreadable.append(_unreadable(record, error))
        return ObjectList(tuple(items), page.resource_version, tuple(unreadable))

    def _typed(self, record: Record, type_: type[T]) -> T:
        """Return the record's struct, sharing parts with others if it is decoded only now."""
        if record.is_decoded(type_):
            return record.typed(type_)
        obj = record.typed(type_)
        self._share(obj, has_shared_spec=False)
        return obj

    def shared(self, record: Record, type_: type[T]) -> T:
        """Return the struct of a record that was just written, sharing parts with others."""
        obj = record.typed(type_)
        self._share(obj, has_shared_spec=record.has_shared_spec)
        return obj

    def _share(self, obj: object, *, has_shared_spec: bool) -> None:
        if isinstance(obj, Job):
            self._job_sharing.share(obj)
        else:
            self._sharing.share(obj, has_shared_spec=has_shared_spec)


def read_path(service: ApiService, path: str, query: Mapping[str, str]) -> bytes:
    """Return what the API answers to GET of a path, for readers in this process; ApiError.

    Objects and pages of lists, as over HTTP; of the query: labelSelector, fieldSelector, limit,
    continue. What only the HTTP server has (metrics, logs, proxies, discovery) is NotFound.
    """
    named = resource_path(split_path(path))
    info = (
        None if named is None else service.registry.find(named.group, named.version, named.plural)
    )
    if named is None or info is None or named.subresource:
        raise NotFound(f"{path}: the server could not find the requested resource")
    if named.name:
        return whole(info, service.get(info, named.namespace, named.name))
    limit = query.get("limit", "0")
    if not limit.isdecimal():
        raise BadRequest(f"query parameter limit: '{limit[:40]}' is not an integer")
    page = service.list(
        info, named.namespace,
        ListOptions(
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            limit=int(limit), continue_=query.get("continue", ""),
        ),
    )  # fmt: skip
    rendering = PlainRendering(info)
    return rendering.head(page) + b",".join(map(rendering.item, page.records)) + b"]}"


@types.coroutine
def _turn() -> Generator[None]:
    """Let the event loop turn once, as `asyncio.sleep(0)` does with one coroutine more."""
    yield


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

    def __init__(self, client: InProcessClient, request: WatchRequest[T]) -> None:
        self._client = client
        self._request = request
        self._type = request.resource.type
        self._watch: Watch | None = None
        self._buffer: deque[WatchItem] = deque()  # the watch's, once it is open

    async def __anext__(self) -> WatchEvent[T]:
        buffer = self._buffer
        if not buffer:
            watch = self._watch
            if watch is None:
                watch = self._client.watch_records(self._request)
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
        except UNDECODABLE as error:
            assert record is not None
            unreadable = _unreadable(record, error)
        event = item.event = WatchEvent(item.type, obj, str(item.version), unreadable)
        return event

    async def aclose(self) -> None:
        """End the watch, for `contextlib.aclosing`."""
        if self._watch is not None:
            self._watch.close()
