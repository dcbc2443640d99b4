"""The nodes of pools: which of them are used, and since when the others are idle."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod, Taint
from fairlead.api.meta import Condition
from fairlead.api.names import POOL, TAINT_JOINING
from fairlead.model.health.node_health import is_ready
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.testing.builders import make_job, make_node, make_placement, make_pod

NODES = ("n0", "n1", "n2")


@dataclass
class Objects:
    """The latest version of each object."""

    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    pods: dict[str, Pod] = field(default_factory=dict[str, Pod])

    def used(self) -> set[str]:
        """Return the nodes with a place of an unfinished job, or a pod that has not ended."""
        placements = (job.status.placement for job in self.jobs.values() if not job.is_finished)
        places = {n for each in placements if each for role in each.roles for n in role.nodes}
        return places | {p.spec.node_name for p in self.pods.values() if not p.is_terminal}

    def usable(self) -> set[str]:
        """Return the nodes of pools on which members can start."""
        return {n for n, node in self.nodes.items() if is_ready(node) and not node.spec.taints}


def a_node(rng: random.Random) -> Node:
    name = rng.choice(NODES)
    taints = [Taint(TAINT_JOINING, "NoSchedule")] if rng.random() < 0.3 else []
    labels = {POOL: rng.choice("pq")} if rng.random() < 0.9 else {}
    node = make_node(name, labels=labels, taints=taints, ready=rng.random() < 0.7)
    return replace(node, spec=replace(node.spec, provider_id=f"id-{name}"))


def a_job(rng: random.Random) -> Job:
    ended = [Condition("Succeeded", "True")] if rng.random() < 0.3 else []
    places = rng.sample(NODES, rng.randrange(3))
    placement = make_placement(places) if places else None
    return make_job(rng.choice("ab"), placement=placement, conditions=ended)


def change(rng: random.Random, tracked: PoolNodes, objects: Objects, now: float) -> None:
    """Change one object, in both."""
    gone = rng.random() < 0.2
    kind = rng.choice(["node", "job", "pod"])
    if kind == "node":
        node = a_node(rng)
        name = node.metadata.name
        objects.nodes.pop(name, None)
        if gone:
            tracked.remove(name)
            return
        tracked.put(node, now)
        if POOL in node.metadata.labels:
            objects.nodes[name] = node
    elif kind == "job":
        job = a_job(rng)
        objects.jobs.pop(job.metadata.name, None)
        tracked.job_changed(job.metadata.key, None if gone else job, now)
        if not gone:
            objects.jobs[job.metadata.name] = job
    else:
        phase = rng.choice(["Running", "Running", "Failed"])
        pod = make_pod(rng.choice("xy"), node=rng.choice(NODES), phase=phase)
        objects.pods.pop(pod.metadata.name, None)
        tracked.pod_changed(pod.metadata.key, None if gone else pod, now)
        if not gone:
            objects.pods[pod.metadata.name] = pod


def test_a_node_is_idle_since_it_was_last_used_or_became_usable() -> None:
    rng, tracked, objects = random.Random(1), PoolNodes(), Objects()
    idle_since: dict[str, float] = {}
    met = Counter[str]()
    for step in range(3000):
        now, usable = float(step), objects.usable()
        change(rng, tracked, objects, now)
        used = objects.used()
        idle = objects.nodes.keys() - used
        new = (idle - idle_since.keys()) | (idle & objects.usable() - usable)
        met["becomes usable"] += len(new & idle_since.keys())
        met["is used no more"] += len(new - idle_since.keys())
        idle_since = {name: now if name in new else idle_since[name] for name in idle}
        assert tracked.idle_since == idle_since, step
        assert {name for name in NODES if tracked.is_used(name)} == used, step
        by_pool = {
            pool: {n for n, node in objects.nodes.items() if node.metadata.labels[POOL] == pool}
            for pool in "pq"
        }
        assert {pool: set(tracked.by_pool.get(pool, ())) for pool in "pq"} == by_pool, step
        assert set(tracked.by_instance) == {f"id-{name}" for name in objects.nodes}, step
        unready = {name for name, node in objects.nodes.items() if not is_ready(node)}
        assert tracked.unready.keys() == unready, step
    assert min(met.values()) > 50, met
