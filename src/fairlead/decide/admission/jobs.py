"""What admission does to a Job: its default priority, and the rules that no schema can state.

An update is refused for mistakes that it brings in, never for those that the stored job had
already: it must stay possible to cancel a job and to remove its finalizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fairlead.api import names
from fairlead.api.causes import bounded
from fairlead.api.jobs.job_defaults import JobTerms
from fairlead.api.meta import Wire
from fairlead.api.resources import JOB_ARRAYS
from fairlead.api.status import StatusCause, StatusDetails
from fairlead.api.validation.validate import validate_job, validate_job_update
from fairlead.decide.admission.job_changes import move_causes, placed_causes
from fairlead.decide.admission.job_defaults import Filled, fill, maximum_causes
from fairlead.decide.admission.limits import (
    Count,
    limit_causes,
    may_administer,
    member_of,
    submitter_causes,
)
from fairlead.decide.admission.notices import notice_causes
from fairlead.decide.admission.teams import RequestSender, team_causes, team_to_set
from fairlead.model.asks.priorities import SYSTEM_NAMESPACE, SYSTEM_PREFIX, PriorityTable
from fairlead.model.asks.teams import TeamTable

Obj = Mapping[str, Any]

#: The reason of a cause that is about an object which its read model cannot hold.
UNDECODABLE = "FieldValueTypeInvalid"
#: What users may change of a job that stands for other pods.
FREE_WHERE_ADOPTED = frozenset(("cancel", "suspend"))
NO_TERMS = JobTerms()
_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")


class _PodSpec(Wire, frozen=True):
    priority_class_name: str = ""
    priority: int | None = None


class _Template(Wire, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Role(Wire, frozen=True):
    template: _Template = _Template()


class _Spec(Wire, frozen=True):
    """What of a job's spec decides on its priority."""

    priority_class_name: str = ""
    priority: int | None = None
    roles: tuple[_Role, ...] = ()
    adopts: Any = None

    def classes(self) -> list[str]:
        """Return the class of each role's pods; "" is the cluster's default."""
        if (self.priority_class_name and not self.adopts) or not self.roles:
            return [self.priority_class_name]
        return [role.template.spec.priority_class_name for role in self.roles]

    def priority_by_class(self, classes: PriorityTable) -> int | None:
        """Return what the job's priority is; None when a class does not exist."""
        values = [classes.value(name) for name in self.classes()]
        known = [value for value in values if value is not None]
        return min(known) if len(known) == len(values) else None


def priority_to_set(new: Obj, old: Obj | None, classes: PriorityTable) -> int | None:
    """Return the priority to write into a job's spec; None when it stays as it is.

    It is written where the spec has none, and again when the class changes and the priority does
    not. A job without a class, in a cluster without a default one, has none.
    """
    spec = _decoded(new)
    if spec is None:
        return None
    value = spec.priority_by_class(classes)
    if value is None or value == spec.priority:
        return None
    if spec.priority is None:
        return value if any(spec.classes()) or value else None
    before = _decoded(old) if old is not None else None
    is_stale = before is not None and before.priority == spec.priority
    return value if is_stale and before and before.classes() != spec.classes() else None


@dataclass(frozen=True, slots=True)
class AdmissionContext:
    """What admission knows beside the object, from the cluster and from the request."""

    #: Without them no priority is filled in or judged, and no team.
    classes: PriorityTable | None = None
    teams: TeamTable | None = None
    user: RequestSender | None = None
    #: Fields that a schema has refused already: they are left out of what is judged, and of the
    #: answer.
    known: Sequence[str] = ()
    #: Counts where the object itself names none.
    namespace: str = ""
    #: That of Fairlead's own pods.
    own_namespace: str = ""
    #: How many unfinished jobs a user or team has.
    count: Count | None = None
    #: What the settings of the cluster say; an administrator may exceed a maximum by an update.
    terms: JobTerms = NO_TERMS


NO_CONTEXT = AdmissionContext()


