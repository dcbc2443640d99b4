"""Lists of hosts in Slurm's short form: `n[1-3,7]` is n1, n2, n3 and n7."""

from __future__ import annotations

import re

from fairlead.cli.slurm_tools.options import ToolError, split_list

HOSTS_MAX = 100_000
_BRACKETS = re.compile(r"([^\[\]]*)\[([0-9,-]+)\](.*)", re.DOTALL)


def expand(text: str) -> list[str]:
    """Return the hosts of a list in their order; ToolError where it is none."""
    out: list[str] = []
    for part in split_list(text):
        out += _expand_one(part)
        if len(out) > HOSTS_MAX:
            raise ToolError(f"Invalid hostlist: more than {HOSTS_MAX} hosts")
    return out


def _expand_one(text: str) -> list[str]:
    match = _BRACKETS.fullmatch(text)
    if match is None:
        if "[" in text or "]" in text:
            raise ToolError(f"Invalid hostlist: {text}")
        return [text]
    prefix, ranges, rest = match[1], match[2], match[3]
    numbers = [number for each in ranges.split(",") for number in _range(each, text)]
    return [f"{prefix}{number}{tail}" for number in numbers for tail in _expand_one(rest)]


def _range(text: str, whole: str) -> list[str]:
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ToolError(f"Invalid hostlist: {whole}")
    begin, end = int(first), int(last or first)
    if not begin <= end < begin + HOSTS_MAX:
        raise ToolError(f"Invalid hostlist: {whole}")
    return [str(number).zfill(len(first)) for number in range(begin, end + 1)]
