"""When jobs give nodes back or take them, and how much, in arrays over all of their uses.

A search for the start of a gang goes back and forth between instants. What changes between two of
them is one sum over a part of these arrays, however many jobs end in between, and all heads of the
queue read the same arrays.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice

import numpy as np
import numpy.typing as npt

from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.model.asks.neighbours import marks_in
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable, Use

#: Ends and starts that are looked at.
ENDS_MAX = 4096


class Releases:
    """The first ends, in order. What jobs use is read as far as it is asked for, at most once."""

    def __init__(self, ends: Iterable[tuple[float, Iterable[Use]]], table: NodeTable) -> None:
        """`ends`, in order of time: what is given back then, with negative counts where it is
        taken. The uses are not read at once, and must stay the same until they are.
        """
        known = list(islice(ends, ENDS_MAX))
        self._table = table
        self._unread = (uses for _, uses in known)
        #: float64[E]
        self.times: npt.NDArray[np.float64] = np.array([at for at, _ in known], dtype=np.float64)
        #: How many cells the ends before each use, and all that are read.
        self._offsets: list[int] = [0]
        #: int64[U] and int64[D, U]: the slot of each cell, and what is given back there.
        self._slots: Ints = np.zeros(0, dtype=np.int64)
        self._amounts: Ints = np.zeros((len(table.resources), 0), dtype=np.int64)
        #: What `given` was last asked about, and the sums over the cells from the first on.
        self._sums: tuple[Bools, Ints] | None = None
        #: float64[U]: when each cell is given back, 0 where it is taken; None: to be computed.
        self._given_at: npt.NDArray[np.float64] | None = None
        #: Uses that say which pods may be near, by the number of their end.
        self._marked: list[tuple[int, Use]] = []

    def release(self, room: FreedCapacity, first: int, last: int, *, sign: int) -> None:
        """Give back in `room` what the ends from `first` to before `last` give, or take it."""
        self._read(last)
        part = slice(self._offsets[first], self._offsets[last])
        room.add(self._slots[part], sign * self._amounts[:, part])
        low, high = (bisect_left(self._marked, number, key=_number) for number in (first, last))
        for _, (slots, counts, request) in self._marked[low:high]:
            room.marks.add(request, slots, -sign * counts)

    def given(self, nodes: Bools, counts: Ints) -> Ints:
        """Return int64[counts, D]: what the first so many ends give back on some nodes."""
        self._read(int(counts.max(initial=0)))
        known = self._sums
        if known is None or known[1].shape[1] <= len(self._slots) or (known[0] != nodes).any():
            sums = np.zeros((len(self._amounts), len(self._slots) + 1), dtype=np.int64)
            np.cumsum(self._amounts * nodes[self._slots], axis=1, out=sums[:, 1:])
            known = self._sums = (nodes, sums)
        return known[1][:, np.array(self._offsets)[counts]].T

    def latest(self, count: int) -> npt.NDArray[np.float64]:
        """Return float64[N]: the last of the first `count` ends at which each node is given
        something back; 0 for none.
        """
        self._read(count)
        out = np.zeros(self._table.capacity, dtype=np.float64)
        if self._given_at is None or len(self._given_at) < len(self._slots):
            at = np.repeat(self.times[: len(self._offsets) - 1], np.diff(self._offsets))
            gives = (self._amounts > 0).any(axis=0)
            self._given_at = np.where(gives, at, 0.0)
        size = self._offsets[count]
        np.maximum.at(out, self._slots[:size], self._given_at[:size])
        return out

    def _read(self, count: int) -> None:
        """Know what the first `count` ends give back."""
        read = len(self._offsets) - 1
        if count <= read:
            return
        slots, counts, vectors = [self._slots], list[Ints](), list[Ints]()
        for number, uses in enumerate(islice(self._unread, max(count - read, read)), start=read):
            size = self._offsets[-1]
            for use in uses:
                slots.append(use[0])
                counts.append(use[1])
                vectors.append(self._table.vector(use[2]))
                size += len(use[0])
                if marks_in(use[2]):
                    self._marked.append((number, use))
            self._offsets.append(size)
        if not counts:
            return
        sizes = [len(each) for each in counts]
        amounts = np.repeat(np.array(vectors).T, sizes, axis=1) * np.concatenate(counts)
        self._slots = np.concatenate(slots)
        self._amounts = np.concatenate([self._amounts, amounts], axis=1)


def _number(marked: tuple[int, Use]) -> int:
    return marked[0]
