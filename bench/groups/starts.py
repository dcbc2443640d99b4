"""How often a job starts within the range that `fairlead why` expects, and how wide that is.

And what the same predictions save when later jobs without a time limit may pass by them.

Generated loads on 64 GPUs. For recorded ones there is `tools/measure_forecasts.py`.
"""

from __future__ import annotations

import statistics

from bench.harness import Report
from bench.start_ranges import Answer, StartRanges, draw_loads
from fairlead.decide.placement.desk.policy import PlacementPolicy

SEEDS, JOBS, EVERY_SECONDS, ASK = range(3), 600, 190.0, 0.15


def run(report: Report) -> None:
    """Run the loads, ask about jobs that wait, and compare."""
    answers = list[Answer]()
    for seed in SEEDS:
        world = StartRanges(nodes=8, gpus=8, ask=ASK)
        world.run(draw_loads(seed, JOBS, every_seconds=EVERY_SECONDS), seed)
        answers += world.answers
    waits = [each.started_at - each.asked_at for each in answers]
    widths = [each.expected.latest - each.expected.earliest for each in answers]
    errors = [abs(each.expected.median - each.started_at) for each in answers]
    outside = 1 - statistics.fmean(each.is_right for each in answers)
    report.add("starts.answers", len(answers), "answers")
    report.add("starts.outside", outside, "share")
    report.add("starts.width", statistics.fmean(widths) / statistics.fmean(waits), "x wait")
    report.add("starts.error", statistics.fmean(errors) / statistics.fmean(waits), "x wait")
    _add_backfill(report)


def _add_backfill(report: Report) -> None:
    """Report the wait with predictions over that without, the mean and the longest of a load."""
    means, longest = list[float](), list[float]()
    for seed in SEEDS:
        loads, waits = draw_loads(seed, JOBS, every_seconds=EVERY_SECONDS), list[list[float]]()
        for policy in (PlacementPolicy(), PlacementPolicy(predictions_seconds_max=0.0)):
            world = StartRanges(nodes=8, gpus=8, ask=0.0, policy=policy)
            world.run(loads, seed)
            waits.append(world.waits)
        means.append(statistics.fmean(waits[0]) / statistics.fmean(waits[1]))
        longest.append(max(waits[0]) / max(waits[1]))
    report.add("starts.wait_predicted", statistics.fmean(means), "x unknown")
    report.add("starts.wait_predicted_max", statistics.fmean(longest), "x unknown")
