"""Instants as Slurm's commands take them, in the time zone of this machine.

Source: the manuals of sbatch (`--begin`, `--deadline`) and of sacct (`--starttime`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

_RELATIVE = re.compile(r"now(?:([+-])(\d{1,9})([a-z]*))?")
_UNITS: Mapping[str, int] = {
    "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800,
    **{f"{unit}{end}": seconds
       for unit, seconds in (("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400),
                             ("week", 604_800))
       for end in ("", "s")},
}  # fmt: skip
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_CLOCKS = {"midnight": 0, "noon": 12, "fika": 15, "elevenses": 11, "teatime": 16}
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*(am|pm)?")
_FORMS = (
    "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d", "%m/%d/%y-%H:%M:%S", "%m/%d/%y-%H:%M",
    "%m/%d/%y", "%m.%d.%y", "%m%d%y",
)  # fmt: skip


def parse_instant(text: str, now: float, *, is_ahead: bool = False) -> float:
    """Return the instant of a time, in seconds since the epoch; ValueError.

    With `is_ahead` a time of day that is over today is that of tomorrow.
    """
    wanted = text.strip().lower()
    match = _RELATIVE.fullmatch(wanted)
    if match is not None and (match[3] or "") in _UNITS:
        return now + int(f"{match[1] or '+'}{match[2] or 0}") * _UNITS[match[3] or ""]
    if wanted in _DAYS:
        return _midnight(now, _DAYS[wanted])
    clock = _seconds_of_day(wanted)
    if clock is not None:
        found = _midnight(now) + clock
        return _midnight(now, 1) + clock if is_ahead and found < now else found
    for form in _FORMS:
        try:
            return time.mktime(time.strptime(text.strip(), form))
        except (ValueError, OverflowError):
            continue
    raise ValueError(f"'{text}' is not a time such as 2026-11-20T08:15, 18:00 or now+2hours")


def _seconds_of_day(text: str) -> int | None:
    if text in _CLOCKS:
        return _CLOCKS[text] * 3_600
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (match[4] == "pm")
    return None if hour > 23 or minute > 59 or second > 59 else (hour * 60 + minute) * 60 + second


def _midnight(now: float, days: int = 0) -> float:
    """Return when the day began that is so many days after today."""
    year, month, day = time.localtime(now)[:3]
    return time.mktime((year, month, day + days, 0, 0, 0, 0, 0, -1))
