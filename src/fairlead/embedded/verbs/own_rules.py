"""Rules of our own kinds that no schema can state: several fields at once, or old against new.

One entry per kind; `structural.admit` asks here after the schema, on every create and every write
that changes more than metadata and status. On other API servers nobody asks: controllers must
bear jobs that break these rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.status import StatusCause
from fairlead.api.validate import validate_job, validate_job_update
from fairlead.embedded.verbs.errors import Finding

Obj = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KindRules:
    """`check` looks at an object by itself, `check_update` at the old and the new one."""

    check: Callable[[Obj], list[StatusCause]]
    check_update: Callable[[Obj, Obj], list[StatusCause]]


#: The reason of a cause that stands for an object that its read model cannot hold.
UNDECODABLE = "FieldValueTypeInvalid"
_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")

#: By the name of the kind's table.
RULES: Mapping[str, KindRules] = {
    f"jobs.{names.GROUP}": KindRules(validate_job, validate_job_update),
}


def findings_of(
    table: str, obj: Obj, old: Obj | None, known: Sequence[Finding]
) -> list[StatusCause]:
    """Return what is wrong with a defaulted object, beyond `known`; a field is named once.

    What was wrong with the old one already is no finding: it must stay possible to cancel it.
    """
    rules = RULES.get(table)
    if rules is None:
        return []
    fields = [finding.field for finding in known]
    found = rules.check(_without(obj, fields) if fields else obj)
    if fields:  # what cannot be decoded without these fields was told by the schema
        found = [cause for cause in found if cause.reason != UNDECODABLE]
    if old is not None:
        before = rules.check(old)
        found = [*rules.check_update(old, obj), *(c for c in found if c not in before)]
    return [cause for cause in found if cause.field not in fields]


def _without(obj: Obj, paths: Sequence[str]) -> Obj:
    """Return a copy without what stands at these paths, so that the rest can be looked at.

    Fields of a wrong type or out of range make the whole object undecodable. Paths that lead
    nowhere are left alone.
    """
    out = msgspec.json.decode(msgspec.json.encode(obj))
    for path in paths:
        *parents, last = [p.strip("[]") for p in _STEP.findall(path)] or [""]
        at: Any = out
        for step in parents:
            if isinstance(at, list) and step.isdecimal() and int(step) < len(at):
                at = at[int(step)]
            else:
                at = at.get(step) if isinstance(at, dict) else None
        if isinstance(at, dict):
            at.pop(last, None)
    return out
