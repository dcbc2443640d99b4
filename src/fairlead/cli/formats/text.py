"""Text for people and from people: durations, sizes, cut at the end (pure)."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from fairlead.api.values import quantity

_UNIT_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"^(?:\d+(?:\.\d+)?[dhms])+$")
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_CLOCK = re.compile(r"^(?:(\d+)-)?(\d+)(?::(\d\d)(?::(\d\d))?)?$")
ELLIPSIS = "…"


def parse_duration(text: str) -> float:
    """Return the seconds of 12h, 1h30m, 2d, D-HH or [D-]HH:MM[:SS]; ValueError with examples."""
    raw = text.strip()
    if _DURATION.match(raw):
        return sum(float(amount) * _UNIT_SECONDS[unit] for amount, unit in _PART.findall(raw))
    if raw.isdigit():
        raise ValueError(f"'{text}' has no unit; write {raw}m for minutes or {raw}s for seconds")
    if match := _CLOCK.match(raw):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return days * 86_400 + hours * 3_600 + minutes * 60 + seconds
    raise ValueError(f"'{text}' is not a duration such as 12h, 1h30m, 2d, 12:00:00 or 1-12:00:00")


def parse_slurm_time(text: str) -> float:
    """Return the seconds of Slurm's --time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S (sbatch manual)."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        raise ValueError(f"'{text}' is not a Slurm time such as 90, 12:00:00 or 1-12:00:00")
    parts = [int(part) for part in match.groups()[1:] if part is not None]
    if match[1] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(match[1]) * 86_400 + hours * 3_600 + minutes * 60 + seconds
    if len(parts) == 3:
        return parts[0] * 3_600 + parts[1] * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def parse_slurm_limit(text: str) -> int:
    """Return the seconds of a time limit of Slurm, 0 for none; ValueError."""
    is_none = text.strip().upper() in ("UNLIMITED", "INFINITE", "-1")
    return 0 if is_none else int(parse_slurm_time(text))


def bytes_text(amount: int) -> str:
    """Return a size such as 12Ki, 3.4Mi; plain bytes below one KiB."""
    for suffix, power in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if amount >= 1 << power:
            return f"{amount / (1 << power):.1f}".removesuffix(".0") + suffix
    return f"{amount}B"


def cut_end(text: str, width: int) -> str:
    """Return `text`, its end replaced by one ellipsis when it is longer than `width` (>= 1)."""
    return text if len(text) <= width else text[: width - 1] + ELLIPSIS


def wrapped(text: str, width: int, indent: int) -> str:
    """Return the text with lines of at most `width` columns, their rests indented; 0: as it is.

    Words are not broken, but lists without spaces after a comma. A line that is indented deeper
    keeps that for its rest.
    """
    if not width:
        return text
    out: list[str] = []
    for line in text.splitlines():
        start = max(len(line) - len(line.lstrip()), indent)
        out += _Wrapper(width, subsequent_indent=" " * start, break_long_words=False,
                        break_on_hyphens=False).wrap(line) or [""]  # fmt: skip
    return "".join(f"{line}\n" for line in out)


class _Wrapper(textwrap.TextWrapper):
    """Wraps at white space and after commas."""

    wordsep_simple_re = re.compile(r"([\t\n\v\f\r ]+|(?<=,)(?=\S))")


_DIGITS = re.compile(r"(\d+)")


def natural(text: str) -> list[Any]:
    """Return a key that sorts numbers in names by their value: sweep-9 before sweep-10."""
    parts: list[Any] = _DIGITS.split(text)  # text and digits in turn
    parts[1::2] = map(int, parts[1::2])
    return parts


def two_spellings(text: str, number: str, unit: str) -> str:
    """Return that a size in GB may mean two sizes, and both of them."""
    decimal = quantity.to_base(quantity.MEMORY, f"{number}{unit if unit != 'K' else 'k'}")
    size = quantity.humanize(quantity.MEMORY, decimal)
    short = "k" if unit == "K" else unit
    return f"'{text}' can mean two sizes: write {number}{short} (= {size}) or {number}{unit}i"
