"""The teams' taints and pods that Fairlead does not place: which tolerations a pod gets, and which
it may not claim (pure).

A pod of a team's namespace gets the toleration of its team, and of all teams where its priority may
borrow, so kube-scheduler puts it where a job of the team could run. Where the namespace has several
teams the pod's label `fairlead.dev/team` chooses. The webhook and the embedded API server ask at
creation; what was created while neither was asked, the teams controller puts right, since
tolerations may be added to a pod that exists. None can be taken away: a foreign claim is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api.core import Toleration
from fairlead.api.meta import to_wire
from fairlead.api.names import TEAM
from fairlead.decide.admission.unresolved import listed
from fairlead.model.teams import TeamTable, with_team

Operation = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TeamAnswer:
    """The tolerations that a pod is to get, or why it is refused."""

    added: tuple[Toleration, ...] = ()
    refusal: str = ""

    def patch(self, own: Sequence[Toleration] | None) -> tuple[Operation, ...]:
        """Return the operations that add them to those that the pod has."""
        if not self.added:
            return ()
        new: list[Any] = to_wire(self.added)
        if own:
            return tuple({"op": "add", "path": "/spec/tolerations/-", "value": t} for t in new)
        return ({"op": "add", "path": "/spec/tolerations", "value": new},)


def judge_team(
    own: Sequence[Toleration],
    labels: Mapping[str, str],
    teams: TeamTable,
    *,
    priority: int,
    namespace: str,
    is_gated: bool = False,
) -> TeamAnswer:
    """Return what becomes of a pod with these tolerations in a namespace.

    One that is gated for its gang gets tolerations with its place.
    """
    if not len(teams):
        return TeamAnswer()
    open_teams = teams.open_to(namespace)
    resolved = teams.resolve(labels.get(TEAM, ""), namespace)
    team = resolved if isinstance(resolved, str) else ""
    may_borrow = bool(team) and teams.may_borrow(team, priority)
    for toleration in own:
        why = _refusal(toleration, open_teams, may_borrow=may_borrow)
        if why:
            return TeamAnswer(refusal=f"{why}; open to namespace {namespace}: {listed(open_teams)}")
    given = with_team((), team, may_borrow=may_borrow) if team and not is_gated else ()
    return TeamAnswer(tuple(t for t in given if t not in own))


def _refusal(toleration: Toleration, open_teams: tuple[str, ...], *, may_borrow: bool) -> str:
    """Return why a pod may not have a toleration; "" when it may.

    One of every taint is judged in namespaces of teams only: elsewhere it is how the cluster's own
    components reach all nodes.
    """
    is_of_all = toleration.operator == "Exists"
    if not toleration.key and is_of_all and open_teams and not may_borrow:
        return "a toleration of every taint admits the pod to nodes of all teams"
    if toleration.key != TEAM:
        return ""
    if is_of_all and not may_borrow:
        return f"only pods whose priority may borrow tolerate {TEAM} of every team"
    if not is_of_all and toleration.value not in open_teams:
        return f'toleration {TEAM}="{toleration.value[:63]}" is of a team that is not open'
    return ""
