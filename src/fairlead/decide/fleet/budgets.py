"""What the budgets of removals are of: sizes of pools, limits of their own, and overrides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fairlead.api.fleet import Fleet, Override
from fairlead.api.node_limit import parse_limit
from fairlead.api.node_pool import NodePool
from fairlead.api.times import parse_time
from fairlead.decide.fleet.census import Census
from fairlead.decide.rails.ledger import PoolBudget
from fairlead.decide.rails.removals import Permit


def sizes_of(
    censuses: Sequence[Census], bought: Mapping[str, Collection[str]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return how large pools and domains are, and how much of each pool was bought within a
    day: what both lists agree exists.
    """
    sizes, counts = dict[str, int](), dict[str, int]()
    for census in censuses:
        name = census.view.name
        seen = [
            node for node in census.nodes.values()
            if node.instance in census.listed and node.instance not in census.leaving
        ]  # fmt: skip
        sizes[name] = len(seen)
        # What is launched counts as bought from the first list on that has it.
        launches = census.view.pool.status.launches
        new = {id_ for launch in launches for id_ in launch.instances or ()}
        new.update(bought[name])
        counts[name] = sum(node.instance in new for node in seen)
        for node in seen:
            domain = f"{name}/{census.domain_of(node.instance)}"
            sizes[domain] = sizes.get(domain, 0) + 1
    return sizes, counts


def permits_of(fleet: Fleet, now: float) -> list[Permit]:
    """Return the overrides that are in force."""
    return [
        Permit(override.name, frozenset(override.nodes))
        for override in fleet.spec.overrides
        if _end_of(override) > now
    ]


def budget_of(pool: NodePool) -> PoolBudget:
    """Return the limits of a pool's own."""
    own = pool.spec.disruption
    limits = (own.nodes_at_once_max, own.nodes_per_hour_max, own.nodes_per_day_max)
    return PoolBudget(*(None if limit is None else parse_limit(limit) for limit in limits))


def _end_of(override: Override) -> float:
    """Return when an override ends; one whose end cannot be read allows nothing."""
    try:
        return parse_time(override.expires_at)
    except ValueError:
        return float("-inf")
