"""The maintenance windows of all nodes, by slot (`windows.py` says what a window is)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import numpy as np
import numpy.typing as npt

from fairlead.model.labels import Bools, Slots, resized
from fairlead.model.windows import Window, read_window


class WindowTable:
    """The window of each node slot that has one."""

    def __init__(self, capacity: int) -> None:
        self._windows: dict[int, Window] = {}
        #: float64[N]; a slot without a window is never closed.
        self._starts: npt.NDArray[np.float64] = np.full(capacity, inf)
        self._ends: npt.NDArray[np.float64] = np.full(capacity, -inf)

    def __len__(self) -> int:
        return len(self._windows)

    def resize(self, capacity: int) -> None:
        """Have so many slots from now on."""
        self._starts = resized(self._starts, capacity, fill=inf)
        self._ends = resized(self._ends, capacity, fill=-inf)

    def set(self, slot: int, text: str | None) -> bool:
        """Set the window of a slot by the annotation of its node; False when it is as it was."""
        window = read_window(text) if text is not None else None
        if self._windows.get(slot) == window:
            return False
        if window is None:
            del self._windows[slot]
            window = Window(inf, -inf)
        else:
            self._windows[slot] = window
        self._starts[slot], self._ends[slot] = window.start, window.end
        return True

    def closed(self, hold_seconds: float, slots: Slots, now: float) -> Bools:
        """Return bool[len(slots)]: where an attempt that begins now would run into a window."""
        until = now + hold_seconds
        return (now < self._ends[slots]) & (until > self._starts[slots])

    def turned(self, holds: Iterable[float], before: float, now: float) -> list[int]:
        """Return the slots that are closed at one of two instants, and not at the other."""
        slots = np.fromiter(self._windows, dtype=np.int64, count=len(self._windows))
        out = np.zeros(len(slots), dtype=np.bool_)
        for hold in holds:
            out |= self.closed(hold, slots, before) != self.closed(hold, slots, now)
        return slots[out].tolist()

    def steady(self, holds: Iterable[float], now: float) -> tuple[float, float]:
        """Return the instants between which, exclusively, no node closes or opens."""
        slots = np.fromiter(self._windows, dtype=np.int64, count=len(self._windows))
        starts, ends = self._starts[slots], self._ends[slots]
        turns = np.concatenate([ends, *(starts - hold for hold in holds if hold < inf)])
        before, after = turns[turns <= now], turns[turns >= now]
        return before.max(initial=-inf), after.min(initial=inf)

    def next_end(self, now: float) -> float | None:
        """Return when the next window ends."""
        ends = (window.end for window in self._windows.values() if now < window.end < inf)
        return min(ends, default=None)

    def first(self, slots: Iterable[int]) -> Window | None:
        """Return the window of some slots that ends first; None where they have none."""
        found = (self._windows[slot] for slot in slots if slot in self._windows)
        return min(found, key=lambda window: (window.end, window.start), default=None)
