"""A full cluster in one process: 7,500 nodes, 50 gangs of a thousand members each; and its restart.

The pods come from the jobs controller, run on the virtual nodes, and are in every mirror: nothing
is preloaded. The restart is that of the same data directory after an orderly stop.
"""

from __future__ import annotations

import time

from bench.cluster import JOBS, PODS, cluster, wait_until
from bench.harness import Report, slowness
from bench.objects import encoded, gang_body
from bench.processes import cpu_seconds, resident_bytes

NODES, GANGS, MEMBERS = 7_500, 50, 1_000


def run(report: Report) -> None:
    """Fill the cluster, read its memory, and start it anew."""
    with cluster() as made:
        made.up("--nodes", str(NODES))
        report.add("memory.nodes_only", resident_bytes(made.pid) / 1e6, "MB")
        start, cpu = time.perf_counter(), cpu_seconds(made.pid)
        for turn in range(GANGS):
            made.call("POST", JOBS, encoded(gang_body(f"gang-{turn}", MEMBERS)))
        wait_until(lambda: made.count(PODS) == GANGS * MEMBERS, seconds=300, look_seconds=0.5)
        created = time.perf_counter() - start
        wait_until(lambda: made.running_jobs() == GANGS, seconds=300, look_seconds=1)
        cpu = cpu_seconds(made.pid) - cpu
        report.add("memory.pods_created", created, "s")
        report.add("memory.fill_cpu_per_pod", cpu / (GANGS * MEMBERS) * 1e6, "us CPU")
        report.add("memory.full", resident_bytes(made.pid) / 1e6, "MB")
        made.down()
        slow = slowness()
        taken = made.up()
        report.add("cli.restart_full", taken / ((slow + slowness()) / 2), "s")
        report.add("cli.restart_full_here", taken, "s")
        report.add("memory.restarted", resident_bytes(made.pid) / 1e6, "MB")
        assert made.count(PODS) == GANGS * MEMBERS, "nothing is lost"
