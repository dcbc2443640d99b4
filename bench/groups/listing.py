"""An array of 1,000 programs of one line: how long it takes, and `squeue` while it runs.

As wall times: of `squeue` beside an empty cluster in the same run, and both divided by the speed of
a calibration loop before and after. With the array the cluster's own work is in the command's time,
too, and the commands are in the array's. As many programs run at a time as the machine has cores.
"""

from __future__ import annotations

import statistics
import time

from bench.cluster import Cluster, cluster, wait_until
from bench.harness import Report, slowness

PROGRAMS, CALLS = 1_000, 7
END_SECONDS_MAX = 1_200
_LINE = "#!/bin/bash\necho $SLURM_ARRAY_TASK_ID\n"
_FORM = ("-h", "-r", "-t", "all", "-n", "lines", "-o", "%i %T")


def run(report: Report) -> None:
    """Call it on the empty cluster and while the array runs."""
    with cluster() as made:
        made.up()
        empty = statistics.median(_seconds(made)[0] for _ in range(CALLS))
        script = made.root / "line.sh"
        script.write_text(_LINE)
        slow, begun = slowness(), time.perf_counter()
        made.slurm("sbatch", "-J", "lines", f"--array=0-{PROGRAMS - 1}", "-c", "1", str(script))
        running: list[float] = []
        while len(running) < CALLS:
            taken, states = _seconds(made)
            assert len(states) == PROGRAMS, f"{len(states)} tasks are listed"
            assert not all(state == "COMPLETED" for state in states), "the array ended too early"
            running.append(taken)
        wait_until(
            lambda: set(_seconds(made)[1]) == {"COMPLETED"},
            seconds=END_SECONDS_MAX, look_seconds=1.0,
        )  # fmt: skip
        whole = time.perf_counter() - begun
        slow = (slow + slowness()) / 2
    print(
        f"  squeue: {empty:.2f} s empty, {statistics.median(running):.2f} s (at most "
        f"{max(running):.2f}) beside {PROGRAMS} tasks, which took {whole:.0f} s",
        flush=True,
    )
    report.add("listing.squeue_ratio", statistics.median(running) / empty, "x empty")
    report.add("listing.squeue", statistics.median(running) / slow, "s")
    report.add("listing.programs", whole / slow, "s")


def _seconds(made: Cluster) -> tuple[float, list[str]]:
    """Return how long `squeue` takes, and the states that it shows."""
    begun = time.perf_counter()
    lines = made.slurm("squeue", *_FORM).splitlines()
    return time.perf_counter() - begun, [line.split()[1] for line in lines]
