"""The wait of a background task: until there is work, or until an instant.

`asyncio.Event.wait` under `asyncio.timeout` does the same, at several times the cost: the deadline
cancels the task and the cancellation becomes a TimeoutError. Every cycle of every controller waits.
"""

from __future__ import annotations

import asyncio


class WakeUp:
    """A flag for which one task waits."""

    def __init__(self) -> None:
        self._is_set = False
        self._future: asyncio.Future[None] | None = None

    @property
    def is_set(self) -> bool:
        """True from `set` until `clear`."""
        return self._is_set

    def set(self) -> None:
        """Set the flag, which ends the wait; one that begins later ends at once."""
        self._is_set = True
        if self._future is not None:
            _end(self._future)

    def clear(self) -> None:
        """Take the flag back."""
        self._is_set = False

    async def wait(self, seconds: float | None = None) -> bool:
        """Return True once the flag is set, or False after so many seconds if that is not None."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        self._future = future = loop.create_future()
        timer = None if seconds is None else loop.call_later(max(0.0, seconds), _end, future)
        try:
            await future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()
        return self._is_set


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
