"""Mistakes in our own kinds, in the words that the API server uses."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

from fairlead.api.status import StatusCause
from fairlead.api.values.bounds import OBJECT_NAME_MAX

#: Of a refusal that is shown: a spec of the largest size may have tens of thousands.
CAUSES_MAX = 200
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL_RULE = (
    "must be a lowercase RFC 1123 label: at most 63 letters a-z, digits and '-', starting and "
    "ending with a letter or digit"
)

OBJECT_NAME_WHY = "must be a lowercase RFC 1123 subdomain: letters a-z, digits, '-' and '.'"
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_object_name(name: str) -> bool:
    """True for what a ConfigMap, a Secret or a claim may be called."""
    return len(name) <= OBJECT_NAME_MAX and _SUBDOMAIN.fullmatch(name) is not None


def cause(reason: str, field: str, message: str) -> StatusCause:
    """Return a mistake; `reason` without the prefix FieldValue."""
    return StatusCause(reason=f"FieldValue{reason}", message=message, field=field)


def bounded(causes: Sequence[StatusCause]) -> tuple[StatusCause, ...]:
    """Return the first `CAUSES_MAX` of them, and in one more how many there are beyond."""
    beyond = len(causes) - CAUSES_MAX
    more = (StatusCause("FieldValueInvalid", f"and {beyond} more"),) if beyond > 0 else ()
    return (*causes[:CAUSES_MAX], *more)


def invalid(field: str, value: object, why: str) -> StatusCause:
    """Return that a value is not accepted, and why."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return cause("Invalid", field, f"Invalid value: {shown[:120]}: {why}")


def required(field: str, why: str = "") -> StatusCause:
    """Return that a value is missing, and which."""
    return cause("Required", field, f"Required value: {why}" if why else "Required value")


def not_supported(field: str, value: str, accepted: Sequence[str]) -> StatusCause:
    """Return that a value is none of those that are accepted."""
    shown = ", ".join(f'"{each}"' for each in accepted)
    message = f"Unsupported value: {json.dumps(value[:80])}: supported values: {shown}"
    return cause("NotSupported", field, message)


def duplicate(field: str, value: str) -> StatusCause:
    """Return that a value stands in a list twice."""
    return cause("Duplicate", field, f'Duplicate value: "{value[:120]}"')


def from_msgspec(error: msgspec.ValidationError, path: str) -> StatusCause:
    """Split msgspec's "Expected `int`, got `str` - at `$.roles[0].count`"."""
    message, _, where = str(error).partition(" - at `$")
    return cause("TypeInvalid", path + where.rstrip("`"), f"Invalid value: {message}")
