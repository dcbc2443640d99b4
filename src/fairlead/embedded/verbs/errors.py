"""The API's exceptions worded and detailed as a Kubernetes API server does.

Where the wording comes from: apimachinery `pkg/api/errors/errors.go` and
`pkg/util/validation/field/errors.go`. `FieldProblem` is one finding about a field; `invalid` joins
all of an object's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from fairlead.api.status import (
    AlreadyExists,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    NotFound,
    StatusCause,
    StatusDetails,
    StatusMeta,
    Timeout,
)
from fairlead.embedded.resource_info import ResourceInfo

MODIFIED = (
    "the object has been modified; please apply your changes to the latest version and try again"
)


class ProblemType(Enum):
    """What is wrong with a field: (cause reason, words)."""

    REQUIRED = ("FieldValueRequired", "Required value")
    INVALID = ("FieldValueInvalid", "Invalid value")
    NOT_SUPPORTED = ("FieldValueNotSupported", "Unsupported value")
    FORBIDDEN = ("FieldValueForbidden", "Forbidden")
    DUPLICATE = ("FieldValueDuplicate", "Duplicate value")
    NOT_FOUND = ("FieldValueNotFound", "Not found")
    TOO_LONG = ("FieldValueTooLong", "Too long")
    TOO_MANY = ("FieldValueTooMany", "Too many")
    TYPE_INVALID = ("FieldValueTypeInvalid", "Invalid value")


_WITHOUT_VALUE = (ProblemType.REQUIRED, ProblemType.FORBIDDEN, ProblemType.TOO_LONG)


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One finding: the field's path, its kind, the value that was got, and what is accepted."""

    field: str
    type: ProblemType
    detail: str = ""
    value: Any = None

    @property
    def message(self) -> str:
        """E.g. `Invalid value: "X": must be lower case`."""
        text = self.type.value[1]
        if self.type not in _WITHOUT_VALUE:
            text += f": {json.dumps(self.value, ensure_ascii=False)}"
        return f"{text}: {self.detail}" if self.detail else text

    @property
    def cause(self) -> StatusCause:
        """The machine-readable form."""
        return StatusCause(reason=self.type.value[0], message=self.message, field=self.field)


def _details(info: ResourceInfo, name: str, **more: Any) -> StatusDetails:
    return StatusDetails(name=name, group=info.group, kind=info.plural, **more)


def not_found(info: ResourceInfo, name: str) -> NotFound:
    """404: `pods "x" not found`."""
    return NotFound(f'{info.name} "{name}" not found', details=_details(info, name))


def already_exists(info: ResourceInfo, name: str, *, is_deleting: bool = False) -> AlreadyExists:
    """409: `pods "x" already exists`."""
    text = f'{info.name} "{name}" already exists'
    if is_deleting:
        text = f"object is being deleted: {text}"
    return AlreadyExists(text, details=_details(info, name))


def conflict(info: ResourceInfo, name: str, why: str = MODIFIED) -> Conflict:
    """409: `Operation cannot be fulfilled on pods "x": ...`."""
    return Conflict(
        f'Operation cannot be fulfilled on {info.name} "{name}": {why}',
        details=_details(info, name),
    )


_THEN = {
    "UID": "The object might have been deleted and then recreated",
    "ResourceVersion": "The object might have been modified",
}


def precondition_failed(
    info: ResourceInfo, name: str, what: str, wanted_found: tuple[str, str]
) -> Conflict:
    """409 of a delete whose precondition does not hold; it names the kind, not the plural."""
    wanted, found = wanted_found
    why = (
        f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). "
        f"{_THEN[what]}"
    )
    return Conflict(
        f'Operation cannot be fulfilled on {info.kind} "{name}": {why}',
        details=StatusDetails(name=name, group=info.group, kind=info.kind),
    )


#: What is wrong with an object, from our own rules or from a schema.
Finding: TypeAlias = FieldProblem | StatusCause


def invalid(info: ResourceInfo, name: str, findings: Sequence[Finding]) -> Invalid:
    """422 that names every field: `Pod "x" is invalid: ...`."""
    causes = tuple(f.cause if isinstance(f, FieldProblem) else f for f in findings)
    qualified = f"{info.kind}.{info.group}" if info.group else info.kind
    return Invalid(
        f'{qualified} "{name}" is invalid: {_joined(causes)}',
        details=StatusDetails(name=name, group=info.group, kind=info.kind, causes=causes),
    )


def invalid_options(kind: str, *problems: FieldProblem) -> Invalid:
    """422 for the options of a request, e.g. `ListOptions.meta.k8s.io "" is invalid: ...`."""
    causes = tuple(p.cause for p in problems)
    return Invalid(
        f'{kind}.meta.k8s.io "" is invalid: {_joined(causes)}',
        details=StatusDetails(group="meta.k8s.io", kind=kind, causes=causes),
    )


def _joined(causes: Sequence[StatusCause]) -> str:
    texts = [f"{cause.field}: {cause.message}" for cause in causes]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def no_version(info: ResourceInfo, name: str) -> Invalid:
    """422 for an update without a version of a kind that needs one; it names the plural."""
    why = "must be specified for an update"
    problem = FieldProblem("metadata.resourceVersion", ProblemType.INVALID, why, 0)
    return Invalid(
        f'{info.name} "{name}" is invalid: {problem.field}: {problem.message}',
        details=_details(info, name, causes=(problem.cause,)),
    )


def unknown_resource() -> NotFound:
    """404 for a resource that a known group and version does not have."""
    return NotFound("the server could not find the requested resource", details=StatusDetails())


def forbidden(info: ResourceInfo, name: str, why: str, *causes: StatusCause) -> Forbidden:
    """403: `pods "x" is forbidden: ...`."""
    return Forbidden(
        f'{info.name} "{name}" is forbidden: {why}', details=_details(info, name, causes=causes)
    )


def method_not_allowed(info: ResourceInfo, verb: str) -> MethodNotAllowed:
    """405."""
    return MethodNotAllowed(
        f"{verb} is not supported on resources of kind {info.name!r}", details=StatusDetails()
    )


def expired(message: str, continue_: str = "") -> Expired:
    """410; `continue_` is a token that goes on from the latest state."""
    return Expired(message, metadata=StatusMeta(continue_=continue_))


def version_in_future(asked: int, current: int) -> Timeout:
    """504: the version asked for does not exist yet; clients wait a second and ask again."""
    cause = StatusCause(reason="ResourceVersionTooLarge", message="Too large resource version")
    return Timeout(
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details=StatusDetails(causes=(cause,), retry_after_seconds=1),
    )
