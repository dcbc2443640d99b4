"""What claims of volumes cost the planner: a gang whose volumes are in zones, or on nodes."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence

from msgspec.structs import replace

from bench.harness import Report, cpu_slowness
from fairlead.api.jobs.job import ClaimTemplate, Job
from fairlead.api.kubernetes.core import Node
from fairlead.api.kubernetes.volumes import PersistentVolume, PersistentVolumeClaim
from fairlead.api.meta import ObjectMeta
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.cluster import ClusterState
from fairlead.testing.builders import EPOCH, make_job, make_nodes
from fairlead.testing.volume_builders import ZONE, make_claim, make_volume

NODES, MEMBERS, ROUNDS = 7_500, 1_000, 7
ZONES = ("a", "b", "c")
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def run(report: Report) -> None:
    """Measure the decision on a gang without claims, with a shared one, and with own ones."""
    nodes = zonal(make_nodes(NODES, gpus=8))
    claims = [make_claim(f"data-gang-worker-{i}", volume=f"v{i}") for i in range(MEMBERS)]
    shared = [make_claim("data", volume="v")]
    zones = [make_volume(f"v{i}", zones=[ZONES[i % 3]]) for i in range(MEMBERS)]
    local = [make_volume(f"v{i}", nodes=[f"node-{7 * i:04d}"]) for i in range(MEMBERS)]
    kinds: dict[str, tuple[Job, Sequence[PersistentVolumeClaim], Sequence[PersistentVolume]]] = {
        "none": (gang(), (), ()),
        "shared": (gang(claims=["data"]), shared, [make_volume("v", zones=["b"])]),
        "zonal": (with_own(gang()), claims, zones),
        "local": (with_own(gang()), claims, local),
    }
    for name, (job, bound, volumes) in kinds.items():
        costs, taken_in = zip(*(_decide(nodes, job, bound, volumes) for _ in range(ROUNDS)),
                              strict=True)  # fmt: skip
        report.add(f"volumes.gang_1000_{name}", statistics.median(costs) * 1e3, "ms CPU")
        if name == "zonal":
            each = statistics.median(taken_in) * 1e6 / MEMBERS
            report.add("volumes.claim_read", each, "us CPU")


def gang(**more: object) -> Job:
    """Return the gang; the arguments are those of its pods."""
    return make_job("gang", count=MEMBERS, gpus=1, **more)  # type: ignore[arg-type]


def with_own(job: Job) -> Job:
    """Return a job whose members have a claim of their own each."""
    (role,) = job.spec.roles
    template = ClaimTemplate(ObjectMeta(name="data"), SPEC)
    role = replace(role, volume_claim_templates=(template,))
    return replace(job, spec=replace(job.spec, roles=(role,)))


def zonal(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes in three zones."""
    return [
        replace(node, metadata=replace(node.metadata, labels={
            **node.metadata.labels, ZONE: ZONES[i % 3]
        }))
        for i, node in enumerate(nodes)
    ]  # fmt: skip


def _decide(
    nodes: Sequence[Node],
    job: Job,
    claims: Sequence[PersistentVolumeClaim],
    volumes: Sequence[PersistentVolume],
) -> tuple[float, float]:
    """Return the seconds of the decision that places the gang, and those to take the job in."""
    cluster = ClusterState.of(nodes, claims=claims, volumes=volumes)
    state = PlacementState(cluster)
    decide(state, PlacementPolicy(), EPOCH)
    gc.collect()
    start = time.process_time()
    cluster.job_changed(job)
    taken_in = time.process_time() - start
    start = time.process_time()
    decision = decide(state, PlacementPolicy(), EPOCH)
    taken = time.process_time() - start
    assert isinstance(decision.actions[0], PlaceJob), "the gang is placed"
    slowness = cpu_slowness()
    return taken / slowness, taken_in / slowness
