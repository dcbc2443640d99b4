"""The order of lanes with teams: priority, then weighted fair share of the dominant resource.

What a team has used counts by its dominant share: of all resources the largest part of the cluster
that its jobs hold (Ghodsi et al., "Dominant Resource Fairness", NSDI'11). It is summed over time
and halved every half-life: the team that waited is ahead of the one that used much, and nothing
counts for ever. A team of weight two may use twice as much. The sums live with the cluster state
(`model/holdings/team_use.py`) and are kept in the status of each Team, so a restart does not clear
them.
"""

from __future__ import annotations

from fairlead.decide.placement.waiting.order import LaneKey, Rank
from fairlead.model.cluster import ClusterState


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
