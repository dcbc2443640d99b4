"""Jobs start within the ranges that are expected of them about as often as is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.start_ranges import StartRanges, draw_loads
from tools.measure_forecasts import measured

from fairlead.decide.placement.waiting.run_times import Likeness, RunTimes


def share_right(ask: float) -> tuple[int, float]:
    """How many jobs are asked about that wait, and the share that starts within the range."""
    world = StartRanges(nodes=4, gpus=8, ask=ask, ask_from=150)
    world.run(draw_loads(3, 300, every_seconds=330.0), 3)
    return len(world.answers), sum(each.is_right for each in world.answers) / len(world.answers)


def test_nine_of_ten_jobs_start_within_the_range() -> None:
    count, share = share_right(0.4)
    assert count > 40
    assert 0.85 <= share <= 0.98


def test_run_times_that_are_wrong_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    remaining = RunTimes.remaining

    def quarter(
        times: RunTimes, likeness: Likeness, elapsed: float, quantile: float
    ) -> float | None:
        seconds = remaining(times, likeness, elapsed, quantile)
        return None if seconds is None else seconds / 4

    monkeypatch.setattr(RunTimes, "remaining", quarter)
    assert share_right(0.3)[1] < 0.7


def test_a_recorded_load_is_measured_by_its_second_half(tmp_path: Path) -> None:
    """Jobs of four minutes on one GPU, one each three minutes: all but the first ones wait."""
    trace = tmp_path / "trace.csv"
    rows = [f"{180 * number},{240 + number % 9},1,1,ana" for number in range(60)]
    trace.write_text("\n".join(["submit_seconds,run_seconds,members,gpus,tenant", *rows]))
    cells = measured(trace, gpus=1, part=1, ask=0.5).strip("| ").split(" | ")
    name, gpus, asked, answered, right, _, known, ends = cells
    assert (name, gpus, known) == ("trace.csv", "1", "100.0 %")
    assert int(asked) >= int(answered) > 10
    assert float(right.split()[0]) > 80.0
    assert float(ends.split()[0]) > 80.0
