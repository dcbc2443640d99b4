"""What admission does to the team of a job: the default, and what may not be claimed.

The namespace decides which teams are open to a job (`model/asks/teams.py`); who submits it chooses
among them. Where no user is known, as in the embedded cluster, or who submits it acts for others
(`limits.py`), the user is None: membership is not judged, and the right to create jobs in the
namespace is what counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.causes import cause, invalid
from fairlead.api.cluster.team import Team, TeamSpec
from fairlead.api.names import TEAM
from fairlead.api.status import StatusCause
from fairlead.decide.admission.unresolved import listed
from fairlead.model.asks.teams import AmbiguousTeam, ForeignTeam, TeamTable

Obj = Mapping[str, Any]
#: Its members may do anything on the cluster.
MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class RequestSender:
    """Who sends a request, as the API server authenticated it.

    An administrator is who may write the status of jobs: Fairlead's own controllers and the
    cluster's administrators, which the API server says by the path that it calls.
    """

    name: str = ""
    groups: tuple[str, ...] = ()
    is_administrator: bool = False

    def is_of(self, team: TeamSpec) -> bool:
        """True for a member or an admin of a team, and for every user where it lists none."""
        named = (team.members, team.admins)
        users = {user for each in named for user in each.users}
        groups = {group for each in named for group in each.groups}
        return not (users or groups) or self.name in users or bool(groups.intersection(self.groups))

    def answers_for(self, team: TeamSpec) -> bool:
        """True for an admin of a team."""
        groups = set(team.admins.groups)
        return self.name in team.admins.users or bool(groups.intersection(self.groups))


def team_to_set(
    new: Obj, teams: TeamTable, namespace: str, user: RequestSender | None
) -> str | None:
    """Return the team to write into a job's spec; None when it stays as it is.

    The one team of its namespace; of several the only one that the user is a member of.
    """
    if not len(teams) or _claim(new) != "":
        return None
    team = teams.resolve("", namespace)
    if isinstance(team, str):
        return team or None
    own = [name for name in teams.open_to(namespace) if _may_use(teams, name, user)]
    return own[0] if len(own) == 1 else None


def team_causes(
    new: Obj, teams: TeamTable, namespace: str, user: RequestSender | None
) -> Iterator[StatusCause]:
    """Yield what is wrong with the team of a defaulted job, and with the reservation that it names;
    where there are no teams, there is none to name.
    """
    claim, reservation = _claim(new), _claim(new, "reservation")
    if claim is None or reservation is None:
        return
    if not len(teams):
        if reservation:
            yield invalid("spec.reservation", reservation, "there are no teams, which make them")
        return
    yield from _tolerations(new)
    team = teams.resolve(claim, namespace)
    usable = tuple(t for t in teams.open_to(namespace) if _may_use(teams, t, user))
    match team:
        case ForeignTeam():
            why = f"namespace {namespace} does not belong to it; open to you here: {listed(usable)}"
            yield invalid("spec.team", claim, why)
        case AmbiguousTeam():
            why = f"namespace {namespace} belongs to several teams; open to you: {listed(usable)}"
            yield cause("Required", "spec.team", f"Required value: {why}")
        case str() if team and team not in usable:
            why = f"you are not a member; open to you in namespace {namespace}: {listed(usable)}"
            yield invalid("spec.team", team, why)
        case str() if reservation:
            yield from _reservation(reservation, teams.get(team))
        case str():
            pass


def _reservation(name: str, team: Team | None) -> Iterator[StatusCause]:
    known = () if team is None else tuple(each.name for each in team.spec.reservations)
    if name not in known:
        whose = "a job without a team" if team is None else f"team {team.metadata.name}"
        yield invalid("spec.reservation", name, f"open to {whose}: {listed(known)}")


def _may_use(teams: TeamTable, name: str, user: RequestSender | None) -> bool:
    team = teams.get(name)
    return team is not None and (user is None or user.is_of(team.spec))


def _claim(job: Obj, field: str = "team") -> str | None:
    """Return the team that a job names, or another text; None where a type is another one."""
    spec: object = job.get("spec")
    claim = spec.get(field, "") if isinstance(spec, dict) else None
    return claim if isinstance(claim, str) else None


def _tolerations(job: Obj) -> Iterator[StatusCause]:
    """Yield the templates' own tolerations of the teams' taint: they would have no effect."""
    for i, role in enumerate(_items(job, "spec", "roles")):
        for j, toleration in enumerate(_items(role, "template", "spec", "tolerations")):
            if _field(toleration, "key") == TEAM:
                field = f"spec.roles[{i}].template.spec.tolerations[{j}]"
                why = "follows from the job's team: leave it out"
                yield invalid(f"{field}.key", TEAM, why)


def _items(value: object, *path: str) -> list[object]:
    """Return the list at a path; [] where there is none."""
    for step in path:
        value = _field(value, step)
    return list[object](value) if isinstance(value, list) else []


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None
