"""Runs a scenario: load and faults become a world, the world's writes become figures and files.

    result = run_scenario(scenario, progress=print_line)
    write_results(result, Path("out"))     # summary.json, jobs.csv, samples.csv, ...

A run that is stopped early, or that breaks a promise, has the same files; `summary.json` says so.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fairlead.api.values.quantity import CPU, EPHEMERAL_STORAGE, GPU, MEMORY, PODS
from fairlead.cloud.simulated import CloudRates
from fairlead.decide.doctor.policy import DoctorPolicy
from fairlead.decide.health.policy import HealthPolicy
from fairlead.decide.health.proving.testing import CHECK
from fairlead.embedded.virtual.profile import NodeShape, Profile, ProgressSpec, load_profile
from fairlead.input.plain import UnreadableText, json_document
from fairlead.sim.loop import run
from fairlead.sim.observers.broken_promise import unwrap_broken
from fairlead.sim.observers.observer import Observer
from fairlead.sim.scenarios.pod_autoscaler import run_per_pod
from fairlead.sim.scenarios.recorder import RunRecorder
from fairlead.sim.scenarios.report import render_report
from fairlead.sim.scenarios.scenario import (
    POLICIES,
    CloudSpec,
    ClusterSpec,
    FaultProfile,
    LoadReport,
    LoadSpec,
    PoolSpec,
    Scenario,
    ScenarioError,
    faults_of,
)
from fairlead.sim.scenarios.summary import (
    RecordedFigures,
    Summary,
    mean,
    percentile,
    summarize,
    write_jobs,
    write_samples,
)
from fairlead.sim.setup.devices import DeviceWish, draw_device_claims
from fairlead.sim.setup.faults import PERFECT, ROUGH
from fairlead.sim.setup.team_changes import TeamChange
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, generate, job_body
from fairlead.sim.setup.world_options import DAY_SECONDS as _DAY
from fairlead.sim.setup.world_options import EPOCH, Outage, PoolShape, WorldOptions
from fairlead.sim.traces.readers import read_trace
from fairlead.sim.traces.recorded import RecordedLoad, recorded_load
from fairlead.sim.traces.trace import TraceJob
from fairlead.sim.world import World

_SAMPLES = 500
#: Finished jobs leave the store after this long, as a month of them need not be kept.
_TTL_SECONDS = 3600
_PROGRESS_SECONDS = 0.5
#: Of the lease that replicas contend for, and of one that a single replica holds.
LEASE_SECONDS, LEASE_ALONE_SECONDS = 60.0, 86_400.0
#: Pods of one node: no limit that a trace could meet.
_PODS_PER_NODE = 2000
# Taken before a run: inside one, Fairlead's own code must not read the wall clock.
_clock = time.perf_counter


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is. `speed` is simulated seconds per second."""

    simulated_seconds: float
    speed: float
    submitted: int
    jobs: int
    running: int
    waiting: int
    busy_share: float
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to."""

    scenario: Scenario
    load: LoadReport
    summary: Summary
    recorder: RunRecorder


class ScenarioRun:
    """One run of a scenario. `stop` may be called by a signal handler."""

    def __init__(
        self,
        scenario: Scenario,
        progress: Callable[[RunProgress], None] = lambda _: None,
        *,
        observers: Sequence[Observer] = (),
        until: float | None = None,
    ) -> None:
        """Read the load; TraceError when the trace cannot be used.

        `until` ends the run after so many simulated seconds.
        """
        self._observers = tuple(observers)
        self._until = until
        self.scenario = scenario
        self._progress = progress
        self._faults = faults_of(scenario)
        self._arrivals, self.load, tenants = load_of(scenario, self._faults)
        self._teams = team_changes_of(scenario, tenants)
        self._seconds = self._arrivals[-1].at + 1.0 if self._arrivals else 1.0
        sample_seconds = max(self._seconds * 1.2 / _SAMPLES, 1.0)
        self._recorder = RunRecorder(EPOCH, sample_seconds=sample_seconds, tenants=tenants)
        self._world: World | None = None
        self._begun = self._shown_at = _clock()

    def stop(self) -> None:
        """End the run early; what has been recorded is reported."""
        if self._world is not None:
            self._world.stop()

    def run(self) -> RunResult:
        """Simulate to the end. A broken promise ends the run and is in `summary.violations`."""
        violations: tuple[str, ...] = ()

        async def main() -> None:
            self._world = World(
                world_options(self.scenario, self._faults, self._seconds, self._teams),
                self.scenario.seed,
                arrivals=self._arrivals, observers=(self._recorder, *self._observers),
                on_writes=self._wrote,
            )  # fmt: skip
            await self._world.run()

        try:
            run(main())
        except BaseExceptionGroup as group:
            violations = (str(unwrap_broken(group)),)
        world = self._world
        assert world is not None
        self._recorder.finish(world.last_write_at)
        self._recorder.requests = dict(sorted(world.replicas.requests.items()))
        self._recorder.decision_times = dict(sorted(world.replicas.decision_times.items()))
        self._progress(replace(self._state(), is_over=True))
        summary = summarize(
            self._recorder, world, violations=violations, wall_seconds=_clock() - self._begun,
            per_pod=run_per_pod(self.scenario.cluster, self._arrivals, self.scenario.seed),
            recorded=_recorded(self.load.recorded, self.scenario.cluster),
        )  # fmt: skip
        return RunResult(self.scenario, self.load, summary, self._recorder)

    def _wrote(self) -> None:
        if self._until is not None and self._recorder.seconds >= self._until:
            self.stop()
        now = _clock()
        if now - self._shown_at >= _PROGRESS_SECONDS:
            self._shown_at = now
            self._progress(self._state())

    def _state(self) -> RunProgress:
        recorder = self._recorder
        wall = max(_clock() - self._begun, 1e-9)
        return RunProgress(
            simulated_seconds=recorder.seconds, speed=recorder.seconds / wall,
            submitted=len(recorder.jobs), jobs=len(self._arrivals), running=recorder.running_jobs,
            waiting=recorder.waiting_jobs, busy_share=recorder.busy_share,
        )  # fmt: skip


# From scenario to world


def team_changes_of(scenario: Scenario, tenants: Mapping[str, str]) -> tuple[TeamChange, ...]:
    """Return the teams of a scenario, which exist from the start; `tenants` by job."""
    if scenario.teams is None:
        return ()
    teams = sorted({_dns(tenant) for tenant in tenants.values()})
    nodes = scenario.teams.nodes
    share = nodes if nodes is not None else scenario.cluster.nodes // max(len(teams), 1)
    priority_max = 0 if scenario.teams.borrows else -1
    return tuple(
        TeamChange(
            0.0, team,
            {"namespaces": [team], "shares": [{"nodes": share}], "borrowPriorityMax": priority_max},
        )
        for team in teams
    )  # fmt: skip


def world_options(
    scenario: Scenario, faults: FaultProfile, seconds: float, teams: tuple[TeamChange, ...] = ()
) -> WorldOptions:
    """Return the world of a scenario in which jobs arrive for `seconds`."""
    is_rough, thousands = faults.api == "rough", scenario.cluster.nodes / 1000
    return WorldOptions(
        nodes=scenario.cluster.nodes,
        workload=WorkloadOptions(
            0, seconds, teams=tuple(team.name for team in teams), devices=_wishes(scenario.load)
        ),
        team_changes=teams,
        profile=_profile(scenario),
        faults=ROUGH if is_rough else PERFECT,
        replicas=2 if faults.calls_between_kills_mean else 1,
        # Renewals cost idle time; without a second replica nobody waits for the lease.
        lease_seconds=LEASE_SECONDS if faults.calls_between_kills_mean else LEASE_ALONE_SECONDS,
        calls_between_kills_mean=faults.calls_between_kills_mean,
        steps_between_crashes_mean=0.0,
        node_failures_per_day=faults.node_failures_per_1000_node_days * thousands,
        node_repair_seconds=faults.repair_seconds_median,
        node_repair_sigma=faults.repair_sigma,
        node_detect_seconds_max=faults.detect_seconds_max,
        outages=outages_of(scenario, faults, seconds),
        lemon_share=faults.lemon_share,
        lemon_factor=faults.lemon_factor,
        gpu_faults_per_day=faults.gpu_faults_per_1000_node_days * thousands,
        gpu_repair_seconds=faults.gpu_repair_seconds_median,
        device_faults_per_day=faults.device_faults_per_1000_node_days * thousands,
        slowdowns_per_day=faults.slowdowns_per_1000_node_days * thousands,
        slow_factor=faults.slow_factor,
        slow_seconds=faults.slow_seconds_median,
        infant_share=faults.infant_share,
        silent_faults_per_day=faults.silent_faults_per_1000_node_days * thousands,
        found_after_hits=faults.found_after_hits,
        health=_health(scenario.node_tests),
        stalls_per_day=faults.storage_stalls_per_day,
        stall_seconds=faults.stall_seconds_median,
        drains_per_day=0.0,
        user_acts_per_day=0.0,
        settle_seconds_max=float("inf"),
        look_seconds=max(60.0, seconds / 2000),
        # It examines every 5 minutes; only node pools act on what it finds.
        doctor=DoctorPolicy(enabled=is_rough or bool(scenario.cluster.pools)),
        policy=POLICIES[scenario.policy],
        pools=tuple(map(_pool_shape, scenario.cluster.pools)),
        cloud=replace(_cloud_rates(scenario.cluster.cloud), preflight=bool(scenario.node_tests)),
        renews_watches=is_rough,
        keeps_events=False,
    )  # fmt: skip


def _health(suite: str) -> HealthPolicy:
    """Return the health of nodes under tests of a suite; "": there is none."""
    return HealthPolicy(
        enabled=bool(suite), act_on=(CHECK,), test_suite=suite, idle_test_suite=suite
    )


def _recorded(load: RecordedLoad | None, cluster: ClusterSpec) -> RecordedFigures | None:
    """Return the figures of what was recorded, on as many nodes as the scenario has."""
    if load is None:
        return None
    offered = load.seconds * cluster.nodes * cluster.gpus
    return RecordedFigures(
        mean(load.waits), percentile(load.waits, 0.5), percentile(load.waits, 0.95),
        load.busy / offered if offered else None, load.busy / load.used if load.used else None,
    )  # fmt: skip


def _pool_shape(pool: PoolSpec) -> PoolShape:
    return PoolShape(
        pool.name, pool.max, pool.min, pool.headroom_nodes, pool.spare_nodes, pool.weight,
        ready_seconds=pool.ready_seconds, idle_seconds=pool.idle_seconds,
        per_launch_max=pool.nodes_per_launch_max,
    )  # fmt: skip


def _cloud_rates(cloud: CloudSpec) -> CloudRates:
    return CloudRates(
        cloud.launch_seconds, cloud.launch_jitter_seconds,
        refusal=cloud.refused_share, never_registers=cloud.lost_share,
    )  # fmt: skip


def outages_of(scenario: Scenario, faults: FaultProfile, seconds: float) -> tuple[Outage, ...]:
    """Return the stated node failures and the drawn losses of racks and switches, in order."""
    cluster = scenario.cluster
    outages = [
        Outage(failure.at_seconds, range(failure.node, failure.node + 1), failure.repair_seconds)
        for failure in faults.node_failures
    ]
    per_block = cluster.nodes_per_rack * cluster.racks_per_block
    for what, size, per_1000_days in (
        ("rack", cluster.nodes_per_rack, faults.rack_failures_per_1000_rack_days),
        ("switch", per_block, faults.switch_failures_per_1000_switch_days),
    ):
        rng = random.Random(f"{scenario.seed}/{what}")  # noqa: S311 # a simulation, no secret
        count = -(-cluster.nodes // size)
        rate = per_1000_days / 1000 * count / _DAY
        at = rng.expovariate(rate) if rate else seconds
        while at < seconds:
            first = rng.randrange(count) * size
            repair = faults.repair_seconds_median * rng.lognormvariate(0.0, faults.repair_sigma)
            nodes = range(first, min(first + size, cluster.nodes))
            outages.append(Outage(at, nodes, repair))
            at += rng.expovariate(rate)
    return tuple(sorted(outages, key=lambda one: (one.at_seconds, one.nodes.start)))


def _profile(scenario: Scenario) -> Profile:
    """Return the virtual nodes' profile: the scenario's shape; no delays when it is ideal."""
    base = load_profile("instant" if scenario.ideal else scenario.profile)
    cluster = scenario.cluster
    cpu, memory = ("1000000", "1Pi") if scenario.ideal else (cluster.cpu, cluster.memory)
    shape = NodeShape(
        resources={
            CPU: cpu, MEMORY: memory, EPHEMERAL_STORAGE: "4Ti", GPU: str(cluster.gpus),
            PODS: str(_PODS_PER_NODE),
        },
        nodes_per_rack=cluster.nodes_per_rack, racks_per_block=cluster.racks_per_block,
        devices=cluster.devices, device_classes=cluster.device_classes,
        preflight=bool(scenario.node_tests),
    )  # fmt: skip
    every, progress = scenario.load.checkpoint_seconds, base.progress
    if every is not None:
        progress = ProgressSpec(every, checkpoint_every_steps=1, report_seconds_min=every)
    return msgspec.structs.replace(base, node=shape, progress=progress)


def load_of(
    scenario: Scenario, faults: FaultProfile
) -> tuple[list[Arrival], LoadReport, dict[str, str]]:
    """Return the arrivals, what was assumed of them, and the tenant by job name."""
    load = scenario.load
    failing = random.Random(f"{scenario.seed}/failing")  # noqa: S311 # a simulation, no secret
    if not load.trace:
        arrivals = _drawn(load, faults, scenario.seed)
        return arrivals, LoadReport("drawn from distributions", "synthetic", len(arrivals)), {}
    trace = read_trace(Path(load.trace), load.format)
    jobs = [job for job in trace.jobs if load.days is None or job.at_seconds < load.days * _DAY]
    jobs = jobs[: load.jobs_max] if load.jobs_max is not None else jobs
    at = {job.name: number for number, job in enumerate(jobs)}
    awaited = {each.name for job in jobs for each in job.after}
    arrivals: list[Arrival] = []
    tenants: dict[str, str] = {}
    for number, job in enumerate(jobs):
        name = _job_name(job, number)
        tenants[name] = job.tenant
        exit_code = 1 if failing.random() < faults.failing_job_share or job.fails else 0
        body = trace_body(name, job, exit_code=exit_code)
        after = [
            {"job": _job_name(jobs[other], other), "state": each.state} for each in job.after
            if (other := at.get(each.name, number)) < number
            and (scenario.teams is None or jobs[other].tenant == job.tenant)
        ]  # fmt: skip
        if after:
            body["spec"]["after"] = after
        if job.name in awaited:  # those that come later still find it
            del body["spec"]["ttlSecondsAfterFinished"]
        if scenario.teams is not None:
            body["metadata"]["namespace"] = _dns(job.tenant)
        arrivals.append(Arrival(job.at_seconds * load.time_scale, name, body))
    if load.devices:
        rng = random.Random(f"{scenario.seed}/devices of jobs")  # noqa: S311
        for arrival in arrivals:
            draw_device_claims(arrival.body["spec"], _wishes(load), rng)
    report = LoadReport(
        trace.source, trace.format, len(arrivals), trace.assumptions, trace.problems,
        trace.problem_count, recorded_load(jobs, scenario.cluster.gpus),
    )  # fmt: skip
    return arrivals, report, tenants


def _wishes(load: LoadSpec) -> tuple[DeviceWish, ...]:
    return tuple(
        DeviceWish(each.device_class, each.count, each.share, each.expression)
        for each in load.devices
    )


def _job_name(job: TraceJob, number: int) -> str:
    return f"{_dns(job.name)}-{number:06d}"


def _drawn(load: LoadSpec, faults: FaultProfile, seed: int) -> list[Arrival]:
    seconds = (load.days or 1.0) * _DAY
    count = max(1, round(load.jobs_per_day * (load.days or 1.0)))
    options = WorkloadOptions(
        jobs=min(count, load.jobs_max or count), seconds=seconds,
        run_seconds_median=load.run_seconds_median, run_seconds_sigma=load.run_seconds_sigma,
        run_seconds_max=load.run_seconds_max, members_max=load.members_max,
        failing_share=faults.failing_job_share, devices=_wishes(load),
    )  # fmt: skip
    arrivals = generate(options, random.Random(f"{seed}/workload"))  # noqa: S311
    for arrival in arrivals:
        arrival.body["spec"]["ttlSecondsAfterFinished"] = _TTL_SECONDS
    if load.bursts_per_day:
        return [replace(arrival, at=_in_burst(arrival.at, load)) for arrival in arrivals]
    return arrivals


def _in_burst(at: float, load: LoadSpec) -> float:
    """Return the instant within a burst of one that is drawn over the day; the order stays."""
    burst, rest = divmod(at, _DAY / load.bursts_per_day)
    share = rest * load.bursts_per_day / _DAY
    return burst * _DAY / load.bursts_per_day + share * load.burst_seconds


def trace_body(name: str, job: TraceJob, *, exit_code: int = 0) -> dict[str, Any]:
    """Return the Job of a trace's job; its pods run for the recorded time."""
    body = job_body(
        name, members=job.members, gpus=job.gpus, run_seconds=job.run_seconds, exit_code=exit_code
    )
    spec = body["spec"]
    spec["restart"]["limit"] = 0
    spec["ttlSecondsAfterFinished"] = _TTL_SECONDS
    container = spec["roles"][0]["template"]["spec"]["containers"][0]
    requests = {"cpu": f"{job.cpu_milli}m", "memory": str(job.memory_bytes)}
    container["resources"]["requests"] = requests
    if job.limit_seconds is not None:
        spec["timeLimitSeconds"] = max(1, math.ceil(job.limit_seconds))
    return body


