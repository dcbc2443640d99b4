"""What each team uses, borrows and lends, kept per event in O(what changed).

A team borrows a node that carries the taint of another team and on which one of its jobs has a
place, or a pod that no claim covers is bound. A node that several jobs or teams borrow counts once
for each team, and once as lent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, KeysView, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from fairlead.api.cluster.team import Team
from fairlead.api.values.times import parse_time
from fairlead.model.gang.gangs import JobKey

#: After so long the past counts half, as Slurm's PriorityDecayHalfLife by default.
HALF_LIFE_SECONDS = 7 * 86_400.0
_NONE: Counter[str] = Counter()
T = TypeVar("T")


class Account(NamedTuple):
    """Whose jobs are counted: those of a user in a team; of user None all jobs of the team.

    The user "" has the jobs that do not say whose they are.
    """

    team: str
    user: str | None = None

    def __str__(self) -> str:
        if self.user is None:
            return f"team {self.team}"
        return f"user {self.user or '(unknown)'} of team {self.team}"


class JobUse(msgspec.Struct, frozen=True):
    """What a job holds: its distinct nodes and amounts, and whether it waits for nodes instead."""

    team: str
    nodes: frozenset[str] = frozenset()
    amounts: tuple[tuple[str, int], ...] = ()
    waits: bool = False
    user: str = ""
    #: Of its gang, while it holds nodes.
    gpus: int = 0
    is_finished: bool = False

    @property
    def accounts(self) -> tuple[Account, ...]:
        """The accounts that it counts for."""
        return (Account(self.team), Account(self.team, self.user)) if self.team else ()


class SavedSums(msgspec.Struct, frozen=True, rename="camel"):
    """What `DecayedSums` holds: sums with their instants, and the rates since a common instant."""

    sums: dict[str, tuple[float, float]] = {}
    rates: dict[str, float] = {}
    #: None: no time was taken in yet.
    as_of: float | None = None


class DecayedSums:
    """What each team has used at some rate, summed over time and halved every half-life."""

    def __init__(self) -> None:
        #: By team, in seconds of the rate: the sum, and when it was that; and the rate since then.
        self._sums: dict[str, tuple[float, float]] = {}
        self._rates: dict[str, float] = {}
        #: In seconds, of those teams for which it is not `HALF_LIFE_SECONDS`.
        self.half_lives: dict[str, float] = {}
        self._as_of = float("-inf")

    def at(self, team: str, now: float) -> float:
        """Return the sum of a team at an instant, if its rate stays what it is."""
        value, as_of = self._sums.get(team, (0.0, now))
        if now <= as_of:
            return value
        half_life = self.half_life(team)
        kept = math.exp2((as_of - now) / half_life)
        return value * kept + self._rates.get(team, 0.0) * half_life / math.log(2) * (1 - kept)

    def half_life(self, team: str) -> float:
        """Return after how many seconds the past of a team counts half."""
        return self.half_lives.get(team, HALF_LIFE_SECONDS)

    def begin(self, team: str, at: float) -> None:
        """Take in when a team that is restored began to use what it uses now: it used nothing
        before, so nothing was written down.
        """
        is_restored = team in self._sums and team not in self._rates
        if is_restored and at > self._sums[team][1]:
            self._sums[team] = (self.at(team, at), at)

    def advance(self, now: float, rates: Mapping[str, float]) -> None:
        """Take in the time that has passed, and the rate that each team has from now on."""
        if now < self._as_of:
            return
        for team in self._sums.keys() - self._rates.keys():
            self._rates[team] = rates.get(team, 0.0)  # restored: what it uses now, it has used
        self._sums = {team: (self.at(team, now), now) for team in {*self._sums, *rates}}
        self._rates = dict.fromkeys(self._sums, 0.0) | dict(rates)
        self._as_of = now

    def save(self) -> SavedSums:
        """Return the sums as they are; `load` continues from them, to the last bit."""
        as_of = None if self._as_of == float("-inf") else self._as_of
        return SavedSums(dict(self._sums), dict(self._rates), as_of)

    def load(self, saved: SavedSums) -> None:
        """Continue from what was saved, whatever is known already."""
        self._sums, self._rates = dict(saved.sums), dict(saved.rates)
        self._as_of = float("-inf") if saved.as_of is None else saved.as_of

    def restore(self, team: str, value: float, as_of: float) -> bool:
        """Continue from what was written down; False where it is known already, which counts."""
        is_new = team not in self._sums
        self._sums.setdefault(team, (value, as_of))
        return is_new


class TeamUses:
    """The nodes that jobs and pods use, against whose they are.

    Nodes go by name; they may be unknown.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobKey, JobUse] = {}
        self._owners: dict[str, str] = {}
        #: By node: how many jobs of each team have a place on it.
        self._holders: dict[str, Counter[str]] = {}
        #: By node: how many pods of each team no claim covers.
        self._pods: dict[str, Counter[str]] = {}
        #: By team: nodes of its own that it uses, nodes of others that it uses, nodes of its own
        #: that others use, and those of them that jobs of others hold, which can be taken back.
        self.used: Counter[str] = Counter()
        self.borrowed: Counter[str] = Counter()
        self.lent: Counter[str] = Counter()
        self.lent_to_jobs: Counter[str] = Counter()
        #: The nodes that others than their own teams use.
        self.lent_nodes: dict[str, None] = {}
        #: Rises whenever a node may begin or cease to be borrowed.
        self.borrowed_version = 0
        #: By team: jobs with nodes, jobs that wait for some, GPUs.
        self.placed: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        #: By team: what its jobs hold of each resource.
        self.amounts: dict[str, Counter[str]] = {}
        #: By account: jobs that have not ended, those of them that hold nodes, and their GPUs.
        self.submitted: Counter[Account] = Counter()
        self.running: Counter[Account] = Counter()
        self.gpus: Counter[Account] = Counter()
        #: Of the whole cluster's dominant resource, in seconds; and GPU-seconds.
        self.shares = DecayedSums()
        self.gpu_seconds = DecayedSums()
        #: Teams whose sums are restored, and that held nothing then; until time is taken in.
        self.restored_idle: set[str] = set()
        #: How often what is used, or whose a node is, has changed.
        self.change_count = 0

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
        return bool(owner) and owner != team and self.is_user(team, node)

    def is_lent(self, node: str) -> bool:
        """True where another team than its own uses the node."""
        owner = self.owner(node)
        return bool(owner) and any(team != owner for team in self.users(node))

    def is_used_but_by(self, node: str, team: str | None) -> bool:
        """True where jobs or pods of other teams than this one are on a node."""
        return any(user != team for user in self.users(node))

    def users(self, node: str) -> KeysView[str]:
        """Return the teams of the jobs and pods that use a node."""
        holders, pods = self._holders.get(node, _NONE), self._pods.get(node, _NONE)
        return (holders | pods).keys() if holders and pods else (holders or pods).keys()

    def is_user(self, team: str, node: str) -> bool:
        """True where a job or a pod of the team uses the node."""
        return team in self._holders.get(node, _NONE) or team in self._pods.get(node, _NONE)

    def user_count(self, team: str, node: str) -> int:
        """Return how many jobs and pods of a team use a node."""
        return self._holders.get(node, _NONE)[team] + self._pods.get(node, _NONE)[team]

    def job(self, key: JobKey) -> JobUse | None:
        """Return what a job holds; None for one that is not known."""
        return self._jobs.get(key)

    def set_owner(self, node: str, team: str) -> None:
        """Take in whose a node is; "": nobody's."""
        if self.owner(node) == team:
            return
        self.change_count += 1
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
        self.change_count += 1
        if before is not None:
            self._book(before, -1)
            del self._jobs[key]
        if use is not None:
            self._book(use, 1)
            self._jobs[key] = use

    def add_pod(self, team: str, node: str, sign: int) -> None:
        """Take in that one more pod of a team is on a node, or one less with -1."""
        self._hold(self._pods, team, node, sign)

    def forget_pods(self) -> None:
        """Take back all that `add_pod` took in."""
        for node in list(self._pods):
            self._count(node, -1)
            del self._pods[node]
            self._count(node, 1)

    def restore(self, team: Team) -> None:
        """Take in how fast the past of a team counts less, and what its status says it has used."""
        name, use = team.metadata.name, team.status.use
        self.gpu_seconds.half_lives[name] = team.spec.budget.half_life_days * 86_400.0
        if use.as_of is None:
            return
        as_of = parse_time(use.as_of)
        is_new = self.shares.restore(name, use.dominant_share_seconds, as_of)
        self.gpu_seconds.restore(name, use.gpu_hours * 3600.0, as_of)
        if is_new and not use.jobs_placed:
            self.restored_idle.add(name)

    def begin_restored(self, placed: Iterable[tuple[JobKey, float]], now: float) -> None:
        """Charge teams that held nothing when their sums were written down from their first place
        on. `placed` are jobs and when each got its place.
        """
        since: dict[str, float] = {}
        for key, placed_at in placed:
            use = self._jobs.get(key)
            if use is not None and use.nodes:
                at = min(placed_at, now)
                since[use.team] = min(since.get(use.team, at), at)
        for team in self.restored_idle & since.keys():
            self.shares.begin(team, since[team])
            self.gpu_seconds.begin(team, since[team])
        self.restored_idle.clear()

    def advance(self, now: float, totals: Mapping[str, int]) -> None:
        """Take in the time that has passed, in a cluster of these amounts of each resource."""
        rates = {
            team: max((n / totals[r] for r, n in held.items() if totals.get(r)), default=0.0)
            for team, held in self.amounts.items()
        }
        self.shares.advance(now, rates)
        gpus = {each.team: n for each, n in self.gpus.items() if each.user is None}
        self.gpu_seconds.advance(now, gpus)

    def _book(self, use: JobUse, sign: int) -> None:
        if use.nodes:
            self.placed[use.team] += sign
        if use.waits:
            self.waiting[use.team] += sign
        for account in use.accounts:
            _add(self.submitted, account, sign * (not use.is_finished))
            _add(self.running, account, sign * bool(use.nodes))
            _add(self.gpus, account, sign * use.gpus)
        held = self.amounts.get(use.team)
        if held is None:
            held = self.amounts[use.team] = Counter()
        for resource, amount in use.amounts:
            _add(held, resource, sign * amount)
        for node in use.nodes:
            self._hold(self._holders, use.team, node, sign)

    def _hold(self, users: dict[str, Counter[str]], team: str, node: str, sign: int) -> None:
        """Count one more user of a team on a node, or one less."""
        counts = users.get(node, _NONE)
        if counts[team] > 0 and counts[team] + sign > 0:  # it uses the node before and after
            counts[team] += sign
            return
        self.change_count += 1
        self._count(node, -1)
        counts = users.setdefault(node, Counter())
        counts[team] += sign
        if not counts[team]:
            del counts[team]
        if not counts:
            del users[node]
        self._count(node, 1)

    def _count(self, node: str, sign: int) -> None:
        owner = self._owners.get(node)
        if owner is None:
            return
        users = self.users(node)
        others = [team for team in users if team != owner]
        for team in others:
            self.borrowed[team] += sign
        is_lent_to_jobs = any(team != owner for team in self._holders.get(node, ()))
        self.lent[owner] += sign * bool(others)
        self.lent_to_jobs[owner] += sign * is_lent_to_jobs
        self.used[owner] += sign * (owner in users)
        if others:
            self.borrowed_version += 1
            if sign > 0:
                self.lent_nodes[node] = None
            else:
                del self.lent_nodes[node]


def _add(counts: Counter[T], key: T, amount: int) -> None:
    """Add to a count; one that is 0 is dropped, since users and kinds of devices come and go."""
    counts[key] += amount
    if not counts[key]:
        del counts[key]
