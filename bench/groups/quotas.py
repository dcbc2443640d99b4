"""A real history of quotas against a live queue: how many more nodes move than must.

All 63 quota changes of a Helios cluster, one changed day each simulated half an hour, while the
tenants submit jobs and the leading replica is killed twice amid its writes of taints
(`tests/simulation/quota_history.py`). A job that is lost, or another broken promise, ends it.

It takes an eighth of the quotas; with `FAIRLEAD_HELIOS_WHOLE=1` it takes all 154 nodes.
"""

from __future__ import annotations

import os
import time

from tests.simulation.quota_history import Moves, QuotaHistory, replay

from bench.harness import Report

#: By what quotas are divided, and the moves at which the leader is killed.
PART, WHOLE = (8, (30, 60)), (1, (150, 400))
DAY_SECONDS, RUN_SECONDS = 1800.0, 1800.0


def run(report: Report) -> None:
    """Replay the history once; equal seeds give equal figures but for the time."""
    is_whole = os.environ.get("FAIRLEAD_HELIOS_WHOLE") == "1"
    scale, kills_at = WHOLE if is_whole else PART
    history, moves, begun = QuotaHistory.read(scale), Moves(), time.process_time()
    world = replay(
        history, moves, day_seconds=DAY_SECONDS, run_seconds=RUN_SECONDS, kills_at=kills_at
    )
    jobs = world.checkers.finished.values()
    print(
        f"  {history.changes} changes of {len(history.teams)} teams, {history.nodes} nodes:"
        f" {len(moves.seen)} nodes moved, {history.moves_min} at least;"
        f" {world.teams.borrowed} borrowed, {world.preemptions.reclaims} jobs gave way to owners,"
        f" {world.kills} kills, {world.writes} writes,"
        f" {time.process_time() - begun:.0f} s CPU", flush=True,
    )  # fmt: skip
    succeeded = sum(job.status.state == "Succeeded" for job in jobs)
    report.add("quotas.jobs", len(world.checkers.accepted), "jobs")
    report.add("quotas.jobs_lost", len(world.checkers.accepted) - succeeded, "jobs")
    report.add("quotas.moved_over_least", len(moves.seen) / history.moves_min, "x least")
