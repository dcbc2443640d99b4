"""The teams of a cluster: whose a job is, and which nodes its members may run on.

The namespace decides: a job belongs to a team that lists its namespace. Where several do, the job
names its own. So the right to create jobs in a namespace is the right to use its team's share, and
the controllers need no webhook to know whose a job is. docs/design/teams.md has the rules.

A node of a team carries the taint `fairlead.dev/team=TEAM:NoSchedule`. What tolerates it follows
from the job's team alone: a template's own tolerations of that taint have no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fairlead.api.cluster.team import JobLimits, Team
from fairlead.api.kubernetes.core import Taint, Toleration
from fairlead.api.names import TEAM
from fairlead.api.validation.validate_team import validate_team

NO_SCHEDULE = "NoSchedule"
#: What lets a member run on the nodes of any team.
BORROWS = Toleration(TEAM, "Exists", "", NO_SCHEDULE)


@dataclass(frozen=True, slots=True)
class ForeignTeam:
    """The job names a team that its namespace does not belong to."""

    name: str
    open: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AmbiguousTeam:
    """The namespace belongs to several teams, and the job names none."""

    open: tuple[str, ...]


UnresolvedTeam = ForeignTeam | AmbiguousTeam


class TeamTable:
    """All valid teams of a cluster, by name. Without any, the name in a job has no meaning."""

    def __init__(self, teams: Iterable[Team] = ()) -> None:
        self._teams: dict[str, Team] = {}
        self._by_namespace: dict[str, tuple[str, ...]] = {}
        #: Rises with every change of what a team is, as opposed to its status.
        self.version = 0
        #: Rises with every change of which namespaces belong to which teams.
        self.namespaces_version = 0
        #: True while some team has a limit on borrowing or lending.
        self.has_limits = False
        #: True while some team limits its jobs or those of each user.
        self.has_job_limits = False
        for each in teams:
            self.put(each)

    def __iter__(self) -> Iterator[Team]:
        """Yield the teams in the order of their names."""
        return (self._teams[name] for name in sorted(self._teams))

    def __len__(self) -> int:
        return len(self._teams)

    def get(self, name: str) -> Team | None:
        """Return a team by its name."""
        return self._teams.get(name)

    def put(self, team: Team) -> bool:
        """Take in a team, new or changed; False when only its status changed.

        One that is not valid, or is being deleted, counts as gone: it has no jobs and no nodes.
        """
        name = team.metadata.name
        if team.metadata.deletion_timestamp is not None or validate_team(team):
            return self.remove(name)
        before = self._teams.get(name)
        self._teams[name] = team
        if before is not None and before.spec == team.spec:
            return False
        self._changed()
        return True

    def remove(self, name: str) -> bool:
        """Take in that a team is gone; False when it was not known."""
        if self._teams.pop(name, None) is None:
            return False
        self._changed()
        return True

    def _changed(self) -> None:
        self.version += 1
        limits = ((t.spec.borrow_limit_nodes, t.spec.lend_limit_nodes) for t in self)
        self.has_limits = any(limit is not None for both in limits for limit in both)
        none = JobLimits()
        self.has_job_limits = any((t.spec.limits, t.spec.user_limits) != (none, none) for t in self)
        found: dict[str, list[str]] = {}
        for team in self:
            for namespace in team.spec.namespaces:
                found.setdefault(namespace, []).append(team.metadata.name)
        by_namespace = {namespace: tuple(names) for namespace, names in found.items()}
        self.namespaces_version += by_namespace != self._by_namespace
        self._by_namespace = by_namespace

    def open_to(self, namespace: str) -> tuple[str, ...]:
        """Return the teams that a namespace belongs to, by name."""
        return self._by_namespace.get(namespace, ())

    def resolve(self, claim: str, namespace: str) -> str | UnresolvedTeam:
        """Return the team of a job that names `claim` ("": none); "" when it has no team."""
        if not self._teams:
            return claim
        teams = self.open_to(namespace)
        if claim:
            return claim if claim in teams else ForeignTeam(claim, teams)
        if len(teams) > 1:
            return AmbiguousTeam(teams)
        return teams[0] if teams else ""

    def may_borrow(self, team: str, priority: int) -> bool:
        """True for jobs that may run on idle nodes of other teams."""
        known = self._teams.get(team)
        if known is None or known.spec.borrow_limit_nodes == 0:
            return False
        return priority <= known.spec.borrow_priority_max

    def counts_users(self, team: str) -> bool:
        """True for a team in which it depends on the user whether a job may start."""
        known = self._teams.get(team)
        if known is None:
            return False
        limits = known.spec.user_limits
        return (limits.running, limits.gpus) != (None, None)

    def tolerations(
        self, own: Sequence[Toleration], team: str, priority: int
    ) -> tuple[Toleration, ...]:
        """Return what a member of this team tolerates, given its template's own tolerations."""
        if not own and not self._teams:
            return ()
        may_borrow = self.may_borrow(team, priority)
        return with_team(own, team if team in self._teams else "", may_borrow=may_borrow)


def with_team(own: Sequence[Toleration], team: str, *, may_borrow: bool) -> tuple[Toleration, ...]:
    """Return tolerations without those of the teams' taint, then with those that the team gives."""
    kept = [t for t in own if t.key != TEAM]
    if team:
        kept.append(Toleration(TEAM, "Equal", team, NO_SCHEDULE))
    if may_borrow:
        kept.append(BORROWS)
    return tuple(kept)


def owners_of(taints: Iterable[Taint]) -> list[str]:
    """Return the teams that taints give a node to, by name: one at most, unless people write."""
    return sorted(t.value for t in taints if is_team_taint(t))


def owner_of(taints: Iterable[Taint]) -> str:
    """Return the team that a node's taints give it to; the first by name, "" for none."""
    return next(iter(owners_of(taints)), "")


def is_team_taint(taint: Taint) -> bool:
    """True for the taint that says whose a node is."""
    return taint.key == TEAM and taint.effect == NO_SCHEDULE
