"""Admission of our own kinds: a call of `decide.admission`, which the webhook calls as well.

`structural.admit` asks here after the schema, on every create and every write that changes more
than metadata and status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fairlead.api import names
from fairlead.api.status import StatusCause
from fairlead.decide.admission.jobs import judge_job, priority_to_set
from fairlead.embedded.resource_info import ResourceInfo
from fairlead.embedded.verbs.context import Context
from fairlead.embedded.verbs.errors import Finding

Obj = dict[str, Any]
_JOBS = f"jobs.{names.GROUP}"


def admit(
    context: Context, info: ResourceInfo, obj: Obj, *, old: Obj | None, known: Sequence[Finding]
) -> tuple[Obj, list[StatusCause]]:
    """Return a defaulted object, and what is wrong with it beyond `known`."""
    if info.name != _JOBS:
        return obj, []
    classes = context.priorities.table(context.store)
    value = priority_to_set(obj, old, classes)
    if value is not None:
        obj = {**obj, "spec": {**obj["spec"], "priority": value}}
    fields = [finding.field for finding in known]
    return obj, judge_job(obj, old, classes=classes, known=fields)
