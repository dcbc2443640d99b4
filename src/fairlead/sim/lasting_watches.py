"""A client whose watches last: for runs in which no fault concerns watches.

A watch that ends by its time-out and begins again changes nothing but the cost of idle time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from msgspec.structs import replace

from fairlead.embedded.client import InProcessClient
from fairlead.runtime.client import WatchEvent, WatchRequest

#: Longer than any run.
_WATCH_SECONDS = 2**31 - 1

T = TypeVar("T")


class LastingWatches(InProcessClient):
    """Watches that do not end by time and carry no bookmarks: periodic noise, left out."""

    def open_watch(self, request: WatchRequest[T]) -> AsyncIterator[WatchEvent[T]]:
        """Yield changes for as long as the world lasts."""
        lasting = replace(request, timeout_seconds=_WATCH_SECONDS, allow_bookmarks=False)
        return super().open_watch(lasting)
