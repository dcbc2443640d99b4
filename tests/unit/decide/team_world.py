"""A planner over a cluster with teams."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import make_nodes


def state_of(teams: Sequence[Team], jobs: Sequence[Job], nodes: int = 8) -> PlacementState:
    """Return the state with nodes `n-0000` and so on, of 8 GPUs each."""
    cluster = ClusterState.of(make_nodes(nodes, prefix="n"))
    for team in teams:
        cluster.team_changed(team.metadata.name, team)
    state = PlacementState(cluster)
    for each in jobs:
        cluster.job_changed(each)
    return state
