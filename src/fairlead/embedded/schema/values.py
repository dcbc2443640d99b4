"""Leaf checks of schemas: formats, patterns and the JSON names of types.

Formats and what they mean: kube-openapi `pkg/validation/strfmt`. Formats that are not listed are
ignored, as the API server does with unknown ones. Patterns are Go's RE2; those that Python's `re`
would read in another way are refused when the schema is compiled.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fairlead.api.values import quantity, times

_UUID = re.compile(r"(?i)[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_HOSTNAME = re.compile(
    r"(?!.{254})[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_DURATION = re.compile(r"[+-]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h|d|w)( ?))+")
_NOT_IN_GO = re.compile(r"\(\?(?:=|!|<=|<!|\(|#|>)|\\[1-9]|[*+?}]\+")
_NOT_IN_PYTHON = re.compile(r"\\[pPQCE]|\[\[:")

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)


def as_map(value: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, and an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def type_name(value: Any) -> str:
    """Return the JSON type of a value: null, boolean, string, integer, number, array or object."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int():
            return "integer"
        case float():
            return "number"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def _date(text: str) -> None:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    times.parse_time(f"{text}T00:00:00Z")


def _matches(pattern: re.Pattern[str]) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not pattern.fullmatch(text):
            raise ValueError(text)

    return check


#: Each raises ValueError for a text that is not of the format.
_FORMATS: dict[str, Callable[[str], object]] = {
    "date-time": times.parse_time,
    "datetime": times.parse_time,
    "date": _date,
    "byte": partial(base64.b64decode, validate=True),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "cidr": lambda text: ipaddress.ip_network(text, strict=False),
    "uuid": _matches(_UUID),
    "hostname": _matches(_HOSTNAME),
    "duration": _matches(_DURATION),
}


def text_format(name: str) -> Callable[[str], bool] | None:
    """Return the test for a string format, None when the format is not checked."""
    parse = _FORMATS.get(name)
    if parse is None:
        return None

    def test(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return test


def is_quantity(value: Any) -> bool:
    """True for what a Quantity decodes from: a text such as 500m, or a number."""
    if isinstance(value, str):
        return quantity.is_quantity(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def compile_pattern(text: str) -> re.Pattern[str]:
    """Compile a Go regular expression for `search`; ValueError says what is wrong with it."""
    if found := _NOT_IN_GO.search(text):
        raise ValueError(f"'{found[0]}' is not part of the RE2 syntax")
    if found := _NOT_IN_PYTHON.search(text):
        raise ValueError(f"'{found[0]}' is not supported by this server")
    try:
        return re.compile(_anchored(text), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _anchored(text: str) -> str:
    r"""Write `$` and `\z` as `\Z`: Python's `$` would also match before a last newline."""
    out: list[str] = []
    in_class = False
    chars = iter(text)
    for char in chars:
        if char == "\\":
            following = next(chars, "")
            out.append(r"\Z" if following == "z" and not in_class else char + following)
            continue
        if char in "[]":
            in_class = char == "["
        out.append(r"\Z" if char == "$" and not in_class else char)
    return "".join(out)
