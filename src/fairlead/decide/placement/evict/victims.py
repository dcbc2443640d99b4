"""Which gangs make room for another one: the cheapest set of whole jobs that is found.

    cost      level by level, the highest priority first, and of one priority the jobs that are
              not borrowed before those that are: GPU-seconds that are lost, jobs (`cost_of`)

The candidates are put in an order, and the shortest prefix is found whose removal makes room: its
highest priority is then the lowest possible. The gang is planned in that room, on nodes that are
free anyway first, and every candidate that the plan does not need stays, the dearest first. So a
set of victims always comes with the places that it makes free. Several orders are tried and the
cheapest set is taken, since no order is best for all clusters: jobs that share nodes must leave
together, jobs that have nodes of their own are weighed by what they make free. Then the search is
repeated with one victim kept, the dearest first, for as long as that finds a cheaper set.

The cheapest set overall is a covering problem, which is NP-hard; tests compare with an exact
solver (docs/design/preemption.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.decide.placement.places.domains import domains_of, slices_of
from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.decide.placement.places.neighbours import rules_hold
from fairlead.decide.placement.places.search import Plan, members_of, plan_gang
from fairlead.model.asks.requests import Request
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, JobKey
from fairlead.model.inventory.nodes import Ints

Floats: TypeAlias = npt.NDArray[np.float64]

#: A priority, whether its jobs are not borrowed, GPU-seconds that are lost, jobs.
Level: TypeAlias = tuple[int, bool, float, int]
#: The levels of the victims, the highest priority first. Smaller is better; () costs nothing.
Cost: TypeAlias = tuple[Level, ...]

#: Searches with one victim kept, and the nodes and places that all of them may look at.
_REPEATS_MAX, _REPEATED_WORK_MAX = 32, 16_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that may be preempted.

    `uses` are slots, counts and what one of these counts holds, int64[D]. `is_borrowed` is True for
    a job that its team may keep only while no other team needs the nodes.
    """

    key: JobKey
    uid: str
    priority: int
    is_borrowed: bool
    lost_gpu_seconds: float
    uses: tuple[tuple[Ints, Ints, Ints], ...]
    #: Slots, counts and the marks of each of these uses that has some.
    marks: tuple[tuple[Ints, Ints, Request], ...] = ()


@dataclass(frozen=True, slots=True)
class Victims:
    """The jobs that have to leave, and the places that the gang has then."""

    victims: tuple[Candidate, ...]
    plan: Plan

    @property
    def cost(self) -> Cost:
        """What it costs."""
        return cost_of(self.victims)


def cost_of(victims: Iterable[Candidate]) -> Cost:
    """Return what it costs to preempt these jobs; see the module."""
    levels: dict[tuple[int, bool], list[Candidate]] = {}
    for victim in victims:
        levels.setdefault((victim.priority, not victim.is_borrowed), []).append(victim)
    return tuple(
        (*level, sum(sorted(v.lost_gpu_seconds for v in at)), len(at))
        for level, at in sorted(levels.items(), reverse=True)
    )


def find_victims(
    state: ClusterState,
    gang: GangRequest,
    candidates: Sequence[Candidate],
    room: FreedCapacity,
) -> Victims | None:
    """Return the cheapest victims that are found; None when all candidates are not enough.

    `room` is what is left once all that leaves anyway has left: the gang does not fit into that.
    Of one role a set is found if there is one; of several the planner's own limits hold.
    """
    if not candidates:
        return None
    search = _Search(state, gang, candidates, room)
    if not search.has_room(np.zeros(len(candidates), dtype=np.int64), 1):
        return None
    orders = search.orders()
    found = [(each, ranks) for ranks in orders if (each := search.run(ranks)) is not None]
    if not found:
        return None
    return search.repeated(*min(found, key=lambda each: _by_cost(each[0])))


def _by_cost(victims: Victims) -> tuple[Cost, list[JobKey]]:
    return victims.cost, [victim.key for victim in victims.victims]


