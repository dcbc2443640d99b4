"""Checks of scalars: types, bounds, lengths, patterns, formats, enums, compiled into closures."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import msgspec

from fairlead.embedded.schema.faults import (
    Check,
    FaultKind,
    Faults,
    SchemaFault,
    invalid,
    join,
    shown,
    wrong_type,
)
from fairlead.embedded.schema.values import (
    INT32,
    INT64,
    compile_pattern,
    is_quantity,
    text_format,
    type_name,
)

Json: TypeAlias = Mapping[str, Any]


def scalar(wanted: str, checks: Sequence[Check]) -> Check:
    """Return the check of a scalar type, with further checks for values of that type."""
    match wanted:
        case "string":
            return _string(checks)
        case "boolean":
            return lambda value: None if isinstance(value, bool) else wrong_type(value, wanted)
        case "integer":
            return _number(checks, integral=True)
        case "number":
            return _number(checks, integral=False)
        case _:
            return lambda value: wrong_type(value, wanted)


def _string(checks: Sequence[Check]) -> Check:
    def plain(value: Any) -> Faults | None:
        return None if isinstance(value, str) else wrong_type(value, "string")

    return _then(plain, checks)


def _number(checks: Sequence[Check], *, integral: bool) -> Check:
    def plain(value: Any) -> Faults | None:
        kind = type(value)
        if kind is int or (kind is float and (not integral or value.is_integer())):
            return None
        return wrong_type(value, "integer" if integral else "number")

    return _then(plain, checks)


def _then(plain: Check, checks: Sequence[Check]) -> Check:
    """Run `checks` only when the type is right."""
    if not checks:
        return plain

    def check(value: Any) -> Faults | None:
        faults = plain(value)
        if faults is not None:
            return faults
        for test in checks:
            found = test(value)
            if found is not None:
                faults = join(faults, found)
        return faults

    return check


def only_for(classes: tuple[type, ...], checks: Sequence[Check]) -> Check:
    """Return checks that concern values of these classes only; a boolean is no number."""
    inner = _then(lambda _: None, checks)

    def check(value: Any) -> Faults | None:
        if isinstance(value, bool) or not isinstance(value, classes):
            return None
        return inner(value)

    return check


def int_or_string(value: Any) -> Faults | None:
    """Accept an integer or a text."""
    if isinstance(value, str) or type(value) is int:
        return None
    return wrong_type(value, "integer,string")


def quantity_check(value: Any) -> Faults | None:
    """Accept what a Quantity decodes from."""
    if is_quantity(value):
        return None
    detail = f'%s in body must be of type quantity: "{type_name(value)}"'
    return [SchemaFault(FaultKind.FORMAT, value, detail)]


def _rule(test: Callable[[Any], bool], detail: str) -> Check:
    def check(value: Any) -> Faults | None:
        return None if test(value) else invalid(value, detail)

    return check


def scalar_checks(schema: Json, wanted: str) -> list[Check]:
    """Return the checks of the schema's keywords that concern values of the type `wanted`."""
    if wanted == "string":
        return _string_checks(schema)
    return _number_checks(schema) if wanted in ("integer", "number") else []


def _string_checks(schema: Json) -> list[Check]:
    checks: list[Check] = []
    least, most = schema.get("minLength"), schema.get("maxLength")
    if least:
        checks.append(
            _rule(lambda v: len(v) >= least, f"%s in body should be at least {least} chars long")
        )
    if most is not None:
        fault = SchemaFault(FaultKind.TOO_LONG, detail=f"may not be more than {most} bytes")
        checks.append(lambda v: None if len(v) <= most else [fault])
    if schema.get("pattern"):
        search = compile_pattern(schema["pattern"]).search
        checks.append(
            _rule(lambda v: search(v) is not None, f"%s in body should match '{schema['pattern']}'")
        )
    name = str(schema.get("format", ""))
    test = text_format(name)
    if test is not None:
        checks.append(_format(name, test))
    return checks


def _format(name: str, test: Callable[[Any], bool]) -> Check:
    def check(value: Any) -> Faults | None:
        if test(value):
            return None
        detail = f"%s in body must be of type {name}: {shown(str(value))}"
        return [SchemaFault(FaultKind.FORMAT, value, detail)]

    return check


def _number_checks(schema: Json) -> list[Check]:
    checks: list[Check] = []
    least, most, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    for bound, exclusive, (beyond, up_to), words in (
        (least, "exclusiveMinimum", (operator.lt, operator.le), "greater"),
        (most, "exclusiveMaximum", (operator.gt, operator.ge), "less"),
    ):
        if bound is not None:
            test, more = (beyond, "") if schema.get(exclusive) else (up_to, " or equal to")
            words = f"{words} than{more} {bound}"
            checks.append(_rule(partial(test, bound), f"%s in body should be {words}"))
    if step:
        checks.append(
            _rule(lambda v: _is_multiple(v, step), f"%s in body should be a multiple of {step}")
        )
    bounds = {"int32": INT32, "int64": INT64}.get(str(schema.get("format", "")))
    if bounds is not None and not _implied(bounds, least, most):
        low, high = bounds
        checks.append(_format(str(schema["format"]), lambda v: low <= v <= high))
    return checks


def _implied(bounds: tuple[int, int], least: Any, most: Any) -> bool:
    return least is not None and most is not None and least >= bounds[0] and most <= bounds[1]


def _is_multiple(value: float, step: float) -> bool:
    if isinstance(value, int) and isinstance(step, int):
        return value % step == 0
    return (Fraction(str(value)) / Fraction(str(step))).denominator == 1


def enum_check(accepted: Sequence[Any]) -> Check:
    """Return the check that a value is one of `accepted`."""
    texts = [value if isinstance(value, str) else shown(value) for value in accepted]
    words = ", ".join(f'"{text}"' for text in texts)
    identities = {_exact(value) for value in accepted}

    def check(value: Any) -> Faults | None:
        if _exact(value) in identities:
            return None
        return [SchemaFault(FaultKind.UNSUPPORTED, value, f"supported values: {words}")]

    return check


def _exact(value: Any) -> object:
    """Return a hashable by which JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, (dict, list)):
        return ("json", msgspec.json.encode(value, order="sorted"))
    return ("bool" if isinstance(value, bool) else "scalar", value)
