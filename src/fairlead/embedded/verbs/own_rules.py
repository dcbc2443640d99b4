"""Admission of our own kinds: a call of `decide.admission`, which the webhook calls as well.

`structural.admit` asks here after the schema, on every create and every write that changes more
than metadata and status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.resources import TEAMS
from fairlead.api.status import StatusCause
from fairlead.api.validate_pool import validate_fleet, validate_pool
from fairlead.decide.admission.jobs import judge_job, priority_to_set
from fairlead.decide.admission.teams import judge_team, team_to_set
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Finding

Obj = dict[str, Any]
_JOBS = f"jobs.{names.GROUP}"
_TEAMS = TEAMS.name
_CLUSTER_KINDS = {
    f"nodepools.{names.GROUP}": validate_pool,
    f"fleets.{names.GROUP}": validate_fleet,
}


def admit(
    context: Context, info: ResourceInfo, obj: Obj, *, old: Obj | None, known: Sequence[Finding]
) -> tuple[Obj, list[StatusCause]]:
    """Return a defaulted object, and what is wrong with it beyond `known`."""
    if info.name == _TEAMS and not known:
        return obj, judge_team(obj, old)
    if info.name in _CLUSTER_KINDS:
        seen = {finding.field for finding in known}
        return obj, [cause for cause in _CLUSTER_KINDS[info.name](obj) if cause.field not in seen]
    if info.name != _JOBS:
        return obj, []
    classes = context.priorities.table(context.store)
    teams = context.teams.table(context.store)
    namespace = str(obj["metadata"].get("namespace") or "")
    defaults = {
        "priority": priority_to_set(obj, old, classes),
        "team": team_to_set(obj, teams, namespace, None),
    }
    found = {field: value for field, value in defaults.items() if value is not None}
    if found:
        obj = {**obj, "spec": {**obj["spec"], **found}}
    fields = [finding.field for finding in known]
    return obj, judge_job(obj, old, classes=classes, teams=teams, known=fields)
