"""Whether node pools could hold a gang that the present nodes cannot: the planner's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.api import names
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.kubernetes.core import Node
from fairlead.api.meta import to_wire
from fairlead.api.validation.validate_pool import validate_pool
from fairlead.decide.fleet.buying.demand import demand_of, device_source, offers_of
from fairlead.decide.placement.places.whatif import fits_empty
from fairlead.decide.reasons import Outcome
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.inventory.device_offers import DeviceOffers

_KEY = ("", "asked")


def pools_that_hold(
    nodes: Sequence[Node],
    gang: GangRequest | InvalidGang,
    pools: Sequence[NodePool],
    devices: DeviceOffers | None = None,
) -> Mapping[str, int]:
    """Return how many nodes of which pools would hold a gang that the present nodes never can.

    Empty when the present nodes can, or when all pools, bought out and idle, could not either.
    Pools that act go before those in dry run. What other jobs use does not count, nor which
    launches were refused: the question is whether it is possible at all. `devices` are what nodes,
    and templates of pools, offer of those that claims ask for.
    """
    if isinstance(gang, InvalidGang):
        return {}
    if fits_empty(_state(nodes, devices), gang).outcome is not Outcome.IMPOSSIBLE:
        return {}
    valid = {
        pool.metadata.name: pool for pool in pools
        if not pool.is_deleted and not validate_pool(to_wire(pool))
    }  # fmt: skip
    others = [node for node in nodes if node.metadata.labels.get(names.POOL) not in valid]
    by_weight = sorted(valid.values(), key=lambda p: (-p.spec.weight, p.metadata.name))
    of_pool: dict[str, list[str]] = {}
    for node in nodes:
        of_pool.setdefault(node.metadata.labels.get(names.POOL, ""), []).append(node.metadata.name)
    state = _state(others, devices)
    for is_active in (True, False):
        chosen = [pool for pool in by_weight if pool.is_active is is_active]
        offers = [
            offer for pool in chosen
            for offer in offers_of(
                pool, pool.spec.limit - pool.spec.spare_nodes,
                like=device_source(state, pool.metadata.name, of_pool.get(pool.metadata.name, ())),
            )
        ]  # fmt: skip
        demand = demand_of(state, [(_KEY, gang)], offers, {})
        counts: dict[str, int] = {}
        for (name, _), purchase in demand.purchases.items():
            counts[name] = counts.get(name, 0) + purchase.count
        if counts:
            return counts
    return {}


def _state(nodes: Sequence[Node], devices: DeviceOffers | None) -> ClusterState:
    state = ClusterState.of(nodes)
    if devices is not None:
        state.table.devices.put_volumes(devices.volumes)
        state.table.set_devices(devices.devices, devices.served)
    return state
