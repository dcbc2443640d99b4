"""What each team uses, borrows and lends, kept per event in O(what changed).

A team borrows a node that carries the taint of another team and on which one of its jobs has a
place. A node that several jobs or teams borrow counts once for each team, and once as lent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.model.gangs import JobKey

#: After so long the past counts half, as Slurm's PriorityDecayHalfLife by default.
HALF_LIFE_SECONDS = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job holds: its distinct nodes and amounts, and whether it waits for nodes instead."""

    team: str
    nodes: frozenset[str] = frozenset()
    amounts: tuple[tuple[str, int], ...] = ()
    waits: bool = False


class DecayedShares:
    """The dominant share of each team, summed over time and halved every half-life."""

    def __init__(self) -> None:
        #: By team, as of `_as_of`, in seconds of the whole cluster; and its share since then.
        self._sums: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._as_of: float | None = None

    def at(self, team: str, now: float) -> float:
        """Return the sum of a team at an instant, if its share stays what it is."""
        value, rate = self._sums.get(team, 0.0), self._rates.get(team, 0.0)
        if self._as_of is None or now <= self._as_of:
            return value
        kept = math.exp2((self._as_of - now) / HALF_LIFE_SECONDS)
        return value * kept + rate * HALF_LIFE_SECONDS / math.log(2) * (1 - kept)

    def advance(self, now: float, rates: Mapping[str, float]) -> None:
        """Take in the time that has passed, and the share that each team has from now on."""
        if self._as_of is not None and now < self._as_of:
            return
        self._sums = {team: self.at(team, now) for team in {*self._sums, *self._rates}}
        self._rates = dict(rates)
        self._as_of = now

    def restore(self, team: str, value: float, as_of: float) -> None:
        """Continue from what was written down; what is known already counts more."""
        if team in self._sums or team in self._rates:
            return
        age = 0.0 if self._as_of is None else max(self._as_of - as_of, 0.0)
        self._sums[team] = value * math.exp2(-age / HALF_LIFE_SECONDS)


class TeamUses:
    """The nodes that jobs hold, against whose they are. Nodes go by name; they may be unknown."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, JobUse] = {}
        self._owners: dict[str, str] = {}
        #: By node: how many jobs of each team have a place on it.
        self._holders: dict[str, Counter[str]] = {}
        #: By team: nodes of others that it uses, and nodes of its own that others use.
        self.borrowed: Counter[str] = Counter()
        self.lent: Counter[str] = Counter()
        #: By team: jobs with nodes, jobs that wait for some, GPUs.
        self.placed: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        #: By team: what its jobs hold of each resource.
        self.amounts: dict[str, Counter[str]] = {}
        self.shares = DecayedShares()

    def owner(self, node: str) -> str:
        """Return the team whose taint a node carries; "" for none."""
        return self._owners.get(node, "")

    @property
    def has_owners(self) -> bool:
        """True while some node carries a team's taint."""
        return bool(self._owners)

    def borrows(self, team: str, node: str) -> bool:
        """True where the team uses the node, and it is another's."""
        owner = self.owner(node)
        return bool(owner) and owner != team and team in self._holders.get(node, ())

    def is_lent(self, node: str) -> bool:
        """True where another team than its own uses the node."""
        owner = self.owner(node)
        return bool(owner) and any(team != owner for team in self._holders.get(node, ()))

    def is_used_but_by(self, node: str, team: str | None) -> bool:
        """True where jobs of other teams than this one have places on a node."""
        holders = self._holders.get(node)
        return holders is not None and (len(holders) > 1 or team not in holders)

    def set_owner(self, node: str, team: str) -> None:
        """Take in whose a node is; "": nobody's."""
        if self.owner(node) == team:
            return
        self._count(node, -1)
        if team:
            self._owners[node] = team
        else:
            self._owners.pop(node, None)
        self._count(node, 1)

    def set_job(self, key: JobKey, use: JobUse | None) -> None:
        """Take in what a job holds; None: it is gone."""
        before = self._jobs.get(key)
        if before == use:
            return
        if before is not None:
            self._book(before, -1)
            del self._jobs[key]
        if use is not None:
            self._book(use, 1)
            self._jobs[key] = use

    def _book(self, use: JobUse, sign: int) -> None:
        self.placed[use.team] += sign * bool(use.nodes)
        self.waiting[use.team] += sign * use.waits
        held = self.amounts.setdefault(use.team, Counter())
        for resource, amount in use.amounts:
            held[resource] += sign * amount
        for node in use.nodes:
            self._count(node, -1)
            holders = self._holders.setdefault(node, Counter())
            holders[use.team] += sign
            if not holders[use.team]:
                del holders[use.team]
            if not holders:
                del self._holders[node]
            self._count(node, 1)

    def _count(self, node: str, sign: int) -> None:
        owner = self._owners.get(node)
        if owner is None:
            return
        others = [team for team in self._holders.get(node, ()) if team != owner]
        for team in others:
            self.borrowed[team] += sign
        self.lent[owner] += sign * bool(others)
