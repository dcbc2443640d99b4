"""The figures of one run: `summary.json`, `jobs.csv` and `samples.csv`."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.sim.scenarios.pod_autoscaler import PodPolicyResult
from fairlead.sim.scenarios.recorder import ClusterSample, RunRecorder, SimulatedJob
from fairlead.sim.world import World

JOB_COLUMNS = (
    "name", "tenant", "members", "gpus", "submitted", "placed", "started", "ended", "attempts",
    "outcome", "lost_gpu_seconds", "busy_gpu_seconds",
)  # fmt: skip
SAMPLE_COLUMNS = (
    "at", "gpus", "busy_gpus", "held_gpus", "running_jobs", "waiting_jobs", "waiting_gpus",
    "nodes_out",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PerPod:
    """The same load under a scheduler and an autoscaler that see no gangs (`pod_autoscaler.py`)."""

    wait_mean_seconds: float | None
    wait_p95_seconds: float | None
    never_ran: int
    machines_most: int
    machine_seconds: float
    idle_machine_seconds: float


@dataclass(frozen=True, slots=True)
class RecordedFigures:
    """The same figures of a `Summary` of what was done where the trace was recorded."""

    wait_mean_seconds: float | None
    wait_p50_seconds: float | None
    wait_p95_seconds: float | None
    utilization: float | None
    packing: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """Durations in seconds; shares from 0 to 1. None where no job gives a figure.

    `utilization` is the GPU time of running jobs over the GPU time that the nodes offered until
    the last job ended, `packing` that over the GPU time of the nodes on which any job with GPUs
    ran. `wait` runs from submission to the first start of all members, `jct` (job
    completion time) from submission to the end.
    """

    jobs: int
    finished: int
    succeeded: int
    wait_mean_seconds: float | None
    wait_p50_seconds: float | None
    wait_p95_seconds: float | None
    jct_mean_seconds: float | None
    utilization: float | None
    useful_gpu_seconds: float
    lost_gpu_seconds: float
    lost_gpu_seconds_by_cause: dict[str, int]
    attempts: int
    writes: int
    writes_by_kind: dict[str, int]
    node_failures: int
    gpu_faults: int
    device_faults: int
    slowdowns: int
    stalls: int
    kills: int
    api_faults: int
    requests_by_service: dict[str, dict[str, int]]
    violations: tuple[str, ...]
    is_complete: bool
    log_hash: str
    seed: int
    simulated_seconds: float
    wall_seconds: float
    #: Of node pools: machines bought, the most at once, their time, and how much of it was idle.
    machines: int = 0
    machines_most: int = 0
    machine_seconds: float | None = None
    idle_machine_seconds: float | None = None
    per_pod: PerPod | None = None
    packing: float | None = None
    recorded: RecordedFigures | None = None
    #: Machines that became bad in silence, and the attempts and GPU time that they spoiled.
    silent_faults: int = 0
    silent_faults_found_by_tests: int = 0
    gangs_hit: int = 0
    #: Nodes that went out of service: in all, good ones, and within 7 days after a repair.
    nodes_taken: int = 0
    nodes_taken_good: int = 0
    nodes_taken_again: int = 0
    spoiled_gpu_seconds: float | None = None
    #: Of tests of nodes: how many, the share of the node time that they took, and of the periods in
    #: which a node was idle for half an hour the share that had a test within a day.
    node_tests: int = 0
    node_test_share: float | None = None
    node_test_coverage: float | None = None


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None of nothing."""
    return math.fsum(values) / len(values) if values else None


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least `share` of the values do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summarize(
    recorder: RunRecorder,
    world: World,
    *,
    violations: tuple[str, ...],
    wall_seconds: float,
    per_pod: PodPolicyResult | None,
    recorded: RecordedFigures | None = None,
) -> Summary:
    """Return the figures of a run, complete or ended early."""
    is_complete = not violations and not world.is_stopped
    requests: dict[str, dict[str, int]] = {}
    for (service, what), count in recorder.requests.items():
        requests.setdefault(service, {})[what] = count
    records = list(recorder.jobs.values())
    waits = [wait for record in records if (wait := record.wait_seconds) is not None]
    ended = [r for r in records if r.ended is not None]
    spans = [r.ended - r.submitted for r in ended if r.ended is not None]
    capacity = recorder.capacity_gpu_seconds
    if recorder.last_end and recorder.seconds > 0 and is_complete:
        capacity *= recorder.last_end / recorder.seconds
    use, disturbed = world.machine_use, world.disturbances
    silent, tests = world.silent, world.node_tests
    lost = math.fsum(r.lost_gpu_seconds for r in records)
    return Summary(
        jobs=len(records), finished=len(ended),
        succeeded=sum(r.outcome == "Succeeded" for r in ended),
        wait_mean_seconds=mean(waits), wait_p50_seconds=percentile(waits, 0.5),
        wait_p95_seconds=percentile(waits, 0.95), jct_mean_seconds=mean(spans),
        utilization=recorder.busy_gpu_seconds / capacity if capacity else None,
        useful_gpu_seconds=max(0.0, recorder.busy_gpu_seconds - lost), lost_gpu_seconds=lost,
        lost_gpu_seconds_by_cause=dict(sorted(recorder.lost_by_cause.items())),
        attempts=sum(r.attempts for r in records), writes=world.writes,
        writes_by_kind=dict(sorted(recorder.writes_by_kind.items())),
        node_failures=disturbed.node_failures, gpu_faults=disturbed.gpu_faults,
        device_faults=disturbed.device_faults,
        slowdowns=disturbed.slowdowns, stalls=disturbed.stalls, kills=world.kills,
        api_faults=world.faults_injected, requests_by_service=requests, violations=violations,
        is_complete=is_complete, log_hash=world.log_hash, seed=world.seed,
        simulated_seconds=recorder.seconds, wall_seconds=wall_seconds,
        machines=use.launched, machines_most=use.most,
        machine_seconds=use.seconds if use.launched else None,
        idle_machine_seconds=use.idle_seconds if use.launched else None,
        per_pod=_per_pod(per_pod) if per_pod is not None else None,
        silent_faults=silent.faults, silent_faults_found_by_tests=silent.found_by_tests,
        gangs_hit=silent.gangs_hit, nodes_taken=silent.taken, nodes_taken_good=silent.taken_good,
        nodes_taken_again=silent.repeated,
        spoiled_gpu_seconds=silent.lost_gpu_seconds if silent.faults else None,
        node_tests=tests.tests, node_test_share=tests.share if tests.tests else None,
        node_test_coverage=tests.coverage,
        packing=recorder.busy_gpu_seconds / used if (used := recorder.used_gpu_seconds) else None,
        recorded=recorded,
    )  # fmt: skip


def _per_pod(result: PodPolicyResult) -> PerPod:
    use = result.use
    return PerPod(
        mean(result.waits), percentile(result.waits, 0.95), result.never_ran, use.most,
        use.seconds, use.idle_seconds,
    )  # fmt: skip


def write_jobs(records: Sequence[SimulatedJob], path: Path) -> None:
    """Write `jobs.csv`: one row a job, instants in seconds since the start, empty for never."""
    _write_rows(records, JOB_COLUMNS, path)


def write_samples(samples: Sequence[ClusterSample], path: Path) -> None:
    """Write `samples.csv`: the state of the cluster on a grid of instants, a row each."""
    _write_rows(samples, SAMPLE_COLUMNS, path)


def _write_rows(rows: Sequence[object], columns: Sequence[str], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(getattr(row, column)) for column in columns])


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else value