def fill_job(new: Obj, old: Obj | None = None, context: AdmissionContext = NO_CONTEXT) -> Filled:
    """Return what admission writes into a job as plain JSON, before it is judged: its priority, its
    team, and what the defaults of this team and of the cluster have for it.

    The user is the one whose membership counts (`limits.member_of`).
    """
    teams, namespace = context.teams, context.namespace
    found: dict[str, Any] = {}
    if context.classes is not None:
        found["priority"] = priority_to_set(new, old, context.classes)
    team = _text(new, "team")
    if teams is not None:
        found["team"] = team_to_set(new, teams, namespace, context.user)
        resolved = teams.resolve(found["team"] or team, namespace)
        team = resolved if isinstance(resolved, str) else ""
    filled = fill(new, old, team=team, teams=teams, terms=context.terms)
    fields = {field: value for field, value in found.items() if value is not None}
    return replace(filled, fields={**fields, **filled.fields})


def judge_job(
    new: Obj, old: Obj | None = None, context: AdmissionContext = NO_CONTEXT
) -> list[StatusCause]:
    """Return what is wrong with a defaulted job as plain JSON; [] when it may be stored.

    With `old` it is an update.
    """
    teams, user, known, terms = context.teams, context.user, context.known, context.terms
    own_namespace = context.own_namespace
    by_right = list(submitter_causes(new, old, user, own_namespace))
    is_administrator = may_administer(user, own_namespace)
    if not is_administrator:
        by_right += [*move_causes(new, old), *_element(new, old)]
    if old is not None and new.get("spec") == old.get("spec"):
        return by_right
    namespace = _namespace_of(new) or context.namespace
    member = member_of(user, own_namespace)
    if not is_administrator:
        by_right += _adoption(new, old)
        if old is not None:
            by_right += placed_causes(new, old, teams=teams, namespace=namespace, user=member)
    found = [
        *validate_job(without_fields(new, known) if known else new),
        *_classes(new, context.classes, namespace),
        *(() if teams is None else team_causes(new, teams, namespace, member)),
    ]
    if old is None or not is_administrator:
        by_right += maximum_causes(new, old, teams=teams, namespace=namespace, terms=terms)
    by_right += notice_causes(new, old, terms.notices)
    if old is None and teams is not None and not found:
        found += limit_causes(new, teams, namespace, context.count)
    found = [*by_right, *found]
    if known:  # what cannot be decoded without these fields, the schema has reported
        found = [cause for cause in found if cause.reason != UNDECODABLE]
    if old is not None:
        before = [
            *validate_job(old),
            *_classes(old, context.classes, namespace),
            *(() if teams is None else team_causes(old, teams, namespace, member)),
        ]
        found = [*validate_job_update(old, new), *(c for c in found if c not in before)]
    return [cause for cause in found if cause.field not in known]


def refusal_of(
    name: str, causes: Sequence[StatusCause], kind: str = "Job"
) -> tuple[str, StatusDetails]:
    """Return the message and the details of a refusal, in the form of the API server's own, with
    the first `CAUSES_MAX` mistakes.
    """
    causes = bounded(causes)
    lines = [
        f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes
    ]
    listed = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details = StatusDetails(name=name, group=names.GROUP, kind=kind, causes=causes)
    return f'{kind}.{names.GROUP} "{name}" is invalid: {listed}', details


def _namespace_of(obj: Obj) -> str:
    metadata = obj.get("metadata")
    return str(metadata.get("namespace") or "") if isinstance(metadata, Mapping) else ""


def _decoded(obj: Obj) -> _Spec | None:
    """Return the part of a spec that matters here; None when it has other mistakes."""
    try:
        return msgspec.convert(obj.get("spec") or {}, _Spec)
    except msgspec.ValidationError:
        return None


def _element(new: Obj, old: Obj | None) -> Iterator[StatusCause]:
    """Yield that a user makes a job an element of an array, or takes it out: the array counts its
    end as that of the element, and runs an element again that has no job.
    """
    if _arrays_of(new) != (() if old is None else _arrays_of(old)):
        why = "which job is an element of an array is written by Fairlead; leave it out"
        yield StatusCause("Forbidden", f"Forbidden: {why}", "metadata.ownerReferences")


