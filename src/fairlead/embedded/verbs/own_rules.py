"""Admission of our own kinds: a call of `decide.admission`, which the webhook calls as well.

`structural.admit` asks here after the schema, on every create and every write that changes more
than metadata and status.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fairlead.api import names
from fairlead.api.job import Job
from fairlead.api.status import StatusCause
from fairlead.decide.admission.cluster_kinds import RULES, judge_cluster_object
from fairlead.decide.admission.jobs import judge_job, priority_to_set
from fairlead.decide.admission.teams import team_to_set
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Finding
from fairlead.model.submitted import SubmittedTable
from fairlead.model.team_use import Account
from fairlead.model.teams import TeamTable

Obj = dict[str, Any]
_JOBS = f"jobs.{names.GROUP}"


def admit(
    context: Context, info: ResourceInfo, obj: Obj, *, old: Obj | None, known: Sequence[Finding]
) -> tuple[Obj, list[StatusCause]]:
    """Return a defaulted object, and what is wrong with it beyond `known`."""
    if info.name in RULES:
        seen = {finding.field for finding in known}
        causes = judge_cluster_object(info.name, obj, old)
        return obj, [cause for cause in causes if cause.field not in seen]
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
    count = partial(_count, context, teams)
    return obj, judge_job(obj, old, classes=classes, teams=teams, known=fields, count=count)


def _count(context: Context, teams: TeamTable, account: Account) -> int:
    """Return the unfinished jobs of an account; asked only where a limit depends on it."""
    team, table = teams.get(account.team), SubmittedTable()
    for namespace in team.spec.namespaces if team is not None else ():
        for record in context.store.records(_JOBS, namespace):
            table.put(record.typed(Job))
    return table.count(teams, account)
