"""The HTTP client: typed access to a real API server, or to the embedded one, over aiohttp.

Lists are read in pages and decoded page by page into typed structs; a token that expires half-way
(410) restarts the list once. Watches are split into lines here, at line feeds in raw chunks, as
line readers of libraries limit the length or split elsewhere too. An ERROR event is raised.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast
from urllib.parse import quote

import msgspec

from fairlead.api.meta import ObjectMeta, OnlyMetadata, to_wire
from fairlead.api.resources import Resource
from fairlead.api.status import (
    BadRequest,
    Expired,
    InternalError,
    Unavailable,
)
from fairlead.kube.decoding import Decoders
from fairlead.kube.kubeconfig import Connection
from fairlead.kube.transport import JSON, HttpOptions, Transport
from fairlead.runtime.client import (
    Client,
    ObjectList,
    Request,
    Unreadable,
    Verb,
    WatchEvent,
    WatchRequest,
)

T = TypeVar("T")
A = TypeVar("A")

_ONLY_METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"


class HttpClient(Client):
    """The client of an API server; `request` and `stream` give raw access."""

    def __init__(self, connection: Connection, options: HttpOptions | None = None) -> None:
        self.transport = Transport(connection, options)
        self.request = self.transport.request
        self.stream = self.transport.stream
        self._decoders: dict[type[Any], Decoders[Any]] = {}

    @property
    def connection(self) -> Connection:
        """Where it talks to, and as whom."""
        return self.transport.connection

    async def call(self, request: Request[A]) -> A:
        """Send the request, as several where the API has no such one; ApiError."""
        answer: Any
        match request.verb:
            case Verb.LIST:
                answer = await self._list(request)
            case Verb.DELETE_COLLECTION:
                answer = await self._delete_collection(request)
            case Verb.DELETE:
                answer = await self._delete(request, request.namespace)
            case Verb.GET:
                answer = await self._get(request)
            case Verb.CREATE:
                answer = await self._create(request)
            case Verb.PATCH:
                answer = await self._patch(request)
        return answer

    async def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """See `Client`."""
        resource, seconds = request.resource, request.timeout_seconds
        params = {"watch": "true", "resourceVersion": request.resource_version}
        if request.allow_bookmarks:
            params["allowWatchBookmarks"] = "true"
        params |= _selectors(request.label_selector, request.field_selector)
        if seconds is not None:
            params["timeoutSeconds"] = str(seconds)
        path = _path(resource, request.namespace)
        chunks = self.stream("GET", path, params=params, seconds=seconds)
        decoders = self._decoders_of(resource)
        line_bytes_max = self.transport.options.watch_line_bytes_max
        async with aclosing(chunks), aclosing(_lines(chunks, line_bytes_max)) as lines:
            async for line in lines:
                yield decoders.event(line)

    async def close(self) -> None:
        """See `Client`."""
        await self.transport.close()

    # Inside

    async def _get(self, request: Request[Any]) -> Any:
        resource = request.resource
        path = _path(resource, request.namespace, request.name)
        answer = await self.request("GET", path, accept=_accept(resource))
        return self._decoders_of(resource).object(answer)

    async def _list(self, request: Request[Any]) -> ObjectList[Any]:
        path = _path(request.resource, request.namespace)
        params = {"limit": str(self.transport.options.page_size)}
        params |= _selectors(request.label_selector, request.field_selector)
        try:
            return await self._pages(request.resource, path, params)
        except Expired:
            return await self._pages(request.resource, path, params)

    async def _create(self, request: Request[Any]) -> Any:
        resource, obj, namespace = request.resource, request.body, request.namespace
        parts = cast("Mapping[str, Any]", obj if isinstance(obj, Mapping) else to_wire(obj))
        body = {"kind": resource.kind, "apiVersion": resource.api_version, **parts}
        if resource.namespaced and not namespace:
            namespace = to_wire(parts.get("metadata", {})).get("namespace", "")
        if resource.namespaced and not namespace:
            raise BadRequest(f"creating a {resource.kind} needs a namespace")
        answer = await self.request(
            "POST",
            _path(resource, namespace),
            params={"dryRun": "All"} if request.dry_run else None,
            body=msgspec.json.encode(body),
            accept=_accept(resource),
        )
        return self._decoders_of(resource).object(answer)

    async def _patch(self, request: Request[Any]) -> Any:
        resource = request.resource
        answer = await self.request(
            "PATCH",
            _path(resource, request.namespace, request.name, request.subresource),
            params={"dryRun": "All"} if request.dry_run else None,
            body=msgspec.json.encode(request.body),
            content_type=request.patch_type.value,
            accept=_accept(resource),
        )
        return self._decoders_of(resource).object(answer)

    async def _delete(self, request: Request[Any], namespace: str) -> None:
        await self.request(
            "DELETE",
            _path(request.resource, namespace, request.name),
            params=_selectors(request.label_selector, request.field_selector),
            body=msgspec.json.encode(_delete_options(request)),
        )

    async def _delete_collection(self, request: Request[Any]) -> None:
        """Delete in each namespace: the API has no such verb for all of them."""
        namespaces = [request.namespace]
        if request.resource.namespaced and not request.namespace:
            found = await self.list(
                request.resource,
                label_selector=request.label_selector, field_selector=request.field_selector,
            )  # fmt: skip
            namespaces = sorted({_key(obj)[0] for obj in found.items})
        for namespace in namespaces:
            await self._delete(request, namespace)

    def _decoders_of(self, resource: Resource[T]) -> Decoders[T]:
        decoders = self._decoders.get(resource.type)
        if decoders is None:
            decoders = self._decoders[resource.type] = Decoders(resource)
        return cast("Decoders[T]", decoders)

    async def _pages(
        self, resource: Resource[T], path: str, params: Mapping[str, str]
    ) -> ObjectList[T]:
        decoders = self._decoders_of(resource)
        items: list[T] = []
        unreadable: list[Unreadable] = []
        token = version = ""
        while True:
            more = {**params, "continue": token} if token else params
            good, bad, metadata = decoders.page(await self.request("GET", path, params=more))
            items += good
            unreadable += bad
            version = version or metadata.resource_version
            token = metadata.continue_
            if not token:
                break
        items.sort(key=_key)
        return ObjectList(tuple(items), version, tuple(unreadable))


def _key(obj: object) -> tuple[str, str]:
    return cast("ObjectMeta", getattr(obj, "metadata")).key  # noqa: B009 - T has no bound


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


def _delete_options(request: Request[Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if request.grace_period_seconds is not None:
        body["gracePeriodSeconds"] = request.grace_period_seconds
    if request.propagation is not None:
        body["propagationPolicy"] = request.propagation.value
    preconditions = {"uid": request.uid, "resourceVersion": request.resource_version}
    preconditions = {key: value for key, value in preconditions.items() if value is not None}
    if preconditions:
        body["preconditions"] = preconditions
    return body


__all__ = ["JSON", "HttpClient", "HttpOptions"]
