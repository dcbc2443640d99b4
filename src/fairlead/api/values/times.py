"""Instants on the wire: RFC 3339 in UTC, whole seconds (Time) or microseconds (MicroTime).

Inside, an instant is a float of seconds since the Unix epoch, a duration a float of seconds.
Pure: the calendar arithmetic is done here, no clock is read.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar

D = TypeVar("D")

_SECONDS_PER_DAY = 86_400
_CACHED_MAX = 4096
_PATTERN = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(\.\d{1,18})?([Zz]|[+-](\d\d):(\d\d))",
    re.ASCII,
)


def _days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a Gregorian date (Hinnant, "chrono-compatible date algorithms")."""
    year -= month <= 2
    era = year // 400
    yoe = year - era * 400
    doy = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    doe = yoe * 365 + yoe // 4 - yoe // 100 + doy
    return era * 146_097 + doe - 719_468


def _civil_from_days(days: int) -> tuple[int, int, int]:
    days += 719_468
    era = days // 146_097
    doe = days - era * 146_097
    yoe = (doe - doe // 1460 + doe // 36_524 - doe // 146_096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + (3 if mp < 10 else -9)
    return (yoe + era * 400 + (month <= 2), month, doy - (153 * mp + 2) // 5 + 1)


@lru_cache(maxsize=_CACHED_MAX)  # of the times that are read most are of a few days
def _days_of(year: str, month: str, day: str) -> int | None:
    """Return the days since 1970-01-01 of a date in digits; None for one that does not exist."""
    date = (int(year), int(month), int(day))
    days = _days_from_civil(*date)
    return days if 1 <= date[1] <= 12 and _civil_from_days(days) == date else None


def format_time(instant: float) -> str:
    """Return e.g. "2026-11-20T08:15:30Z"; fractions of a second are cut off."""
    return _format_second(int(instant // 1))


@lru_cache(maxsize=_CACHED_MAX)  # one decision writes one instant into many places
def _format_second(seconds: int) -> str:
    days, rest = divmod(seconds, _SECONDS_PER_DAY)
    year, month, day = _civil_from_days(days)
    return (
        f"{year:04d}-{month:02d}-{day:02d}"
        f"T{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}Z"
    )


def format_micro_time(instant: float) -> str:
    """Return e.g. "2026-11-20T08:15:30.000123Z"."""
    micros = round(instant * 1_000_000)
    seconds, micros = divmod(micros, 1_000_000)
    return f"{format_time(seconds)[:-1]}.{micros:06d}Z"


@lru_cache(maxsize=_CACHED_MAX)  # what starts together names the same second
def parse_time(text: str) -> float:
    """Return the instant of an RFC 3339 text; ValueError when it is none (nor for leap seconds).

    As a float it is exact to about a quarter of a microsecond in our century.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not an RFC 3339 time such as 2026-11-20T08:15:30Z")
    days = _days_of(match[1], match[2], match[3])
    hour, minute, second = int(match[4]), int(match[5]), int(match[6])
    zone_hours, zone_minutes = int(match[9] or 0), int(match[10] or 0)
    valid = hour < 24 and minute < 60 and second < 60 and zone_hours < 24 and zone_minutes < 60
    if days is None or not valid:
        raise ValueError(f"'{text}' is not an RFC 3339 time: a field is out of range")
    instant = float(days * _SECONDS_PER_DAY + hour * 3600 + minute * 60 + second)
    if match[7]:
        instant += float(match[7])
    if match[8] not in "Zz":
        sign = 1 if match[8][0] == "+" else -1
        instant -= sign * (zone_hours * 3600 + zone_minutes * 60)
    return instant


def time_or(text: str | None, default: D) -> float | D:
    """Return the instant of an RFC 3339 text; the default for none, and for what is no time."""
    try:
        return parse_time(text) if text else default
    except ValueError:
        return default
