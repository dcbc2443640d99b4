"""When nodes are closed, by slot: maintenance windows (`windows.py`) and reservations
(`reserved_nodes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.model.health.windows import Window
from fairlead.model.inventory.labels import Bools, Slots, resized
from fairlead.model.inventory.reserved_nodes import NodeReservation

#: What matters of an attempt: for how many seconds it may hold its nodes, and the reservation that
#: it uses ("": none).
NodeHold: TypeAlias = tuple[float, str]


class WindowTable:
    """The window of each node slot that has one, and the slots of each reservation."""

    def __init__(self, capacity: int) -> None:
        self._windows: dict[int, Window] = {}
        #: float64[N]; a slot without a window is never closed.
        self._starts: npt.NDArray[np.float64] = np.full(capacity, inf)
        self._ends: npt.NDArray[np.float64] = np.full(capacity, -inf)
        #: The reservations, and bool[N] each: their slots.
        self._reserved: dict[NodeReservation, Bools] = {}

    def __len__(self) -> int:
        return len(self._windows) + len(self._reserved)

    def resize(self, capacity: int) -> None:
        """Have so many slots from now on."""
        self._starts = resized(self._starts, capacity, fill=inf)
        self._ends = resized(self._ends, capacity, fill=-inf)
        for each, held in self._reserved.items():
            self._reserved[each] = resized(held, capacity)

    def set(self, slot: int, window: Window | None) -> bool:
        """Set the window of a slot; False when it is as it was."""
        if self._windows.get(slot) == window:
            return False
        if window is None:
            del self._windows[slot]
            window = Window(inf, -inf)
        else:
            self._windows[slot] = window
        self._starts[slot], self._ends[slot] = window.start, window.end
        return True

    def set_labels(self, slot: int, labels: Mapping[str, str]) -> bool:
        """Take in the labels of a slot's node, {} for none; False when it is reserved as it was."""
        changed = False
        for each, held in self._reserved.items():
            holds = each.holds(labels)
            changed |= bool(held[slot]) != holds
            held[slot] = holds
        return changed

    def reserve(
        self, reserved: Iterable[NodeReservation], labels_of: Callable[[int], Mapping[str, str]]
    ) -> list[int]:
        """Set the reservations; return the slots of those that come or go."""
        count, before = len(self._starts), self._reserved
        self._reserved, changed = {}, np.zeros(count, dtype=np.bool_)
        for each in reserved:
            held = before.pop(each, None)
            if held is None:
                nodes = (each.holds(labels_of(slot)) for slot in range(count))
                held = np.fromiter(nodes, dtype=np.bool_, count=count)
                changed |= held
            self._reserved[each] = held
        for held in before.values():
            changed |= held
        return np.flatnonzero(changed).tolist()

    def closed(self, hold: NodeHold, slots: Slots, now: float) -> Bools:
        """Return bool[len(slots)]: where an attempt that begins now would run into a window or
        another reservation, or its own one has not begun or is over.
        """
        until = now + hold[0]
        out = (now < self._ends[slots]) & (until > self._starts[slots])
        for each, held in self._reserved.items():
            if _closes(each, hold, now):
                out |= held[slots]
        return out

    def reserved(self, key: str, slots: Slots) -> Bools:
        """Return bool[len(slots)]: the nodes of a reservation; none where there is none."""
        found = (held[slots] for each, held in self._reserved.items() if each.key == key)
        return next(found, np.zeros(len(slots), dtype=np.bool_))

    def reservation(self, key: str) -> NodeReservation | None:
        """Return a reservation; None where there is none."""
        return next((each for each in self._reserved if each.key == key), None)

    def turned(self, holds: Iterable[NodeHold], before: float, now: float) -> list[int]:
        """Return the slots that are closed at one of two instants, and not at the other."""
        slots = self._slots()
        out = np.zeros(len(slots), dtype=np.bool_)
        for hold in holds:
            out |= self.closed(hold, slots, before) != self.closed(hold, slots, now)
        return slots[out].tolist()

    def steady(self, holds: Iterable[NodeHold], now: float) -> tuple[float, float]:
        """Return the instants between which, exclusively, no node closes or opens."""
        slots = np.fromiter(self._windows, dtype=np.int64, count=len(self._windows))
        reserved = [each.window for each in self._reserved]
        starts = np.concatenate([self._starts[slots], [each.start for each in reserved]])
        ends = np.concatenate([self._ends[slots], [each.end for each in reserved]])
        begins = np.array([each.start for each in reserved])
        lengths = {seconds for seconds, _ in holds if seconds < inf}
        turns = np.concatenate([ends, begins, *(starts - seconds for seconds in lengths)])
        before, after = turns[turns <= now], turns[turns >= now]
        return before.max(initial=-inf), after.min(initial=inf)

    def next_opening(self, now: float) -> float | None:
        """Return when the next window or reservation ends, or a reservation begins."""
        reserved = [each.window for each in self._reserved]
        ends = [window.end for window in (*self._windows.values(), *reserved)]
        opens = [*ends, *(window.start for window in reserved)]
        return min((at for at in opens if now < at < inf), default=None)

    def starts(self, now: float) -> list[float]:
        """Return when the windows and reservations begin that have not begun, in order."""
        reserved = (each.window for each in self._reserved)
        starts = {window.start for window in (*self._windows.values(), *reserved)}
        return sorted(at for at in starts if now < at < inf)

    def reservations_of(self, team: str, now: float) -> list[NodeReservation]:
        """Return the reservations of a team that are not over, by when they begin."""
        found = (each for each in self._reserved if each.team == team and now < each.window.end)
        return sorted(found, key=lambda each: (each.window.start, each.key))

    def first(self, slots: Iterable[int]) -> Window | None:
        """Return the window of some slots that ends first; None where they have none."""
        found = (self._windows[slot] for slot in slots if slot in self._windows)
        return min(found, key=lambda window: (window.end, window.start), default=None)

    def first_reserved(self, hold: NodeHold, slots: Slots, now: float) -> NodeReservation | None:
        """Return the reservation that closes some of the slots and ends first; None: none does."""
        found = (
            each
            for each, held in self._reserved.items()
            if _closes(each, hold, now) and held[slots].any()
        )
        return min(found, key=lambda each: (each.window.end, each.window.start), default=None)

    def _slots(self) -> Slots:
        """Return the slots that may be closed at some time."""
        some = np.zeros(len(self._starts), dtype=np.bool_)
        some[list(self._windows)] = True
        for held in self._reserved.values():
            some |= held
        return np.flatnonzero(some)


def _closes(reserved: NodeReservation, hold: NodeHold, now: float) -> bool:
    """True where an attempt that begins now may not use the nodes of a reservation."""
    seconds, key = hold
    if key == reserved.key:
        return not reserved.window.start <= now < reserved.window.end
    return reserved.window.is_closed(seconds, now)
