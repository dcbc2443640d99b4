"""When a gang starts at the latest, and what must stay free for it until then.

Jobs that hold nodes end at their limits, or when it is predicted, one after the other. The first
end after which the gang fits is found by doubling the number of ends and halving the last step, so
the work grows with the ends that it needs, not with the jobs that run.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np

from fairlead.decide.placement.context import Context
from fairlead.decide.placement.freed import FreedCapacity
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.placement.search import plan_gang
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gangs import GangRequest
from fairlead.model.nodes import Ints
from fairlead.model.requests import Request

#: Until when a job uses its nodes, and what it uses.
_End: TypeAlias = tuple[float, Iterable[tuple[Ints, Ints, Request]]]
#: Ends that are looked at.
_ENDS_MAX = 4096


class FirstStart:
    """Looks ahead for one gang, on columns of its own."""

    def __init__(
        self,
        context: Context,
        entry: QueueEntry,
        gang: GangRequest,
        predicted: Sequence[tuple[float, ObjectKey]] | None = None,
    ) -> None:
        """With `predicted`, jobs without a time limit end then."""
        self._context, self._entry, self._gang = context, entry, gang
        placed = [*context.placed_until, *(() if predicted is None else context.placed_predicted)]
        ends = context.capacity.ends(predicted or ())
        self._unread = islice(heapq.merge(ends, sorted(placed, key=_at), key=_at), _ENDS_MAX)
        self._ends: list[_End] = []
        self._room = FreedCapacity.of(context.cluster, ())

    def find(self) -> tuple[float | None, Ints | None]:
        """Return when the gang starts at the latest, past where jobs are overdue, and int64[D, N],
        what must stay free, in base units.

        None where the known ends do not make room for it. What a gang with rules between pods
        leaves to others is not known: None.
        """
        count = self._ends_needed()
        if not count:
            return None, None
        starts_by = self._ends[count - 1][0]
        if self._gang.has_neighbours:
            return starts_by, None
        while self._read(count + 1) > count and self._ends[count][0] <= starts_by:
            self._release(count, count + 1)
            count += 1
        if not (self._plan(order=self._idle_last()) or self._plan()):
            return starts_by, None
        return starts_by, np.maximum(self._context.cluster.table.free() - self._room.free, 0)

    def _ends_needed(self) -> int:
        """Release what the first jobs to end use until the gang fits; return how many these are,
        at least 1; 0 where all of them are not enough.
        """
        few, many = 0, self._read(1)
        self._release(few, many)
        while not self._fits():
            few, many = many, self._read(2 * many)
            if few == many:
                return 0
            self._release(few, many)
        while many - few > 1:
            middle = (few + many) // 2
            self._release(middle, many, sign=-1)
            if self._fits():
                many = middle
            else:
                few = middle
                self._release(middle, many)
        return many

    def _read(self, count: int) -> int:
        """Know so many ends, or all; return how many these are."""
        more = islice(self._unread, max(0, count - len(self._ends)))
        self._ends.extend((at, tuple(uses)) for at, uses in more)
        return min(count, len(self._ends))

    def _release(self, first: int, last: int, *, sign: int = 1) -> None:
        for _, uses in self._ends[first:last]:
            self._room.release(uses, sign=sign)

    def _fits(self) -> bool:
        mark = self._room.mark()
        has_place = self._plan()
        self._room.rollback_to(mark)
        return has_place

    def _plan(self, order: Ints | None = None) -> bool:
        """Take a place for the gang, within the limits of borrowing."""
        context, lane, room = self._context, self._entry.lane, self._room
        room.barred = context.borrowing.barred(room, self._gang, lane.team, lane.priority)
        return plan_gang(room, context.cluster.table, self._gang, order=order) is not None

    def _idle_last(self) -> Ints | None:
        """Return int64[N] by which nodes in use now come first: the others are then left to others.

        None where domains are chosen first, which have an order of their own.
        """
        gang = self._gang
        if gang.topology.ladder[0].key or gang.topology.is_sliced:
            return None
        member = gang.roles[gang.placing_order()[0]].member
        return self._context.cluster.fits.fits(member).astype(np.int64)


def _at(end: _End) -> float:
    return end[0]
