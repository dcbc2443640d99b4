"""The limits of borrowing: which nodes of other teams a gang may use now.

A team may use at most `borrowLimitNodes` nodes of others at a time, and others at most
`lendLimitNodes` of its own; nodes that pods of other tools use count as well. Nodes that are
borrowed already cost nothing more. Of those that a limit still admits the first in packing order
are chosen, and all others are barred while the gang is planned, so no plan exceeds a limit.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from fairlead.decide.placement.places.capacity import Capacity, PresentCapacity
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.inventory.nodes import Bools, Ints

_NONE: Counter[str] = Counter()


class Borrowing:
    """What is borrowed in the course of one decision, on top of what the cluster shows.

    `is_idle`: as if nothing were borrowed.
    """

    def __init__(self, cluster: ClusterState, *, is_idle: bool = False) -> None:
        self._cluster = cluster
        self._is_idle = is_idle
        #: By node and team that borrows it: jobs that use it beyond those of the cluster state;
        #: negative for those that have given it back by the instant that is looked at.
        self._changes: dict[str, Counter[str]] = {}
        #: The changes as of the last node that was given back; None until `version` computes them.
        self._returned: frozenset[tuple[str, str, int]] | None = frozenset()

    def limited(
        self, capacity: PresentCapacity, gang: GangRequest, team: str, priority: int
    ) -> PresentCapacity:
        """Return the capacity without the nodes that limits keep from this gang."""
        barred = self.barred(capacity, gang, team, priority)
        if barred is None:
            return capacity
        out = capacity.unbarred()
        out.kept = capacity.kept
        out.barred = barred if capacity.barred is None else barred | capacity.barred
        return out

    def barred(
        self, capacity: Capacity, gang: GangRequest, team: str, priority: int
    ) -> Bools | None:
        """Return bool[N]: the nodes of others that a limit keeps from this gang; None for none."""
        teams = self._cluster.teams
        if not teams.has_limits or not teams.may_borrow(team, priority):
            return None
        return self._barred(capacity, gang, team)

    def version(self, team: str, priority: int) -> object:
        """Return a value that differs once a limit may admit what it kept from a gang."""
        cluster = self._cluster
        if not (cluster.teams.has_limits and cluster.teams.may_borrow(team, priority)):
            return None
        if self._returned is None:
            self._returned = frozenset(
                (node, by, count)
                for node, changed in self._changes.items() for by, count in changed.items()
            )  # fmt: skip
        return (cluster.uses.borrowed_version, self._returned)

    def note(self, team: str, slots: Ints, *, sign: int = 1) -> None:
        """Take in that a job of a team gets nodes; with sign -1, that it gives them back."""
        if not self._cluster.teams.has_limits:
            return
        table, uses = self._cluster.table, self._cluster.uses
        for slot in slots.tolist():
            node = table.names[slot]
            if uses.owner(node) not in ("", team):
                self._changes.setdefault(node, Counter())[team] += sign
        if sign < 0:
            self._returned = None

    def _barred(self, capacity: Capacity, gang: GangRequest, team: str) -> Bools | None:
        cluster = self._cluster
        teams, table, uses = cluster.teams, cluster.table, cluster.uses
        own = teams.get(team)
        assert own is not None
        room = np.zeros(table.capacity, dtype=np.bool_)
        for role in gang.roles:
            room |= capacity.fits(role.member) > 0
        order = np.flatnonzero(room)
        order = order[np.argsort(capacity.key[order])]
        left = _left(own.spec.borrow_limit_nodes, self._borrowed_by(team))
        lent_left = {
            each.metadata.name: _left(each.spec.lend_limit_nodes, self._lent_by(each.metadata.name))
            for each in teams
        }
        barred: list[int] = []
        for slot in order.tolist():
            node = table.names[slot]
            owner = uses.owner(node)
            if owner in ("", team):
                continue
            is_new = not self._borrows(team, node)
            is_newly_lent = not self._is_lent(node)
            if (is_new and left <= 0) or (is_newly_lent and lent_left.get(owner, 1.0) <= 0):
                barred.append(slot)
                continue
            left -= is_new
            if owner in lent_left:
                lent_left[owner] -= is_newly_lent
        if not barred:
            return None
        out = np.zeros(table.capacity, dtype=np.bool_)
        out[np.array(barred, dtype=np.int64)] = True
        return out

    def _borrows(self, team: str, node: str) -> bool:
        uses = self._cluster.uses
        if uses.owner(node) in ("", team):
            return False
        shown = 0 if self._is_idle else uses.user_count(team, node)
        return shown + self._changes.get(node, _NONE)[team] > 0

    def _is_lent(self, node: str) -> bool:
        users = () if self._is_idle else self._cluster.uses.users(node)
        teams = (*users, *self._changes.get(node, ()))
        return any(self._borrows(team, node) for team in teams)

    def _borrowed_by(self, team: str) -> int:
        if self._is_idle:
            return 0
        uses = self._cluster.uses
        changed = [node for node, teams in self._changes.items() if team in teams]
        more = sum(self._borrows(team, node) - uses.borrows(team, node) for node in changed)
        return uses.borrowed[team] + more

    def _lent_by(self, owner: str) -> int:
        if self._is_idle:
            return 0
        uses = self._cluster.uses
        changed = [node for node in self._changes if uses.owner(node) == owner]
        return uses.lent[owner] + sum(self._is_lent(n) - uses.is_lent(n) for n in changed)


def _left(limit: int | None, used: int) -> float:
    return float("inf") if limit is None else float(limit - used)
