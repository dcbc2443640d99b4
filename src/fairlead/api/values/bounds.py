"""How much one object may ask for: the bounds that the schema and the admission of jobs share.

The controllers enforce those that matter to them again: docs/design/containment.md, "Bounds".
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

#: Jobs that one job waits for.
AFTER_MAX = 1_000
#: Characters: of a label's value or a DNS label, of an object's name, of a label's key with its
#: prefix, of a path on Linux.
NAME_MAX = 63
OBJECT_NAME_MAX = 253
LABEL_KEY_MAX = 253 + 1 + 63
PATH_MAX = 4096
#: Of a time in a spec, with fractions and an offset.
INSTANT_MAX = 64
#: A year: the end of a longer back-off might be no date that the API takes, and the status that
#: names it could never be written.
BACKOFF_SECONDS_MAX = 365 * 86_400
#: Of all other counts and seconds: 68 years, as `activeDeadlineSeconds` of pods.
INT32_MAX = 2**31 - 1
#: Of steps that a job reports: what a 64-bit integer holds.
STEP_MAX = 2**63 - 1
#: Records of attempts in a job's status, and members that are being replaced at a time.
ATTEMPTS_MAX = 20
MEMBER_RESTARTS_MAX = 100
#: Resource names of one pod, all containers together.
RESOURCES_MAX = 64
#: Values that the constraints of one pod name, all together: selectors, affinity, tolerations.
CONSTRAINT_VALUES_MAX = 10_000
#: Bytes of an object's annotations; apimachinery `pkg/api/validation/objectmeta.go`.
ANNOTATION_BYTES_MAX = 256 * 1024
#: Of a job's spec as JSON: half of what an API server stores of an object. The status needs room.
SPEC_BYTES_MAX = 768 * 1024
#: Digits of a 64-bit integer.
_DIGITS_MAX = 19


def doc(description: str = "", *, ge: int | None = None, **most: int | str) -> Meta:
    """Describe a field, as `kubectl explain` shows it, and bound it.

    Upper bounds and patterns stand in the schema only, under the schema's keywords. A job that was
    stored before a bound was there can still be read: a bound in the type would make it unreadable,
    and its members would go on without a controller.
    """
    return Meta(ge=ge, description=description or None, extra_json_schema=dict(most))


#: Fields that are bounded alike.
Count: TypeAlias = Annotated[int, doc(ge=0, maximum=INT32_MAX)]
Positive: TypeAlias = Annotated[int, doc(ge=1, maximum=INT32_MAX)]
Name: TypeAlias = Annotated[str, doc(maxLength=NAME_MAX)]
ObjectName: TypeAlias = Annotated[str, doc(maxLength=OBJECT_NAME_MAX)]
LabelKey: TypeAlias = Annotated[str, doc(maxLength=LABEL_KEY_MAX)]


def label_integer(text: str) -> int | None:
    """Return a label's value as `Gt` and `Lt` compare it: a 64-bit integer; None when it is none.

    Its length is looked at first: a number of a million digits takes seconds to read.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(digits) > _DIGITS_MAX or not (digits.isascii() and digits.isdigit()):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
