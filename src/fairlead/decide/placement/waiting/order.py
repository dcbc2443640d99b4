"""The order of waiting jobs: which lane comes first, and age within a lane.

A lane holds the jobs that are equal in all that decides their order but age: team and priority;
and the user, where that decides whether they may start.
Where a lane stands may change at any time (fair share follows what teams use), so each decision
asks for it. The order within a lane never changes.

What a team has used counts by its dominant share: of all resources the largest part of the cluster
that its jobs hold (Ghodsi et al., "Dominant Resource Fairness", NSDI'11). It is summed over time
and halved every half-life: the team that waited is ahead of the one that used much, and nothing
counts for ever. A team of weight two may use twice as much. The sums live with the cluster state
(`model/holdings/team_use.py`) and are kept in the status of each Team, so a restart does not clear
them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.values.times import parse_time
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import JobKey

#: Sorts lanes, smaller first; of equal ranks the jobs are in order of age. All of one length.
Rank: TypeAlias = tuple[float, ...]


class LaneKey(NamedTuple):
    """What the jobs of a lane have in common."""

    team: str
    priority: int
    #: Its PriorityClasses let it preempt jobs of lower priority.
    may_preempt: bool = True
    #: Whose jobs they are, where the team has limits of each user.
    user: str | None = None
    #: Running gangs may be moved for it: it asks for that.
    asks_moves: bool = False


class Age(NamedTuple):
    """Sorts the jobs of a lane, the oldest first. `created` is in seconds since the epoch."""

    created: float
    namespace: str
    name: str

    @property
    def job_key(self) -> JobKey:
        """Which job it is."""
        return (self.namespace, self.name)


class OrderKey(NamedTuple):
    """Sorts the queue, as of the last decision."""

    rank: Rank
    age: Age

    @property
    def job_key(self) -> JobKey:
        """Which job it is."""
        return self.age.job_key


class Order(Protocol):
    """Says where the lanes stand."""

    def rank(self, lane: LaneKey, now: float) -> Rank:
        """Return the rank of a lane at this time."""
        ...


class FairShareOrder:
    """Higher priority first, then the team that has used least for its weight."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster

    def rank(self, lane: LaneKey, now: float) -> Rank:
        """Return the rank of a lane at this time; without teams priority alone decides."""
        teams = self._cluster.teams
        if not len(teams):
            return (-lane.priority, 0.0)
        team = teams.get(lane.team)
        weight = team.spec.weight if team is not None else 1
        return (-lane.priority, self._cluster.uses.shares.at(lane.team, now) / weight)


def age_of(job: Job) -> Age:
    """Return the age of a job."""
    created = job.metadata.creation_timestamp
    seconds = parse_time(created) if created else 0.0
    return Age(seconds, job.metadata.namespace, job.metadata.name)
