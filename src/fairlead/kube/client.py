"""The HTTP client: typed access to a real API server, or to the embedded one, over aiohttp.

Lists are read in pages and decoded page by page into typed structs; a token that expires half-way
(410) restarts the list once. Watches are split into lines here, at line feeds in raw chunks, as
line readers of libraries limit the length or split elsewhere too. An ERROR event is raised.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
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
from fairlead.runtime.client import ObjectList, PatchType, Propagation, Unreadable, WatchEvent

T = TypeVar("T")

_ONLY_METADATA = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"


class HttpClient:
    """Implements `fairlead.runtime.client.Client`; `request` and `stream` give raw access."""

    def __init__(self, connection: Connection, options: HttpOptions | None = None) -> None:
        self.transport = Transport(connection, options)
        self.request = self.transport.request
        self.stream = self.transport.stream
        self._decoders: dict[type[Any], Decoders[Any]] = {}

    @property
    def connection(self) -> Connection:
        """Where it talks to, and as whom."""
        return self.transport.connection

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """See `Client`."""
        path = _path(resource, namespace, name)
        answer = await self.request("GET", path, accept=_accept(resource))
        return self._decoders_of(resource).object(answer)

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
        decoders = self._decoders_of(resource)
        line_bytes_max = self.transport.options.watch_line_bytes_max
        async with aclosing(chunks), aclosing(_lines(chunks, line_bytes_max)) as lines:
            async for line in lines:
                yield decoders.event(line)

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
        return self._decoders_of(resource).object(answer)

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
        return self._decoders_of(resource).object(answer)

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


def _dry_run(dry_run: bool) -> dict[str, str] | None:  # noqa: FBT001 - private, one meaning
    return {"dryRun": "All"} if dry_run else None


def _delete_options(grace_seconds: int | None, propagation: Propagation | None) -> dict[str, Any]:
    body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
    if grace_seconds is not None:
        body["gracePeriodSeconds"] = grace_seconds
    if propagation is not None:
        body["propagationPolicy"] = propagation.value
    return body


__all__ = ["JSON", "HttpClient", "HttpOptions"]
