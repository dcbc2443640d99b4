"""One reader of mirrors that are shared: its handlers come off together, its faults are its own.

A mirror that somebody shares must outlive any of its readers. An exception in a handler is a fault
of that reader's code; raised through the mirror it would end the mirror for all, and the handlers
behind it would miss a change. A `MirrorReader` stands between: the first fault takes off all
handlers of this reader, the mirror goes on, and `wait_fault` raises the fault where the reader's
supervisor sees it. The reader is then made anew, from what the mirrors hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fairlead.runtime.mirror import Change, HasMetadata, Mirror

T = TypeVar("T", bound=HasMetadata)


class MirrorReader:
    """The handlers of one reader. Make a new one with each new reader."""

    def __init__(self) -> None:
        self._removers: list[Callable[[], None]] = []
        self._fault: Exception | None = None
        self._failed = asyncio.Event()

    def follow(self, mirror: Mirror[T], handler: Callable[[Change[T]], None]) -> Callable[[], None]:
        """Like `mirror.on_change`, but a fault of `handler` ends this reader, not the mirror.

        Raises the fault when `handler` cannot take what the mirror holds already.
        """

        def guarded(change: Change[T]) -> None:
            if self._fault is not None:
                return
            try:
                handler(change)
            except Exception as error:  # noqa: BLE001 - told by wait_fault; other readers go on
                self._fault = error
                self.close()
                self._failed.set()

        remove = mirror.on_change(guarded)
        self._removers.append(remove)
        if self._fault is not None:
            self.close()
            raise self._fault
        return remove

    def close(self) -> None:
        """Take all handlers off their mirrors."""
        for remove in self._removers:
            remove()
        self._removers.clear()

    async def wait_fault(self) -> None:
        """Wait for the first fault of a handler and raise it."""
        await self._failed.wait()
        if self._fault is not None:
            raise self._fault


def follow(
    mirror: Mirror[T], handler: Callable[[Change[T]], None], reader: MirrorReader | None
) -> Callable[[], None]:
    """Register `handler` through the reader, or, without one, on a mirror of one's own."""
    return mirror.on_change(handler) if reader is None else reader.follow(mirror, handler)
