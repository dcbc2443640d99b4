"""What a schema says of a value, in words for people (pure).

The API words its findings as Kubernetes does (`Invalid value: "string": spec.x in body must be of
type integer: "string"`), for tools. At the terminal the value itself and what is accepted are said.
"""

from __future__ import annotations

import re

from fairlead.input.suggest import nearest

_TYPES = {
    "integer": "a whole number", "number": "a number", "string": "a text",
    "boolean": "true or false",
    "object": "a mapping of fields", "array": "a list",
}  # fmt: skip
_TYPE = re.compile(r"in body must be of type (\w+)")
_EXPECTED_INT = "Expected `int`, got "  # msgspec, of 1e3 and the like
_BOUND = re.compile(r"in body should (?:be|have) ((?:greater|less) than(?: or equal to)? \S+|"
                    r"at (?:least|most) .+)$")  # fmt: skip
_ITEMS = re.compile(r"should have (at (?:least|most) \d+ \w+)")
_SUPPORTED = re.compile(r"^Unsupported value: .*?: supported values: (.*)$")
_PREFIX = re.compile(r"^(?:Invalid value|Forbidden|Duplicate value|Too long|Too many)(?:: |$)")
QUANTITY = "numkKMGTP"


def reword(message: str, field: str, got: str | None) -> tuple[str, str]:
    """Return (message, help) for a finding on `field`; `got` is the value if a scalar."""
    shown = f"'{got}' " if got is not None else ""
    name = re.sub(r"^.*\.", "", field)
    if message.startswith("Required value"):
        rest = message.removeprefix("Required value").removeprefix(": ")
        return (f"'{name}' is missing" + (f": {rest}" if rest else ""), "")
    if match := _SUPPORTED.match(message):
        accepted = re.findall(r'"([^"]*)"', match[1])
        near = nearest(got or "", accepted)
        return f"{shown}must be one of {', '.join(accepted)}", f"write {near}" if near else ""
    if message.startswith("Duplicate value"):
        return f"{message.partition(': ')[2] or name} stands twice; each must be different", ""
    if match := _TYPE.search(message):
        return f"{shown}must be {_TYPES.get(match[1], match[1])}", ""
    if _EXPECTED_INT in message:
        return f"{shown}must be a whole number", ""
    if QUANTITY in message and "should match" in message:
        return f"{shown}is not a quantity such as 500m, 8 or 16Gi", ""
    if match := _ITEMS.search(message) or _BOUND.search(message):
        verb = "must have" if match.re is _ITEMS else "must be"
        bound = re.sub(r"\b1 items$", "1 item", match[1].rstrip("."))
        return f"{shown}{verb} {bound}", ""
    without = _PREFIX.sub("", message)
    without = re.sub(r'^"(?:[^"\\]|\\.)*": |^\S+: ', "", without) if without != message else without
    return (f"{shown}{without}" if got is not None and shown not in without else without), ""
