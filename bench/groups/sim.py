"""How fast the simulator runs: writes of a small world per second, and per calibration loop."""

from __future__ import annotations

import statistics
import time

from bench.harness import REFERENCE_SECONDS, Report, cpu_slowness
from fairlead.sim.workload import WorkloadOptions
from fairlead.sim.world import simulate
from fairlead.sim.world_options import WorldOptions

NODES, JOBS, SECONDS, SEED, ROUNDS = 64, 100, 21_600.0, 7, 3


def run(report: Report) -> None:
    """Simulate the same world several times; equal seeds must give equal logs."""
    options = WorldOptions(nodes=NODES, workload=WorkloadOptions(JOBS, SECONDS))
    rates, hashes, writes = [], set[str](), 0
    for _ in range(ROUNDS):
        slow = cpu_slowness()
        start = time.process_time()
        outcome = simulate(options, SEED)
        taken = time.process_time() - start
        slow = (slow + cpu_slowness()) / 2
        rates.append(outcome.writes / taken * slow)
        hashes.add(outcome.log_hash)
        writes = outcome.writes
    rate = statistics.median(rates)
    report.add("sim.different_logs", len(hashes), "logs")  # of one seed: must be one
    report.add("sim.writes", writes, "writes")
    report.add("sim.writes_per_second", rate, "1/s CPU")
    report.add("sim.writes_per_loop", rate * REFERENCE_SECONDS, "writes")
