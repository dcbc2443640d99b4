"""The one way to the API: a protocol with two implementations, in process and over HTTP.

Both raise the exceptions of `fairlead.api.status`, return typed, shared, immutable objects, and
behave alike under one test suite. There is no "update": a read model does not know all fields, so
writes are creates, deletes and patches. `patch` with a `resourceVersion` in the patch's metadata
is a compare-and-swap (409 `Conflict` when it lost).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import Resource

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[T]):
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


class Client(Protocol):
    """Typed access to the API. Every method raises `ApiError` subclasses and nothing else."""

    async def get(self, resource: Resource[T], name: str, *, namespace: str = "") -> T:
        """Return the object; NotFound."""
        ...

    async def list(
        self,
        resource: Resource[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
    ) -> ObjectList[T]:
        """Return all matching objects, paging behind the scenes."""
        ...

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
        ...

    async def create(
        self,
        resource: Resource[T],
        obj: T | Mapping[str, Any],
        *,
        namespace: str = "",
        dry_run: bool = False,
    ) -> T:
        """Create and return the stored object; AlreadyExists, Invalid, Forbidden."""
        ...

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
        ...

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
        ...

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
        ...

    async def close(self) -> None:
        """Release connections; further calls raise `Unavailable`."""
        ...
