"""Limits of the jobs of a team and of each of its users: which may start now, and which may queue.

    running, gpus        `RunningLimits`: asked of each job before it gets nodes, per decision
    waiting, submitted   `QueueLimits`: the first jobs of each account are in the queue

A job over a limit reserves no nodes, preempts no job and holds up no other account. Of `submitted`
the jobs with nodes count first, then those that wait. Admission refuses more
(`decide/admission/limits.py`); one that was made while it was not asked waits here until enough of
the others have ended.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fairlead.api.cluster.team import JobLimits
from fairlead.decide.placement.waiting.order import Age
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.asks.teams import TeamTable
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang, JobKey, gpus_of
from fairlead.model.holdings.team_use import Account, JobUse

NO_LIMIT = 1 << 62


def limits_of(teams: TeamTable, account: Account) -> JobLimits | None:
    """Return the limits of an account; None where its team is gone."""
    team = teams.get(account.team)
    if team is None:
        return None
    return team.spec.limits if account.user is None else team.spec.user_limits


class RunningLimits:
    """Jobs with nodes and their GPUs, by account, in the course of one decision."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        #: What jobs got in this decision, or is kept for them; and what jobs give back (negative).
        self._jobs: Counter[Account] = Counter()
        self._gpus: Counter[Account] = Counter()
        self._taken: dict[ObjectKey, tuple[tuple[Account, ...], int, int]] = {}
        #: Jobs with nodes that have given them back by the instant that is looked at.
        self._given_back: dict[ObjectKey, None] = {}

    def verdict(self, entry: QueueEntry, gang: GangRequest | None = None) -> Verdict | None:
        """Return which limit keeps a job from nodes for a gang, by default its own; None: none.

        What the job has already is not counted beside it.
        """
        key, lane = entry.age.job_key, entry.lane
        if not self._cluster.teams.has_job_limits or not lane.team:
            return None
        if gang is None and key in self._taken:
            return None
        return self.verdict_of(key, gang or entry.gang, lane.team, lane.user)

    def verdict_of(
        self, key: JobKey, gang: GangRequest | InvalidGang, team: str, user: str | None
    ) -> Verdict | None:
        """Return the same of the job of a user in a team."""
        teams, uses, own = self._cluster.teams, self._cluster.uses, self._held(key)
        _, own_jobs, own_gpus = self._taken.get(key, ((), 0, 0))
        if own is not None:
            own_jobs, own_gpus = own_jobs + 1, own_gpus + own.gpus
        for account in dict.fromkeys((Account(team, user), Account(team))):
            limits = limits_of(teams, account)
            if limits is None or (limits.running is None and limits.gpus is None):
                continue
            shown: dict[str, int | str] = {"account": str(account)}
            running = uses.running[account] + self._jobs[account] - own_jobs
            if limits.running is not None and running >= limits.running:
                facts = {**shown, "running": running, "limit": limits.running}
                return Verdict(Reason.RUNNING_LIMIT, facts)
            gpus = gpus_of(gang)
            held = uses.gpus[account] + self._gpus[account] - own_gpus
            if limits.gpus is not None and gpus and held + gpus > limits.gpus:
                facts = {**shown, "gpus": gpus, "gpus_held": held, "limit": limits.gpus}
                return Verdict(Reason.GPU_LIMIT, facts)
        return None

    def take(self, entry: QueueEntry, gang: GangRequest) -> None:
        """Count a job that gets nodes for a gang, or that nodes are kept for; of one that has some
        what it gets beyond these. Taken twice, the last counts.
        """
        self.take_job(entry.age.job_key, gang)

    def take_job(self, key: JobKey, gang: GangRequest | InvalidGang) -> None:
        """Count the same by its key."""
        cluster = self._cluster
        use, own = cluster.uses.job(key), self._held(key)
        if not cluster.teams.has_job_limits or use is None:
            return
        if key in self._taken:
            self._add(*self._taken.pop(key), -1)
        more = max(gpus_of(gang) - (own.gpus if own is not None else 0), 0)
        self._taken[key] = (use.accounts, int(own is None), more)
        self._add(*self._taken[key], 1)

    def give_back(self, key: ObjectKey) -> None:
        """Count a job no more, since it has ended by the instant that is looked at."""
        if key in self._taken:
            self._add(*self._taken.pop(key), -1)
        if (own := self._held(key)) is not None:
            self._given_back[key] = None
            self._add(own.accounts, 1, own.gpus, -1)

    def _held(self, key: ObjectKey) -> JobUse | None:
        """Return what a job holds that has not given it back; None without nodes."""
        use = self._cluster.uses.job(key)
        return use if use is not None and use.nodes and key not in self._given_back else None

    def _add(self, accounts: tuple[Account, ...], jobs: int, gpus: int, sign: int) -> None:
        for account in accounts:
            self._jobs[account] += sign * jobs
            self._gpus[account] += sign * gpus


class _Kind(Enum):
    """Which limit says how many jobs of an account may queue, and how one of them makes room."""

    WAITING = ("waiting", "started")
    SUBMITTED = ("unfinished", "ended")


class _Place(NamedTuple):
    """Sorts the waiting jobs of an account: those first that others are to make room for."""

    is_not_nominated: bool
    priority_below: int
    age: Age


