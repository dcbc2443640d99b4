"""When a gang starts at the latest, and what must stay free for it until then.

Jobs that hold nodes end at their limits, or when it is predicted, one after the other; jobs ahead
in the queue start when their reservations say, and end. The first of these instants at which the
gang fits, for as long as it may run, is found by doubling the number of instants and halving the
last step. So the work grows with the instants that it needs, not with the jobs that run.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

import numpy as np

from fairlead.decide.placement.context import Context
from fairlead.decide.placement.freed import FreedCapacity
from fairlead.decide.placement.kept import End, Reservation, Start, Use
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.placement.search import Plan, plan_gang, uses_of
from fairlead.model.gangs import GangRequest
from fairlead.model.nodes import Bools, Ints

#: Ends and starts that are looked at.
_ENDS_MAX = 4096


class FirstStart:
    """Looks ahead for one gang, on columns of its own."""

    def __init__(
        self,
        context: Context,
        entry: QueueEntry,
        gang: GangRequest,
        ends: Iterator[End],
        *,
        nodes: Bools,
        ahead: Sequence[Reservation] = (),
        is_predicted: bool = False,
    ) -> None:
        """`ends` of jobs that hold nodes, in order; with `is_predicted`, jobs without a time limit
        end when it is predicted. `nodes` are those that the gang could use, and `ahead` the
        reservations on them with a place that come first.
        """
        self._context, self._entry, self._gang, self._ahead = context, entry, gang, ahead
        placed = [*context.placed_until, *(context.placed_predicted if is_predicted else ())]
        turns = [turn for each in ahead for turn in each.turns(is_predicted=is_predicted)]
        merged = heapq.merge(ends, sorted([*placed, *turns], key=_at), key=_at)
        self._unread = groupby(islice(merged, _ENDS_MAX), key=_at)
        self._is_predicted = is_predicted
        #: The instants that are known, and what is given back then, negative where it is taken.
        self._times: list[float] = []
        self._given: list[tuple[Use, ...]] = []
        #: int64[D] each: the most that is free then on all nodes that the gang could use.
        self._totals: list[Ints] = []
        self._nodes = nodes
        self._room = FreedCapacity.of(context.cluster, ())
        self._total: Ints = np.maximum(self._room.free[:, nodes], 0).sum(axis=1)
        vectors = ((role, context.cluster.table.vector(role.member.request)) for role in gang.roles)
        self._need = sum((role.count * vector for role, vector in vectors), 0 * self._total)
        #: The instants whose uses `_room` has given back.
        self._count = 0

    def find(self) -> Start | None:
        """Return when the gang starts at the latest; None where what is known of the others does
        not make room for it.
        """
        if not self._seek():
            return None
        at = self._times[self._count - 1]
        if self._gang.has_neighbours:
            return Start(at)
        plan = self._plan(order=self._idle_last()) or self._plan()
        if plan is None:
            return Start(at)
        place = tuple(uses_of(self._gang, plan))
        self._room.release(place, sign=-1)
        amounts = self._context.cluster.table.free() - self._room.free
        return Start(at, amounts, place, hash(np.maximum(amounts, 0).tobytes()))

    def _seek(self) -> bool:
        """Go to the first instant at which the gang fits, at least the first one of all; False
        where it fits at none.
        """
        few, many = 0, self._read(1)
        while few < many:
            many = self._before_turns(few, many)
            if self._has_place(many):
                break
            few, many = many, self._read(2 * many)
        else:
            return False
        while many - few > 1:
            middle = (few + many) // 2
            if self._has_place(middle):
                many = middle
            else:
                few = middle
        self._go(many)
        return True

    def _read(self, count: int) -> int:
        """Know so many instants, or all; return how many these are."""
        for at, ends in islice(self._unread, max(0, count - len(self._times))):
            self._times.append(at)
            self._given.append(tuple(use for _, uses in ends for use in uses))
            for slots, counts, request in self._given[-1] if self._ahead else ():
                given = int(counts[self._nodes[slots]].sum())
                self._total = self._total + given * self._context.cluster.table.vector(request)
            self._totals.append(self._total)
        return min(count, len(self._times))

    def _before_turns(self, few: int, many: int) -> int:
        """Return how many of the known instants, more than `few`, come before a job ahead starts,
        or the gang would not be over when one does: up to there the room only grows.
        """
        known, now = self._times[:many], self._context.now
        turns = [bisect_left(known, each.at) for each in self._ahead]
        turns += [
            bisect_right(known, each.at - self._held(each))
            for each in self._ahead
            if each.at - self._held(each) >= now
        ]
        return min((turn for turn in turns if turn > few), default=many)

    def _go(self, count: int) -> None:
        """Give back what is given back at the first instants, and nothing else."""
        is_more = count > self._count
        for uses in self._given[min(count, self._count) : max(count, self._count)]:
            self._room.release(uses, sign=1 if is_more else -1)
        self._count = count

    def _has_place(self, count: int) -> bool:
        """True when the gang fits after so many instants. Most often what is free in all says no,
        then or when a job ahead starts.
        """
        if self._ahead:
            known = self._times
            later = (r for r in self._later(count) if r.is_predicted == self._is_predicted)
            turns = [bisect_right(known, each.at) for each in later]
            indexes = [count - 1, *(turn - 1 for turn in turns if turn < len(known))]
            if any((self._totals[index] < self._need).any() for index in indexes):
                return False
        self._go(count)
        return self._plan() is not None

    def _later(self, count: int) -> list[Reservation]:
        """Return the jobs ahead that start while the gang runs, if it begins at this instant."""
        at = self._times[count - 1]
        begins = max(at, self._context.now)
        return [each for each in self._ahead if at < each.at < begins + self._held(each)]

    def _plan(self, order: Ints | None = None) -> Plan | None:
        """Find a place for the gang from now on for as long as it may run, within the limits of
        borrowing, and leave what is free as it is.
        """
        context, lane, room, free = self._context, self._entry.lane, self._room, self._room.free
        later = self._later(self._count)
        if later:
            room.free = free.copy()
            for each in later:
                context.kept_from(lane.team, each).limit(room.free, context.cluster.table.free())
        mark = room.mark()
        room.barred = context.borrowing.barred(room, self._gang, lane.team, lane.priority)
        plan = plan_gang(room, context.cluster.table, self._gang, order=order)
        room.rollback_to(mark)
        room.free = free
        return plan

    def _held(self, other: Reservation) -> float:
        """Return for how long the gang holds its nodes, as a reservation counts."""
        if other.is_predicted:
            return self._context.likely_seconds(self._entry)
        return self._entry.hold_seconds

    def _idle_last(self) -> Ints | None:
        """Return int64[N] by which nodes in use now come first: the others are then left to others.

        None where domains are chosen first, which have an order of their own.
        """
        gang = self._gang
        if gang.topology.ladder[0].key or gang.topology.is_sliced:
            return None
        member = gang.roles[gang.placing_order()[0]].member
        return self._context.cluster.fits.fits(member).astype(np.int64)


def _at(end: End) -> float:
    return end[0]
