"""The HTTP client: typed access to a real API server, or to the embedded one, over aiohttp.

Lists are read in pages and decoded page by page into typed structs; a token that expires half-way
(410) restarts the list once. Watches are split into lines here, at line feeds in raw chunks, as
line readers of libraries limit the length or split elsewhere too. An ERROR event is raised.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import msgspec

from fairlead.api.meta import ListMeta, ObjectMeta, OnlyMetadata, to_wire
from fairlead.api.resources import Resource
from fairlead.api.status import (
    BadRequest,
    Expired,
    InternalError,
    Status,
    Unavailable,
    error_from_status,
)
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.transport import JSON, HttpOptions, Transport
from fairlead.runtime.client import EventType, ObjectList, PatchType, Propagation, WatchEvent

T = TypeVar("T")

_ONLY_METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"


class _Page(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None  # an empty list may be null


class _Line(msgspec.Struct, Generic[T]):
    """One line of a watch."""

    type: EventType
    object: T


class _ErrorLine(msgspec.Struct):
    """The line that ends a watch with an error."""

    type: str
    object: Status


class _Marked(msgspec.Struct):
    metadata: ObjectMeta


class _BookmarkLine(msgspec.Struct):
    """A bookmark: an object of the kind with a version and nothing else.

    A real server sends it as its Go type is when empty, `"containers":null` for one, which is no
    valid object.
    """

    type: str
    object: _Marked


_BOOKMARK_LINE = msgspec.json.Decoder(_BookmarkLine)
_ERROR_LINE = msgspec.json.Decoder(_ErrorLine)


class _Decoders(Generic[T]):
    """The decoders of one type; made once."""

    def __init__(self, resource: Resource[T]) -> None:
        kind: Any = resource.type
        self.object = msgspec.json.Decoder(resource.type)
        self.page = cast("msgspec.json.Decoder[_Page[T]]", msgspec.json.Decoder(_Page[kind]))
        self.line = cast("msgspec.json.Decoder[_Line[T]]", msgspec.json.Decoder(_Line[kind]))


class HttpClient:
    """Implements `fairlead.runtime.client.Client`; `request` and `stream` give raw access."""

    def __init__(self, connection: Connection, options: HttpOptions | None = None) -> None:
        self.transport = Transport(connection, options)
        self.request = self.transport.request
        self.stream = self.transport.stream
        self._decoders: dict[type[Any], _Decoders[Any]] = {}

    @property
    def connection(self) -> Connection:
        """Where it talks to, and as whom."""
        return self.transport.connection

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """See `Client`."""
        path = _path(resource, namespace, name)
        return self._object(resource, await self.request("GET", path, accept=_accept(resource)))

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """See `Client`."""
        path = _path(resource, namespace)
        params = {"limit": str(self.transport.options.page_size)}
        params |= _selectors(label_selector, field_selector)
        try:
            return await self._pages(resource, path, params)
        except Expired:
            return await self._pages(resource, path, params)

    async def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        """See `Client`."""
        params = {"watch": "true", "allowWatchBookmarks": "true"}
        params["resourceVersion"] = resource_version
        params |= _selectors(label_selector, field_selector)
        if timeout_seconds is not None:
            params["timeoutSeconds"] = str(timeout_seconds)
        chunks = self.stream(
            "GET", _path(resource, namespace), params=params, seconds=timeout_seconds
        )
        decoder = self._decoders_of(resource).line
        line_bytes_max = self.transport.options.watch_line_bytes_max
        async with aclosing(chunks), aclosing(_lines(chunks, line_bytes_max)) as lines:
            async for line in lines:
                yield _event(resource, decoder, line)

    async def create(
        self,
        resource: Resource[T],
        obj: T | Mapping[str, Any],
        *,
        namespace: str = "",
        dry_run: bool = False,
    ) -> T:
        """See `Client`."""
        parts = cast("Mapping[str, Any]", obj if isinstance(obj, Mapping) else to_wire(obj))
        body = {"kind": resource.kind, "apiVersion": resource.api_version, **parts}
        if resource.namespaced and not namespace:
            namespace = to_wire(parts.get("metadata", {})).get("namespace", "")
        if resource.namespaced and not namespace:
            raise BadRequest(f"creating a {resource.kind} needs a namespace")
        answer = await self.request(
            "POST",
            _path(resource, namespace),
            params=_dry_run(dry_run),
            body=msgspec.json.encode(body),
            accept=_accept(resource),
        )
        return self._object(resource, answer)

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
        """See `Client`."""
        answer = await self.request(
            "PATCH",
            _path(resource, namespace, name, subresource),
            params=_dry_run(dry_run),
            body=msgspec.json.encode(patch),
            content_type=patch_type.value,
            accept=_accept(resource),
        )
        return self._object(resource, answer)

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
        """See `Client`."""
        body = _delete_options(grace_period_seconds, propagation)
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in preconditions.items() if value is not None}
        if preconditions:
            body["preconditions"] = preconditions
        path = _path(resource, namespace, name)
        await self.request("DELETE", path, body=msgspec.json.encode(body))

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
        """See `Client`; the API has no such verb for all namespaces, so each is asked in turn."""
        params = _selectors(label_selector, field_selector)
        body = msgspec.json.encode(_delete_options(grace_period_seconds, propagation))
        namespaces = [namespace]
        if resource.namespaced and not namespace:
            found = await self.list(
                resource, label_selector=label_selector, field_selector=field_selector
            )
            namespaces = sorted({_key(obj)[0] for obj in found.items})
        for each in namespaces:
            await self.request("DELETE", _path(resource, each), params=params, body=body)

    async def close(self) -> None:
        """See `Client`."""
        await self.transport.close()

    # Inside

    def _decoders_of(self, resource: Resource[T]) -> _Decoders[T]:
        decoders = self._decoders.get(resource.type)
        if decoders is None:
            decoders = self._decoders[resource.type] = _Decoders(resource)
        return cast("_Decoders[T]", decoders)

    def _object(self, resource: Resource[T], body: bytes) -> T:
        try:
            return self._decoders_of(resource).object.decode(body)
        except msgspec.MsgspecError as error:
            raise _undecodable(resource, error) from error

    async def _pages(
        self, resource: Resource[T], path: str, params: Mapping[str, str]
    ) -> ObjectList[T]:
        decoder = self._decoders_of(resource).page
        items: list[T] = []
        token = version = ""
        while True:
            more = {**params, "continue": token} if token else params
            body = await self.request("GET", path, params=more)
            try:
                page = decoder.decode(body)
            except msgspec.MsgspecError as error:
                raise _undecodable(resource, error) from error
            items += page.items or ()
            version = version or page.metadata.resource_version
            token = page.metadata.continue_
            if not token:
                break
        items.sort(key=_key)
        return ObjectList(tuple(items), version)


def _key(obj: object) -> tuple[str, str]:
    return cast("ObjectMeta", getattr(obj, "metadata")).key  # noqa: B009 - T has no bound


def _event(
    resource: Resource[T], decoder: msgspec.json.Decoder[_Line[T]], line: bytes
) -> WatchEvent[T]:
    try:
        event = decoder.decode(line)
    except msgspec.MsgspecError as error:
        version = _bookmark_version(line)
        if version:
            return WatchEvent(EventType.BOOKMARK, None, version)
        try:
            ending = _ERROR_LINE.decode(line)
        except msgspec.MsgspecError:
            ending = None
        if ending is None or ending.type != "ERROR":
            raise _undecodable(resource, error) from error
        raise error_from_status(ending.object) from None
    metadata = cast("ObjectMeta", getattr(event.object, "metadata"))  # noqa: B009 - T has no bound
    obj = None if event.type is EventType.BOOKMARK else event.object
    return WatchEvent(event.type, obj, metadata.resource_version)


def _bookmark_version(line: bytes) -> str:
    """Return the version of a bookmark; "" if the line is none."""
    try:
        mark = _BOOKMARK_LINE.decode(line)
    except msgspec.MsgspecError:
        return ""
    return mark.object.metadata.resource_version if mark.type == EventType.BOOKMARK.value else ""


async def _lines(chunks: AsyncIterator[bytes], bytes_max: int) -> AsyncGenerator[bytes]:
    """Yield the lines of a stream without their ends; what follows the last end is a cut line."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        head, *rest = chunk.split(b"\n")
        parts.append(head)
        size += len(head)
        if size > bytes_max:
            raise InternalError(f"a watch line is longer than {bytes_max} bytes")
        if not rest:
            continue
        first = b"".join(parts)
        *lines, last = rest
        parts, size = [last], len(last)
        if first:
            yield first
        for line in lines:
            if line:
                yield line
    if size:
        raise Unavailable("the watch was cut in the middle of an event")


