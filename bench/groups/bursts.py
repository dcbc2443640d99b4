"""A day of bursts on machines that are bought, with faults and kills, beside a policy per pod.

The scenario of `examples/scenarios/day-of-bursts.yaml` on a fiftieth of its machines and for half
of the day; with `FAIRLEAD_BURSTS_NODES=2000` on that many machines at most, and for the whole day.
`FAIRLEAD_BURSTS_FAULTS=none` leaves out the faults of the API and the kills. A promise that is
broken (a gang that waits for ever, a machine that is bought twice or forgotten) ends the run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace

from bench.harness import Report
from fairlead.decide.words import duration
from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.sim.scenarios.scenario import FaultProfile, Scenario, load_scenario
from fairlead.sim.scenarios.summary import Summary

EXAMPLE = Path(__file__).parents[2] / "examples" / "scenarios" / "day-of-bursts.yaml"
NODES, DAYS = 40, 0.5
#: Of a replica, in calls.
KILLS_MEAN = 2_000.0


def run(report: Report) -> None:
    """Simulate the bursts once; equal seeds give equal figures but for the time."""
    begun = time.process_time()
    summary = ScenarioRun(_scenario()).run().summary
    assert not summary.violations, summary.violations
    assert summary.per_pod is not None
    print(_line("gangs", summary), flush=True)
    print(_line("per pod", summary), flush=True)
    print(
        f"  {summary.jobs} jobs, {summary.machines_most} machines at once at most,"
        f" {summary.machines} bought; {summary.kills} kills, {summary.api_faults} faults,"
        f" {time.process_time() - begun:.0f} s CPU", flush=True,
    )  # fmt: skip
    seconds, idle = summary.machine_seconds or 0.0, summary.idle_machine_seconds or 0.0
    text = os.environ.get("FAIRLEAD_BURSTS_NODES", "")
    name = f"bursts_{text}" if text else "bursts"  # bounds are of the default size
    report.add(f"{name}.unfinished", summary.jobs - summary.finished, "jobs")
    report.add(f"{name}.idle_share", idle / seconds, "of machine time")
    waits = (summary.wait_mean_seconds or 0.0, summary.per_pod.wait_mean_seconds or 1.0)
    report.add(f"{name}.wait_over_pods", waits[0] / waits[1], "x per pod")


def _scenario() -> Scenario:
    whole = load_scenario(EXAMPLE)
    pool, text = whole.cluster.pools[0], os.environ.get("FAIRLEAD_BURSTS_NODES", "")
    nodes = int(text or NODES)
    load = replace(whole.load, jobs_per_day=whole.load.jobs_per_day * nodes / pool.max)
    if not text:
        load = replace(load, days=DAYS)
    faults: str | FaultProfile = FaultProfile(
        "bursts", api="rough", calls_between_kills_mean=KILLS_MEAN
    )
    if os.environ.get("FAIRLEAD_BURSTS_FAULTS") == "none":
        faults = "none"
    cluster = replace(whole.cluster, pools=(replace(pool, max=nodes),))
    return replace(whole, cluster=cluster, load=load, faults=faults)


def _line(who: str, summary: Summary) -> str:
    """Return a row: machine hours, how much of them was idle, waits."""
    found = summary if who == "gangs" else summary.per_pod
    assert found is not None
    seconds, idle = found.machine_seconds or 0.0, found.idle_machine_seconds or 0.0
    waits = (duration(found.wait_mean_seconds or 0.0), duration(found.wait_p95_seconds or 0.0))
    return (
        f"  {who}: {seconds / 3600:,.0f} machine hours, {idle / seconds:.0%} idle,"
        f" wait {waits[0]} in the mean, {waits[1]} at the 95th percentile"
    )
