"""Jobs start within the ranges that are expected of them about as often as is said."""

from __future__ import annotations

import pytest
from bench.start_ranges import StartRanges, draw_loads

from fairlead.decide.run_times import RunTimes
from fairlead.model.cluster import JobEntry


def share_right() -> tuple[int, float]:
    world = StartRanges(nodes=4, gpus=8, ask=0.3, ask_from=150)
    world.run(draw_loads(3, 300, every_seconds=360.0), 3)
    return len(world.answers), sum(each.is_right for each in world.answers) / len(world.answers)


def test_nine_of_ten_jobs_start_within_the_range() -> None:
    count, share = share_right()
    assert count > 40
    assert 0.85 <= share <= 0.98


def test_run_times_that_are_wrong_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    remaining = RunTimes.remaining

    def quarter(times: RunTimes, entry: JobEntry, elapsed: float, quantile: float) -> float:
        return remaining(times, entry, elapsed, quantile) / 4

    monkeypatch.setattr(RunTimes, "remaining", quarter)
    assert share_right()[1] < 0.7
