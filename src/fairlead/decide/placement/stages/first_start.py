"""When a gang starts at the latest, and what must stay free for it until then.

Jobs that hold nodes end at their limits, or when it is predicted, one after the other; jobs ahead
in the queue start when their reservations say, and end. The first of these instants at which the
gang fits, for as long as it may run, is found by doubling the number of instants and halving the
last step. So the work grows with the instants that it needs, not with the jobs that run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from typing import TypeVar

import numpy as np

from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.decide.placement.places.kept_room import End, Proof, QueueReservation, Start
from fairlead.decide.placement.places.releases import ENDS_MAX, Releases
from fairlead.decide.placement.places.search import Plan, plan_gang, tier_shift, uses_of
from fairlead.decide.placement.waiting.known_starts import latest_first
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.inventory.nodes import Bools, Ints

T = TypeVar("T")


class FirstStart:
    """Looks ahead for one gang, on columns of its own."""

    def __init__(
        self,
        context: PlanningContext,
        entry: QueueEntry,
        gang: GangRequest,
        ends: Releases,
        *,
        nodes: Bools,
        ahead: Sequence[QueueReservation] = (),
        is_predicted: bool = False,
    ) -> None:
        """`ends` of jobs that hold nodes; with `is_predicted`, jobs without a time limit
        end when it is predicted. `nodes` are those that the gang could use, and `ahead` the
        reservations on them with a place that come first.
        """
        self._context, self._entry, self._gang, self._ahead = context, entry, gang, ahead
        placed = [*context.placed_until, *(context.placed_predicted if is_predicted else ())]
        turns = [turn for each in ahead for turn in each.turns(is_predicted=is_predicted)]
        self._ends = (ends, Releases(sorted([*placed, *turns], key=_at), context.cluster.table))
        self._is_predicted = is_predicted
        first = np.sort(np.concatenate([each.times for each in self._ends]))[:ENDS_MAX]
        #: The instants, and how many ends of each kind have come before the first one, by the first
        #: one, by the second, and so on.
        self._times: list[float] = np.unique(first).tolist()
        self._ended = [
            np.searchsorted(each.times, [-np.inf, *self._times], side="right")
            for each in self._ends
        ]
        self._room = FreedCapacity.of(context.cluster, ())
        total: Ints = np.maximum(self._room.free[:, nodes], 0).sum(axis=1)
        vectors = ((role, context.cluster.table.vector(role.member.request)) for role in gang.roles)
        self._need = sum((role.count * vector for role, vector in vectors), 0 * total)
        #: int64[instants, D], with jobs ahead: the most that is free then on these nodes in all.
        self._totals: Ints | None = None
        if ahead:
            pairs = zip(self._ends, self._ended, strict=True)
            self._totals = total + sum(each.given(nodes, ended[1:]) for each, ended in pairs)
        #: The instants whose uses `_room` has given back.
        self._count = 0
        #: What members lack at the instants before the start, and what it rests on, once found.
        self._slack = inf
        self.proof: Proof | None = None

    def find(self) -> Start | None:
        """Return when the gang starts at the latest; None where what is known of the others does
        not make room for it.
        """
        if not self._seek():
            return None
        at = self._times[self._count - 1]
        if self._gang.has_neighbours:
            return Start(at)
        order = self._latest_first()
        plan = self._plan(order=order)
        if plan is not None and order is not None and self._gang.is_simple:
            self.proof = self._asked(partial(self._proven, plan, order))
        plan = plan or self._plan()
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
        turns = sorted(self._turns())
        few, many = 0, min(1, len(self._times))
        while few < many:
            many = min(many, next((turn for turn in turns if turn > few), many))
            if self._has_place(many):
                break
            few, many = many, min(2 * many, len(self._times))
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

    def _turns(self) -> Iterator[int]:
        """Yield how many instants come before a job ahead starts, or before the gang would not be
        over when one does: up to there the room only grows.
        """
        for each in self._ahead:
            yield bisect_left(self._times, each.at)
            if (latest := each.at - self._held(each)) >= self._context.now:
                yield bisect_right(self._times, latest)

    def _go(self, count: int) -> None:
        """Give back what is given back at the first instants, and nothing else."""
        first, last = sorted((count, self._count))
        sign = 1 if count > self._count else -1
        for ends, ended in zip(self._ends, self._ended, strict=True):
            ends.release(self._room, int(ended[first]), int(ended[last]), sign=sign)
        self._count = count

    def _has_place(self, count: int) -> bool:
        """True when the gang fits after so many instants. Most often what is free in all says no,
        then or when a job ahead starts.
        """
        if self._totals is not None:
            known = self._times
            later = (r for r in self._later(count) if r.is_predicted == self._is_predicted)
            turns = [bisect_right(known, each.at) for each in later]
            indexes = [count - 1, *(turn - 1 for turn in turns if turn < len(known))]
            lacking = self._need - self._totals[indexes].min(axis=0)
            if (lacking > 0).any():
                self._note_lacking(lacking)
                return False
        self._go(count)
        return self._asked(self._fits)

    def _later(self, count: int) -> list[QueueReservation]:
        """Return the jobs ahead that start while the gang runs, if it begins at this instant."""
        at = self._times[count - 1]
        begins = max(at, self._context.now)
        return [each for each in self._ahead if at < each.at < begins + self._held(each)]

    def _plan(self, order: Ints | None = None) -> Plan | None:
        """Find a place for the gang, as `_asked`."""
        return self._asked(lambda room: self._planned(room, order))

    def _asked(self, ask: Callable[[FreedCapacity], T]) -> T:
        """Return an answer about what is free for the gang from now on for as long as it may run,
        within the limits of borrowing, and leave that as it is.
        """
        context, lane, room, free = self._context, self._entry.lane, self._room, self._room.free
        later = self._later(self._count)
        if later:
            room.free = free.copy()
            for each in later:
                context.kept_from(lane.team, each).limit(room.free, context.cluster.table.free())
        room.barred = context.borrowing.barred(room, self._gang, lane.team, lane.priority)
        answer = ask(room)
        room.free = free
        return answer

    def _planned(self, room: FreedCapacity, order: Ints | None) -> Plan | None:
        mark = room.mark()
        plan = plan_gang(room, self._context.cluster.table, self._gang, order=order)
        room.rollback_to(mark)
        return plan

    def _fits(self, room: FreedCapacity) -> bool:
        if not self._gang.is_simple:
            return self._planned(room, None) is not None
        (role,) = self._gang.roles  # the sum decides
        lacking = role.count - int(room.fits(role.member).sum())
        if lacking > 0:
            self._slack = min(self._slack, lacking)
        return lacking <= 0

    def _note_lacking(self, amounts: Ints) -> None:
        """Note for how many members of a gang of one role there is no room, from int64[D]."""
        asked = self._context.cluster.table.vector(self._gang.roles[0].member.request)
        members = np.where(asked > 0, -(-amounts // np.maximum(asked, 1)), 0)
        self._slack = min(self._slack, int(members.max()))

    def _proven(self, plan: Plan, order: Ints, room: FreedCapacity) -> Proof | None:
        """Return what the place of a gang of one role rests on."""
        (role,), table = self._gang.roles, self._context.cluster.table
        shift = tier_shift(table, role)
        is_complete = sum(len(each.times) for each in self._ends) < ENDS_MAX
        if shift is None or not self._times or not is_complete:
            return None
        slots = plan.distinct_slots
        key = table.packing_key(room.free[:, slots], slots) + shift[slots]
        last = int(np.lexsort((key, order[slots]))[-1])
        return Proof(
            role, table.vector(role.member.request), self._times[0], self._slack,
            int(slots[last]), (int(order[slots][last]), int(key[last])),
            int(room.fits(role.member).sum()) > role.count,
        )  # fmt: skip

    def _held(self, other: QueueReservation) -> float:
        """Return for how long the gang holds its nodes, as a reservation counts."""
        if other.is_predicted:
            return self._context.likely_seconds(self._entry)
        return self._entry.hold_seconds

    def _latest_first(self) -> Ints | None:
        """Return int64[N] by which the nodes come first that have room since the latest instants,
        and those last that have room now: these are then left to others.

        Where jobs ahead have places, since these end. None where domains are chosen first, which
        have an order of their own.
        """
        gang = self._gang
        if gang.topology.ladder[0].key or gang.topology.is_sliced:
            return None
        member = gang.roles[gang.placing_order()[0]].member
        running, others = (
            ends.latest(int(ended[self._count]))
            for ends, ended in zip(self._ends, self._ended, strict=True)
        )
        has_room = self._context.cluster.fits.fits(member) > 0
        return latest_first(np.maximum(np.where(has_room, 0.0, running), others))


def _at(end: End) -> float:
    return end[0]
