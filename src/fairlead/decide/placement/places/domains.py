"""Domains of the topology: how many members each has room for, and in which order they are filled.

A gang that does not fit into one domain uses as few as possible: the ones with most room, and for
the members that are left over the one with least room among those that have enough. So large free
domains stay whole.

Slices: every k consecutive members are in one domain of the slice level. A domain with room for n
members takes n // k slices. A gang of q whole slices and one of r < k members fits if and only if
there is room for q + 1 slices, or for q and in what one domain has left for r members: as members,
count <= k * slices + the most that one domain has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.model.asks.topology import TopologyRequest
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable


@dataclass(frozen=True, slots=True)
class Slices:
    """`size` members together in a domain. `cells` int[N]: each node's domain, or -1."""

    cells: Ints
    size: int

    def pack(
        self, fits: npt.NDArray[Any], key: Ints, count: int, *, order: Ints | None
    ) -> tuple[Ints, Ints] | None:
        """Return slots and how many members each takes, slice by slice, or None; like `pack`.

        The domains whose first node comes first by `order` are filled first, then by fewest.
        The domain of a smaller last slice comes last.
        """
        nodes = np.flatnonzero((fits > 0) & (self.cells >= 0))
        found, inverse = np.unique(self.cells[nodes], return_inverse=True)
        rooms = np.bincount(inverse, weights=fits[nodes], minlength=len(found)).astype(np.int64)
        whole, rest = divmod(count, self.size)
        if count > _sliced_room(rooms, self.size):
            return None
        ranks = np.zeros(len(found), dtype=np.int64)
        if order is not None:
            ranks = np.full(len(found), np.iinfo(np.int64).max)
            np.minimum.at(ranks, inverse, order[nodes])
        quota = _filled(rooms // self.size, whole, ranks=ranks, tie=rooms) * self.size
        last = -1
        if rest:
            left = rooms - quota
            enough = np.flatnonzero(left >= rest)
            last = int(enough[np.lexsort((left[enough], ranks[enough]))[0]])
            quota[last] += rest
        by = np.lexsort((key[nodes], inverse))
        slots, domains = nodes[by], inverse[by]
        taken = _first_of_each(fits[slots].astype(np.int64), domains, quota)
        used = taken > 0
        return slots[used], taken[used]


def _first_of_each(rooms: Ints, domains: Ints, quota: Ints) -> Ints:
    """Return how many members each node takes, in the order of the nodes of each domain."""
    filled = np.cumsum(rooms)
    before = filled - rooms
    starts = np.zeros(len(quota), dtype=np.int64)
    first = np.flatnonzero(np.diff(domains, prepend=-1))
    starts[domains[first]] = before[first]
    return np.clip(quota[domains] - (before - starts[domains]), 0, rooms)


def _filled(units: Ints, count: int, *, ranks: Ints, tie: Ints) -> Ints:
    """Return how much each domain takes of `count` units, which all together have room for.

    Domains of a smaller rank first, then those with most room; of what is left over after the last
    full one the one with least room that has enough.
    """
    out = np.zeros(len(units), dtype=np.int64)
    order = np.lexsort((tie, -units, ranks))
    filled = np.cumsum(units[order])
    full = int(np.searchsorted(filled, count)) if count else 0
    out[order[:full]] = units[order[:full]]
    left = count - int(out.sum())
    if left:
        others = order[full:]
        enough = others[(units[others] >= left) & (ranks[others] == ranks[others[0]])]
        out[enough[np.lexsort((tie[enough], units[enough]))[0]]] += left
    return out


def _sliced_room(rooms: Ints, size: int) -> int:
    return int((rooms // size).sum()) * size + int((rooms % size).max(initial=0))


@dataclass(frozen=True, slots=True)
class Domains:
    """The nodes of a level. `cells` int[N]: place of the domain's name in order, or -1."""

    cells: Ints
    count: int

    def room(self, fits: npt.NDArray[Any], slices: Slices | None = None) -> Ints:
        """Return int64[domains]: members that each domain can take."""
        if slices is None:
            sums = np.bincount(self.cells + 1, weights=fits, minlength=self.count + 1)
            return sums[1:].astype(np.int64)
        nodes = np.flatnonzero((self.cells >= 0) & (slices.cells >= 0) & (fits > 0))
        width = int(slices.cells.max(initial=0)) + 1
        pairs, inverse = np.unique(
            self.cells[nodes] * width + slices.cells[nodes], return_inverse=True
        )
        rooms = np.bincount(inverse, weights=fits[nodes], minlength=len(pairs)).astype(np.int64)
        owners = pairs // width
        out = np.bincount(
            owners, weights=rooms // slices.size * slices.size, minlength=self.count
        ).astype(np.int64)
        rest = np.zeros(self.count, dtype=np.int64)
        np.maximum.at(rest, owners, rooms % slices.size)
        return out + rest


def domains_of(table: NodeTable, key: str) -> Domains:
    """Return the domains of a label, numbered by name; "": all nodes are one domain."""
    if not key:
        return Domains(np.where(table.exists, 0, -1), 1)
    return Domains(*table.labels.ordered_domains(key))


def domains_within(table: NodeTable, key: str, outer: str) -> Domains:
    """Return the domains of a label, each split where it reaches into several of an outer label."""
    if outer in ("", key):
        return domains_of(table, key)
    return Domains(*table.labels.ordered_domains_within(key, outer))


def slices_of(table: NodeTable, topology: TopologyRequest) -> Slices | None:
    """Return the slices that a gang asks for; None without."""
    if not topology.is_sliced:
        return None
    cells = domains_of(table, topology.slice_level.key).cells
    return Slices(cells.astype(np.int64), topology.slice_size)


def filling_order(
    table: NodeTable,
    gang: GangRequest,
    fits: npt.NDArray[Any],
    *,
    admitted: Bools | None,
    depth: int,
    slices: Slices | None,
) -> Ints | None:
    """Return int64[N]: in which order admitted nodes (None: all) are filled so that few domains of
    each level below `depth` of the ladder are used; nodes without a domain last. None when there
    is no such level.

    `fits` int[N]: members that each node may take.
    """
    size = len(fits)
    nodes = slice(None) if admitted is None else np.flatnonzero(admitted)
    fits = fits[nodes]
    if slices is not None:
        slices = Slices(slices.cells[nodes], slices.size)
    count = gang.roles[gang.placing_order()[0]].count
    order: Ints | None = None
    for level in reversed(gang.topology.ladder[:depth]):
        every = domains_of(table, level.key)
        domains = Domains(every.cells[nodes], every.count)
        rooms = domains.room(fits, slices)
        shares = _filled(
            rooms, min(count, int(rooms.sum())), ranks=np.zeros_like(rooms), tie=-rooms
        )
        # Full ones first, then the one that takes what is left over, then the others.
        is_full, is_used = shares == rooms, shares > 0
        by = np.lexsort((-rooms, ~is_used, ~(is_full & is_used)))
        places = np.full(domains.count + 1, domains.count, dtype=np.int64)
        places[by] = np.arange(domains.count)
        own = places[domains.cells]
        order = own if order is None else order * (domains.count + 1) + own
        partial = np.flatnonzero(is_used & ~is_full)
        count = int(shares[partial].sum())
        if not count:
            break
        fits = np.where(domains.cells == partial[0], fits, 0)
    if order is None:
        return None
    out = np.zeros(size, dtype=np.int64)
    out[nodes] = order
    return out


def in_rank_order(table: NodeTable, topology: TopologyRequest, slots: Ints, counts: Ints) -> Ints:
    """Return one slot per member, along the topology, then by name: ranks that are close are near.

    Members of a slice follow one another; a smaller last slice comes last.
    """
    if len(slots) <= 1:
        return np.repeat(slots, counts)
    columns = [table.rank[slots]]
    for key in reversed(topology.path):
        cells = table.labels.ordered_domains(key)[0][slots]
        if (cells != cells[0]).any():
            columns.append(cells)
    by = np.lexsort(columns)
    if topology.is_sliced:
        by = _slices_together(table, topology, slots, counts, by=by)
    return np.repeat(slots[by], counts[by])


def _slices_together(
    table: NodeTable, topology: TopologyRequest, slots: Ints, counts: Ints, *, by: Ints
) -> Ints:
    """Return an order in which the nodes of a slice domain follow one another."""
    cells = table.labels.domains(topology.slice_level.key)[0][slots]
    found, inverse = np.unique(cells, return_inverse=True)
    positions = np.empty(len(slots), dtype=np.int64)
    positions[by] = np.arange(len(slots))
    first = np.full(len(found), len(slots))
    np.minimum.at(first, inverse, positions)
    is_short = np.bincount(inverse, weights=counts) % topology.slice_size != 0
    return np.lexsort((positions, first[inverse], is_short[inverse]))


def within(admitted: Bools | None, fits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `fits` on the admitted nodes, 0 elsewhere; None: all are."""
    return fits if admitted is None else np.where(admitted, fits, 0)
