"""What a JobArray must fulfil beyond its schema: rules that look at several fields at once.

Admission, the controller and the CLI ask this; the rules of the template are those of a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fairlead.api.causes import LABEL, LABEL_RULE, cause, from_msgspec, invalid
from fairlead.api.jobs.job_array import (
    PARAMETERS_BYTES_MAX,
    TEMPLATE_BYTES_MAX,
    JobArray,
    JobArraySpec,
    element_name,
)
from fairlead.api.jobs.run_facts import PARAMETER_LENGTH_MAX, PARAMETER_NAME, PARAMETERS_MAX
from fairlead.api.status import StatusCause
from fairlead.api.validation.validate import job_name_max, validate_job
from fairlead.api.values.indices import Indices, IndicesError, parse_indices

#: Fields of a job that the array has for all of its elements, or that no user writes.
_OF_ARRAYS = {
    "suspend": "hold the array instead: spec.suspend",
    "cancel": "cancel the array instead: spec.cancel",
    "requeue_attempt": "is of one job: its elements have attempts of their own",
    "ttl_seconds_after_finished": "elements are deleted once their ends are recorded",
    "adopts": "is written by Fairlead for pods of other tools",
    "notify": "each element would send its own; submit a job with `after` the array, and notify",
}
_WIRE_NAMES = {
    "requeue_attempt": "requeueAttempt",
    "ttl_seconds_after_finished": "ttlSecondsAfterFinished",
}
#: What may change of a template: elements that have no place yet, and later ones, follow.
_FREE_IN_TEMPLATE = ("priorityClassName", "priority")


def validate_array(array: JobArray | Mapping[str, Any]) -> list[StatusCause]:
    """Return every rule that the array breaks, in the order of its fields; [] when it is valid.

    A mapping is a JobArray as plain JSON; of one that cannot be decoded only the indices are
    judged.
    """
    raw: Mapping[str, Any] | None = None
    if isinstance(array, JobArray):
        spec, name = array.spec, array.metadata.name
    else:
        given, metadata = array.get("spec"), array.get("metadata")
        raw = given if isinstance(given, Mapping) else {}
        name = str(metadata.get("name") or "") if isinstance(metadata, Mapping) else ""
        try:
            spec = msgspec.convert(raw, JobArraySpec)
        except msgspec.ValidationError as error:
            given, undecoded = raw.get("indices"), from_msgspec(error, "spec")
            return [*_of_list(given, "spec.indices"), undecoded]
    return [*_causes(spec, name, raw)]


def validate_array_update(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[StatusCause]:
    """Return every change of an array as plain JSON that is not allowed; [] when all are."""
    before, after = old.get("spec"), new.get("spec")
    before = before if isinstance(before, Mapping) else {}
    after = after if isinstance(after, Mapping) else {}
    why = "field is immutable: submit another array"
    changed = {
        "indices": before.get("indices") != after.get("indices"),
        "parameters": (before.get("parameters") or {}) != (after.get("parameters") or {}),
        "earlyStop": before.get("earlyStop") != after.get("earlyStop"),
        "template": _fixed(before.get("template")) != _fixed(after.get("template")),
    }
    return [
        cause("Invalid", f"spec.{field}", f"Invalid value: {why}")
        for field, is_changed in changed.items()
        if is_changed
    ]


def _fixed(template: object) -> object:
    """Return what of a template cannot change."""
    if not isinstance(template, Mapping):
        return template
    return {field: value for field, value in template.items() if field not in _FREE_IN_TEMPLATE}


def _causes(spec: JobArraySpec, name: str, raw: Mapping[str, Any] | None) -> Iterator[StatusCause]:
    wrong = [*_of_list(spec.indices, "spec.indices")]
    yield from wrong
    if name and not LABEL.fullmatch(name):
        yield invalid("metadata.name", name, LABEL_RULE)
    elif name and not wrong:
        yield from _name(spec, name, parse_indices(spec.indices))
    if spec.parameters:
        yield from _parameters(spec, None if wrong else parse_indices(spec.indices).last)
    if spec.cancel_indices:
        yield from _of_list(spec.cancel_indices, "spec.cancelIndices")
    yield from _template(spec, name, raw)


def _name(spec: JobArraySpec, name: str, indices: Indices) -> Iterator[StatusCause]:
    longest, most = element_name(name, indices.last), job_name_max(spec.template)
    if 0 < most < len(longest):
        why = (
            f"its elements are jobs named {longest[:70]}, which may have {most} characters, and "
            f"this has {len(longest)}; shorten the name of the array or those of the roles"
        )
        yield invalid("metadata.name", name, why)


def _parameters(spec: JobArraySpec, last: int | None) -> Iterator[StatusCause]:
    """Yield what is wrong with the parameters; `last` is the largest index, None: not known."""
    path, size = "spec.parameters", len(msgspec.json.encode(spec.parameters))
    if size > PARAMETERS_BYTES_MAX:
        why = f"Too long: may not be more than {PARAMETERS_BYTES_MAX} bytes, is {size}"
        yield cause(
            "TooLong", path, f"{why}; submit several sweeps, or read long values from files"
        )
    if len(spec.parameters) > PARAMETERS_MAX:
        yield invalid(path, len(spec.parameters), f"must be at most {PARAMETERS_MAX} parameters")
    for name, values in list(spec.parameters.items())[:PARAMETERS_MAX]:
        if not PARAMETER_NAME.fullmatch(name):
            why = "must be letters, digits and underscores, at most 63, no digit first"
            yield invalid(f"{path}.{name[:80]}", name[:80], why)
        elif last is not None and len(values) <= last:
            why = f"must have a value for each index up to {last}"
            yield invalid(f"{path}.{name}", f"{len(values)} values", why)
        for at, value in enumerate(values):
            if len(value) > PARAMETER_LENGTH_MAX or "\0" in value:
                why = f"must have at most {PARAMETER_LENGTH_MAX} characters, and no NUL"
                yield invalid(f"{path}.{name[:80]}[{at}]", value[:80], why)
                break


def _of_list(text: object, field: str) -> Iterator[StatusCause]:
    """Yield what is wrong with a list of indices; of another type the schema says it."""
    if not isinstance(text, str):
        return
    try:
        parse_indices(text)
    except IndicesError as error:
        yield invalid(field, text, str(error))


def _template(
    spec: JobArraySpec, name: str, raw: Mapping[str, Any] | None
) -> Iterator[StatusCause]:
    path, template = "spec.template", spec.template
    given = None if raw is None else raw.get("template")
    size = len(msgspec.json.encode(template if given is None else given))
    if size > TEMPLATE_BYTES_MAX:
        why = f"Too long: may not be more than {TEMPLATE_BYTES_MAX} bytes, is {size}"
        yield cause("TooLong", path, f"{why}; keep long scripts and data in volumes or images")
    for field, advice in _OF_ARRAYS.items():
        if getattr(template, field) not in (None, False, ()):
            where = f"{path}.{_WIRE_NAMES.get(field, field)}"
            yield cause("Forbidden", where, f"Forbidden: leave it out; {advice}")
    for i, after in enumerate(template.after):
        if name and after.elements and after.job == name:
            yield invalid(f"{path}.after[{i}].job", name, "an array can't wait for itself")
    yield from validate_job(template if given is None else given, path)
