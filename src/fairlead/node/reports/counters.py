"""Counters of hardware: growth over a whole window, and resets (pure).

A counter that is smaller than before began again: its driver was reloaded, or the device was
reset. Growth is never extrapolated: before a whole window was seen there is no rate.
"""

from __future__ import annotations

import msgspec

#: A window is remembered as so many samples, whatever the period of the looks is.
SAMPLES = 32


class Counter(msgspec.Struct, frozen=True):
    """What is remembered of a counter: its last value, and samples of (uptime, value)."""

    value: int
    samples: tuple[tuple[float, int], ...] = ()


class CounterGrowth(msgspec.Struct, frozen=True):
    """How a counter has changed.

    `since_last` is None at the first look and after a reset. `in_window` is the growth over the
    window, None before a whole one was seen; `seconds` is how long that growth took.
    """

    counter: Counter
    since_last: int | None
    in_window: int | None
    seconds: float
    was_reset: bool


def grown(
    before: Counter | None, value: int, uptime: float, window_seconds: float
) -> CounterGrowth:
    """Return how a counter has changed since it was looked at last."""
    was_reset = before is not None and value < before.value
    if before is None or was_reset:
        return CounterGrowth(Counter(value, ((uptime, value),)), None, None, 0.0, was_reset)
    samples = before.samples
    if not samples or uptime - samples[-1][0] >= window_seconds / SAMPLES:
        samples = (*samples, (uptime, value))
    # The newest sample that is at least a window old begins the window; older ones are not needed.
    whole = [i for i, (at, _) in enumerate(samples) if uptime - at >= window_seconds]
    samples = samples[whole[-1] :] if whole else samples
    first_at, first = samples[0]
    in_window = value - first if whole else None
    return CounterGrowth(
        Counter(value, samples), value - before.value, in_window, uptime - first_at, False
    )


def per_hour(growth: CounterGrowth) -> float | None:
    """Return the rate over the whole window; None before there is one."""
    if growth.in_window is None or growth.seconds <= 0:
        return None
    return growth.in_window * 3600 / growth.seconds
