"""Exchanges nodes between teams, so that a team borrows only beyond its share.

A job takes nodes of others while those of its own team are lent, and stays a borrower after they
have come back: the owner of its nodes may reclaim them although the job's team uses less than it
was promised. So a node that the team borrows is exchanged for one of its own that it does not use,
and a node counts for the same share as before: no team has more or fewer nodes, no job becomes a
borrower by it, and each exchange lowers the number of borrowed nodes, so exchanges end.

Only nodes that their owners do not use, of one block, and of the same worth to both shares are
exchanged; and only for jobs that have kept their place for a while, since others lose little.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import inf

import numpy as np

from fairlead.api.values.times import parse_time
from fairlead.decide.teams.actions import SetOwner
from fairlead.decide.teams.decide import Sharing
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.cluster import ClusterState
from fairlead.model.inventory.nodes import Ints


class Exchanges:
    """The exchanges of one decision, on nodes that belong to whom the shares say."""

    def __init__(self, cluster: ClusterState, sharing: Sharing, policy: TeamsPolicy) -> None:
        self._cluster, self._sharing, self._policy = cluster, sharing, policy
        #: When more may be exchanged, if jobs keep their places; None: no such instant is known.
        self.wake_at: float | None = None
        #: By team, of those that were asked about: slots of its own that it does not use.
        self._unused: dict[str, Ints] = {}
        self._exchanged = set[int]()

    def find(self, now: float) -> Iterator[tuple[SetOwner, SetOwner]]:
        """Yield pairs of changes, at most `changes_max` changes; each node is in one at most."""
        if self._sharing.changes or self._sharing.held_back:
            return
        due = list[tuple[float, str, int]]()
        for team, slot in self._borrowed():
            due_at = self._since(team, slot) + self._policy.exchange_seconds
            if due_at <= now:
                due.append((due_at, team, slot))
            elif due_at < inf:
                self.wake_at = min(due_at, self.wake_at or due_at)
        pairs = self._pairs(sorted(due))
        yield from islice(pairs, max(1, self._policy.changes_max // 2))

    def _borrowed(self) -> Iterator[tuple[str, int]]:
        """Yield who uses which node of another team that leaves it unused, where the user has a
        node of its own that it does not use. Few nodes are lent, of thousands.
        """
        table, uses, has_unused = self._cluster.table, self._cluster.uses, dict[str, bool]()
        for node in uses.lent_nodes:
            slot, users = table.slot(node), uses.users(node)
            if slot is None or self._sharing.share[slot] < 0 or uses.owner(node) in users:
                continue
            for team in users:
                if team not in has_unused:
                    has_unused[team] = next(self._unused_by(team), None) is not None
                if has_unused[team]:
                    yield team, slot

    def _unused_by(self, team: str) -> Iterator[int]:
        """Yield the slots of a team's shares that it does not use."""
        names, uses = self._cluster.table.names, self._cluster.uses
        for slot in self._sharing.slots_of(team):
            if not uses.is_user(team, names[slot]):
                yield slot

    def _unused_of(self, team: str) -> Ints:
        """Return the same, as it was before this decision exchanged any."""
        found = self._unused.get(team)
        if found is None:
            found = self._unused[team] = np.array(list(self._unused_by(team)), dtype=np.int64)
        return found

    def _pairs(self, due: list[tuple[float, str, int]]) -> Iterator[tuple[SetOwner, SetOwner]]:
        names, uses = self._cluster.table.names, self._cluster.uses
        for _, team, slot in due:
            owner = uses.owner(names[slot])
            if slot in self._exchanged:
                continue
            own = self._counterpart(team, slot, owner)
            if own is not None:
                self._exchanged.update((own, slot))
                yield SetOwner(names[slot], team), SetOwner(names[own], owner)

    def _since(self, team: str, slot: int) -> float:
        """Return since when a job of the team has a place there; infinity: none has."""
        jobs = (
            self._cluster.jobs[claim.key].job.status.placement
            for claim in self._cluster.ledger.claims_on(slot)
            if claim.team == team
        )
        placed = (parse_time(each.placed_at) for each in jobs if each and each.placed_at)
        return min(placed, default=inf)

    def _counterpart(self, team: str, slot: int, owner: str) -> int | None:
        """Return the team's own node that the owner gets for a borrowed one; None: there is none.

        Best is one that the owner borrows, so that both are at home, then one that is idle.
        """
        uses, table = self._cluster.uses, self._cluster.table

        def burden(own: int) -> tuple[int, int]:
            users = uses.users(table.names[own])
            return (0 if owner in users else 1 if not users else 2), int(table.rank[own])

        fitting = self._sharing.swappable(slot, self._unused_of(team)).tolist()
        return min((own for own in fitting if own not in self._exchanged), key=burden, default=None)
