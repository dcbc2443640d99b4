"""The closed set of the teams controller's actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead.api.core import Pod, Toleration
from fairlead.api.team import Team, TeamStatus


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


Action: TypeAlias = SetOwner | WriteTeamStatus | AddTolerations
