"""How long people wait for the command line, and for a cluster to come up."""

from __future__ import annotations

import statistics
import time

from bench.cluster import cluster
from bench.harness import Report, slowness

HELP_RUNS = 10
FLEETS = ((200, 3), (7_500, 1))  # virtual nodes, repeats


def run(report: Report) -> None:
    """Measure `--help`, and `up --detach` from the start of the process until it is ready."""
    with cluster() as made:
        made.fairlead("--help")
        taken: list[float] = []
        slow = slowness()
        for _ in range(HELP_RUNS):
            start = time.perf_counter()
            made.fairlead("--help")
            taken.append(time.perf_counter() - start)
    slow = (slow + slowness()) / 2
    report.add("cli.help", statistics.median(taken) / slow * 1e3, "ms")
    for nodes, repeats in FLEETS:
        starts: list[float] = []
        for _ in range(repeats):
            with cluster() as made:
                slow = slowness()
                taken_seconds = made.up("--nodes", str(nodes))
                starts.append(taken_seconds / ((slow + slowness()) / 2))
        report.add(f"cli.up_{nodes}", statistics.median(starts), "s")
