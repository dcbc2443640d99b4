"""Why a job has no priority or no team, as a verdict."""

from __future__ import annotations

from typing import assert_never

from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.priorities import MissingClass, ReservedClass, Unresolved
from fairlead.model.teams import AmbiguousTeam, ForeignTeam, UnresolvedTeam

_TEAMS_NAMED_MAX = 10


def unresolved_verdict(unresolved: Unresolved | UnresolvedTeam) -> Verdict:
    """Return the verdict on a job whose PriorityClass or team cannot be used."""
    match unresolved:
        case MissingClass(name):
            return Verdict(Reason.PRIORITY_CLASS_MISSING, {"priority_class": name})
        case ReservedClass(name):
            return Verdict(Reason.PRIORITY_CLASS_RESERVED, {"priority_class": name})
        case ForeignTeam(name, teams):
            return Verdict(Reason.TEAM_NOT_OPEN, {"team": name, "open": listed(teams)})
        case AmbiguousTeam(teams):
            return Verdict(Reason.TEAM_AMBIGUOUS, {"open": listed(teams)})
        case _:
            assert_never(unresolved)


def listed(teams: tuple[str, ...]) -> str:
    """Return the teams that a namespace belongs to, in words."""
    shown = ", ".join(teams[:_TEAMS_NAMED_MAX])
    more = len(teams) - _TEAMS_NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown or "none"
