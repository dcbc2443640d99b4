"""A client whose watches last: for runs in which no fault concerns watches.

A watch that ends by its time-out and begins again changes nothing but the cost of idle time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

from fairlead.api.resources import Resource
from fairlead.embedded.client import InProcessClient
from fairlead.runtime.client import WatchEvent

#: Longer than any run.
_WATCH_SECONDS = 2**31 - 1

T = TypeVar("T")


class LastingWatches(InProcessClient):
    """Watches that do not end by time and carry no bookmarks: periodic noise, left out."""

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
        """Yield changes after `resource_version` for as long as the world lasts."""
        return super().watch(
            resource, resource_version=resource_version, namespace=namespace,
            label_selector=label_selector, field_selector=field_selector,
            timeout_seconds=_WATCH_SECONDS, allow_bookmarks=False,
        )  # fmt: skip
