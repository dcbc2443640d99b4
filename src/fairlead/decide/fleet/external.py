"""Pools whose machines another autoscaler owns: what they have, and how many balloons they keep.

The size of such a pool follows from the same plan as any other's: demand, headroom, limits, holds.
Instead of buying, Fairlead keeps a balloon for each node that is to be there and that nothing uses;
those that find no node wait, and the other autoscaler adds nodes for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fairlead.api.cluster.node_pool import BalloonCounts
from fairlead.decide.fleet.balloons import may_have_balloons, may_stand
from fairlead.decide.fleet.census import PoolCensus
from fairlead.decide.fleet.pool_status import PoolPlan, jobs_shown
from fairlead.decide.fleet.view import FleetPolicy, FleetView, PoolView, about
from fairlead.decide.pinning import Binding
from fairlead.decide.removal.trust import SightFinding
from fairlead.model.health.machines import Instance, InstanceState


def census_of_nodes(view: FleetView, pool: PoolView, policy: FleetPolicy) -> PoolCensus:
    """Count a pool by its nodes, since it has no list of machines; PoolFault.

    Nodes on which no balloon may stand, and which nothing uses, do not count: what replaces them
    may come. Those that are not ready count as coming.
    """
    with about(pool.name):
        nodes = view.nodes.by_pool.get(pool.name, {})
        binding = policy.binding or Binding.DIRECT
        used = {name for name in nodes if view.nodes.is_used(name)}
        open_ = {
            name for name, node in nodes.items()
            if name not in used and may_stand(node, pool.pool, binding)
        }  # fmt: skip
        instances = {
            node.instance: Instance(node.instance, pool.name, InstanceState.RUNNING)
            for name, node in nodes.items()
            if name in used or name in open_
        }
        census = PoolCensus(pool, instances, frozenset(instances), nodes, {})
        coming = sum(not nodes[name].is_ready for name in open_)
        if coming:
            census.coming[""] = coming
        return census


def with_balloons(
    view: FleetView, plan: PoolPlan, policy: FleetPolicy, findings: Sequence[SightFinding]
) -> PoolPlan:
    """Return the plan of such a pool with its balloons in the place of purchases and removals.

    Where nodes are lacking, every idle node has a balloon and those beyond wait for a node. While
    nothing is to be bought, none waits. While what is seen cannot be trusted, no idle node loses
    its balloon, since the other autoscaler would remove it.
    """
    census = plan.census
    used = sum(view.nodes.is_used(name) for name in census.nodes)
    idle = census.size - used
    lacking = sum(buy.count for buy in plan.buys)
    wanted = idle + lacking if lacking else min(idle, max(0, plan.wanted - used))
    before = plan.pool.status.balloons
    if findings and before is not None:
        wanted = max(wanted, min(before.wanted, idle))
    if census.view.mistakes:
        wanted = before.wanted if before is not None else 0
    elif not may_have_balloons(plan.pool, policy.binding):
        wanted = 0
    is_possible = may_have_balloons(plan.pool, policy.binding)
    is_requested = is_possible and plan.is_acted_on
    counts = BalloonCounts(
        wanted, *_present(view, plan), lacking if is_requested else 0,
        jobs_shown(job for buy in plan.buys for job in buy.jobs) if is_requested else (),
    )  # fmt: skip
    return replace(
        plan, buys=(), surplus=0, returning={}, balloons=counts, is_bound_directly=not is_possible
    )


def _present(view: FleetView, plan: PoolPlan) -> tuple[int, int]:
    """Return how many balloons of a pool have a node, and how many wait for one."""
    uid = plan.pool.metadata.uid
    found = [
        pod for pod in view.nodes.balloons.values()
        if any(owner.uid == uid for owner in pod.metadata.owner_references)
        and pod.metadata.deletion_timestamp is None and not pod.is_terminal
        and not (pod.spec.node_name and view.nodes.is_used(pod.spec.node_name))
    ]  # fmt: skip
    standing = sum(bool(pod.spec.node_name) for pod in found)
    return standing, len(found) - standing
