"""Which running gangs go to other nodes so that a block of room becomes free: defragmentation.

    MoveSearch(state, gang, movers, room).find()

A move is a victim that has a place to go: nothing is taken that is not given back elsewhere. So the
cheapest victims are searched for as in a preemption (`victims.py`), and each of them is planned
again, the largest first, in the room that is free now and on its own nodes outside the block. It
needs no other gang to leave, so its next attempt never waits for one. Where one has no other place,
the search goes on with that one kept where it is, or one of the others.

    cost      GPU-seconds that are lost, moves
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.decide.placement.evict.victims import Candidate, Cost, Victims, cost_of, find_victims
from fairlead.decide.placement.places.freed_capacity import FreedCapacity
from fairlead.decide.placement.places.search import Plan, plan_gang
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, JobKey
from fairlead.model.inventory.nodes import Bools, Ints, Use

#: Searches with one more gang that stays, and the nodes that all of them may look at.
_SEARCHES_MIN, _SEARCHES_MAX, _WORK_MAX = 4, 64, 100_000


@dataclass(frozen=True, slots=True)
class Mover:
    """A running gang that may go elsewhere, to any node that is not barred to it."""

    candidate: Candidate
    gang: GangRequest
    #: Devices and milli-CPU.
    size: tuple[int, int]
    #: What it holds: slots, counts and a request each.
    uses: tuple[Use, ...]
    barred: Bools | None = None

    def destination(
        self, state: ClusterState, present: FreedCapacity, closed: Bools
    ) -> Plan | None:
        """Return its place beside what is in use in `present`, which then holds it, on nodes that
        are not closed; its own nodes count as free, since it leaves them first.
        """
        present.release(self.uses)
        present.barred = closed if self.barred is None else closed | self.barred
        plan = plan_gang(present, state.table, self.gang)
        present.release(self.uses, sign=-1)
        return plan


def largest_first(movers: Iterable[Mover]) -> list[Mover]:
    """Return gangs in the order in which places are sought for them."""
    return sorted(movers, key=lambda each: ([-amount for amount in each.size], each.candidate.key))


@dataclass(frozen=True, slots=True)
class Move:
    """A gang that goes to other nodes, and its places there."""

    candidate: Candidate
    plan: Plan


@dataclass(frozen=True, slots=True)
class Moves:
    """The gangs that move, in order of their keys, and the places that the block has then."""

    moves: tuple[Move, ...]
    plan: Plan

    @property
    def cost(self) -> Cost:
        """What it costs."""
        return cost_of(move.candidate for move in self.moves)

    @property
    def lost_gpu_seconds(self) -> float:
        """The work that is lost."""
        return sum(move.candidate.lost_gpu_seconds for move in self.moves)


class MoveSearch:
    """Looks for the moves that make room for a gang, the block, which does not fit as it is.

    `room` is what is free, and where the block may be. Candidates have one level of cost.
    """

    def __init__(
        self, state: ClusterState, gang: GangRequest, movers: Sequence[Mover], room: FreedCapacity
    ) -> None:
        self._state, self._gang, self._room = state, gang, room
        self._movers = {mover.candidate.key: mover for mover in movers}

    def find(self, moves_max: int) -> Moves | None:
        """Return the cheapest moves that are found, at most so many; None when there are none."""
        if not self._has_enough():
            return None
        work = len(self._movers) + self._room.free.shape[1]
        waiting, seen = deque([frozenset[JobKey]()]), dict[frozenset[JobKey], None]()
        best: Moves | None = None
        for _ in range(max(_SEARCHES_MIN, min(_SEARCHES_MAX, _WORK_MAX // work))):
            if not waiting:
                break
            stays = waiting.popleft()
            left = [each.candidate for key, each in self._movers.items() if key not in stays]
            victims = find_victims(self._state, self._gang, left, self._room)
            if victims is None or (best is not None and victims.cost >= best.cost):
                continue
            moves, stuck = self._settled(victims)
            if moves is not None and len(moves.moves) <= moves_max:
                best = moves
            for more in (stays | {key} for key in stuck):
                if more not in seen:
                    seen[more] = None
                    waiting.append(more)
        return best

    def _has_enough(self) -> bool:
        """False where less is free on all nodes together than the gang asks for.

        What moves is put back, so no moves add to that, but for what a mover holds and does not
        ask for again.
        """
        lacks = self._asked(self._gang) - np.maximum(self._room.free, 0).sum(axis=1)
        vector = self._state.table.vector
        for mover in self._movers.values() if (lacks > 0).any() else ():
            held = sum(counts.sum() * vector(asked) for _, counts, asked in mover.uses)
            lacks -= np.maximum(held - self._asked(mover.gang), 0)
        return not (lacks > 0).any()

    def _asked(self, gang: GangRequest) -> Ints:
        """Return int64[D]: what all members of a gang ask for."""
        vector = self._state.table.vector
        asked = np.zeros(len(self._room.free), dtype=np.int64)
        for role in gang.roles:
            asked += role.count * vector(role.member.request)
        return asked

    def _settled(self, victims: Victims) -> tuple[Moves | None, list[JobKey]]:
        """Place every gang that leaves the block; None, and the gangs of which one has to stay, the
        first one that has no other place first.
        """
        present = FreedCapacity(self._state, self._room.free.copy(), marks=self._room.marks.copy())
        closed = np.zeros(present.free.shape[1], dtype=np.bool_)
        closed[victims.plan.distinct_slots] = True
        plans = dict[JobKey, Plan]()
        for mover in largest_first(self._movers[victim.key] for victim in victims.victims):
            plan = mover.destination(self._state, present, closed)
            if plan is None:
                others = [v.key for v in victims.victims if v.key != mover.candidate.key]
                return None, [mover.candidate.key, *others]
            plans[mover.candidate.key] = plan
        moves = tuple(Move(victim, plans[victim.key]) for victim in victims.victims)
        return Moves(moves, victims.plan), []
