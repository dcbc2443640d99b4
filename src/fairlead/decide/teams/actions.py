"""The closed set of the teams controller's actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.cluster.team import Team, TeamStatus
from fairlead.api.kubernetes.core import Pod, Toleration


@dataclass(frozen=True, slots=True)
class SetOwner:
    """Write the taint that says whose a node is; `team` "" takes it away."""

    node: str
    team: str


@dataclass(frozen=True, slots=True)
class WriteTeamStatus:
    """Write a changed status of a team."""

    team: Team
    status: TeamStatus


@dataclass(frozen=True, slots=True)
class AddTolerations:
    """Add the tolerations of its team to a pod that no scheduler has bound yet."""

    pod: Pod
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True)
class ReportIntruder:
    """Emit events about a pod that is on a node of a team and may not be.

    `has_entered`: it was bound while the node was the team's.
    """

    pod: Pod
    team: str
    has_entered: bool


@dataclass(frozen=True, slots=True)
class EvictIntruder:
    """Ask the API to evict a pod from a node of a team, within its disruption budgets."""

    pod: Pod
    team: str


@dataclass(frozen=True, slots=True)
class PublishTeams:
    """Write the teams of each namespace to where the API server's admission policies read them."""

    count: int
    by_namespace: Mapping[str, str]


Action: TypeAlias = (
    PublishTeams | SetOwner | WriteTeamStatus | AddTolerations | ReportIntruder | EvictIntruder
)