def _path(resource: Resource[Any], namespace: str, name: str = "", subresource: str = "") -> str:
    """Return the request's path, each part quoted; BadRequest for what can be no name."""
    for part in (namespace, name):
        if part in (".", "..") or "/" in part or "%" in part:
            raise BadRequest(f"'{part}' is not a name: it may not be . or .. or contain / or %")
    return resource.path(quote(namespace), quote(name), subresource)


def _selectors(labels: str, fields: str) -> dict[str, str]:
    params: dict[str, str] = {}
    if labels:
        params["labelSelector"] = labels
    if fields:
        params["fieldSelector"] = fields
    return params


def _accept(resource: Resource[Any]) -> str:
    return _ONLY_METADATA if resource.type is OnlyMetadata else JSON


def _dry_run(dry_run: bool) -> dict[str, str] | None:  # noqa: FBT001 - private, one meaning
    return {"dryRun": "All"} if dry_run else None


def _delete_options(grace_seconds: int | None, propagation: Propagation | None) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if grace_seconds is not None:
        body["gracePeriodSeconds"] = grace_seconds
    if propagation is not None:
        body["propagationPolicy"] = propagation.value
    return body


def _undecodable(resource: Resource[Any], error: msgspec.MsgspecError) -> InternalError:
    return InternalError(f"the server's {resource.kind} cannot be decoded: {error}")


__all__ = ["JSON", "HttpClient", "HttpOptions"]
