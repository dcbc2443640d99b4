"""Which nodes of a pool are its spares: they only replace lost nodes of running gangs.

A node that a gang uses is no spare any more, and the pool makes another one: of the nodes that join
first, since the scheduler cannot have placed anything there yet, else of those that are idle and
that no waiting gang will use. `purchases.py` buys what is lacking. A taint that a person put is
never lifted; its node counts.

Each spare goes where the most nodes in use have none: the domain of the pool first, in it the zone,
block and rack by the levels of the topology. So a gang that must stay in its block finds one there
as long as there are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.decide.fleet.census import PoolCensus, is_idle
from fairlead.decide.fleet.view import FleetView
from fairlead.model.pools.pool_nodes import PoolNode

#: Of each pool in one decision: each is a write.
_CHANGES_MAX = 20
#: A domain of a pool, by its path from the widest one.
_Domain: TypeAlias = tuple[str, ...]


@dataclass(slots=True)
class SpareChanges:
    """Nodes of a pool that become spares, and spares that become ordinary nodes."""

    #: Those that take up work now, for the first time or again: as spares.
    admitted: list[PoolNode] = field(default_factory=list[PoolNode])
    made: list[PoolNode] = field(default_factory=list[PoolNode])
    used: list[PoolNode] = field(default_factory=list[PoolNode])
    surplus: list[PoolNode] = field(default_factory=list[PoolNode])


def change_spares(
    view: FleetView, census: PoolCensus, admitted: Sequence[PoolNode], needed: Collection[str]
) -> SpareChanges:
    """Return what to change so that a pool has its spares.

    `admitted`: nodes whose startup taint is lifted now. `needed`: idle nodes that a gang will use.
    """
    changes, by_name = SpareChanges(), sorted(census.nodes.values(), key=lambda node: node.name)
    fresh = [node for node in admitted if not view.nodes.is_used(node.name)]
    changes.used = [
        node for node in by_name
        if node.is_spare_of_pool and view.nodes.is_used(node.name) and node not in admitted
    ]  # fmt: skip
    standing = [*census.spares, *(node for node in fresh if node.is_spare)]
    lacking = census.view.pool.spec.spare_nodes - len(standing)
    if not lacking:
        return changes
    spread = _Spread(view, census, standing)
    if lacking < 0:
        own = [node for node in census.spares if node.is_spare_of_pool]
        changes.surplus = spread.chosen(own, -lacking, count_as=-1)
        return changes
    joining = [node for node in fresh if not node.is_spare]
    changes.admitted = spread.chosen(joining, lacking)
    lacking -= len(changes.admitted)
    idle = [
        node for node in by_name
        if not node.is_spare and node.name not in needed and is_idle(view, census, node)
    ]  # fmt: skip
    changes.made = spread.chosen(idle, lacking)
    return changes


class _Spread:
    """How many nodes in use and how many spares of a pool each domain has."""

    def __init__(self, view: FleetView, census: PoolCensus, spares: Sequence[PoolNode]) -> None:
        self._census = census
        self._keys = [level.key for level in view.state.levels]
        self._used: Counter[_Domain] = Counter()
        self._spares: Counter[_Domain] = Counter()
        for node in census.nodes.values():
            if view.nodes.is_used(node.name):
                self._used.update(self._domains(node))
        for node in spares:
            self._spares.update(self._domains(node))

    def chosen(self, nodes: Sequence[PoolNode], count: int, *, count_as: int = 1) -> list[PoolNode]:
        """Return so many of the nodes that are to be spares, best first; with `count_as` -1, of
        the spares that are to be none.
        """
        by_domains: dict[tuple[_Domain, ...], list[PoolNode]] = {}
        for node in nodes:
            by_domains.setdefault(self._domains(node), []).append(node)
        pick = max if count_as > 0 else min
        out: list[PoolNode] = []
        while by_domains and len(out) < min(count, _CHANGES_MAX):
            best = pick(by_domains, key=self._lack)
            out.append(by_domains[best].pop(0))
            self._spares.update(dict.fromkeys(best, count_as))
            if not by_domains[best]:
                del by_domains[best]
        return out

    def _lack(self, domains: tuple[_Domain, ...]) -> tuple[tuple[float, ...], _Domain]:
        """Return how many nodes in use there are for each spare with one more, widest domain first;
        the names decide between equal ones.
        """
        return tuple(self._used[d] / (self._spares[d] + 1) for d in domains), domains[-1]

    def _domains(self, node: PoolNode) -> tuple[_Domain, ...]:
        """Return the domains of a node, each as its path from the widest one."""
        labels = node.node.metadata.labels
        path = (self._census.domain_of(node.instance), *(labels.get(k, "") for k in self._keys))
        return tuple(path[: depth + 1] for depth in range(len(path)))
