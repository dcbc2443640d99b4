"""What the objects say of teams and of whose each node is, and what they said a little earlier.

For the checkers: a decision may be older than the write that it leads to, so what it saw counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.api.cluster.team import Team, TeamSpec
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import TEAM


@dataclass(slots=True)
class TeamModel:
    """Feed it with every change of a team or a node. Instants in seconds of the world's clock."""

    specs: dict[str, TeamSpec] = field(default_factory=dict[str, TeamSpec])
    #: The team of each node that has one.
    owner: dict[str, str] = field(default_factory=dict[str, str])
    #: Since when a node has the team that it has, or has none.
    owned_since: dict[str, float] = field(default_factory=dict[str, float])
    #: When a team's spec changed last, any one, or one appeared or vanished.
    changed_at: float = float("-inf")
    _owned_until: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    def team(self, new: Team | None, name: str, now: float) -> bool:
        """Take in a team, or that it is gone; False when only its status changed."""
        spec = new.spec if new is not None else None
        if self.specs.get(name) == spec:
            return False
        if spec is None:
            del self.specs[name]
        else:
            self.specs[name] = spec
        self.changed_at = now
        return True

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in a node, or that it is gone."""
        owner = next(iter(team_taints(new)), "")
        before = self.owner.get(name, "")
        if name in self.owned_since and before == owner:
            return
        if before:
            self._owned_until[name, before] = now
        self.owned_since[name] = now
        self.owner[name] = owner

    def had(self, team: str, node: str, since: float) -> bool:
        """True where a node was of the team at `since`, now, or in between."""
        return self.owner.get(node) == team or self._owned_until.get((node, team), since) > since

    def lost(self, team: str, node: str, since: float) -> bool:
        """True where a node ceased to be of the team after `since`, even if it is again."""
        return self._owned_until.get((node, team), since) > since

    def team_of(self, job: Job) -> str:
        """Return the team of a job; "" where it has none, or cannot have one now."""
        claim, namespace = job.spec.team, job.metadata.namespace
        teams = [name for name, spec in self.specs.items() if namespace in spec.namespaces]
        if claim:
            return claim if claim in teams else ""
        return teams[0] if len(teams) == 1 else ""


def team_taints(node: Node | None) -> list[str]:
    """Return the teams that a node's taints name."""
    taints = node.spec.taints if node is not None else ()
    return [taint.value for taint in taints if taint.key == TEAM]


def is_healthy(node: Node | None) -> bool:
    """True for a node that can start pods, whosever it is."""
    if node is None or node.spec.unschedulable:
        return False
    if any(taint.key.startswith("node.kubernetes.io/") for taint in node.spec.taints):
        return False
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
