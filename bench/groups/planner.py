"""What a decision costs: a large gang, many small jobs, and the same arithmetic in bare numpy.

The ratio says how much the planner adds (verdicts, groups, transactions, names) to the vector
operations that it cannot do without: how many members fit on each node, which nodes first, how
many on each.
"""

from __future__ import annotations

import gc
import statistics
import time

import numpy as np

from bench.harness import Report, cpu_slowness
from fairlead.api.job import Job
from fairlead.decide.placement import PlacementPolicy, decide
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, as_written, make_job, make_nodes

NODES, GPUS = 7_500, 8
MEMBERS = 1_000
SMALL_JOBS = 5_000
ROUNDS = 7


def run(report: Report) -> None:
    """Measure both decisions and the bare arithmetic of the first."""
    nodes = make_nodes(NODES, gpus=GPUS)
    gang, bare, ratios = [], [], []
    for _ in range(ROUNDS):
        seconds, plain = _gang(nodes), _bare()
        slow = cpu_slowness()
        gang.append(seconds / slow)
        bare.append(plain / slow)
        ratios.append(seconds / plain)
    report.add("planner.gang_1000", statistics.median(gang) * 1e3, "ms CPU")
    report.add("planner.gang_1000_bare", statistics.median(bare) * 1e3, "ms CPU")
    report.add("planner.gang_1000_ratio", statistics.median(ratios), "x")
    small = [_small(nodes) / cpu_slowness() for _ in range(3)]
    report.add("planner.small_job", statistics.median(small) / SMALL_JOBS * 1e6, "us CPU")
    took = _event(nodes) / cpu_slowness()
    report.add("planner.job_event", took * 1e6, "us CPU")


def _gang(nodes) -> float:  # type: ignore[no-untyped-def]
    """Return the CPU seconds of the decision that places one gang on an empty cluster."""
    state = ClusterState.of(nodes)
    decide(state, PlacementPolicy(), EPOCH)  # the table is built, its columns are not yet cut
    state.job_changed(make_job("gang", count=MEMBERS, gpus=1))
    gc.collect()
    start = time.process_time()
    decision = decide(state, PlacementPolicy(), EPOCH)
    taken = time.process_time() - start
    assert len(decision.actions) == 1, "the gang is placed"
    return taken


def _small(nodes) -> float:  # type: ignore[no-untyped-def]
    """Return the CPU seconds of placing all small jobs, over as many decisions as it takes."""
    state = ClusterState.of(nodes)
    waiting: dict[tuple[str, str], Job] = {}
    for i in range(SMALL_JOBS):
        job = make_job(f"small-{i}", count=1, gpus=1, created=EPOCH + i)
        waiting[job.metadata.key] = job
        state.job_changed(job)
    taken = 0.0
    now = EPOCH + SMALL_JOBS
    while waiting:
        gc.collect()
        start = time.process_time()
        decision = decide(state, PlacementPolicy(), now)
        taken += time.process_time() - start
        assert decision.actions, "every decision comes nearer to the end"
        for action in decision.actions:
            job = as_written(action)
            state.job_changed(job)
            if job.status.placement is not None:
                del waiting[job.metadata.key]
        now += 1
    return taken


def _event(nodes) -> float:  # type: ignore[no-untyped-def]
    """Return the CPU seconds of taking in one job and its end, with a full queue."""
    state = ClusterState.of(nodes[:1])
    for i in range(SMALL_JOBS):
        state.job_changed(make_job(f"small-{i}", count=9, gpus=1, created=EPOCH + i))
    jobs = [make_job(f"new-{i}", count=9, gpus=1, created=EPOCH + i) for i in range(500)]
    gc.collect()
    start = time.process_time()
    for job in jobs:
        state.job_changed(job)
        state.job_deleted(job.metadata.key)
    return (time.process_time() - start) / len(jobs)


def _bare() -> float:
    """Return the CPU seconds of the arithmetic alone: fits per node, packing order, fill."""
    resources = 4
    free = np.tile(np.array([[128_000], [1 << 40], [110], [GPUS]]), (1, NODES)).astype(np.int64)
    request = np.array([0, 0, 1, 1], dtype=np.int64)
    key = np.arange(NODES)
    repeats = 20
    gc.collect()
    start = time.process_time()
    for _ in range(repeats):
        wanted = [row for row in range(resources) if request[row]]
        fits = np.minimum.reduce([free[row] // request[row] for row in wanted])
        candidates = np.flatnonzero(fits)
        order = candidates[np.argsort(key[candidates])]
        filled = np.cumsum(fits[order])
        used = int(np.searchsorted(filled, MEMBERS)) + 1
        counts = fits[order[:used]].copy()
        counts[-1] -= filled[used - 1] - MEMBERS
        free[:, order[:used]] -= request[:, None] * counts
        free[:, order[:used]] += request[:, None] * counts
    return (time.process_time() - start) / repeats
