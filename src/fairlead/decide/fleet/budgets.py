"""What the budgets of removals are of: the sizes of pools and domains."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fairlead.decide.fleet.census import PoolCensus


def sizes_of(
    censuses: Sequence[PoolCensus], bought: Mapping[str, Collection[str]]
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
