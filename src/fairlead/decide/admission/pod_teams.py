"""The teams' taints and pods that Fairlead does not place: which tolerations a pod gets, and which
it may not claim (pure).

A pod of a team's namespace gets the toleration of its team, and of all teams where its priority may
borrow, so kube-scheduler puts it where a job of the team could run. Where the namespace has several
teams the pod's label `fairlead.dev/team` chooses. The webhook and the embedded API server ask at
creation; what was created while neither was asked, the teams controller puts right, since
tolerations may be added to a pod that exists. None can be taken away: a foreign claim is refused.

There are three ways to a team's node past its taint, and each is judged: a toleration of a new pod,
a toleration that is added to a pod that waits for a node, and `spec.nodeName` of a new pod, for
which no scheduler looks at taints. The API server's own binding of a pod (`pods/binding`) is a
right that Kubernetes gives to schedulers only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.api.kubernetes.core import Toleration
from fairlead.api.meta import to_wire
from fairlead.api.names import TEAM
from fairlead.decide.admission.pod_gates import GateRules
from fairlead.decide.admission.teams import MASTERS, RequestSender
from fairlead.decide.admission.unresolved import listed
from fairlead.model.asks.teams import NO_SCHEDULE, TeamTable, with_team

Operation = Mapping[str, Any]
#: Who makes the pods of DaemonSets. An owner reference says nothing: anybody can write one.
DAEMON_CONTROLLER = "system:serviceaccount:kube-system:daemon-set-controller"
#: Kubelets: they create the mirrors of static pods, each on its own node only.
KUBELETS = "system:nodes"


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


@dataclass(frozen=True, slots=True)
class Access:
    """Which teams' nodes are open to a pod: those of the teams of its namespace, or all."""

    teams: tuple[str, ...]
    #: The pod's own team; "" for none, and where several are open and it names none.
    team: str
    may_borrow: bool

    def admits(self, owner: str) -> bool:
        """True for a node of this team ("": of none)."""
        return not owner or self.may_borrow or owner in self.teams


def access_of(
    labels: Mapping[str, str], teams: TeamTable, *, priority: int, namespace: str
) -> Access:
    """Return which teams' nodes are open to a pod of a namespace."""
    resolved = teams.resolve(labels.get(TEAM, ""), namespace)
    team = resolved if isinstance(resolved, str) else ""
    may_borrow = bool(team) and teams.may_borrow(team, priority)
    return Access(teams.open_to(namespace), team, may_borrow)


def is_left_alone(user: RequestSender, namespace: str, teams: TeamTable, rules: GateRules) -> bool:
    """True for pods that belong to the cluster, on nodes of every team.

    Those of Fairlead, of administrators, of kubelets and of namespaces of the system; and those of
    DaemonSets outside of teams' namespaces. Not those of the cluster's other controllers, which
    create what a user's object asks for.
    """
    if rules.is_system(namespace):
        return True
    own = f"system:serviceaccount:{rules.own_namespace}:"
    if user.is_administrator or MASTERS in user.groups or user.name.startswith(own):
        return True
    if user.name == DAEMON_CONTROLLER:
        return not teams.open_to(namespace)
    return KUBELETS in user.groups


def judge_team(
    own: Sequence[Toleration],
    labels: Mapping[str, str],
    teams: TeamTable,
    *,
    priority: int,
    namespace: str,
    is_gated: bool = False,
    before: Sequence[Toleration] | None = None,
    node_team: str = "",
) -> TeamAnswer:
    """Return what becomes of a pod with these tolerations in a namespace.

    `before` are those that it had, where it exists already: only what is added is judged, and it
    gets none. `node_team` is the team of the node that a new pod names itself. One that is gated
    for its gang gets tolerations with its place.
    """
    if not len(teams):
        return TeamAnswer()
    access = access_of(labels, teams, priority=priority, namespace=namespace)
    known = frozenset(map(_claim, before or ()))
    reasons = [_refusal(each, access) for each in own if _claim(each) not in known]
    if not access.admits(node_team):
        reasons.append(f"spec.nodeName is a node of team {node_team}, which is not open")
    for why in filter(None, reasons):
        return TeamAnswer(refusal=f"{why}; open to namespace {namespace}: {listed(access.teams)}")
    if before is not None or not access.team or is_gated:
        return TeamAnswer()
    given = with_team((), access.team, may_borrow=access.may_borrow)
    return TeamAnswer(tuple(t for t in given if t not in own))


def _claim(toleration: Toleration) -> tuple[str, str, str, str]:
    """Return what a toleration admits to; for how long may be changed later."""
    return (toleration.key, toleration.operator, toleration.value, toleration.effect)


def _refusal(toleration: Toleration, access: Access) -> str:
    """Return why a pod may not have a toleration; "" when it may."""
    is_of_one = toleration.operator in ("", "Equal")
    if toleration.key == TEAM and is_of_one and toleration.value not in access.teams:
        return f'toleration {TEAM}="{toleration.value[:63]}" is of a team that is not open'
    if is_of_one or access.may_borrow:
        return ""
    if toleration.key == TEAM:
        return f"only pods whose priority may borrow tolerate {TEAM} of every team"
    if not toleration.key and toleration.effect in ("", NO_SCHEDULE):
        return "a toleration of every taint admits the pod to nodes of all teams"
    return ""
