"""The one way to the API: a request as a value, one method that sends it, and typed short forms.

`Client` has two abstract methods: `call` sends one `Request` and returns its answer, `open_watch`
yields the changes of a `WatchRequest`. Two classes implement them, in process and over HTTP; a
wrapper (leadership, faults, kept logs) overrides one of them and covers every verb, also those that
come later. `get`, `list`, `create`, ... are written once, here, on top of the two.

All implementations raise the exceptions of `fairlead.api.status`, return typed, shared, immutable
objects, and behave alike under one test suite. There is no "update": a read model does not know all
fields, so writes are creates, deletes and patches. `patch` with a `resourceVersion` in the patch's
metadata is a compare-and-swap (409 `Conflict` when it lost).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import PODS, Resource

T = TypeVar("T")
A = TypeVar("A")


class EventType(Enum):
    """Kinds of watch events. An ERROR is raised as an exception instead."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


class PatchType(Enum):
    """Media types of patches."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Propagation(Enum):
    """What a delete does to dependents."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that cannot be decoded: what of its metadata can be, and why not the rest."""

    metadata: ObjectMeta
    why: str


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change. A BOOKMARK has no object (None), only the version reached.

    An object that cannot be decoded is `unreadable`, and `object` is None.
    """

    type: EventType
    object: T | None
    resource_version: str
    unreadable: Unreadable | None = None


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[T]):
    """A consistent list and the version of its snapshot; items in (namespace, name) order."""

    items: tuple[T, ...]
    resource_version: str
    #: Objects that are there and cannot be decoded, in no order.
    unreadable: tuple[Unreadable, ...] = ()


class RequestVerb(StrEnum):
    """What a request does; the value is the verb of the API's access rules, in lower case.

    READ is a GET of any path, for readers of what has no type here; it is no verb of the API.
    """

    GET = "get"
    LIST = "list"
    CREATE = "create"
    PATCH = "patch"
    DELETE = "delete"
    DELETE_COLLECTION = "delete_collection"
    READ = "read"


_GET, _LIST, _CREATE, _PATCH, _DELETE, _DELETE_COLLECTION, _READ = RequestVerb
#: Of requests for paths. It is no resource of an API.
PATHS = Resource("", "", "paths", "Path", bytes, namespaced=False)


class Request(msgspec.Struct, Generic[A], frozen=True):
    """One request whose answer is an `A`. Fields that its verb does not use have their defaults.

    A struct, as it is made for every call: a frozen dataclass of this size costs five times as
    much to make.
    """

    verb: RequestVerb
    resource: Resource[Any]
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    #: Of a create the object, typed or plain; of a patch the patch; of a READ the query.
    body: Any = None
    patch_type: PatchType = PatchType.MERGE
    dry_run: bool = False
    label_selector: str = ""
    field_selector: str = ""
    grace_period_seconds: int | None = None
    propagation: Propagation | None = None
    #: Preconditions of a delete.
    uid: str | None = None
    resource_version: str | None = None

    @property
    def is_write(self) -> bool:
        """True when it may change what is stored; a dry run counts as a write."""
        return self.verb is not _GET and self.verb is not _LIST and self.verb is not _READ


class WatchRequest(msgspec.Struct, Generic[T], frozen=True):
    """The changes of a resource that come after a version."""

    resource: Resource[T]
    resource_version: str
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    timeout_seconds: int | None = None
    allow_bookmarks: bool = True


class Client(ABC):
    """Typed access to the API. Every method raises `ApiError` subclasses and nothing else.

    The short forms return the coroutine of `call` itself: one of their own would cost a twentieth
    of an in-process `get`.
    """

    @abstractmethod
    async def call(self, request: Request[A]) -> A:
        """Send one request and return its answer; which errors, the short forms below say."""

    @abstractmethod
    def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """Yield changes as `watch` does; errors of the start come with the first change."""

    @abstractmethod
    async def close(self) -> None:
        """Release connections; further calls raise `Unavailable`."""

    def get(
        self, resource: Resource[T], name: str, *, namespace: str = ""
    ) -> Coroutine[Any, Any, T]:
        """Return the object; NotFound."""
        return self.call(Request(_GET, resource, namespace, name))

    def read(self, path: str, query: Mapping[str, str]) -> Coroutine[Any, Any, bytes]:
        """Return what the server answers to GET `path`; NotFound where it serves no such path."""
        return self.call(Request(_READ, PATHS, name=path, body=query))

    def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> Coroutine[Any, Any, ObjectList[T]]:
        """Return all matching objects, paging behind the scenes."""
        return self.call(
            Request(
                _LIST, resource, namespace,
                label_selector=label_selector, field_selector=field_selector,
            )
        )  # fmt: skip

    def watch(
        self,
        resource: Resource[T],
        *,
        resource_version: str,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        timeout_seconds: int | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        """Yield changes after `resource_version`, with bookmarks, until the server ends the watch.

        A normal end means "watch again from the last version seen". `Expired` means list again.
        """
        return self.open_watch(
            WatchRequest(
                resource, resource_version, namespace,
                label_selector, field_selector, timeout_seconds,
            )
        )  # fmt: skip

    def create(
        self,
        resource: Resource[T],
        obj: T | Mapping[str, Any],
        *,
        namespace: str = "",
        dry_run: bool = False,
    ) -> Coroutine[Any, Any, T]:
        """Create and return the stored object; AlreadyExists, Invalid, Forbidden."""
        return self.call(Request(_CREATE, resource, namespace, body=obj, dry_run=dry_run))

    def evict(
        self, pod: ObjectMeta, grace_period_seconds: int | None = None
    ) -> Coroutine[Any, Any, object]:
        """Delete the pod of this uid within its disruption budgets.

        TooManyRequests when a budget does not allow it now, NotFound, Conflict.
        """
        options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        body = {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace}, "deleteOptions": options,
        }  # fmt: skip
        return self.call(
            Request(
                _CREATE, PODS.raw, pod.namespace, pod.name, "eviction", body,
                grace_period_seconds=grace_period_seconds, uid=pod.uid,
            )
        )  # fmt: skip

    def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        namespace: str = "",
        subresource: str = "",
        patch_type: PatchType = PatchType.MERGE,
        dry_run: bool = False,
    ) -> Coroutine[Any, Any, T]:
        """Patch and return the stored object; NotFound, Conflict, Invalid."""
        return self.call(
            Request(_PATCH, resource, namespace, name, subresource, patch, patch_type, dry_run)
        )

    def delete(
        self,
        resource: Resource[T],
        name: str,
        *,
        namespace: str = "",
        grace_period_seconds: int | None = None,
        propagation: Propagation | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Delete; NotFound, Conflict when the uid or the version is another one."""
        return self.call(
            Request(
                _DELETE, resource, namespace, name,
                grace_period_seconds=grace_period_seconds, propagation=propagation,
                uid=uid, resource_version=resource_version,
            )
        )  # fmt: skip

    def delete_collection(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        grace_period_seconds: int | None = None,
        propagation: Propagation | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Delete all matching objects."""
        return self.call(
            Request(
                _DELETE_COLLECTION, resource, namespace,
                label_selector=label_selector, field_selector=field_selector,
                grace_period_seconds=grace_period_seconds, propagation=propagation,
            )
        )  # fmt: skip


class ClientWrapper(Client):
    """Passes everything on. A subclass overrides what it changes; closing it closes nothing."""

    def __init__(self, inner: Client) -> None:
        self.inner = inner

    async def call(self, request: Request[A]) -> A:
        """Pass the request on."""
        return await self.inner.call(request)

    def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """Pass the watch on."""
        return self.inner.open_watch(request)

    async def close(self) -> None:
        """Do nothing: the inner client belongs to its maker."""