def _dns(name: str) -> str:
    """Return the name with all that a DNS label refuses replaced."""
    text = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    return text.strip("-")[:40] or "job"


# Results


def read_results(folder: Path) -> tuple[Scenario, dict[str, Any]]:
    """Return the scenario and the summary of a run's directory; ScenarioError when it is none."""
    try:
        facts = json_document((folder / "scenario.json").read_bytes())
        summary: dict[str, Any] = json_document((folder / "summary.json").read_bytes())
        return msgspec.convert(facts["scenario"], Scenario), summary
    except (OSError, UnreadableText, ValueError, KeyError, TypeError) as error:
        message = f"is not the directory of a run (fairlead sim run --out): {error}"
        raise ScenarioError(str(folder), [message]) from error


def write_results(result: RunResult, out: Path) -> None:
    """Write `summary.json`, `jobs.csv`, `samples.csv`, `scenario.json` and `report.html` into a
    directory.
    """
    out.mkdir(parents=True, exist_ok=True)
    facts = {"scenario": msgspec.to_builtins(result.scenario), "load": asdict(result.load)}
    (out / "scenario.json").write_bytes(_pretty(facts))
    (out / "summary.json").write_bytes(_pretty(asdict(result.summary)))
    write_jobs(list(result.recorder.jobs.values()), out / "jobs.csv")
    write_samples(result.recorder.samples, out / "samples.csv")
    page = render_report(result.scenario, result.load, result.summary, result.recorder)
    (out / "report.html").write_text(page, encoding="utf-8")


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
