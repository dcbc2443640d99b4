"""Measures how often recorded jobs start, and end, within the ranges that are expected of them.

    tools/measure_forecasts.py philly_jobs_sep_oct.csv.gz:700 lublin_256.swf.gz:256 --part 8

Each trace is replayed on so many GPUs: the planner alone, event by event (`bench/start_ranges.py`).
Its first half is what is learned from. In the second half waiting jobs are asked about now and
then, and their starts are compared with the answers. With `--part N` each N-th job is taken, on an
N-th of the GPUs. The traces do not come with the project.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.start_ranges import Load, StartRanges  # noqa: E402

from fairlead.sim.traces.readers import read_trace  # noqa: E402

HEADER = """\
| trace | GPUs | asked | answered | starts within | width | ends known | ends within |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def measured(path: Path, gpus: int, part: int, ask: float) -> str:
    """Return the row of a trace."""
    jobs = [
        job for job in read_trace(path).jobs[::part] if job.gpus and job.members * job.gpus <= gpus
    ]
    loads = [
        Load(job.at_seconds, job.tenant, job.members * job.gpus, job.run_seconds) for job in jobs
    ]
    half = len(loads) // 2
    world = StartRanges(nodes=1, gpus=gpus, ask=ask, ask_from=half)
    world.run(loads, seed=1)
    answers, ends = world.answers, [each for each in world.ends if each is not None]
    widths = [
        (each.expected.latest - each.expected.earliest) / max(each.started_at - each.asked_at, 60)
        for each in answers
    ]
    right = sum(each.is_right for each in answers)
    cells = (
        path.name, gpus, len(answers) + world.unknown, len(answers), share(right, len(answers)),
        f"{statistics.median(widths):.1f} waits" if answers else "-",
        share(len(ends), len(world.ends)), share(sum(ends), len(ends)),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def share(part: int, whole: int) -> str:
    """Return e.g. "91.2 %"."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def main() -> None:
    """Print a table with a row for each trace."""
    parser = argparse.ArgumentParser(description="Measures forecasts with recorded loads.")
    parser.add_argument("traces", metavar="FILE:GPUS", nargs="+")
    parser.add_argument("--part", type=int, default=1, metavar="N", help="take each N-th job")
    parser.add_argument(
        "--ask", type=float, default=0.05, help="the chance of a question per event"
    )
    args = parser.parse_args()
    print(HEADER)
    for trace in args.traces:
        name, _, gpus = trace.rpartition(":")
        print(measured(Path(name), int(gpus) // args.part, args.part, args.ask), flush=True)


if __name__ == "__main__":
    main()
