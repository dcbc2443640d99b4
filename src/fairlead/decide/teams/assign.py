"""Assigns nodes to shares: the fewest changes, whole blocks, busy nodes last.

    keep       a team keeps the healthy nodes that it has, as many as its share says
    take       what a share lacks comes from nodes that no share keeps: idle ones first, then those
               that change hands anyway, block by block
    exchange   a share that still lacks nodes gets one from a share that can take another instead

With shares in nodes, `exchange` finds an assignment that meets every share if there is one (an
augmenting path of bipartite matching; Hopcroft and Karp, 1973). A share in GPUs counts whole nodes,
so there the result is a heuristic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fairlead.model.inventory.nodes import Bools, Ints

#: In `OwnedNodes.owner` and `Assignment`: no team has the node.
NO_TEAM = -1


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """A share of team number `team`: `amount` of `units`, on the eligible nodes.

    `eligible` is bool[N]; `units` int64[N] is what each node counts: 1, or its GPUs.
    """

    team: int
    amount: int
    eligible: Bools
    units: Ints


@dataclass(frozen=True, slots=True)
class OwnedNodes:
    """The nodes. `owner` int64[N] is the number of the team of each; `block` -1 for none."""

    owner: Ints
    block: Ints
    rank: Ints
    #: Returns, for a team and slots, 0 for nodes that are idle or used by the team, 1 for others.
    burden: Callable[[int, Ints], Ints]


@dataclass(frozen=True, slots=True)
class Assignment:
    """`share` int64[N]: the number of the share that has the node, -1 for none."""

    share: Ints
    #: By share: what is missing, in its units.
    missing: tuple[int, ...]


def assign(fleet: OwnedNodes, shares: list[ShareRequest]) -> Assignment:
    """Return which share has which node; only eligible nodes are given."""
    found = _Assigning(fleet, shares)
    order = sorted(range(len(shares)), key=lambda i: (int(shares[i].eligible.sum()), i))
    for i in order:
        found.keep(i)
    for i in order:
        found.take(i)
    for i in order:
        while found.missing(i) > 0 and found.exchange(i):
            pass
    return Assignment(found.share, tuple(max(found.missing(i), 0) for i in range(len(shares))))


class _Assigning:
    def __init__(self, fleet: OwnedNodes, shares: list[ShareRequest]) -> None:
        self._fleet = fleet
        self._shares = shares
        self.share: Ints = np.full(len(fleet.owner), -1, dtype=np.int64)
        self._given = [0] * len(shares)
        self._team = np.array([*(s.team for s in shares), NO_TEAM], dtype=np.int64)

    def missing(self, i: int) -> int:
        """Return what a share lacks; below zero where whole nodes are more than it asks."""
        return self._shares[i].amount - self._given[i]

    def keep(self, i: int) -> None:
        """Keep what the team has of the share; of more than that the busy and whole blocks."""
        share, fleet = self._shares[i], self._fleet
        own = np.flatnonzero(share.eligible & (fleet.owner == share.team) & (self.share < 0))
        if share.units[own].sum() > share.amount:
            held = self._held(fleet.owner == share.team)
            in_block = np.where(fleet.block[own] >= 0, held[fleet.block[own]], 0)
            idle = self._is_idle(own)
            own = own[np.lexsort((fleet.rank[own], -in_block, idle))]
        self._give(i, own)

    def take(self, i: int) -> None:
        """Give the share nodes that none keeps, as far as it lacks some."""
        share, fleet = self._shares[i], self._fleet
        if self.missing(i) <= 0:
            return
        free = np.flatnonzero(share.eligible & (self.share < 0))
        burden = fleet.burden(share.team, free)
        for level in (0, 1):
            slots = free[burden == level]
            while self.missing(i) > 0 and len(slots):
                block = self._best_block(i, slots)
                inside = slots[fleet.block[slots] == block]
                is_open = fleet.owner[inside] == NO_TEAM
                self._give(i, inside[np.lexsort((fleet.rank[inside], is_open))])
                slots = slots[fleet.block[slots] != block]

    def exchange(self, i: int) -> bool:
        """Get one node more for the share, by moving others along; False when there is no way."""
        came_from: dict[int, int] = {}
        waiting = deque([i])
        while waiting:
            at = waiting.popleft()
            holders = np.bincount(self.share[self._shares[at].eligible] + 1)[1:]
            for other in np.flatnonzero(holders).tolist():
                if other == i or other in came_from:
                    continue
                came_from[other] = at
                if self._move_along(other, came_from, i):
                    return True
                waiting.append(other)
        return False

    def _move_along(self, at: int, came_from: dict[int, int], end: int) -> bool:
        """Give a free node to share `at`, which gives one to the share before it, up to `end`.

        False when there is no free node that is worth as much.
        """
        free = np.flatnonzero(self._shares[at].eligible & (self.share < 0))
        if not len(free):
            return False
        path = [at]
        while path[-1] != end:
            path.append(came_from[path[-1]])
        moved = [self._given_up(i, to) for i, to in pairwise(path)]
        units = self._shares[at].units
        free = free[units[free] >= units[moved[0]]]
        if not len(free):
            return False
        for slot in moved:
            self._drop(slot)
        for i, slot in zip(path, [self._first(at, free), *moved], strict=True):
            self._put(i, slot)
        return True

    def _given_up(self, i: int, to: int) -> int:
        """Return the node that one share would give another: an idle one, the first by name."""
        slots = np.flatnonzero(self._shares[to].eligible & (self.share == i))
        return int(slots[np.lexsort((self._fleet.rank[slots], -self._is_idle(slots)))][0])

    def _first(self, i: int, free: Ints) -> int:
        burden = self._fleet.burden(self._shares[i].team, free)
        return int(free[np.lexsort((self._fleet.rank[free], burden))][0])

    def _best_block(self, i: int, slots: Ints) -> int:
        """Return the block to take from: where the team is, else the one that fits best."""
        fleet, share = self._fleet, self._shares[i]
        blocks, places = np.unique(fleet.block[slots], return_inverse=True)
        room = np.bincount(places, weights=share.units[slots]).astype(np.int64)
        held = self._held(self._team[self.share] == share.team)
        own = np.where(blocks >= 0, held[blocks], 0)
        missing = self.missing(i)
        spare = np.where(room >= missing, room - missing, np.iinfo(np.int64).max // 2 - room)
        is_none = blocks < 0
        return int(blocks[np.lexsort((blocks, spare, is_none, -own))][0])

    def _held(self, nodes: Bools) -> Ints:
        """Return int64[blocks + 1]: how many of these nodes each block has; the last is none's."""
        block = self._fleet.block[nodes]
        count = int(self._fleet.block.max(initial=-1)) + 1
        return np.append(np.bincount(block[block >= 0], minlength=count), 0)

    def _is_idle(self, slots: Ints) -> Ints:
        return 1 - self._fleet.burden(NO_TEAM, slots)

    def _give(self, i: int, slots: Ints) -> None:
        """Give the share the first of these nodes that it needs."""
        units = self._shares[i].units[slots]
        before = np.cumsum(units) - units
        chosen = slots[(before < self.missing(i)) & (units > 0)]
        self.share[chosen] = i
        self._given[i] += int(self._shares[i].units[chosen].sum())

    def _put(self, i: int, slot: int) -> None:
        self.share[slot] = i
        self._given[i] += int(self._shares[i].units[slot])

    def _drop(self, slot: int) -> None:
        i = int(self.share[slot])
        self._given[i] -= int(self._shares[i].units[slot])
        self.share[slot] = -1
