"""What claims for devices cost the planner: a gang with one each, a new kind, 60,000 devices; and
for how long the leader does nothing else while it matches a new kind.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable

import msgspec

from bench.harness import Report, cpu_slowness
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.devices import ResourceSlice
from fairlead.api.meta import to_wire
from fairlead.controllers.placing.device_matcher import UNITS
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_nodes
from fairlead.testing.device_builders import (
    DRIVER,
    device_request,
    make_device,
    make_device_class,
    make_device_template,
    make_slice,
    with_device_claims,
)

NODES, DEVICES, MEMBERS, ROUNDS = 7_500, 8, 1_000, 7
MODEL = f'device.attributes["{DRIVER}"].model == "h100"'
TEMPLATES = [
    make_device_template("any"), make_device_template("h100", device_request(DRIVER, 1, MODEL))
]  # fmt: skip


def run(report: Report) -> None:
    """Measure the decision on a gang without claims and with one each, and what comes before."""
    wire = [msgspec.json.encode(to_wire(make_slice(f"node-{i:04d}", [
        make_device(f"gpu-{j}", {"model": "h100", "uuid": f"gpu-{i}-{j}"}) for j in range(DEVICES)
    ]))) for i in range(NODES)]  # fmt: skip
    slices = [msgspec.json.decode(each, type=ResourceSlice) for each in wire]
    report.add("devices.memory", (_memory(wire) - _memory([])) / 2**20, "MiB")
    costs: dict[str, list[float]] = {"none": [], "each": [], "kind": [], "longest": []}
    for _ in range(ROUNDS):
        costs["none"].append(_decide(slices, gang()))
        costs["each"].append(_decide(slices, with_device_claims(gang(gpus=0), "h100")))
        kind, longest = _take_in_kind(slices)
        costs["kind"].append(kind)
        costs["longest"].append(longest)
    medians = {name: statistics.median(each) for name, each in costs.items()}
    report.add("devices.gang_1000", medians["each"] * 1e3, "ms CPU")
    report.add("devices.gang_1000_ratio", medians["each"] / medians["none"], "x without claims")
    report.add("devices.kind", medians["kind"] * 1e3, "ms CPU")
    report.add("devices.kind_longest", medians["longest"] * 1e3, "ms CPU")


def gang(gpus: int = 1) -> Job:
    """Return the gang; with claims it asks for no GPUs."""
    return make_job("gang", count=MEMBERS, gpus=gpus, cpu="1", created=EPOCH)


def _memory(wire: list[bytes]) -> int:
    """Return the bytes of a cluster with these slices, as they are decoded."""
    gc.collect()
    tracemalloc.start()
    slices = [msgspec.json.decode(each, type=ResourceSlice) for each in wire]
    cluster = _cluster(slices, knows_kind=True)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cluster.devices.is_used
    return used


def _cluster(slices: list[ResourceSlice], *, knows_kind: bool) -> ClusterState:
    """Return the cluster, in which a job has asked for devices of the kind, or of another one."""
    first = with_device_claims(make_job("first", gpus=0), "h100" if knows_kind else "any")
    table = DeviceTable(slices, [make_device_class(DRIVER)], TEMPLATES)
    return ClusterState.of(make_nodes(NODES, gpus=8), [first], devices=table)


def _decide(slices: list[ResourceSlice], job: Job) -> float:
    """Return the seconds to take a gang in and to decide on it."""
    cluster = _cluster(slices, knows_kind=True)
    state = PlacementState(cluster)
    decide(state, PlacementPolicy(), EPOCH)
    gc.collect()
    start = time.process_time()
    cluster.job_changed(job)
    decision = decide(state, PlacementPolicy(), EPOCH)
    taken = time.process_time() - start
    placed = [each.job.metadata.name for each in decision.actions if isinstance(each, PlaceJob)]
    assert "gang" in placed, "the gang is placed"
    return taken / cpu_slowness()


def _take_in_kind(slices: list[ResourceSlice]) -> tuple[float, float]:
    """Return the seconds to tell a new kind apart among all devices, and those of the longest part
    of it, in which the loop does nothing else.
    """
    cluster = _cluster(slices, knows_kind=False)
    cluster.devices.matches_at_once = False
    gc.collect()
    cluster.job_changed(with_device_claims(make_job("second", gpus=0), "h100"))
    parts = [_seconds(cluster.follow_claims)]
    while cluster.devices.is_unmatched:
        parts.append(_seconds(lambda: cluster.devices.match(UNITS)))
    parts.append(_seconds(cluster.follow_claims))
    assert len(cluster.devices.kinds) == 2, "it is told apart"
    slowness = cpu_slowness()
    return sum(parts) / slowness, max(parts) / slowness


def _seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start
