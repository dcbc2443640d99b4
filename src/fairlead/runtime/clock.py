"""Time as an argument. Production reads the system clock; the simulator reads its event loop.

Sleeping is always `asyncio.sleep`, which follows the running loop and hence virtual time; only
*now* needs a clock.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


def loop_time() -> float:
    """Return the running loop's time in seconds, which is never set back."""
    return asyncio.get_running_loop().time()


class Clock(Protocol):
    """Where instants come from."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        ...


class SystemClock:
    """The wall clock."""

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return time.time()


class LoopClock:
    """The running event loop's time, counted from `epoch`: virtual in the simulator."""

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch

    def now(self) -> float:
        """Return seconds since the Unix epoch."""
        return self._epoch + asyncio.get_running_loop().time()
