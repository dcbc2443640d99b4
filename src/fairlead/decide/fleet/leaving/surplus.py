"""Which machines are to go: those that never worked, and idle nodes that nothing needs.

What was bought within a day goes first, since it goes beyond the shares of the budgets; then whole
idle domains, so that what stays has room for gangs that want to be close together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from fairlead.api.cluster.fleet import RemovalCause
from fairlead.decide.fleet.census import PoolCensus
from fairlead.decide.fleet.view import FleetMemory, FleetView
from fairlead.decide.removal.ledger import Charge
from fairlead.decide.removal.removals import Removal
from fairlead.decide.words import duration
from fairlead.model.pools.pool_nodes import PoolNode


def removals_of(
    view: FleetView,
    census: PoolCensus,
    memory: FleetMemory,
    *,
    surplus: int,
    needed: Collection[str],
    bought: Mapping[str, float],
) -> Iterator[Removal]:
    """Yield what should be removed of a pool: at most `surplus` idle nodes, failed launches, nodes
    without a machine, and those that are to go for their faults or by a person. `bought`: what
    `bought_within_day` returns.
    """
    for id_ in sorted(census.failed):
        node = view.nodes.by_instance.get(id_)
        why = _why_failed(census, node)
        yield _removal(
            census, memory, id_, node, cause=RemovalCause.FAILED_LAUNCH, order=0, why=why
        )
    for node in census.gone.values():
        if not view.nodes.is_used(node.name):
            yield _removal(
                census, memory, node.instance, node, cause=RemovalCause.REPAIR, order=0,
                why="it is not ready, and its machine is gone",
            )  # fmt: skip
    for node in census.nodes.values():
        if node.goes is not None and node.instance not in census.leaving:
            is_mine = not node.is_cordoned or bool(node.removal) or node.goes.is_by_person
            if is_mine and not view.nodes.is_used(node.name) and node.name not in census.gone:
                yield _removal(
                    census, memory, node.instance, node, cause=node.goes.cause, order=1,
                    why=node.goes.why, is_paid=not node.goes.is_by_person,
                )  # fmt: skip
    idle = [node for node in census.nodes.values() if _is_idle(view, census, node, needed)]
    sizes = census.domain_sizes()
    in_domain = Counter(census.domain_of(node.instance) for node in idle)

    def order(node: PoolNode) -> tuple[bool, bool, bool, str, str]:
        domain = census.domain_of(node.instance)
        is_partial = in_domain[domain] < sizes.get(domain, 0)
        return (not node.removal, node.instance not in bought, is_partial, domain, node.name)

    for place, node in enumerate(sorted(idle, key=order)[:surplus]):
        since = duration(view.instant - view.nodes.idle_since[node.name])
        why = f"idle for {since}, and {surplus} more than wanted"
        yield _removal(
            census, memory, node.instance, node, cause=RemovalCause.IDLE, order=place, why=why,
            bought=bought.get(node.instance),
        )  # fmt: skip


def _why_failed(census: PoolCensus, node: PoolNode | None) -> str:
    scale_up = census.view.pool.spec.scale_up
    if node is None and scale_up.launch_seconds is not None:
        return f"no node within {duration(scale_up.launch_seconds)} of its launch"
    return f"not ready within {duration(scale_up.ready_seconds)} of its launch"


def _is_idle(view: FleetView, census: PoolCensus, node: PoolNode, needed: Collection[str]) -> bool:
    """True for a node that works, that nothing uses or keeps, and that no person has cordoned."""
    since = view.nodes.idle_since.get(node.name)
    # A drained pool keeps no spare, also where the write that would say so did not come.
    is_kept = node.name in needed or (node.is_spare and not census.view.pool.is_draining)
    if since is None or is_kept or node.is_out or node.instance in census.leaving:
        return False
    is_ours = not node.is_cordoned or bool(node.removal)
    seconds = census.view.pool.spec.scale_down.idle_seconds
    return node.is_ready and not node.is_waiting and is_ours and view.instant >= since + seconds


def _removal(
    census: PoolCensus,
    memory: FleetMemory,
    instance: str,
    node: PoolNode | None,
    *,
    cause: RemovalCause,
    order: int,
    why: str,
    bought: float | None = None,
    is_paid: bool = False,
) -> Removal:
    found = census.instances.get(instance)
    tagged = found.pool if found is not None else ""
    if node is not None and node.name in census.gone:  # no machine has a tag, and none is ended
        tagged = census.view.name
    name = node.name if node is not None else ""
    is_marked = (name or instance) in memory.marked
    if node is not None:  # what is to go must be cordoned, and our mark must be on it
        is_marked = is_marked and bool(node.removal) and node.is_cordoned
    return Removal(
        Charge(census.view.name, census.domain_of(instance), cause, bought),
        instance,
        tagged,
        name,
        node.instance if node is not None else "",
        marked_loops=int(is_marked),
        order=order,
        why=why,
        is_paid=is_paid,
    )
