"""Recognises that there is still nothing to do, without counting the fleet again.

A decision that found nothing to do is kept with what it looked at. While all of that is the same,
only time could change the answer; until when it cannot, is known. Then a decision is a comparison
of versions and a look at the lists that were compared before: the rails go on watching how old the
lists are and how the API server does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from fairlead.api.cluster.fleet import Fleet
from fairlead.decide.fleet.census import PoolCensus
from fairlead.decide.fleet.leaving.announced import announcement_turns
from fairlead.decide.fleet.leaving.returns import away_turns
from fairlead.decide.fleet.pool_status import PoolPlan
from fairlead.decide.fleet.view import FleetMemory, FleetPolicy, FleetView, PoolView, Quiet
from fairlead.decide.removal.ledger import HOUR
from fairlead.decide.removal.trust import Sight, look, reported_of


def quiet_of(
    view: FleetView,
    policy: FleetPolicy,
    memory: FleetMemory,
    *,
    fleet: Fleet,
    plans: Sequence[PoolPlan],
    sight: Sight,
) -> Quiet | None:
    """Return what a decision without actions, findings and rulings looked at.

    None when time alone may soon change what it found.
    """
    if view.waiting or fleet.status.grants or not all(map(_is_at_rest, plans)):
        return None
    ends = [(view.instant // HOUR + 1) * HOUR, *_idle_ends(view, plans), *away_turns(view)]
    for pool in view.pools:
        ends += (view.instant + turn for turn in announcement_turns(pool, policy, view.now))
    if fleet.status.removed or any(map(counts_time, view.pools)):
        ends.append(memory.ledger.read_at + policy.ledger_seconds)
    return Quiet(fleet, tuple(view.pools), view.nodes.version, sight, until=min(ends))


def counts_time(pool: PoolView) -> bool:
    """True while the readings of the ledger's clock in the records of a pool count."""
    status = pool.pool.status
    return bool(status.launches or status.bought or status.lost)


def _is_at_rest(plan: PoolPlan) -> bool:
    census: PoolCensus = plan.census
    if any(each.may_begin for each in census.view.instances):
        return False
    is_counted = census.instances.keys() == census.listed and not census.awaited
    return is_counted and not (plan.is_busy or census.failed or plan.pool.status.unavailable)


def _idle_ends(view: FleetView, plans: Iterable[PoolPlan]) -> Iterator[float]:
    """Yield when nodes of pools that have more than they want will have been idle long enough."""
    for plan in plans:
        if plan.surplus and plan.is_acted_on:
            for name in plan.census.nodes:
                since = view.nodes.idle_since.get(name)
                end = (since or 0.0) + plan.pool.spec.scale_down.idle_seconds
                if since is not None and end > view.instant:
                    yield end


def stays_quiet(view: FleetView, policy: FleetPolicy, memory: FleetMemory) -> bool:
    """Return whether there is still nothing to do, and let time pass in `memory` if so."""
    quiet = memory.quiet
    if quiet is None or memory.looked_at is None or not _is_same(view, quiet):
        return False
    sight = replace(
        quiet.sight,
        nodes=replace(quiet.sight.nodes, age_seconds=view.nodes_age_seconds),
        cloud=replace(
            quiet.sight.cloud,
            age_seconds=max(
                (pool.age_seconds for pool in view.pools if not pool.pool.is_external), default=0.0
            ),
        ),
        api_error_share=view.api_error_share,
        api_latency_seconds=view.api_latency_seconds,
        reported=reported_of(view.report, view.now),
    )
    elapsed = max(0.0, view.instant - memory.looked_at)
    seen, findings = look(memory.sight, sight, policy.sight, elapsed)
    if findings:
        return False
    memory.sight, memory.looked_at = seen, view.instant
    memory.agree_seconds += elapsed
    memory.bucket = memory.bucket.after(
        elapsed, view.state.table.node_count, policy.joins,
        latency=view.api_latency_seconds, errors=view.api_error_share,
    )  # fmt: skip
    return True


def _is_same(view: FleetView, quiet: Quiet) -> bool:
    if view.waiting or view.fleet is not quiet.fleet or view.instant >= quiet.until:
        return False
    if view.nodes.version != quiet.nodes_version or len(view.pools) != len(quiet.pools):
        return False
    return all(
        now.pool is before.pool and now.inventory is before.inventory
        and now.mistakes == before.mistakes and now.error == before.error
        for now, before in zip(view.pools, quiet.pools, strict=True)
    )  # fmt: skip
