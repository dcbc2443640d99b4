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

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from math import inf

import numpy as np

from fairlead.api.values.times import parse_time
from fairlead.decide.teams.actions import SetOwner
from fairlead.decide.teams.decide import Sharing
from fairlead.decide.teams.policy import TeamsPolicy
from fairlead.model.cluster import ClusterState


class Exchanges:
    """The exchanges of one decision, on nodes that belong to whom the shares say."""

    def __init__(self, cluster: ClusterState, sharing: Sharing, policy: TeamsPolicy) -> None:
        self._cluster, self._sharing, self._policy = cluster, sharing, policy
        #: When more may be exchanged, if jobs keep their places; None: no such instant is known.
        self.wake_at: float | None = None
        #: By team: slots of its own that it does not use; by user: those of others.
        self._unused = defaultdict[str, list[int]](list)
        self._borrowed = defaultdict[str, list[int]](list)

    def find(self, now: float) -> Iterator[tuple[SetOwner, SetOwner]]:
        """Yield pairs of changes, at most `changes_max` changes; each node is in one at most."""
        table, uses = self._cluster.table, self._cluster.uses
        if self._sharing.changes or self._sharing.held_back or not uses.borrowed.total():
            return
        slots = np.flatnonzero(self._sharing.share >= 0).tolist()
        for index, owner, users in uses.unused_by_owners([table.names[slot] for slot in slots]):
            self._unused[owner].append(slots[index])
            for team in users:
                self._borrowed[team].append(slots[index])
        due = list[tuple[float, str, int]]()
        for team in self._borrowed.keys() & self._unused.keys():
            for slot in self._borrowed[team]:
                due_at = self._since(team, slot) + self._policy.exchange_seconds
                if due_at <= now:
                    due.append((due_at, team, slot))
                elif due_at < inf:
                    self.wake_at = min(due_at, self.wake_at or due_at)
        pairs = self._pairs(sorted(due))
        yield from islice(pairs, max(1, self._policy.changes_max // 2))

    def _pairs(self, due: list[tuple[float, str, int]]) -> Iterator[tuple[SetOwner, SetOwner]]:
        names, uses = self._cluster.table.names, self._cluster.uses
        for _, team, slot in due:
            owner = uses.owner(names[slot])
            if slot not in self._unused[owner]:
                continue  # it was exchanged already
            own = self._counterpart(team, slot, owner)
            if own is not None:
                self._unused[team].remove(own)
                self._unused[owner].remove(slot)
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

        fitting = self._sharing.swappable(slot, np.array(self._unused[team], dtype=np.int64))
        return min(fitting.tolist(), key=burden, default=None)
