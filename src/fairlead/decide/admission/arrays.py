"""What admission does to a JobArray: it judges and fills in the template as a job of its author.

The jobs of the elements are created by the controller, whose rights are not the author's; so the
array is where the author's count. What a limit says of the number of jobs is judged when each
element is created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from msgspec.structs import replace as replace_struct

from fairlead.api.jobs.job_defaults import JobTerms
from fairlead.api.resources import JOB_ARRAYS, JOBS
from fairlead.api.status import StatusCause
from fairlead.api.validation.validate_array import validate_array, validate_array_update
from fairlead.decide.admission.job_defaults import Filled
from fairlead.decide.admission.jobs import (
    NO_TERMS,
    UNDECODABLE,
    fill_job,
    judge_job,
    without_fields,
)
from fairlead.decide.admission.limits import Count, submitter_causes
from fairlead.decide.admission.teams import RequestSender
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.teams import TeamTable

Obj = Mapping[str, Any]
_SPEC = re.compile(r"^spec(?=[.\[]|$)")


class Fill(Protocol):
    """What `fill_job` and `fill_array` are."""

    def __call__(
        self,
        new: Obj,
        old: Obj | None = None,
        *,
        classes: PriorityTable | None = None,
        teams: TeamTable | None = None,
        user: RequestSender | None = None,
        namespace: str = "",
        terms: JobTerms = NO_TERMS,
    ) -> Filled:
        """Return what admission writes into an object."""
        ...


class Judge(Protocol):
    """What `judge_job` and `judge_array` are."""

    def __call__(
        self,
        new: Obj,
        old: Obj | None = None,
        *,
        classes: PriorityTable | None = None,
        teams: TeamTable | None = None,
        user: RequestSender | None = None,
        known: Sequence[str] = (),
        namespace: str = "",
        own_namespace: str = "",
        count: Count | None = None,
        terms: JobTerms = NO_TERMS,
    ) -> list[StatusCause]:
        """Return what is wrong with an object."""
        ...


def fill_array(
    new: Obj,
    old: Obj | None = None,
    *,
    classes: PriorityTable | None = None,
    teams: TeamTable | None = None,
    user: RequestSender | None = None,
    namespace: str = "",
    terms: JobTerms = NO_TERMS,
) -> Filled:
    """Return what admission writes into an array as plain JSON; the arguments are `fill_job`'s."""
    template = _template(new)
    if template is None:
        return Filled({})
    filled = fill_job(
        _job(new), None if old is None else _job(old), classes=classes, teams=teams, user=user,
        namespace=namespace, terms=terms,
    )  # fmt: skip
    fields = {"template": {**template, **filled.fields}} if filled.fields else {}
    return replace(filled, fields=fields, causes=tuple(map(_below_template, filled.causes)))


def judge_array(
    new: Obj,
    old: Obj | None = None,
    *,
    classes: PriorityTable | None = None,
    teams: TeamTable | None = None,
    user: RequestSender | None = None,
    known: Sequence[str] = (),
    namespace: str = "",
    own_namespace: str = "",
    count: Count | None = None,  # noqa: ARG001 - an array is no job yet
    terms: JobTerms = NO_TERMS,
) -> list[StatusCause]:
    """Return what is wrong with a defaulted array as plain JSON; the arguments are `judge_job`'s.

    Of an array that exists nothing of the template can change but its priority.
    """
    if old is not None:
        found = [*submitter_causes(new, old, user, own_namespace)]
        if new.get("spec") != old.get("spec"):
            before = validate_array(old)
            found += validate_array_update(old, new)
            found += [
                _below_template(each)
                for each in judge_job(
                    _job(new),
                    _job(old),
                    classes=classes,
                    user=user,
                    namespace=_namespace(new) or namespace,
                    own_namespace=own_namespace,
                )
                if each.field.startswith("spec.priority")
            ]
            found += [
                each for each in validate_array(_known_left_out(new, known)) if each not in before
            ]
    else:
        of_job = judge_job(
            _job(_known_left_out(new, known)), classes=classes, teams=teams, user=user,
            namespace=_namespace(new) or namespace, own_namespace=own_namespace, terms=terms,
        )  # fmt: skip
        found = validate_array(_known_left_out(new, known))
        mistakes = {(each.field, each.message) for each in found}
        below = map(_below_template, of_job)
        found += [each for each in below if (each.field, each.message) not in mistakes]
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
