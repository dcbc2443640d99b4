"""The answers of an API server as typed values: pages of a list and lines of a watch.

A page or a line is decoded at once, as nearly all are good. Only where that fails is it taken apart
object by object: those that cannot be decoded are then separated from the others
(`fairlead.runtime.watching.unreadable`) and hide nothing. Nodes and pods share what they say alike,
page by page (`fairlead.runtime.watching.sharing`), so that a list of many does not hold all of
each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import msgspec

from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.meta import ListMeta, ObjectMeta
from fairlead.api.resources import Resource
from fairlead.api.status import InternalError, Status, error_from_status
from fairlead.runtime.client import EventType, Unreadable, WatchEvent
from fairlead.runtime.watching.sharing import NodeSharing, PodSharing
from fairlead.runtime.watching.unreadable import (
    DEPTH_MAX,
    UNDECODABLE,
    cut,
    items_of,
    unreadable_of,
)

T = TypeVar("T")

#: An item of a list stands in an array in an object.
_ITEM_DEPTH = 3


class _Page(msgspec.Struct, Generic[T]):
    """One page of a list."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None  # an empty list may be null


class _PageMeta(msgspec.Struct):
    metadata: ListMeta = ListMeta()


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
_RAW_LINE = msgspec.json.Decoder(_Line[msgspec.Raw])
_PAGE_META = msgspec.json.Decoder(_PageMeta)


class Decoders(Generic[T]):
    """The decoders of one type; made once."""

    def __init__(self, resource: Resource[T]) -> None:
        kind: Any = resource.type
        page: Any = _Page
        line: Any = _Line
        self._resource = resource
        self._object = msgspec.json.Decoder(resource.type)
        self._page = cast("msgspec.json.Decoder[_Page[T]]", msgspec.json.Decoder(page[kind]))
        self._line = cast("msgspec.json.Decoder[_Line[T]]", msgspec.json.Decoder(line[kind]))
        #: Makes a freshly decoded object smaller.
        self._reduce = _reducer_of(resource.type)

    def object(self, body: bytes) -> T:
        """Return an object; InternalError when it cannot be decoded."""
        try:
            return self._object.decode(body)
        except UNDECODABLE as error:
            raise self._refusal(error) from error

    def page(self, body: bytes) -> tuple[list[T], list[Unreadable], ListMeta]:
        """Return the objects of a page, and those that cannot be decoded; InternalError."""
        try:
            page = self._page.decode(body)
        except UNDECODABLE as error:
            good, bad, metadata = self._item_by_item(body, error)
        else:
            good, bad, metadata = page.items or [], [], page.metadata
        if self._reduce is not None:
            for each in good:
                self._reduce(each)
        return good, bad, metadata

    def _item_by_item(
        self, body: bytes, page_error: Exception
    ) -> tuple[list[T], list[Unreadable], ListMeta]:
        try:
            metadata = _PAGE_META.decode(cut(body, DEPTH_MAX))
        except UNDECODABLE:
            raise self._refusal(page_error) from page_error
        good: list[T] = []
        bad: list[Unreadable] = []
        for item in items_of(body, _ITEM_DEPTH):
            try:
                good.append(self._object.decode(item))
            except UNDECODABLE as error:
                bad.append(self._unreadable(item, error))
        if not bad:  # the page is none, though what it holds is
            raise self._refusal(page_error) from page_error
        return good, bad, metadata.metadata

    def event(self, line: bytes) -> WatchEvent[T]:
        """Return the event of a line. An ERROR is raised, and InternalError for no event."""
        try:
            event = self._line.decode(line)
        except UNDECODABLE as error:
            return self._other_event(cut(line, DEPTH_MAX), error)
        if self._reduce is not None:
            self._reduce(event.object)
        metadata = cast("ObjectMeta", getattr(event.object, "metadata"))  # noqa: B009 - T has no bound
        obj = None if event.type is EventType.BOOKMARK else event.object
        return WatchEvent(event.type, obj, metadata.resource_version)

    def _other_event(self, line: bytes, line_error: Exception) -> WatchEvent[T]:
        version = _bookmark_version(line)
        if version:
            return WatchEvent(EventType.BOOKMARK, None, version)
        try:
            ending = _ERROR_LINE.decode(line)
        except UNDECODABLE:
            ending = None
        if ending is not None and ending.type == "ERROR":
            raise error_from_status(ending.object) from None
        try:
            raw = _RAW_LINE.decode(line)
        except UNDECODABLE:
            raise self._refusal(line_error) from line_error
        unreadable = self._unreadable(bytes(raw.object), line_error)
        return WatchEvent(raw.type, None, unreadable.metadata.resource_version, unreadable)

    def _unreadable(self, data: bytes, error: Exception) -> Unreadable:
        found = unreadable_of(data, error)
        if found is None:
            raise self._refusal(error) from error
        return found

    def _refusal(self, error: Exception) -> InternalError:
        return InternalError(f"the server's {self._resource.kind} cannot be decoded: {error}")


def _reducer_of(kind: type[Any]) -> Callable[[Any], None] | None:
    if kind is Node:
        return NodeSharing().share
    return PodSharing().share if kind is Pod else None


class DecodersByType:
    """The decoders of each type that a client has asked for."""

    def __init__(self) -> None:
        self._known: dict[type[Any], Decoders[Any]] = {}

    def of(self, resource: Resource[T]) -> Decoders[T]:
        """Return the decoders of a resource's type."""
        decoders = self._known.get(resource.type)
        if decoders is None:
            decoders = self._known[resource.type] = Decoders(resource)
        return decoders


def _bookmark_version(line: bytes) -> str:
    """Return the version of a bookmark; "" if the line is none."""
    try:
        mark = _BOOKMARK_LINE.decode(line)
    except UNDECODABLE:
        return ""
    return mark.object.metadata.resource_version if mark.type == EventType.BOOKMARK.value else ""
