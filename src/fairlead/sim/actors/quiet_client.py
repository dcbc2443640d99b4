"""A client without the traffic that no controller reads: for worlds whose subject it is not.

A watch that ends by its time-out and begins again changes nothing but the cost of idle time. Events
are for people: three a job are written, none is read, and each expires an hour later. They are
sent through the same fault injection as all calls, and answered here instead of stored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeVar

from msgspec.structs import replace

from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import EVENTS
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import Request, WatchEvent, WatchRequest

#: Longer than any run.
_WATCH_SECONDS = 2**31 - 1

T = TypeVar("T")
A = TypeVar("A")


class QuietClient(InProcessClient):
    """Answers writes of Events without storing them; watches last unless they are renewed."""

    def __init__(self, service: ApiService, *, renews_watches: bool, keeps_events: bool) -> None:
        super().__init__(service)
        self._renews_watches = renews_watches
        self.keeps_events = keeps_events

    async def call(self, request: Request[A]) -> A:
        """Carry out the request, or answer as if an Event had been written."""
        if self.keeps_events or request.resource.name != EVENTS.name or not request.is_write:
            return await super().call(request)
        body: Any = request.body if isinstance(request.body, dict) else {}
        name = request.name or str(body.get("metadata", {}).get("name", ""))
        answer: Any = request.resource.type
        return answer(metadata=ObjectMeta(name, namespace=request.namespace))

    def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """Yield changes, for as long as the world lasts where watches are not renewed."""
        if self._renews_watches:
            return super().open_watch(request)
        lasting = replace(request, timeout_seconds=_WATCH_SECONDS, allow_bookmarks=False)
        return super().open_watch(lasting)
