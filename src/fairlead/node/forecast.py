"""When something that fills up will be full, from its growth at the latest looks (pure).

The slowest of the last steps counts: one jump, as of a gang that meets its peers, is no trend, and
three steps without growth are the end of one. Below half of the limit nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import msgspec

#: A step is at least so long, however often is looked.
STEP_SECONDS = 15.0
STEPS = 3
_PERCENT_MIN = 50


class Trend(msgspec.Struct, frozen=True):
    """Samples of (uptime, amount in use), the oldest first: one more than steps."""

    samples: tuple[tuple[float, int], ...] = ()


def followed(
    before: Mapping[str, Trend], used: Mapping[str, int], uptime: float
) -> dict[str, Trend]:
    """Return the trends of what is there now, with this look."""
    return {name: _with(before.get(name, Trend()), amount, uptime) for name, amount in used.items()}


def _with(trend: Trend, used: int, uptime: float) -> Trend:
    samples = trend.samples
    if samples and uptime - samples[-1][0] < STEP_SECONDS:
        return trend
    return Trend((*samples, (uptime, used))[-(STEPS + 1) :])


def forecast(trend: Trend, used: int, most: int, seconds_max: int) -> str:
    """Return that it will be full within so many seconds, and when; "" when it will not."""
    if len(trend.samples) <= STEPS or 100 * used < _PERCENT_MIN * most:
        return ""
    slowest = min((after[1] - before[1]) / (after[0] - before[0])
                  for before, after in pairwise(trend.samples))  # fmt: skip
    if slowest <= 0 or (seconds := max(0, most - used) / slowest) > seconds_max:
        return ""
    seen = trend.samples[-1][0] - trend.samples[0][0]
    return (f"full in {seconds:,.0f} s at the slowest growth of the last {seen:.0f} s, "
            f"{slowest:,.1f} a second")  # fmt: skip
