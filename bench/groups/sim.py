"""How fast the simulator runs: writes of a small world per second, and per calibration loop.

And what a job costs in a scenario without faults: in counts, which no other load on the machine
changes (writes, API requests and decisions of the controllers), and in time, over the same writes
by a client that decides nothing, in a cluster that nothing watches.

And what a day costs where all is on (teams, a node pool, tests of nodes, failures): per node-day
where next to nothing runs, and per job what a day of jobs costs beyond that.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from bench.harness import REFERENCE_SECONDS, Report, cpu_slowness
from fairlead.api.meta import to_wire
from fairlead.api.resources import EVENTS, LEASES
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import Request, RequestVerb
from fairlead.runtime.clock import SystemClock
from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.sim.scenarios.scenario import (
    ClusterSpec,
    LoadSpec,
    PoolSpec,
    Scenario,
    TenantTeams,
)
from fairlead.sim.setup.workload import SHAPES, WorkloadOptions
from fairlead.sim.setup.world_options import DAY_SECONDS, WorldOptions
from fairlead.sim.world import simulate

NODES, JOBS, SECONDS, SEED, ROUNDS = 64, 100, 21_600.0, 7, 3
DAY_NODES, DAY_JOBS, DAY_TEAMS = 100, 150, 5

CALM = Scenario(
    cluster=ClusterSpec(nodes=16),
    load=LoadSpec(days=1.0, jobs_per_day=200.0, members_max=1, run_seconds_max=3600.0),
    seed=7,
)


def run(report: Report) -> None:
    """Measure the speed, then the counts."""
    _speed(report)
    _counts(report)
    _against_bare(report)
    _day(report)


def _day(report: Report) -> None:
    """Report what a day costs by its nodes, and by its jobs."""
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.csv"
        quiet, busy = (_day_seconds(trace, jobs) for jobs in (0, DAY_JOBS))
    slow = cpu_slowness()
    report.add("sim.node_day", quiet / slow / DAY_NODES * 1e3, "ms CPU")
    report.add("sim.day_job", (busy - quiet) / slow / DAY_JOBS * 1e3, "ms CPU")


def _day_seconds(trace: Path, jobs: int) -> float:
    """Return the CPU seconds of a day with these jobs, and with one at its start and its end."""
    rng = random.Random("day")
    at = [0.0, *sorted(rng.random() * DAY_SECONDS for _ in range(jobs)), DAY_SECONDS]
    lines = ["submit_seconds,run_seconds,members,gpus,name,tenant"]
    for number, seconds in enumerate(at):
        members, gpus, _ = rng.choices(SHAPES, [shape[2] for shape in SHAPES])[0]
        run_seconds = min(3600.0 * rng.lognormvariate(0.0, 1.3), DAY_SECONDS / 2)
        lines.append(
            f"{seconds:.0f},{run_seconds:.0f},{members},{gpus},j{number},{number % DAY_TEAMS}"
        )
    trace.write_text("\n".join(lines) + "\n")
    pool = PoolSpec("burst", max=DAY_NODES // 10, min=DAY_NODES // 20)
    scenario = Scenario(
        cluster=ClusterSpec(nodes=DAY_NODES - pool.min, pools=(pool,)),
        load=LoadSpec(trace=str(trace)), teams=TenantTeams(), faults="meta-rsc",
        node_tests="quick", seed=SEED,
    )  # fmt: skip
    start = time.process_time()
    ScenarioRun(scenario).run()
    return time.process_time() - start


def _against_bare(report: Report) -> None:
    """Report what a job costs, and over its writes alone, in turns."""
    writes, ratios, costs = _writes(), list[float](), list[float]()
    for _ in range(ROUNDS):
        start = time.process_time()
        jobs = ScenarioRun(CALM).run().summary.jobs
        costs.append((time.process_time() - start) / jobs)
        ratios.append(costs[-1] * jobs / asyncio.run(_repeat(writes)))
    report.add("sim.job_ratio", statistics.median(ratios), "x bare")
    report.add("sim.job", statistics.median(costs) / cpu_slowness() * 1e3, "ms CPU")


def _writes() -> list[Request[Any]]:
    """Return the writes of a run, without what they expect to find."""
    call, seen = InProcessClient.call, list[Request[Any]]()

    async def noting(client: InProcessClient, request: Request[Any]) -> Any:
        if request.is_write and request.resource not in (EVENTS, LEASES):
            seen.append(replace(request, body=to_wire(request.body), uid=None))
        return await call(client, request)

    with patch.object(InProcessClient, "call", noting):
        ScenarioRun(CALM).run()
    for request in seen:
        if request.verb is RequestVerb.PATCH:
            for expected in ("uid", "resourceVersion"):
                request.body.get("metadata", {}).pop(expected, None)
    return seen


async def _repeat(writes: Sequence[Request[Any]]) -> float:
    """Return the CPU seconds of these writes in a new cluster."""
    numbers = count()
    service = ApiService(
        Store.open(None), Registry.with_builtins(), SystemClock(),
        ids=lambda: str(next(numbers)), rng=random.Random(1),
    )  # fmt: skip
    await service.bootstrap()
    client = InProcessClient(service)
    start = time.process_time()
    for request in writes:
        await client.call(request)
    return time.process_time() - start


def _counts(report: Report) -> None:
    result = ScenarioRun(CALM).run()
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
