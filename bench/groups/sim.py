"""How fast the simulator runs: writes of a small world per second, and per calibration loop.

And what a job costs in counts, which no other load on the machine changes: writes, API requests
and decisions of the controllers, of a scenario without faults.
"""

from __future__ import annotations

import statistics
import time

from bench.harness import REFERENCE_SECONDS, Report, cpu_slowness
from fairlead.sim.run import Run
from fairlead.sim.scenario import ClusterSpec, LoadSpec, Scenario
from fairlead.sim.workload import WorkloadOptions
from fairlead.sim.world import simulate
from fairlead.sim.world_options import WorldOptions

NODES, JOBS, SECONDS, SEED, ROUNDS = 64, 100, 21_600.0, 7, 3


CALM = Scenario(
    cluster=ClusterSpec(nodes=16),
    load=LoadSpec(days=1.0, jobs_per_day=200.0, members_max=1, run_seconds_max=3600.0),
    seed=7,
)


def run(report: Report) -> None:
    """Measure the speed, then the counts."""
    _speed(report)
    _counts(report)


def _counts(report: Report) -> None:
    result = Run(CALM).run()
    jobs, requests = result.summary.jobs, result.summary.requests_by_service
    decisions = sum(times.count for times in result.recorder.decision_times.values())
    calls = sum(sum(counts.values()) for counts in requests.values())
    report.add("sim.writes_per_job", result.summary.writes / jobs, "writes")
    report.add("sim.requests_per_job", calls / jobs, "requests")
    report.add("sim.decisions_per_job", decisions / jobs, "decisions")


def _speed(report: Report) -> None:
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
