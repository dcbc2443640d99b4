"""Delays: how they grow, where they lie, and what a server asks for."""

from __future__ import annotations

import random

import pytest

from fairlead.runtime.backoff import Backoff, BackoffOptions, delay_seconds

OPTIONS = BackoffOptions(seconds=1.0, seconds_max=20.0, retry_after_seconds_max=40.0)


@pytest.mark.parametrize(
    ("failures", "step"), [(0, 1.0), (1, 2.0), (4, 16.0), (5, 20.0), (5_000, 20.0)]
)
def test_delays_fill_the_upper_half_of_their_step(failures: int, step: float) -> None:
    rng = random.Random(0)  # a test
    delays = [delay_seconds(rng, failures, OPTIONS) / step for _ in range(1_000)]
    assert 0.5 <= min(delays) < 0.55
    assert 0.95 < max(delays) <= 1.0


def test_each_failure_doubles_the_step_until_a_success() -> None:
    backoff, steps = Backoff(random.Random(1), OPTIONS), [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]
    for step in steps:
        assert step / 2 <= backoff.next() <= step
    assert backoff.failures == len(steps)
    backoff.reset()
    assert 0.5 <= backoff.next() <= 1.0


@pytest.mark.parametrize(("asked", "least"), [(0.0, 0.5), (0.1, 0.5), (7.0, 7.0), (900.0, 40.0)])
def test_a_server_is_waited_for_as_long_as_it_asks_within_bounds(
    asked: float, least: float
) -> None:
    delay = Backoff(random.Random(2), OPTIONS).next(asked)
    assert least <= delay <= max(least, 1.0)
