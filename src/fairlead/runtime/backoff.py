"""Capped exponential back-off with jitter, for everything that asks the API again.

Each delay lies between half of and the whole of the doubled step, so that many clients that lost
the same server do not come back in the same instant. The random source is an argument: the
simulator's runs repeat.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffOptions:
    """First step and cap in seconds; a server's Retry-After counts up to its own cap."""

    seconds: float = 0.2
    seconds_max: float = 30.0
    retry_after_seconds_max: float = 60.0


class Backoff:
    """The delays of one series of failures; `reset` after a success."""

    def __init__(self, rng: random.Random, options: BackoffOptions | None = None) -> None:
        self._rng = rng
        self._options = options or BackoffOptions()
        self.failures = 0

    def next(self, retry_after_seconds: float = 0.0) -> float:
        """Count one more failure and return the seconds to wait, at least what the server asked."""
        delay = delay_seconds(self._rng, self.failures, self._options)
        self.failures += 1
        return max(delay, min(retry_after_seconds, self._options.retry_after_seconds_max))

    def reset(self) -> None:
        """Start again with the first step."""
        self.failures = 0


def delay_seconds(rng: random.Random, failures: int, options: BackoffOptions) -> float:
    """Return the jittered delay after `failures` earlier failures (0 gives the first step)."""
    step = doubled(options.seconds, failures, options.seconds_max)
    return step * (0.5 + 0.5 * rng.random())


def doubled(seconds: float, times: int, seconds_max: float) -> float:
    """Return a delay that was doubled so many times, at most `seconds_max`."""
    return min(seconds * 2.0 ** min(times, 60), seconds_max)