@dataclass(slots=True)
class _Line:
    """The waiting jobs of an account in order; the first `room` of them pass."""

    places: list[_Place] = field(default_factory=list[_Place])
    room: int = NO_LIMIT
    kind: _Kind = _Kind.WAITING
    limit: int = 0

    def set_room(self, room: int) -> tuple[list[_Place], list[_Place]]:
        """Let so many pass; return those that pass now, and those that pass no more."""
        before, self.room = self.room, room
        return self.places[before:room], self.places[room:before]

    def add(self, place: _Place) -> tuple[list[_Place], list[_Place]]:
        """Put a job in; return who passes now, and who passes no more."""
        insort(self.places, place)
        if bisect_left(self.places, place) >= self.room:
            return [], []
        return [place], self.places[self.room : self.room + 1]

    def remove(self, place: _Place) -> tuple[list[_Place], list[_Place]]:
        """Take a job out; return who passes now, and who passes no more."""
        index = bisect_left(self.places, place)
        del self.places[index]
        if index >= self.room:
            return [], []
        return self.places[self.room - 1 : self.room], [place]


class QueueLimits:
    """Which waiting jobs are in the queue: of each user the first, and of these the team's first.

    A change of one job moves a few others: O(log jobs), and as many as the change of a limit says.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._lines: dict[Account, _Line] = {}
        #: The waiting jobs of teams with such limits.
        self._waiting: dict[JobKey, tuple[Account, _Place]] = {}
        #: Waiting jobs that pass the limits of their user and of their team.
        self._passed: dict[JobKey, None] = {}
        #: Jobs that have begun or ceased to pass, or wait for another limit, since `changes`.
        self._changed: dict[JobKey, None] = {}

    def __contains__(self, key: JobKey) -> bool:
        """True for a job that waits outside of the queue."""
        return key in self._waiting and key not in self._passed

    def put(self, before: QueueEntry | None, after: QueueEntry | None, *, waits: bool) -> bool:
        """Take in a change of a job. `waits`: but for these limits it would be in the queue. False
        while no job waits for which there is a limit, and none has since `changes`.

        What the job uses is taken in already (`ClusterState.uses`).
        """
        if not self._cluster.teams.has_job_limits and not self._lines:
            return bool(self._waiting or self._changed)
        accounts = [Account(e.lane.team, e.user) for e in (before, after) if e is not None]
        entry = after or before
        assert entry is not None
        key = entry.age.job_key
        old, new = self._waiting.get(key), None
        if after is not None and waits and self._is_limited(after.lane.team):
            is_not_nominated = after.job.status.nomination is None
            place = _Place(is_not_nominated, -after.lane.priority, after.age)
            new = (accounts[-1], place)
        if old != new:
            if old is not None:
                self._remove(key, *old)
            if new is not None:
                self._add(key, *new)
        teams = [Account(account.team) for account in accounts]
        for account in dict.fromkeys((*accounts, *teams)):
            self._refresh(account)
        return bool(self._waiting or self._changed)

    def changes(self) -> list[JobKey]:
        """Return the jobs that may have joined or left the queue since the last call, by key."""
        changed, self._changed = sorted(self._changed), {}
        return changed

    def verdict(self, key: JobKey) -> Verdict:
        """Return the limit that keeps a job out of the queue."""
        account, place = self._waiting[key]
        line = self._lines[account]
        if bisect_left(line.places, place) < line.room:  # then the team's line stops it
            account = Account(account.team)
            line = self._lines[account]
        kind, event = line.kind.value
        facts = {"account": str(account), "limit": line.limit, "kind": kind, "event": event}
        return Verdict(Reason.QUEUE_LIMIT, facts)

    def _is_limited(self, team: str) -> bool:
        both = (limits_of(self._cluster.teams, Account(team, user)) for user in (None, ""))
        return any(b is not None and (b.waiting, b.submitted) != (None, None) for b in both)

    def _add(self, key: JobKey, account: Account, place: _Place) -> None:
        self._waiting[key] = (account, place)
        self._changed[key] = None
        self._move(account, *self._line(account).add(place))

    def _remove(self, key: JobKey, account: Account, place: _Place) -> None:
        del self._waiting[key]
        self._changed[key] = None
        self._move(account, *self._line(account).remove(place))

    def _line(self, account: Account) -> _Line:
        return self._lines.setdefault(account, _Line())

    def _move(self, account: Account, joined: list[_Place], left: list[_Place]) -> None:
        """Pass jobs on to the line of the team, and from there into the queue."""
        self._changed.update(dict.fromkeys(place.age.job_key for place in (*joined, *left)))
        if account.user is None:
            for place in left:
                del self._passed[place.age.job_key]
            self._passed.update(dict.fromkeys(place.age.job_key for place in joined))
            return
        team = Account(account.team)
        for place in left:
            self._move(team, *self._line(team).remove(place))
        for place in joined:
            self._move(team, *self._line(team).add(place))

    def _refresh(self, account: Account) -> None:
        """Let as many jobs of an account pass as its limits say now."""
        line = self._lines.get(account)
        if line is None:
            return
        limits = limits_of(self._cluster.teams, account) or JobLimits()
        room, kind, limit = NO_LIMIT, _Kind.WAITING, 0
        if limits.waiting is not None:
            room, limit = limits.waiting, limits.waiting
        if limits.submitted is not None:
            left = max(limits.submitted - self._cluster.uses.running[account], 0)
            if left < room:
                room, kind, limit = left, _Kind.SUBMITTED, limits.submitted
        if (kind, limit) != (line.kind, line.limit):
            line.kind, line.limit = kind, limit
            stopped = line.places[min(room, line.room) :]
            self._changed.update(dict.fromkeys(place.age.job_key for place in stopped))
        if room != line.room:
            self._move(account, *line.set_room(room))
        if not line.places:
            del self._lines[account]
