"""What a job that has ended costs in the memory of `fairlead up` while it is kept.

Jobs of one member run for a second on virtual nodes. Some come first, so that what grows once is
there; the figure is what each further one adds, with the record of it in the history and without
its pods, which are gone by then.
"""

from __future__ import annotations

from pathlib import Path

from bench.cluster import JOBS, PODS, Cluster, cluster, wait_until
from bench.harness import Report
from bench.objects import encoded, gang_body
from bench.processes import resident_bytes

NODES, FIRST, MORE = 200, 500, 1_500
WAIT_SECONDS_MAX = 900


def run(report: Report) -> None:
    """Let jobs come and go, and read the memory before and after."""
    with cluster() as made:
        settings = Path(made.root, "settings.yaml")
        settings.write_text("jobs:\n  keepFinishedPodsSeconds: 0\n")
        made.up("--nodes", str(NODES), "--settings", str(settings))
        _run_to_the_end(made, range(FIRST))
        before = resident_bytes(made.pid)
        _run_to_the_end(made, range(FIRST, FIRST + MORE))
        report.add("ended.job", (resident_bytes(made.pid) - before) / MORE / 1e3, "kB")
        assert made.count(JOBS) == FIRST + MORE, "none is removed meanwhile"


def _run_to_the_end(made: Cluster, numbers: range) -> None:
    """Submit jobs and wait until all have ended and have no pods."""
    for number in numbers:
        body = gang_body(f"job-{number}", 1, run_seconds=1)
        made.call("POST", JOBS, encoded(body))
    wait_until(lambda: _ended(made) == numbers.stop, seconds=WAIT_SECONDS_MAX, look_seconds=2)
    wait_until(lambda: made.count(PODS) == 0, seconds=WAIT_SECONDS_MAX, look_seconds=2)


def _ended(made: Cluster) -> int:
    items = made.call("GET", JOBS)["items"]
    return sum(item.get("status", {}).get("state") == "Succeeded" for item in items)
