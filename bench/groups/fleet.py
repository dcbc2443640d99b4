"""What a decision about the fleet costs: 2,000 gangs to buy for, and nothing to do.

The plan is set against finding places for the same gangs in bare numpy, on as many nodes as it
ends with. The decision with nothing to do is set against one walk over the nodes that looks each up
by its machine, which no comparison of two lists can do without.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from bench import bare
from bench.harness import Report, cpu_slowness
from fairlead.api import names
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_pool import (
    NodePool,
    NodePoolSpec,
    NodeTemplate,
    PoolMode,
    Provider,
    ProviderType,
)
from fairlead.api.meta import ObjectMeta
from fairlead.decide.fleet.actions import Action, WriteFleet, WritePool
from fairlead.decide.fleet.buying.demand import Offer, demand_of, template_of
from fairlead.decide.fleet.cycle import decide_fleet
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.model.gang.gangs import GangRequest, JobKey
from fairlead.model.health.machines import Instance, InstanceState, Inventory
from fairlead.model.pools.pool_nodes import PoolNodes
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement

NODES, POOLS, GANGS, MEMBERS = 7_500, 50, 2_000, 10
#: Together 100,000 pods.
MANY_GANGS, MANY_MEMBERS = 5_000, 20
GPUS = 8
ROUNDS, DECISIONS = 3, 20
#: Decisions until the rails see clearly and all statuses are written.
_SETTLING = 8
_GANG = 10  # members of each gang that runs
_RESOURCES = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": str(GPUS)}


def run(report: Report) -> None:
    """Measure each in turns with its bare version."""
    state, gangs = _cluster()
    offers = [Offer(p.metadata.name, "", template_of(p, None), 400, 400) for p in _pools()]
    costs, ratios = [], []
    for _ in range(ROUNDS):
        gc.collect()
        start = time.process_time()
        demand = demand_of(state.cluster, gangs, offers, {})
        taken = time.process_time() - start
        assert len(demand.served) == GANGS, "every gang is bought for"
        bought = sum(purchase.count for purchase in demand.purchases.values())
        costs.append(taken / cpu_slowness())
        ratios.append(taken / _bare_plan(gangs, NODES + bought))
    report.add("fleet.plan_ratio", statistics.median(ratios), "x bare")
    report.add("fleet.plan", statistics.median(costs), "s CPU")
    state, gangs = _cluster(MANY_GANGS, MANY_MEMBERS)
    room = [Offer(p.metadata.name, "", template_of(p, None), 2_000, 2_000) for p in _pools()]
    gc.collect()
    start = time.process_time()
    demand = demand_of(state.cluster, gangs, room, {})
    taken = time.process_time() - start
    assert len(demand.served) == MANY_GANGS, "every gang is bought for"
    report.add("fleet.plan_100k_pods", taken / cpu_slowness(), "s CPU")
    _idle(report)


def _pools() -> list[NodePool]:
    return [
        NodePool(
            ObjectMeta(
                name=f"pool-{number:02}", uid=f"uid-{number}", finalizers=(names.POOL_FINALIZER,)
            ),
            NodePoolSpec(
                Provider(ProviderType.SIMULATED), NodeTemplate(_RESOURCES), max=400,
                mode=PoolMode.ACTIVE,
            ),
        )
        for number in range(POOLS)
    ]  # fmt: skip


def _cluster(
    count: int = GANGS, members: int = MEMBERS
) -> tuple[PlacementState, list[tuple[JobKey, GangRequest]]]:
    """Return a full cluster, and the gangs that wait: their members have 1 to 8 GPUs."""
    nodes = make_nodes(NODES, gpus=GPUS)
    running = [
        make_job(
            f"running-{first}", count=_GANG, gpus=GPUS,
            placement=make_placement([n.metadata.name for n in nodes[first : first + _GANG]]),
        )
        for first in range(0, NODES, _GANG)
    ]  # fmt: skip
    state, rng = PlacementState.of(nodes, running), random.Random(1)
    gangs: list[tuple[JobKey, GangRequest]] = []
    for number in range(count):
        job = make_job(f"waiting-{number}", count=members, gpus=rng.choice((1, 2, 4, 8)))
        state.cluster.job_changed(job)
        gang = state.cluster.jobs[job.metadata.key].gang
        assert isinstance(gang, GangRequest)
        gangs.append((job.metadata.key, gang))
    return state, gangs


def _bare_plan(gangs: list[tuple[JobKey, GangRequest]], nodes: int) -> float:
    """Return the CPU seconds of placing the gangs one after the other, and nothing else."""
    free = np.array([[96_000], [1 << 40], [110], [GPUS]], dtype=np.int64).repeat(nodes, axis=1)
    free[:, :NODES] = 0
    key = np.arange(nodes)
    requests = [
        np.array([0, 0, 1, dict(gang.roles[0].member.request)["nvidia.com/gpu"]], dtype=np.int64)
        for _, gang in gangs
    ]
    gc.collect()
    start = time.process_time()
    for request in requests:
        bare.place_gang(free, request, key, members=MEMBERS)
    return time.process_time() - start


def _idle(report: Report) -> None:
    """Report a decision on 7,500 nodes in 50 pools that all work, with nothing that waits."""
    pools, tracked, machines = _pools(), PoolNodes(), dict[str, list[Instance]]()
    nodes = []
    for number, node in enumerate(make_nodes(NODES, gpus=GPUS)):
        pool, id_ = f"pool-{number % POOLS:02}", f"simulated://{number}"
        labels = {**node.metadata.labels, names.POOL: pool}
        node = msgspec.structs.replace(
            node, metadata=msgspec.structs.replace(node.metadata, labels=labels),
            spec=msgspec.structs.replace(node.spec, provider_id=id_),
        )  # fmt: skip
        nodes.append(node)
        tracked.put(node, 0.0)
        tracked.pod_changed(("default", f"pod-{number}"), None, 0.0)
        machines.setdefault(pool, []).append(Instance(id_, pool, InstanceState.RUNNING))
    jobs = [
        make_job(f"running-{i}", gpus=GPUS, placement=make_placement([node.metadata.name]))
        for i, node in enumerate(nodes)
    ]
    for job in jobs:
        tracked.job_changed(job.metadata.key, job, 0.0)
    state = PlacementState.of(nodes, jobs)
    views = [PoolView(p, (), Inventory(tuple(machines[p.metadata.name])), 0.0) for p in pools]
    view = FleetView(Fleet(), views, tracked, state.cluster, (), EPOCH, 0.0)
    memory, costs, ratios = FleetMemory(), list[float](), list[float]()
    for number in range(_SETTLING):
        view = replace(view, now=EPOCH + 30 * number, instant=30.0 * number)
        decision, _ = decide_fleet(view, FleetPolicy(), memory)
        view = _written(view, decision.actions)
    for number in range(_SETTLING, _SETTLING + DECISIONS):
        view = replace(view, now=EPOCH + 30 * number, instant=30.0 * number)
        gc.collect()
        start = time.process_time()
        decision, _ = decide_fleet(view, FleetPolicy(), memory)
        taken = time.process_time() - start
        assert not decision.actions
        start = time.process_time()
        found = {node.spec.provider_id: tracked.by_instance.get(node.spec.provider_id)
                 for node in nodes}  # fmt: skip
        assert len(found) == NODES
        costs.append(taken / cpu_slowness())
        ratios.append(taken / (time.process_time() - start))
    report.add("fleet.idle_ratio", statistics.median(ratios), "x bare")
    report.add("fleet.idle", statistics.median(costs) * 1e3, "ms CPU")


def _written(view: FleetView, actions: Sequence[Action]) -> FleetView:
    """Return the view once the statuses that were decided are written."""
    pools = {
        action.pool.metadata.name: msgspec.structs.replace(action.pool, status=action.status)
        for action in actions if isinstance(action, WritePool)
    }  # fmt: skip
    fleet = view.fleet
    for action in actions:
        if isinstance(action, WriteFleet):
            fleet = msgspec.structs.replace(action.fleet, status=action.status)
    views = [replace(each, pool=pools.get(each.name, each.pool)) for each in view.pools]
    return replace(view, fleet=fleet, pools=views)
