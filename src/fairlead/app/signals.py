"""Ending a process in order at the first SIGINT or SIGTERM, and at once at the second."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable


def stop_on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first signal, and leave the second one to the system."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, first)


def exit_on_terminate() -> None:
    """Let SIGTERM end the process as SIGINT does: through whatever has to be cleaned up."""

    def end(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
