"""What becomes of the machines of a pool that is deleted: they stay, or they go within the rails.

A finalizer is on a pool before anything is bought for it, so one that is deleted while no
controller runs is still there for the next. A pool that is deleted asks for no node: `ending` makes
it one of size 0, and all else follows from that. With the policy Keep nothing is removed; what is
ours on the nodes (marks, taints) is taken off, the status says how many machines stay, and only
then does the finalizer go. With Drain all nodes are cordoned, and it goes after the last machine.

A pool may go in other ways: without the finalizer, or because a person removed it. Therefore the
Fleet also says how many nodes name a pool that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from fairlead.api.cluster.fleet import FleetStatus
from fairlead.api.cluster.node_pool import NodePool, PoolDecision, ScaleDown
from fairlead.decide.fleet.actions import SetPoolFinalizer
from fairlead.decide.fleet.census import PoolCensus
from fairlead.decide.fleet.decisions import Facts
from fairlead.decide.fleet.view import FleetMemory, FleetView
from fairlead.decide.words import plural
from fairlead.model.pools.pool_nodes import PoolNode

RELEASE = "Release"
#: Nodes of a pool that are cordoned in one decision: each is a write.
DRAINED_MAX = 50
#: Pools without a NodePool that the Fleet names.
UNMANAGED_MAX = 100
_MESSAGE_MAX = 500


def ending(pool: NodePool) -> NodePool:
    """Return a pool that is deleted as one of size 0; any other as it is."""
    if not pool.is_deleted or pool.is_external:
        return pool
    return replace(
        pool,
        spec=replace(
            pool.spec, min=0, max=0, hold=None, headroom_nodes=0, headroom_gpus=0, spare_nodes=0,
            scale_down=ScaleDown(idle_seconds=0),
        ),
    )  # fmt: skip


def is_kept(pool: NodePool) -> bool:
    """True for a pool that is deleted and whose machines stay."""
    return pool.is_deleted and not pool.is_draining and not pool.is_external


def finalizer_of(census: PoolCensus, memory: FleetMemory) -> SetPoolFinalizer | None:
    """Return that the finalizer is put on a pool before it is acted on, or taken off; else None."""
    pool = census.view.pool
    if pool.is_external or pool.has_finalizer == (not pool.is_deleted):
        return None
    if not pool.is_deleted:
        may_not = census.view.name in memory.without_finalizer
        return None if may_not else SetPoolFinalizer(pool, has_finalizer=True)
    if pool.has_finalizer and _is_over(census):
        return SetPoolFinalizer(pool, has_finalizer=False)
    return None


def _is_over(census: PoolCensus) -> bool:
    """True when it is said that the machines stay, or when they are gone."""
    pool, inventory = census.view.pool, census.view.inventory
    if not pool.is_draining and any(each.action == RELEASE for each in pool.status.decisions):
        return True
    if census.instances or census.nodes or census.leaving:
        return False
    may_come = any(launch.given_up_at is None for launch in pool.status.unanswered)
    return not may_come and inventory is not None and inventory.is_complete


def release_of(census: PoolCensus, at: str) -> PoolDecision | None:
    """Return that the machines of a deleted pool stay; None while something of ours is on them, or
    where it is said already.
    """
    pool, error = census.view.pool, census.view.error
    if not (is_kept(pool) and pool.has_finalizer) or _is_over(census):
        return None
    is_listed = census.view.inventory is not None
    if not (is_listed and not census.leaving) and not error:
        return None  # a removal under way is seen through, unless the provider does not answer
    ours = [node for node in census.nodes.values() if node.removal]
    spares = [node for node in census.spares if node.is_spare_of_pool]
    if (ours or spares or census.joining) and not (census.view.mistakes or error):
        return None
    count = len(census.instances)
    without = len(census.instances.keys() - {node.instance for node in census.nodes.values()})
    unanswered = sum(launch.count for launch in pool.status.unanswered)
    stay = "stays" if count == 1 else "stay"
    parts = (
        f"the pool is deleted; {plural(count, 'machine')} {stay}, and nothing manages them",
        f"{without} of them have no node yet" if without else "",
        f"launches without an answer may still bring {unanswered}" if unanswered else "",
        f"the provider does not answer: {error}" if error else "",
        "a pool of the same name and provider manages them again",
    )
    text = "; ".join(part for part in parts if part)[:_MESSAGE_MAX]
    facts: Facts = {"machines": count, "nodes": len(census.nodes), "withoutNode": without}
    return PoolDecision(at, RELEASE, "PoolDeleted", text, facts)


def drained(nodes: Sequence[PoolNode], at: str) -> PoolDecision:
    """Return that nodes of a pool that is drained are cordoned."""
    text = f"{plural(len(nodes), 'node')} of the deleted pool take no more work"
    return PoolDecision(at, "Drain", "PoolDeleted", text, {"nodes": len(nodes)})


def to_drain(census: PoolCensus) -> list[PoolNode]:
    """Return nodes of a pool that is drained and that are not cordoned yet, a few at a time."""
    if not census.view.pool.is_draining or census.view.mistakes:
        return []
    found = (node for node in census.nodes.values() if not (node.removal or node.is_cordoned))
    return sorted(found, key=lambda node: node.name)[:DRAINED_MAX]


def deletion_words(census: PoolCensus) -> str:
    """Return what a pool that is deleted waits for; "" for any other."""
    pool = census.view.pool
    if not pool.is_deleted or pool.is_external:
        return ""
    if not pool.is_draining:
        return "is deleted: its machines stay"
    by_hand = sum(node.is_cordoned and not node.removal for node in census.nodes.values())
    cordoned = f", but {by_hand} that people have cordoned" if by_hand else ""
    left = plural(len(census.instances), "machine")
    return f"is deleted: {left} left, which go once nothing uses them{cordoned}"


def unmanaged(view: FleetView) -> dict[str, int]:
    """Return how many nodes name a pool that does not exist, by pool."""
    there = {pool.name for pool in view.pools}
    found = {name: len(nodes) for name, nodes in view.nodes.by_pool.items() if name not in there}
    return dict(sorted(found.items())[:UNMANAGED_MAX])


def unmanaged_changed(
    before: FleetStatus, after: Mapping[str, int], at: str
) -> tuple[PoolDecision, ...]:
    """Return which pools that do not exist have nodes now and had none before."""
    return tuple(
        PoolDecision(
            at, "Unmanaged", "NoSuchPool",
            f"{plural(count, 'node')} of pool {name}, which does not exist: nothing buys, removes "
            f"or repairs them",
            {"pool": name, "nodes": count},
        )
        for name, count in after.items() if name not in before.unmanaged
    )  # fmt: skip
