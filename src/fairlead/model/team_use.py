"""What each team uses, borrows and lends, kept per event in O(what changed).

A team borrows a node that carries the taint of another team and on which one of its jobs has a
place. A node that several jobs or teams borrow counts once for each team, and once as lent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fairlead.model.gangs import JobKey


@dataclass(frozen=True, slots=True)
class JobUse:
    """What a job holds: its distinct nodes, GPUs, and whether it waits for nodes instead."""

    team: str
    nodes: frozenset[str] = frozenset()
    gpus: int = 0
    waits: bool = False


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
        self.gpus: Counter[str] = Counter()

    def owner(self, node: str) -> str:
        """Return the team whose taint a node carries; "" for none."""
        return self._owners.get(node, "")

    @property
    def has_owners(self) -> bool:
        """True while some node carries a team's taint."""
        return bool(self._owners)

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
        self.gpus[use.team] += sign * use.gpus
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