def _arrays_of(job: Obj) -> tuple[Obj, ...]:
    """Return the references to arrays that control a job as plain JSON."""
    metadata = job.get("metadata")
    owners: object = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
    if not isinstance(owners, list):
        return ()
    listed: Sequence[object] = owners
    return tuple(
        owner for owner in listed
        if isinstance(owner, Mapping) and owner.get("kind") == JOB_ARRAYS.kind
        and owner.get("apiVersion") == names.API_VERSION and owner.get("controller")
    )  # fmt: skip


def _adoption(new: Obj, old: Obj | None) -> Iterator[StatusCause]:
    """Yield what a user may not write: a job that stands for other pods is Fairlead's own.

    Such a job gets room for pods that its author may have no right to create, so its spec follows
    from the pods. Users hold it or cancel it.
    """
    if old is None:
        if _adopts(new):
            why = "is written by Fairlead for pods that opted in; leave it out"
            yield StatusCause("Forbidden", f"Forbidden: {why}", "spec.adopts")
        return
    if not _adopts(old):
        return  # the field itself is immutable
    before, after = old.get("spec") or {}, new.get("spec") or {}
    for field in sorted((before.keys() | after.keys()) - FREE_WHERE_ADOPTED):
        if before.get(field) != after.get(field):
            why = "follows from the pods that the job stands for; change those"
            yield StatusCause("Forbidden", f"Forbidden: {why}", f"spec.{field}")


def _text(obj: Obj, field: str) -> str:
    """Return a text of a job's spec; "" where there is none, or another type."""
    spec = obj.get("spec")
    value = spec.get(field) if isinstance(spec, Mapping) else None
    return value if isinstance(value, str) else ""


def _adopts(obj: Obj) -> object:
    spec = obj.get("spec")
    return spec.get("adopts") if isinstance(spec, Mapping) else None


def _classes(obj: Obj, classes: PriorityTable | None, namespace: str) -> Iterator[StatusCause]:
    """Yield what is wrong with the PriorityClasses that a job names, and with its priority."""
    spec = _decoded(obj) if classes is not None else None
    if spec is None or classes is None:
        return
    own = spec.priority_class_name
    if own:
        yield from _class("spec.priorityClassName", own, namespace, classes)
    for i, role in enumerate(spec.roles):
        pod, path = role.template.spec, f"spec.roles[{i}].template.spec"
        name = pod.priority_class_name
        if own and name and name != own:
            why = f"must be the job's own class, {own}, or be left out"
            yield _invalid(f"{path}.priorityClassName", name, why)
            continue
        if name and not own:
            yield from _class(f"{path}.priorityClassName", name, namespace, classes)
        value = classes.value(name or own)
        if pod.priority is not None and value is not None and pod.priority != value:
            why = f"it follows from the PriorityClass and is {value}; leave it out"
            yield _invalid(f"{path}.priority", pod.priority, why)
    value = spec.priority_by_class(classes)
    if spec.priority is not None and value is not None and spec.priority != value:
        why = (
            f"it follows from the PriorityClass and is {value}; leave it out and name a class of "
            "the wanted value in spec.priorityClassName (--priority CLASS)"
        )
        yield _invalid("spec.priority", spec.priority, why)


def _class(path: str, name: str, namespace: str, classes: PriorityTable) -> Iterator[StatusCause]:
    if name.startswith(SYSTEM_PREFIX) and namespace != SYSTEM_NAMESPACE:
        why = f"it is reserved for the cluster's own components, in namespace {SYSTEM_NAMESPACE}"
        yield _invalid(path, name, why)
    elif classes.value(name) is None:
        why = "there is no such PriorityClass; kubectl get priorityclasses lists those there are"
        yield _invalid(path, name, why)


def _invalid(field: str, value: str | int, why: str) -> StatusCause:
    shown = f'"{value[:80]}"' if isinstance(value, str) else str(value)
    return StatusCause("FieldValueInvalid", f"Invalid value: {shown}: {why}", field)


def without_fields(obj: Obj, paths: Sequence[str]) -> Obj:
    """Return a copy without the fields at these paths, so that the rest can be judged.

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
