"""What users may not change although it is theirs: that which decides on nodes of others (pure).

While a job holds nodes, the starts of other jobs are computed from its time limit, and shares and
loans from its team (`api/validation/job_changes.py` has every field). Admission refuses the changes
that would break these. The scheduler cannot: a job does not show who has raised its limit, so where
admission was not asked the limit of the spec counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fairlead.api.causes import cause
from fairlead.api.names import DEFRAGMENT
from fairlead.api.status import StatusCause
from fairlead.api.validation.job_changes import CHANGES, ChangeRule
from fairlead.decide.admission.limits import annotation_of
from fairlead.decide.admission.teams import RequestSender
from fairlead.model.asks.teams import TeamTable

Obj: TypeAlias = Mapping[str, Any]


def move_causes(new: Obj, old: Obj | None) -> Iterator[StatusCause]:
    """Yield that a user requests moves of running gangs for a job: these are of others."""
    before = "" if old is None else annotation_of(old, DEFRAGMENT)
    after = annotation_of(new, DEFRAGMENT)
    if after and after != before:
        why = "running jobs of others are moved for it; only administrators may set this annotation"
        yield _forbidden(f"metadata.annotations[{DEFRAGMENT}]", why)


def placed_causes(
    new: Obj, old: Obj, *, teams: TeamTable | None, namespace: str, user: RequestSender | None
) -> Iterator[StatusCause]:
    """Yield the changes that a user may not make while the job holds nodes."""
    if not _part(old, "status").get("placement"):
        return
    before, after = _part(old, "spec"), _part(new, "spec")
    team = _team(before, teams, namespace)
    own = teams.get(team) if teams is not None and team else None
    may_raise = own is not None and user is not None and user.answers_for(own.spec)
    for field, change in CHANGES.items():
        was, wanted = before.get(field) or None, after.get(field) or None
        if was == wanted:
            continue
        if change is ChangeRule.SHORTER_WHILE_PLACED and not may_raise:
            yield from _limit(was, wanted, team)
        elif change is ChangeRule.WHILE_NOT_PLACED:
            if field == "team" and team and _team(after, teams, namespace) == team:
                continue  # the default is written down, or left out again
            why = "cannot be changed while the job holds nodes: hold it first (fairlead hold JOB); "
            yield _forbidden(f"spec.{field}", why + "an administrator may change it at any time")


def _limit(was: object, wanted: object, team: str) -> Iterator[StatusCause]:
    """Yield that a limit is raised or removed; where there is none, one may be set."""
    if not isinstance(was, int) or (isinstance(wanted, int) and wanted < was):
        return
    who = f"an admin of team {team}, or an administrator," if team else "an administrator"
    what = "raise it" if wanted is not None else "remove it"
    why = f"while the job holds nodes it may only become less than {was}; {who} may {what}"
    yield _forbidden("spec.timeLimitSeconds", why)


def _team(spec: Obj, teams: TeamTable | None, namespace: str) -> str:
    """Return the team that a spec gives its job; "" where it has none, or cannot have it."""
    claim: object = spec.get("team") or ""
    team = teams.resolve(claim, namespace) if teams and isinstance(claim, str) else claim
    return team if isinstance(team, str) else ""


def _part(obj: Obj, name: str) -> Obj:
    part = obj.get(name)
    return part if isinstance(part, Mapping) else {}


def _forbidden(field: str, why: str) -> StatusCause:
    return cause("Forbidden", field, f"Forbidden: {why}")
