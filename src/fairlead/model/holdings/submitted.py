"""How many unfinished jobs each user has in each team: what admission counts before it takes more.

Only what decides on it is read of a job, so that every replica of the webhook can follow all jobs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import Condition, ObjectMeta, Wire, is_true
from fairlead.api.resources import JOBS, Resource
from fairlead.model.asks.teams import TeamTable
from fairlead.model.gang.gangs import JobKey
from fairlead.model.gang.job_users import user_of
from fairlead.model.holdings.team_use import Account


class _Spec(Wire, frozen=True):
    team: str = ""
    adopts: dict[str, Any] | None = None


class _Status(Wire, frozen=True):
    conditions: tuple[Condition, ...] = ()


class JobOutline(Wire, frozen=True):
    """What of a job decides on whether and where it counts."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


JOB_OUTLINES = Resource(JOBS.group, JOBS.version, JOBS.plural, JOBS.kind, JobOutline)


class SubmittedTable:
    """The unfinished jobs by namespace, team that they name, and user."""

    def __init__(self) -> None:
        self._places: dict[JobKey, tuple[str, str]] = {}
        self._counts: dict[str, Counter[tuple[str, str]]] = {}

    def put(self, job: Job | JobOutline) -> None:
        """Take in a job, new or changed."""
        key = job.metadata.key
        self.remove(key)
        if any(is_true(job.status.conditions, ended) for ended in (names.SUCCEEDED, names.FAILED)):
            return
        user = user_of(job.metadata, job.spec.adopts)
        place = self._places[key] = (job.spec.team, user)
        self._counts.setdefault(key[0], Counter())[place] += 1

    def remove(self, key: JobKey) -> None:
        """Take in that a job is gone."""
        place = self._places.pop(key, None)
        if place is not None:
            counts = self._counts[key[0]]
            counts[place] -= 1
            if not counts[place]:
                del counts[place]

    def count(self, teams: TeamTable, account: Account) -> int:
        """Return the unfinished jobs of an account."""
        team = teams.get(account.team)
        spaces = team.spec.namespaces if team is not None else ()
        return sum(
            count
            for space in spaces
            for (claim, user), count in self._counts.get(space, {}).items()
            if account.user in (None, user) and teams.resolve(claim, space) == account.team
        )
