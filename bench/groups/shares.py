"""What teams gain by sharing: the tenants of the Philly trace as teams, in an ideal simulation.

All GPUs are one pool, as in the bare queue beside it (`bench/bare_queue.py`): every member asks for
one GPU, and a team's share is one node that has all its GPUs. A wait ends when the job first runs.
A job that gives way starts from the beginning, or from its last checkpoint where
`FAIRLEAD_PHILLY_CHECKPOINT_SECONDS` says how often it saves one, so its delay counts as well: all
time from submission to the end but for the run itself.

The trace does not come with the project: `FAIRLEAD_PHILLY_TRACE` names the file
(`philly_jobs_sep_oct.csv.gz`: September and October 2017, 52,849 jobs). The bench takes each eighth
job of four days on an eighth of the GPUs. With `FAIRLEAD_PHILLY_EVERY=n` it takes each n-th job of
all days on 696 / n GPUs; the whole, 1, takes more than an hour on two cores.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.bare_queue import BareJob, bare_waits
from bench.harness import Report
from fairlead.runtime.outside.worker_process import end_with_parent
from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.sim.scenarios.scenario import ClusterSpec, LoadSpec, Scenario, TenantTeams
from fairlead.sim.traces.readers import read_trace, write_csv
from fairlead.sim.traces.trace import Trace, TraceJob

TENANTS = 12
#: The first and the last of the days whose jobs are taken, and how much faster they arrive, so that
#: a queue builds up from an empty cluster on. Jobs that fit in no share are left out.
DAYS, TIME_SCALE = (26, 30), 0.25
#: Each how many-th job of these days is taken, and the GPUs of a share; those of all jobs.
PART, SHARE = (8, 7), 58
#: Added to both delays of a tenant, as no ratio to nothing can be judged: a borrower has so long.
RECLAIM_SECONDS = 60.0
_DAY = 86_400.0


class _Service(NamedTuple):
    """Seconds until a job first ran, and what it took in all beyond its run."""

    wait: float
    delay: float


def run(report: Report) -> None:
    """Simulate the tenants together and each one alone; compare."""
    path = Path(os.environ.get("FAIRLEAD_PHILLY_TRACE", ""))
    if not path.is_file():
        report.skip("shares", "FAIRLEAD_PHILLY_TRACE does not name the Philly trace")
        return
    thinned = int(os.environ.get("FAIRLEAD_PHILLY_EVERY", "0"))
    checkpoints = float(os.environ.get("FAIRLEAD_PHILLY_CHECKPOINT_SECONDS", "0")) or None
    every, share = (thinned, SHARE // thinned) if thinned else PART
    jobs = _jobs(path) if thinned else _days(_jobs(path))
    jobs = [job for job in jobs[::every] if job.members <= share]
    by_tenant = defaultdict[str, list[TraceJob]](list)
    for job in jobs:
        by_tenant[job.tenant].append(job)
    together, alone = _all_served(jobs, by_tenant, share, checkpoints)
    report.add("shares.jobs", len(jobs), "jobs")
    bare = [BareJob(job.at_seconds, job.run_seconds, job.members) for job in jobs]
    wait, delay = _mean(jobs, together)
    for name, backfills in (("fifo", False), ("backfill", True)):
        bare_wait = statistics.fmean(bare_waits(bare, share * TENANTS, backfills=backfills))
        report.add(f"shares.wait_over_{name}", wait / bare_wait, "x bare")
        report.add(f"shares.delay_over_{name}", delay / bare_wait, "x bare")
    late = list[tuple[float, ...]]()
    for tenant, own in sorted(by_tenant.items()):
        shared, by_itself = _mean(own, together), _mean(own, alone)
        late.append(tuple(
            (now + RECLAIM_SECONDS) / (before + RECLAIM_SECONDS)
            for now, before in zip(shared, by_itself, strict=True)
        ))  # fmt: skip
        hours = [f"{seconds / 3600:.3f} h" for seconds in (*shared, *by_itself)]
        print(
            f"  tenant {tenant}: {len(own)} jobs, wait {hours[0]}, delay {hours[1]},"
            f" alone {hours[2]} and {hours[3]}", flush=True,
        )  # fmt: skip
    for name, values in zip(("wait", "delay"), zip(*late, strict=True), strict=True):
        report.add(f"shares.worst_tenant_{name}", max(values), "x alone")


def _mean(jobs: Sequence[TraceJob], served: Mapping[str, _Service]) -> tuple[float, float]:
    """Return the mean wait and the mean delay of some jobs, in seconds."""
    found = [served[job.name] for job in jobs]
    return statistics.fmean(s.wait for s in found), statistics.fmean(s.delay for s in found)


def _jobs(path: Path) -> list[TraceJob]:
    """Return the jobs of the trace with members of one GPU each."""
    jobs = read_trace(path, "philly").jobs
    return [
        replace(job, name=f"job-{number:05d}", members=job.members * job.gpus, gpus=1)
        for number, job in enumerate(jobs)
    ]


def _days(jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """Return the jobs of some days, which arrive faster."""
    first, last = (day * _DAY for day in DAYS)
    return [
        replace(job, at_seconds=(job.at_seconds - first) * TIME_SCALE)
        for job in jobs
        if first <= job.at_seconds < last
    ]


def _all_served(
    jobs: Sequence[TraceJob],
    by_tenant: Mapping[str, Sequence[TraceJob]],
    share: int,
    checkpoints: float | None,
) -> tuple[dict[str, _Service], dict[str, _Service]]:
    """Simulate the tenants together and each one alone, on all cores; say when each has ended."""
    with ProcessPoolExecutor(initializer=end_with_parent) as pool:
        teams = TenantTeams(nodes=1)
        shared = pool.submit(
            _served, jobs, nodes=TENANTS, gpus=share, teams=teams, checkpoints=checkpoints
        )
        names = {shared: "all tenants"}
        for tenant, own in sorted(by_tenant.items(), key=lambda item: -len(item[1])):
            future = pool.submit(_served, own, nodes=1, gpus=share, teams=None)
            names[future] = f"tenant {tenant} alone"
        alone = dict[str, _Service]()
        for future in as_completed(names):
            served = future.result()
            print(f"  {names[future]}: {len(served)} jobs simulated", flush=True)
            if future is not shared:
                alone |= served
        return shared.result(), alone


def _served(
    jobs: Sequence[TraceJob],
    *,
    nodes: int,
    gpus: int,
    teams: TenantTeams | None,
    checkpoints: float | None = None,
) -> dict[str, _Service]:
    """Simulate the jobs on nodes of so many GPUs; return how each was served, by name."""
    run_seconds = {job.name: job.run_seconds for job in jobs}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.csv"
        write_csv(Trace("bench", "csv", tuple(jobs)), file)
        scenario = Scenario(
            cluster=ClusterSpec(nodes=nodes, gpus=gpus),
            load=LoadSpec(trace=str(file), checkpoint_seconds=checkpoints),
            teams=teams, ideal=True,
        )  # fmt: skip
        result = ScenarioRun(scenario).run()
    assert result.summary.finished == len(jobs), result.summary.violations
    out = dict[str, _Service]()
    for record in result.recorder.jobs.values():
        name = record.name[: len("job-00000")]
        assert record.ended is not None
        assert record.wait_seconds is not None
        delay = record.ended - record.submitted - run_seconds[name]
        out[name] = _Service(record.wait_seconds, delay)
    return out
