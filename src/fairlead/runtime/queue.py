"""A queue of keys: each at most once, in the order in which they became due, with timers.

For controllers that work per object: handlers `add` keys, timers `add_at` an instant, and a
decision `pop`s what is due. Pure: instants are arguments, nothing waits here. Keys that are ready
keep their insertion order (a dict, never a set), timers come due by (instant, order of setting).
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_GARBAGE_MAX = 64  # outdated timers that are kept beyond the number of live ones


class KeyQueue(Generic[K]):
    """Ready keys and timers. A key has at most one timer; a ready key may have one too."""

    def __init__(self) -> None:
        self._ready: dict[K, None] = {}
        self._timers: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        """Return the number of keys that are ready; timers do not count."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Make the key ready now; nothing happens when it is."""
        self._ready.setdefault(key)

    def add_at(self, key: K, instant: float) -> None:
        """Make the key ready at `instant`; of several instants the earliest holds."""
        timer = self._timers.get(key)
        if timer is not None and timer[0] <= instant:
            return
        self._sequence += 1
        self._timers[key] = (instant, self._sequence)
        heapq.heappush(self._heap, (instant, self._sequence, key))
        if len(self._heap) > 2 * len(self._timers) + _GARBAGE_MAX:
            self._heap = [(at, seq, k) for k, (at, seq) in self._timers.items()]
            heapq.heapify(self._heap)

    def add_timed(self) -> None:
        """Make every key with a timer ready now, without it."""
        for key in sorted(self._timers, key=self._timers.__getitem__):
            self._ready.setdefault(key)
        self._timers.clear()
        self._heap.clear()

    def discard(self, key: K) -> None:
        """Forget the key and its timer."""
        self._ready.pop(key, None)
        self._timers.pop(key, None)

    def wake_at(self) -> float | None:
        """Return the instant of the earliest timer, or None."""
        self._drop_outdated()
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float, count_max: int | None = None) -> list[K]:
        """Take ready keys, at most `count_max`, after making those ready whose timers are due."""
        self._drop_outdated()
        while self._heap and self._heap[0][0] <= now:
            key = heapq.heappop(self._heap)[2]
            del self._timers[key]
            self._ready.setdefault(key)
            self._drop_outdated()
        if count_max is None or count_max >= len(self._ready):
            keys = list(self._ready)
            self._ready.clear()
            return keys
        keys = [key for key, _ in zip(self._ready, range(count_max), strict=False)]
        for key in keys:
            del self._ready[key]
        return keys

    def _drop_outdated(self) -> None:
        while self._heap:
            instant, sequence, key = self._heap[0]
            if self._timers.get(key) == (instant, sequence):
                return
            heapq.heappop(self._heap)
