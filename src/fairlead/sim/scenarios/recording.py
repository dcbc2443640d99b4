"""A recording of a cluster: its jobs, nodes and node failures, as a scenario that `sim run` takes.

    recording = record(jobs, nodes, now=now)
    write_recording(recording, Path("last-week"))      # scenario.yaml, jobs.csv

The jobs' objects and their records in the history say when each was submitted, when its last
attempt began and ended, and which nodes failed under it. What they do not say is assumed, and the
recording says what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead.api.jobs.job import Attempt, Cause, Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.pods.pod_asks import member_amounts
from fairlead.api.values.quantity import CPU, GPU, MEMORY, resources_to_base
from fairlead.api.values.times import parse_time
from fairlead.sim.scenarios.scenario import (
    ClusterSpec,
    FaultProfile,
    LoadSpec,
    NodeFailure,
    Scenario,
    ScenarioError,
)
from fairlead.sim.traces.readers import write_csv
from fairlead.sim.traces.trace import Trace, TraceJob

SCENARIO_FILE, JOBS_FILE = "scenario.yaml", "jobs.csv"
#: Losses of one node that are closer together count once: its jobs do not end at one instant.
_ONE_LOSS_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Recording:
    """A scenario whose trace is to be written beside it, and what was assumed."""

    scenario: Scenario
    trace: Trace


def record(jobs: Iterable[Job], nodes: Sequence[Node], *, now: float) -> Recording:
    """Return the recording of jobs that ran or run, on these nodes. `now` is the instant of both.

    ScenarioError when there is no node, or no job has run.
    """
    if not nodes:
        raise ScenarioError("the cluster", ["has no node, so there is nothing to simulate"])
    every = sorted(jobs, key=lambda job: (job.metadata.creation_timestamp or "", job.metadata.key))
    ran = [(job, attempt) for job in every if (attempt := _last_run(job)) is not None]
    if not ran:
        raise ScenarioError("the cluster", ["has no job that has run, so there is no load"])
    start = min(_submitted(job) for job, _ in ran)
    traced = [_trace_job(job, attempt, start, now) for job, attempt in ran]
    traced.sort(key=lambda job: (job.at_seconds, job.name))
    used = _used(nodes, traced)
    cluster, assumptions = _cluster(used)
    if len(used) < len(nodes):
        assumptions.append(f"{len(nodes) - len(used)} nodes without GPUs are left out: no job fits")
    failures = _failures([job for job, _ in ran], used, start)
    if len(ran) < len(every):
        assumptions.append(f"{len(every) - len(ran)} jobs that have not run were left out")
    if running := sum(attempt.finished_at is None for _, attempt in ran):
        assumptions.append(f"{running} jobs run still: they end with the recording")
    if any(len(job.spec.roles) > 1 for job, _ in ran):
        assumptions.append("members of several roles all ask for what the largest asks for")
    if failures:
        assumptions.append(f"a failed node is away for {failures[0].repair_seconds:g} s")
    scenario = Scenario(
        name="recorded", cluster=cluster, load=LoadSpec(trace=JOBS_FILE, format="csv"),
        faults=FaultProfile(name="recorded", node_failures=failures) if failures else "none",
    )  # fmt: skip
    trace = Trace("the cluster", "recorded", tuple(traced), tuple(assumptions))
    return Recording(scenario, trace)


def write_recording(recording: Recording, folder: Path) -> None:
    """Write `scenario.yaml` and `jobs.csv` into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(recording.trace, folder / JOBS_FILE)
    lines = "".join(f"# assumed: {line}\n" for line in recording.trace.assumptions)
    document: Any = _without_defaults(recording.scenario)
    text = yaml.safe_dump(document, sort_keys=False)
    (folder / SCENARIO_FILE).write_text(lines + text, encoding="utf-8")


def _without_defaults(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as plain data, without the parts that are as they would be by default."""
    plain, default = msgspec.to_builtins(scenario), msgspec.to_builtins(Scenario())
    out = {key: value for key, value in plain.items() if value != default[key]}
    out["load"] = {k: v for k, v in plain["load"].items() if v != default["load"][k]}
    return out


def _submitted(job: Job) -> float:
    return parse_time(job.metadata.creation_timestamp or "1970-01-01T00:00:00Z")


def _last_run(job: Job) -> Attempt | None:
    """Return the last attempt in which all members ran; None when there was none."""
    return next((a for a in reversed(job.status.attempts) if a.started_at is not None), None)


def _trace_job(job: Job, attempt: Attempt, start: float, now: float) -> TraceJob:
    ended = parse_time(attempt.finished_at) if attempt.finished_at else now
    asked = [member_amounts(role.template.spec) for role in job.spec.roles]
    return TraceJob(
        at_seconds=_submitted(job) - start,
        name=job.metadata.name,
        members=job.member_count,
        gpus=max(one.get(GPU, 0) for one in asked),
        run_seconds=max(0.0, round(ended - parse_time(attempt.started_at or ""), 3)),
        tenant=job.spec.team or job.metadata.namespace,
        limit_seconds=job.spec.time_limit_seconds,
        cpu_milli=max(one.get(CPU, 0) for one in asked),
        memory_bytes=max(one.get(MEMORY, 0) for one in asked),
        fails=job.status.state == "Failed" and attempt.cause is Cause.USER,
    )


def _used(nodes: Sequence[Node], jobs: Iterable[TraceJob]) -> list[Node]:
    """Return the nodes that a job could run on: without those that lack what all jobs ask for."""
    if not all(job.gpus for job in jobs):
        return list(nodes)
    return [n for n in nodes if resources_to_base(n.status.allocatable).get(GPU, 0)] or list(nodes)


def _cluster(nodes: Sequence[Node]) -> tuple[ClusterSpec, list[str]]:
    """Return nodes of the shape that most have, and what that leaves out."""
    shapes: Counter[tuple[int, int, int]] = Counter()
    for node in nodes:
        held = resources_to_base(node.status.allocatable)
        shapes[held.get(GPU, 0), held.get(CPU, 0), held.get(MEMORY, 0)] += 1
    (gpus, cpu, memory), count = max(shapes.items(), key=lambda item: (item[1], item[0]))
    cluster = ClusterSpec(nodes=len(nodes), gpus=gpus, cpu=f"{cpu}m", memory=str(memory))
    if count == len(nodes):
        return cluster, []
    return cluster, [
        f"all {len(nodes)} nodes are like the {count} most common ones ({gpus} GPUs each)"
    ]


def _failures(jobs: Iterable[Job], nodes: Sequence[Node], start: float) -> tuple[NodeFailure, ...]:
    """Return when nodes were lost under jobs; one loss that several jobs name counts once."""
    numbers = {name: i for i, name in enumerate(sorted(node.metadata.name for node in nodes))}
    found: dict[tuple[int, int], NodeFailure] = {}
    for job in jobs:
        for attempt in job.status.attempts:
            for name in attempt.nodes_lost if attempt.finished_at else ():
                at = parse_time(attempt.finished_at or "") - start
                if name in numbers and at >= 0:
                    place = (numbers[name], int(at // _ONE_LOSS_SECONDS))
                    failure = NodeFailure(at_seconds=round(at, 3), node=place[0])
                    found.setdefault(place, failure)
    return tuple(sorted(found.values(), key=lambda one: (one.at_seconds, one.node)))