class _Search:
    """The uses of all candidates side by side, `entry` by `entry`, and what their removal makes."""

    def __init__(
        self,
        state: ClusterState,
        gang: GangRequest,
        candidates: Sequence[Candidate],
        room: FreedCapacity,
    ) -> None:
        self._state, self._gang, self._candidates = state, gang, candidates
        self._free, self._barred, self._marks = room.free, room.barred, room.marks
        uses = [use for candidate in candidates for use in candidate.uses]
        lengths = [len(slots) for slots, _, _ in uses]
        owners = [i for i, candidate in enumerate(candidates) for _ in candidate.uses]
        #: int64[E]: slot and candidate of each entry; int64[D, E]: what it holds.
        self._slots = np.concatenate([slots for slots, _, _ in uses])
        self._owners = np.repeat(np.array(owners, dtype=np.int64), lengths)
        counts = np.concatenate([counts for _, counts, _ in uses])
        vectors = np.repeat(np.array([vector for _, _, vector in uses]).T, lengths, axis=1)
        self._uses = vectors * counts
        #: Resources that any candidate holds.
        self._rows: list[int] = np.flatnonzero(self._uses.any(axis=1)).tolist()
        self._node_count = state.table.capacity

    def orders(self) -> list[Ints]:
        """Return int64[candidates] each: the place of every candidate in an order to try."""
        lost = np.array([c.lost_gpu_seconds for c in self._candidates])
        kept = np.array([not c.is_borrowed for c in self._candidates])
        priorities = np.array([c.priority for c in self._candidates])
        names = np.arange(len(self._candidates))
        orders: list[Ints] = []
        for worth in (lost, lost / self._gains(), self._node_costs(lost)):
            ranks = np.empty(len(names), dtype=np.int64)
            ranks[np.lexsort((names, lost, worth, kept, priorities))] = names
            if not any(np.array_equal(ranks, other) for other in orders):
                orders.append(ranks)
        return orders

    def run(self, ranks: Ints, count: int = 0) -> Victims | None:
        """Return the victims by one order, of the first `count` candidates (0: of all), which make
        room; None when the planner finds no place in it.
        """
        low, high = 0, count or len(self._candidates)
        while low + 1 < high:
            middle = (low + high) // 2
            if self.has_room(ranks, middle):
                high = middle
            else:
                low = middle
        capacity = self._room(ranks, high)
        order = self._last_to_leave(ranks, high)
        plan = plan_gang(capacity, self._state.table, self._gang, order=order)
        if plan is None:
            return None
        needed = self._needed(ranks, high, plan, capacity)
        return Victims(tuple(self._candidates[i] for i in sorted(needed)), plan)

    def repeated(self, best: Victims, ranks: Ints) -> Victims:
        """Return the victims that are found by the same order with one of them kept, if those are
        cheaper, and so on; the number of searches falls with the size of the cluster.
        """
        work, count = len(self._slots) + self._node_count, len(self._candidates)
        left = self._dearest_first(best)
        for _ in range(min(_REPEATS_MAX, _REPEATED_WORK_MAX // work)):
            if not left or count == 1:
                break
            kept = left.pop(0)
            others = np.where(ranks > ranks[kept], ranks - 1, ranks)
            others[kept] = len(ranks)  # beyond all others
            found = self.run(others, count - 1) if self.has_room(others, count - 1) else None
            if found is not None and _by_cost(found) < _by_cost(best):
                best, ranks, count = found, others, count - 1
                left = self._dearest_first(best)
        return best

    def _dearest_first(self, found: Victims) -> list[int]:
        """Return the numbers of the victims among the candidates."""
        keys = {victim.key for victim in found.victims}
        numbers = [i for i, each in enumerate(self._candidates) if each.key in keys]
        return sorted(numbers, key=lambda i: cost_of([self._candidates[i]]), reverse=True)

    def has_room(self, ranks: Ints, count: int) -> bool:
        """True when the gang has room without the first `count` candidates of an order.

        By ranks of zero and a count of one: without all of them.
        """
        capacity = self._room(ranks, count)
        table, gang = self._state.table, self._gang
        role, *others = gang.roles
        if others or gang.has_neighbours:
            return plan_gang(capacity, table, gang) is not None
        fits = capacity.fits(role.member)
        if not gang.topology.is_bound:
            return int(fits.sum()) >= role.count
        domains = domains_of(table, gang.topology.required.key)
        rooms = domains.room(fits, slices_of(table, gang.topology))
        return int(rooms.max(initial=0)) >= role.count

    def _room(self, ranks: Ints, count: int) -> FreedCapacity:
        """Return the room that is there without the first candidates of an order."""
        marks = self._marks
        if self._gang.has_neighbours:
            marks = marks.copy()
            for rank, candidate in zip(ranks.tolist(), self._candidates, strict=True):
                for slots, counts, marked in candidate.marks if rank < count else ():
                    marks.add(marked, slots, -counts)
        return FreedCapacity(self._state, self._freed(ranks, count), self._barred, marks=marks)

    def _freed(self, ranks: Ints, count: int) -> Ints:
        """Return what is free without the first candidates of an order."""
        leaves = ranks[self._owners] < count
        free, slots = self._free.copy(), self._slots[leaves]
        for row in self._rows:
            uses = self._uses[row, leaves]
            free[row] += np.bincount(slots, weights=uses, minlength=self._node_count).astype(
                np.int64
            )
        return free

    def _last_to_leave(self, ranks: Ints, count: int) -> Ints:
        """Return int64[N]: 0 for nodes that no candidate has to leave, more for dearer ones. The
        last of the candidates leaves in any case, since without it there is too little room.
        """
        places = ranks[self._owners]
        leaves = places < count - 1
        last = np.zeros(self._node_count, dtype=np.int64)
        np.maximum.at(last, self._slots[leaves], places[leaves] + 1)
        return last

    def _needed(self, ranks: Ints, count: int, plan: Plan, capacity: FreedCapacity) -> list[int]:
        """Return the candidates whose return would take room from the plan, or be too near it.

        `capacity`, which holds the plan, is changed.
        """
        free = capacity.free
        is_used = np.zeros(self._node_count, dtype=np.bool_)
        is_used[plan.distinct_slots] = True
        entries = np.flatnonzero(is_used[self._slots] & (ranks[self._owners] < count))
        owners = self._owners[entries]
        needed: list[int] = []
        marked = self._marked(ranks, count)
        touched = np.unique(np.concatenate([owners, np.array(marked, dtype=np.int64)]))
        for owner in touched[np.argsort(-ranks[touched])].tolist():
            own = entries[owners == owner]
            slots, uses = self._slots[own], self._uses[:, own]
            for row in self._rows:
                np.subtract.at(free[row], slots, uses[row])
            is_full = bool((free[:, slots] < 0).any())
            if is_full or (owner in marked and self._is_too_near(owner, plan, capacity)):
                for row in self._rows:
                    np.add.at(free[row], slots, uses[row])
                needed.append(owner)
        return needed

    def _marked(self, ranks: Ints, count: int) -> list[int]:
        """Return those of the first candidates of an order that may not be near any gang."""
        if not self._gang.has_neighbours:
            return []
        return [i for i, each in enumerate(self._candidates) if each.marks and ranks[i] < count]

    def _is_too_near(self, owner: int, plan: Plan, capacity: FreedCapacity) -> bool:
        """Put a candidate's marks back where the plan's rules hold beside it; else return True."""
        for slots, counts, marked in self._candidates[owner].marks:
            capacity.marks.add(marked, slots, counts)
        if rules_hold(capacity.marks, self._state.table, members_of(self._gang, plan)):
            return False
        for slots, counts, marked in self._candidates[owner].marks:
            capacity.marks.add(marked, slots, -counts)
        return True

    def _gains(self) -> Floats:
        """Return float64[candidates]: members that fit in the place of each, at least a little."""
        role = self._gang.roles[self._gang.placing_order()[0]]
        admitted = self._state.fits.mask(role.member.constraints).eligible[self._slots]
        now = self._free[:, self._slots]
        after = self._state.fits.compute(role.member, now + self._uses, admitted)
        more = after - self._state.fits.compute(role.member, now, admitted)
        gains = np.bincount(self._owners, weights=more, minlength=len(self._candidates))
        return np.maximum(gains, 1 / len(self._slots))

    def _node_costs(self, lost: Floats) -> Floats:
        """Return float64[candidates]: the least that it costs to empty one of its nodes.

        A job's loss is shared out among its nodes.
        """
        per_node = lost / np.bincount(self._owners, minlength=len(lost))
        costs = np.bincount(self._slots, weights=per_node[self._owners])
        least = np.full(len(lost), np.inf)
        np.minimum.at(least, self._owners, costs[self._slots])
        return least
