"""What admission does to a JobArray: it judges and fills in the template as a job of its author.

The jobs of the elements are created by the controller, whose rights are not the author's; so the
array is where the author's count. What a limit says of the number of jobs is judged when each
element is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as replace_struct

from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.status import StatusCause
from fairlead.api.validation.validate_array import validate_array, validate_array_update
from fairlead.decide.admission.job_defaults import Filled
from fairlead.decide.admission.jobs import (
    NO_TERMS,
    UNDECODABLE,
    AdmissionContext,
    fill_job,
    judge_job,
    without_fields,
)
from fairlead.decide.admission.limits import submitter_causes

Obj = Mapping[str, Any]
_SPEC = re.compile(r"^spec(?=[.\[]|$)")


Fill = Callable[[Obj, Obj | None, AdmissionContext], Filled]
Judge = Callable[[Obj, Obj | None, AdmissionContext], list[StatusCause]]


def fill_array(new: Obj, old: Obj | None, context: AdmissionContext) -> Filled:
    """Return what admission writes into an array as plain JSON; the arguments are `fill_job`'s."""
    template = _template(new)
    if template is None:
        return Filled({})
    filled = fill_job(_job(new), None if old is None else _job(old), context)
    fields = {"template": {**template, **filled.fields}} if filled.fields else {}
    return replace(filled, fields=fields, causes=tuple(map(_below_template, filled.causes)))


def judge_array(new: Obj, old: Obj | None, context: AdmissionContext) -> list[StatusCause]:
    """Return what is wrong with a defaulted array as plain JSON; the arguments are `judge_job`'s.

    Of an array that exists nothing of the template can change but its priority. Jobs are counted
    when they are made: an array is no job yet.
    """
    known = context.known
    below = replace(context, known=(), count=None, namespace=_namespace(new) or context.namespace)
    if old is not None:
        found = [*submitter_causes(new, old, context.user, context.own_namespace)]
        if new.get("spec") != old.get("spec"):
            before = validate_array(old)
            found += validate_array_update(old, new)
            found += [
                _below_template(each)
                for each in judge_job(
                    _job(new), _job(old), replace(below, teams=None, terms=NO_TERMS)
                )
                if each.field.startswith("spec.priority")
            ]
            found += [
                each for each in validate_array(_known_left_out(new, known)) if each not in before
            ]
    else:
        of_job = judge_job(_job(_known_left_out(new, known)), None, below)
        found = validate_array(_known_left_out(new, known))
        mistakes = {(each.field, each.message) for each in found}
        renamed = map(_below_template, of_job)
        found += [each for each in renamed if (each.field, each.message) not in mistakes]
    if known:  # what cannot be decoded without these fields, the schema has reported
        found = [each for each in found if each.reason != UNDECODABLE]
    return [each for each in found if each.field not in known]


def _known_left_out(array: Obj, known: Sequence[str]) -> Obj:
    return without_fields(array, known) if known else array


def _job(array: Obj) -> Obj:
    """Return the job that the template is of, with the annotations of the array."""
    metadata = array.get("metadata")
    kept = {} if not isinstance(metadata, Mapping) else {**metadata, "name": ""}
    return {"metadata": kept, "spec": _template(array) or {}}


def _template(array: Obj) -> Obj | None:
    spec = array.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    return template if isinstance(template, Mapping) else None


def _namespace(array: Obj) -> str:
    metadata = array.get("metadata")
    return str(metadata.get("namespace") or "") if isinstance(metadata, Mapping) else ""


def _below_template(cause: StatusCause) -> StatusCause:
    return replace_struct(cause, field=_SPEC.sub("spec.template", cause.field))


#: What admission does to the kinds that users submit, by the name of the resource.
WORK_KINDS: Mapping[str, tuple[Fill, Judge]] = {
    JOBS.name: (fill_job, judge_job),
    JOB_ARRAYS.name: (fill_array, judge_array),
}
