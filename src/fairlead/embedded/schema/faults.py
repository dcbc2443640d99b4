"""Findings about values: what is wrong, where, and how the API server words it.

Wording: kube-openapi `pkg/validation/errors` and apimachinery `pkg/util/validation/field`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from fairlead.api.status import StatusCause
from fairlead.embedded.schema.values import type_name

Path: TypeAlias = tuple[str | int, ...]

VALUE_SHOWN_MAX = 256


class FaultKind(Enum):
    """What is wrong: (cause reason, words, whether the value is shown, what sets it apart)."""

    TYPE = ("FieldValueTypeInvalid", "Invalid value", True)
    FORMAT = ("FieldValueTypeInvalid", "Invalid value", True, "of the right type")
    INVALID = ("FieldValueInvalid", "Invalid value", True)
    REQUIRED = ("FieldValueRequired", "Required value", False)
    UNSUPPORTED = ("FieldValueNotSupported", "Unsupported value", True)
    DUPLICATE = ("FieldValueDuplicate", "Duplicate value", True)
    TOO_LONG = ("FieldValueTooLong", "Too long", False)
    TOO_MANY = ("FieldValueTooMany", "Too many", True)


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """One finding; a `%s` at the start of `detail` is replaced by the path."""

    kind: FaultKind
    value: Any = None
    detail: str = ""
    path: Path = ()

    def cause(self) -> StatusCause:
        """Return the finding as the API reports it."""
        path = format_path(self.path)
        reason, words, shows_value, *_ = self.kind.value
        message = f"{words}: {shown(self.value)}" if shows_value else words
        if self.detail.startswith(("%s", '"%s"')):
            message += ": " + self.detail.replace("%s", path or "<nil>", 1)
        elif self.detail:
            message += ": " + self.detail
        return StatusCause(reason=reason, message=message, field=path or "<nil>")


Faults: TypeAlias = list[SchemaFault]
#: None when the value is fine.
Check: TypeAlias = Callable[[Any], Faults | None]


def format_path(path: Path) -> str:
    """Return e.g. `spec.roles[0].count`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def shown(value: Any) -> str:
    """Return the JSON of a value, cut off at VALUE_SHOWN_MAX characters."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_SHOWN_MAX else text[:VALUE_SHOWN_MAX] + "..."


def under(faults: Faults, key: str | int) -> Faults:
    """Return the findings with `key` before their paths."""
    return [replace(fault, path=(key, *fault.path)) for fault in faults]


def join(faults: Faults | None, more: Faults) -> Faults:
    """Return both lists as one; the first is extended in place."""
    if faults is None:
        return list(more)
    faults += more
    return faults


def invalid(value: Any, detail: str) -> Faults:
    """Return one finding of the plain kind."""
    return [SchemaFault(FaultKind.INVALID, value, detail)]


def wrong_type(value: Any, wanted: str) -> Faults:
    """Return the finding that a value is not of the type `wanted`."""
    got = type_name(value)
    return [SchemaFault(FaultKind.TYPE, got, f'%s in body must be of type {wanted}: "{got}"')]
