"""How often a job starts within the range that `fairlead why` expects, and how wide that is.

And what the same predictions save when later jobs without a time limit may pass by them.

Generated loads on 64 GPUs. Where `FAIRLEAD_PHILLY_TRACE` names the Philly trace, each eighth of its
jobs on an eighth of the GPUs as well, without time limits: real users and run times.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Report
from bench.start_ranges import Answer, Load, StartRanges, draw_loads
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.sim.traces.readers import read_trace

SEEDS, JOBS, EVERY_SECONDS, ASK = range(3), 600, 190.0, 0.15
PART, PHILLY_GPUS, PHILLY_ASK = 8, 87, 0.05


def run(report: Report) -> None:
    """Run the loads, ask about jobs that wait, and compare."""
    answers = list[Answer]()
    for seed in SEEDS:
        world = StartRanges(nodes=8, gpus=8, ask=ASK)
        world.run(draw_loads(seed, JOBS, every_seconds=EVERY_SECONDS), seed)
        answers += world.answers
    _add(report, "starts", answers)
    _add_backfill(report)
    path = Path(os.environ.get("FAIRLEAD_PHILLY_TRACE", ""))
    if not path.is_file():
        report.skip("starts.philly", "FAIRLEAD_PHILLY_TRACE does not name the Philly trace")
        return
    world = StartRanges(nodes=1, gpus=PHILLY_GPUS, ask=PHILLY_ASK)
    world.run(_philly(path), 1)
    _add(report, "starts.philly", world.answers)
    report.add("starts.philly_unknown", world.unknown, "answers")


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


def _philly(path: Path) -> list[Load]:
    jobs = read_trace(path, "philly").jobs[::PART]
    return [
        Load(job.at_seconds, job.tenant, job.members * job.gpus, job.run_seconds)
        for job in jobs
        if job.members * job.gpus <= PHILLY_GPUS
    ]


def _add(report: Report, name: str, answers: Sequence[Answer]) -> None:
    waits = [each.started_at - each.asked_at for each in answers]
    widths = [each.expected.latest - each.expected.earliest for each in answers]
    errors = [abs(each.expected.median - each.started_at) for each in answers]
    report.add(f"{name}.answers", len(answers), "answers")
    report.add(f"{name}.outside", 1 - statistics.fmean(each.is_right for each in answers), "share")
    report.add(f"{name}.width", statistics.fmean(widths) / statistics.fmean(waits), "x wait")
    report.add(f"{name}.error", statistics.fmean(errors) / statistics.fmean(waits), "x wait")
