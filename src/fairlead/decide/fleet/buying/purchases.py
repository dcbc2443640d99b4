"""How large each pool should be, and what is bought for it: demand, headroom, spares, limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.values.times import parse_time
from fairlead.decide.fleet.buying.demand import (
    Demand,
    Offer,
    Unbought,
    demand_of,
    device_source,
    offers_of,
)
from fairlead.decide.fleet.census import PoolCensus
from fairlead.decide.fleet.pool_status import Buy, PoolPlan
from fairlead.decide.fleet.view import FleetView, about
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.whatif import fits_empty
from fairlead.decide.reasons import Reason
from fairlead.model.gang.gangs import GangRequest


@dataclass(frozen=True, slots=True)
class Purchases:
    """What gangs need, and what follows for each pool."""

    demand: Demand
    plans: tuple[PoolPlan, ...]


def plan_purchases(
    view: FleetView, censuses: Sequence[PoolCensus], *, is_buying: bool
) -> Purchases:
    """Return the plan of each pool, in their order. Without `is_buying` nothing is bought."""
    coming: dict[tuple[str, str], int] = {}
    offers: dict[str, list[Offer]] = {}
    for census in censuses:
        if census.view.pool.is_deleted:  # what joins or returns there takes no work
            offers[census.view.name] = []
            continue
        left = census.spares_lacking  # the first nodes that join are spares
        for domain in sorted(census.coming.keys() | census.marked.keys()):
            joins = census.coming.get(domain, 0)
            spares = min(left, joins)
            left -= spares
            count = joins - spares + len(census.marked.get(domain, ()))
            coming[census.view.name, domain] = count
        offers[census.view.name] = _offers(view, census, spares=left)
    active = _ordered([c for c in censuses if _is_acted_on(c)], offers)
    demand = _demand(view, active, coming)
    demand.needed |= kept_for_next(view, demand)
    left = set(demand.unbought)
    trial = Demand()
    if left:  # what pools in dry run would do for the rest
        dry = _ordered([c for c in censuses if _is_tried(c)], offers)
        waiting = [(key, gang) for key, gang in view.waiting if key in left]
        if dry:
            trial = demand_of(view.state, waiting, dry, {})
    plans = [
        _plan(view, census, demand if _is_acted_on(census) else trial, is_buying=is_buying)
        for census in censuses
    ]
    return Purchases(demand, tuple(plans))


def _demand(view: FleetView, offers: Sequence[Offer], coming: dict[tuple[str, str], int]) -> Demand:
    if not view.waiting:
        return Demand(needed=view.state.ledger.nominated_nodes())
    return demand_of(view.state, view.waiting, offers, coming)


def _is_acted_on(census: PoolCensus) -> bool:
    return census.view.pool.is_active and not census.view.mistakes


def _is_tried(census: PoolCensus) -> bool:
    return not census.view.pool.is_active and not census.view.mistakes


def _ordered(censuses: Sequence[PoolCensus], offers: dict[str, list[Offer]]) -> list[Offer]:
    """Return the offers of pools by weight, price and name, their domains as they stand."""
    by_name = sorted(censuses, key=lambda census: census.view.name)
    found = [offer for census in by_name for offer in offers[census.view.name]]
    return sorted(found, key=lambda offer: (-offer.weight, offer.price_micros))


def _offers(view: FleetView, census: PoolCensus, *, spares: int) -> list[Offer]:
    """Return what a pool offers, room for so many spares aside; PoolFault."""
    with about(census.view.name):
        return _offers_of(view, census, spares)


def _offers_of(view: FleetView, census: PoolCensus, spares: int) -> list[Offer]:
    pool = census.view.pool
    if census.view.mistakes:
        return []
    avoided = {u.domain for u in pool.status.unavailable if parse_time(u.until) > view.now}
    avoided.update(launch.domain for launch in census.overdue)
    return offers_of(
        pool, pool.spec.limit - census.occupied - spares,
        sizes=census.domain_sizes(with_leaving=True), avoided=avoided,
        headroom=0 if pool.spec.hold is not None else pool.spec.headroom,
        like=device_source(
            view.state, pool.metadata.name, (n.name for n in census.nodes.values() if n.is_ready)
        ),
    )  # fmt: skip


def _plan(view: FleetView, census: PoolCensus, demand: Demand, *, is_buying: bool) -> PoolPlan:
    pool, name = census.view.pool, census.view.name
    used = sum(view.nodes.is_used(each) or each in demand.needed for each in census.nodes)
    coming_used = {d: n for (p, d), n in demand.coming_used.items() if p == name}
    buys = _bought(pool, demand)
    bought = sum(buy.count for buy in buys)
    spec = pool.spec
    asked = used + sum(coming_used.values()) + bought
    headroom = 0 if census.view.mistakes else spec.headroom
    kept = headroom + census.spares_wanted + len(census.out)  # nodes that are out are neither
    wanted = min(max(asked + kept, spec.min), spec.max)
    if spec.hold is not None:
        wanted = spec.hold
    lacking = wanted - census.size - bought
    if lacking > 0 and not census.view.mistakes:
        buys = _fill(_offers(view, census, spares=0), buys, lacking)
    returning = {
        domain: max(0, count - census.coming.get(domain, 0))
        for domain, count in coming_used.items()
    }
    is_buying = is_buying and (pool.is_external or census.is_counted)
    surplus = max(0, census.size - wanted)
    if surplus == 0:  # what is marked and wanted after all returns
        returning = {domain: len(nodes) for domain, nodes in census.marked.items()}
    return PoolPlan(
        census, wanted, tuple(buys) if is_buying else (), surplus, returning,
        is_acted_on=_is_acted_on(census), is_held_back=bool(buys) and not is_buying,
        lacking=max(0, wanted - census.size),
        consolidates_to=None if buys or view.waiting else _consolidates_to(census, kept),
    )  # fmt: skip


def _consolidates_to(census: PoolCensus, kept: int) -> int | None:
    """Return down to how many nodes in use a pool may be consolidated: beside fewer, idle nodes
    stay for `min`. `kept` nodes stay beside those in use. None where it may not, or where its idle
    nodes stay anyway.
    """
    pool, spec = census.view.pool, census.view.pool.spec
    may_empty = spec.scale_down.enabled and spec.scale_down.consolidates
    if not may_empty or pool.is_external or spec.hold is not None or census.view.mistakes:
        return None
    return max(0, spec.min - kept)


def _bought(pool: NodePool, demand: Demand) -> list[Buy]:
    return [
        Buy(domain, purchase.count, tuple(purchase.jobs), purchase.passed)
        for (name, domain), purchase in sorted(demand.purchases.items())
        if name == pool.metadata.name
    ]


def _fill(offers: Sequence[Offer], buys: Sequence[Buy], lacking: int) -> list[Buy]:
    """Add nodes for headroom, spares, min and hold, in the first domains that have room."""
    counts = {buy.domain: buy.count for buy in buys}
    known = {buy.domain: buy for buy in buys}
    of_pool = max((offer.pool_room for offer in offers), default=0)
    left = min(lacking, of_pool - sum(counts.values()))
    for offer in offers:
        if offer.is_unavailable or left <= 0:
            continue
        more = min(left, offer.room - counts.get(offer.domain, 0))
        if more > 0:
            counts[offer.domain] = counts.get(offer.domain, 0) + more
            left -= more
    return [
        replace(known.get(domain) or Buy(domain, count), count=count)
        for domain, count in sorted(counts.items())
    ]


# Which idle nodes stay because the next gang needs them: the one that waits for full pools.
#
# Nothing more can be bought for it, so it starts once nodes in use are free. What is idle until
# then would go meanwhile, and be bought again for it.


#: Gangs that are asked about in one decision.
_ASKED_MAX = 3


def kept_for_next(view: FleetView, demand: Demand) -> set[str]:
    """Return the idle nodes for the first gang that waits for full pools and that fits them."""
    full = (
        gang for key, gang in view.waiting
        if demand.unbought.get(key, (None,))[0] is Unbought.POOLS_FULL
    )  # fmt: skip
    for gang, _ in zip(full, range(_ASKED_MAX), strict=False):
        if fits_empty(view.state, gang).reason is Reason.PLACED:
            return _nodes_for(view, gang)
    return set()


def _nodes_for(view: FleetView, gang: GangRequest) -> set[str]:
    """Return as many idle nodes as the members of each role could use, by name."""
    table, out = view.state.table, set[str]()
    with view.state.transaction() as transaction:
        capacity = PresentCapacity(view.state, transaction)
        for role in gang.roles:
            left, fits = role.count, capacity.fits(role.member)
            for name in sorted(table.names[slot] for slot in np.flatnonzero(fits).tolist()):
                slot = table.slot(name)
                if left > 0 and slot is not None and name in view.nodes.idle_since:
                    out.add(name)
                    left -= int(fits[slot])
    return out
