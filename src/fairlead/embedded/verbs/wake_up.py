"""The wait of a background task: until there is work, or until an instant."""

from __future__ import annotations

import asyncio


class WakeUp:
    """One task waits, others notify it."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def notify(self) -> None:
        """End the wait, if there is one."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Return once notified, or after so many seconds if that is not None."""
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = None if seconds is None else loop.call_later(max(0.0, seconds), self.notify)
        try:
            await self._future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()
