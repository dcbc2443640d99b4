"""What jobs that ask for no claims cost where others ask for them: both worlds in one run.

In one world nothing of claims is read. In the other one a job has a device of 60,000, and another
one 1,000 volumes in three zones, so rows of devices stand beside CPU and memory, and both tables
are looked at. Rounds alternate between the two, so what else the machine does meets both.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence

from bench.groups.volumes import ZONES, with_own, zonal
from bench.harness import Report
from fairlead.api.jobs.job import Job
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement
from fairlead.testing.device_builders import (
    DRIVER,
    device_request,
    make_device,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)
from fairlead.testing.volume_builders import make_claim, make_volume

NODES, DEVICES, MEMBERS, SMALL = 7_500, 8, 1_000, 200


def run(report: Report) -> None:
    """Measure a gang of 1,000 and 200 small jobs, of GPUs alone, in both worlds."""
    plain, claimed = _world(has_claims=False), _world(has_claims=True)
    assert claimed.cluster.devices.is_used
    gc.collect()
    gc.freeze()  # what both worlds hold is no garbage: walking it would take each round's caches
    for name, jobs, rounds in (
        ("gang", [make_job("gang", count=MEMBERS, gpus=1, created=EPOCH)], 400),
        ("small", [make_job(f"s{i}", count=4, gpus=1, created=EPOCH) for i in range(SMALL)], 25),
    ):
        costs: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds + 1):
            pairs = list(zip((plain, claimed), costs, strict=True))
            for state, into in pairs[:: 1 if number % 2 else -1]:
                taken = _come_and_go(state, jobs)
                if number:
                    into.append(taken)
        ratio = statistics.median(costs[1]) / statistics.median(costs[0])
        report.add(f"pod_asks.{name}_without_claims_ratio", ratio, "x without claims of others")
    gc.unfreeze()


def _world(*, has_claims: bool) -> PlacementState:
    """Return the state of a cluster on which two jobs run, with claims or without."""
    nodes = zonal(make_nodes(NODES, gpus=DEVICES + 1))
    first = make_job("first", gpus=1, placement=make_placement({"worker": ["node-0000"]}))
    data = make_job("data", count=MEMBERS, gpus=1, placement=make_placement(
        {"worker": [f"node-{i:04d}" for i in range(MEMBERS)]}
    ))  # fmt: skip
    if not has_claims:
        return _decided(ClusterState.of(nodes, [first, data]))
    slices = [make_slice(f"node-{i:04d}", [make_device(f"gpu-{j}", {"model": "h100"})
              for j in range(DEVICES)]) for i in range(NODES)]  # fmt: skip
    table = DeviceTable(
        slices, [make_device_class(DRIVER)],
        [make_device_template("any", device_request(DRIVER))],
    )  # fmt: skip
    claims = [make_claim(f"data-data-worker-{i}", volume=f"v{i}") for i in range(MEMBERS)]
    volumes = [make_volume(f"v{i}", zones=[ZONES[i % 3]]) for i in range(MEMBERS)]
    jobs = [with_device_claims(first, "any"), with_own(data)]
    return _decided(ClusterState.of(nodes, jobs, devices=table, claims=claims, volumes=volumes))


def _decided(cluster: ClusterState) -> PlacementState:
    state = PlacementState(cluster)
    assert not decide(state, PlacementPolicy(), EPOCH).actions, "both jobs have their places"
    return state


def _come_and_go(state: PlacementState, jobs: Sequence[Job]) -> float:
    """Return the CPU seconds to take jobs in, place them, and take them out."""
    gc.collect()
    start = time.process_time()
    for job in jobs:
        state.cluster.job_changed(job)
    decision = decide(state, PlacementPolicy(), EPOCH)
    for job in jobs:
        state.cluster.job_deleted(job.metadata.key)
    taken = time.process_time() - start
    assert sum(isinstance(each, PlaceJob) for each in decision.actions) == len(jobs)
    return taken
