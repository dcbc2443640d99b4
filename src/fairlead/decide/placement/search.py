"""Find a place for a whole gang, or none: best-fit bin-packing on the node columns.

Roles are placed one after another, largest members first. A role's members fill the nodes in
packing order (`NodeTable.packing_key`): each node takes what it has room for, the last one what
remains. So small members fill the fullest nodes that fit, whole-node members get free nodes, and
idle nodes stay whole.

For one role this is exact: it finds a place if and only if there is one. For several roles with
different requests it is a heuristic; its "no" is not a proof, and no verdict claims that it is.

A topology key asks for one domain: among the domains with room for all, the one with least room to
spare is taken. If only preferred, and no domain has room, the emptiest domains are filled one by
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.api.names import TEAM
from fairlead.decide.placement.capacity import Capacity
from fairlead.model.gangs import GangRequest, RoleRequest
from fairlead.model.nodes import Bools, Ints, NodeTable

_KEY_MAX = np.iinfo(np.int64).max
#: The packing order is below this many bits.
_TIER_BITS = 56

#: Domains tried for one gang with several roles; with one role the first always succeeds.
DOMAINS_TRIED_MAX = 64


@dataclass(frozen=True, slots=True)
class Plan:
    """The slots of every member: `slots[r][i]` for member i of role r, in the gang's role order."""

    slots: tuple[Ints, ...]

    @property
    def distinct_slots(self) -> Ints:
        """The slots that are used, sorted."""
        if len(self.slots) == 1 and len(self.slots[0]) == 1:
            return self.slots[0]
        return np.unique(np.concatenate(self.slots))


@dataclass(frozen=True, slots=True)
class _Domains:
    """The nodes of a topology key. `cells` int[N]: place of the domain's name in order, or -1."""

    cells: Ints
    count: int

    def room(self, fits: npt.NDArray[Any]) -> Ints:
        """Return int64[domains]: members that each domain can take."""
        inside = self.cells >= 0
        sums = np.bincount(self.cells[inside], weights=fits[inside], minlength=self.count)
        return sums.astype(np.int64)


def pack(fits: npt.NDArray[Any], key: Ints, count: int) -> tuple[Ints, Ints] | None:
    """Return distinct slots and how many members each takes, or None when there is too little room.

    Slots come in packing order. `count` 0 gives empty arrays.
    """
    if count == 1:
        slot = int(np.where(fits > 0, key, _KEY_MAX).argmin())
        if fits[slot] <= 0:
            return None
        return np.array([slot], dtype=np.int64), np.ones(1, dtype=np.int64)
    candidates = np.flatnonzero(fits)
    order = candidates[np.argsort(key[candidates])]
    rooms = fits[order].astype(np.int64)
    filled = np.cumsum(rooms)
    if count > (filled[-1] if len(filled) else 0):
        return None
    used = int(np.searchsorted(filled, count)) + 1 if count else 0
    counts = rooms[:used]
    if used:
        counts[-1] -= filled[used - 1] - count
    return order[:used], counts


def plan_gang(
    capacity: Capacity, table: NodeTable, gang: GangRequest, *, order: Ints | None = None
) -> Plan | None:
    """Place the gang in `capacity`, which then holds it; None leaves `capacity` as it was.

    `order`, int64[N], goes before the packing order: the nodes with the smallest value first.
    """
    if not gang.topology_key:
        return plan_within(capacity, table, gang.roles, None, order=order)
    domains = domains_of(table, gang.topology_key)
    for domain in _sufficient(capacity, domains, gang):
        plan = plan_within(capacity, table, gang.roles, domains.cells == domain, order=order)
        if plan is not None:
            return plan
    if gang.topology_required:
        return None
    if order is None:
        order = _domain_order(capacity, domains, gang)
    return plan_within(capacity, table, gang.roles, None, order=order)


def take_plan(capacity: Capacity, gang: GangRequest, plan: Plan, *, sign: int = 1) -> None:
    """Take the places of a plan; sign -1 gives them back."""
    for role, slots in zip(gang.roles, plan.slots, strict=True):
        distinct, counts = np.unique(slots, return_counts=True)
        capacity.take(distinct, sign * counts, role.member)


def plan_within(
    capacity: Capacity,
    table: NodeTable,
    roles: tuple[RoleRequest, ...],
    admitted: Bools | None,
    *,
    order: Ints | None = None,
) -> Plan | None:
    """Place all roles on admitted nodes (None: all), or nothing. `order` goes before the packing
    order.
    """
    mark = capacity.mark()
    slots: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(roles)
    for i in GangRequest(roles).placing_order() if len(roles) > 1 else (0,):
        role = roles[i]
        fits = capacity.fits(role.member)
        if admitted is not None:
            fits = np.where(admitted, fits, 0)
        key = _tiered(capacity.key, table, role)
        packed = pack(fits, key if order is None else _ranked(order, key), role.count)
        if packed is None:
            capacity.rollback_to(mark)
            return None
        capacity.take(*packed, role.member)
        slots[i] = _in_rank_order(table, *packed, order)
    return Plan(tuple(slots))


def _tiered(key: Ints, table: NodeTable, role: RoleRequest) -> Ints:
    """Return a key by which a team's members go to its own nodes first, to those of others last."""
    tolerations = role.member.constraints.tolerations
    own = next((t.value for t in tolerations if t.key == TEAM and t.operator == "Equal"), None)
    return key if own is None else key + (table.labels.tiers(own) << _TIER_BITS)


def members_fit(capacity: Capacity, gang: GangRequest, admitted: Bools | None = None) -> int:
    """Return for how many of the members there is room, placing as many of each role as fit."""
    mark = capacity.mark()
    placed = 0
    for i in gang.placing_order():
        role = gang.roles[i]
        fits = capacity.fits(role.member)
        if admitted is not None:
            fits = np.where(admitted, fits, 0)
        count = min(role.count, int(fits.sum()))
        packed = pack(fits, capacity.key, count)
        if packed is not None and count:
            capacity.take(*packed, role.member)
            placed += count
    capacity.rollback_to(mark)
    return placed


def members_fit_domain(capacity: Capacity, table: NodeTable, gang: GangRequest) -> int:
    """Return for how many members the best domain of the gang's topology key has room."""
    domains = domains_of(table, gang.topology_key)
    if len(gang.roles) == 1:
        rooms = domains.room(capacity.fits(gang.roles[0].member))
        return min(gang.roles[0].count, int(rooms.max(initial=0)))
    fit = (members_fit(capacity, gang, domains.cells == d) for d in range(domains.count))
    return max(fit, default=0)


def domains_of(table: NodeTable, key: str) -> _Domains:
    """Return the domains of a topology key, numbered by name."""
    cells, names = table.labels.domains(key)
    has_nodes = np.bincount(cells + 1, minlength=len(names) + 1)[1:] > 0
    numbers = sorted(np.flatnonzero(has_nodes).tolist(), key=names.__getitem__)
    places = np.full(len(names) + 1, -1, dtype=np.int64)
    places[np.array(numbers, dtype=np.int64)] = np.arange(len(numbers))
    return _Domains(places[cells], len(numbers))


def _sufficient(capacity: Capacity, domains: _Domains, gang: GangRequest) -> Iterator[int]:
    """Yield domains with room for each role by itself, the one with least room first."""
    rooms = [domains.room(capacity.fits(role.member)) for role in gang.roles]
    enough = np.ones(domains.count, dtype=np.bool_)
    for role, available in zip(gang.roles, rooms, strict=True):
        enough &= available >= role.count
    leading = rooms[gang.placing_order()[0]]
    sufficient = np.flatnonzero(enough)
    by_room = sufficient[np.argsort(leading[sufficient], kind="stable")]
    for domain in by_room[:DOMAINS_TRIED_MAX]:
        yield int(domain)


def _domain_order(capacity: Capacity, domains: _Domains, gang: GangRequest) -> Ints:
    """Return int64[N]: the place of each node's domain, emptiest first; nodes without one last."""
    leading = domains.room(capacity.fits(gang.roles[gang.placing_order()[0]].member))
    places = np.full(domains.count + 1, domains.count, dtype=np.int64)
    places[np.argsort(-leading, kind="stable")] = np.arange(domains.count)
    return places[domains.cells]


def _ranked(order: Ints, key: Ints) -> Ints:
    """Return a key that sorts by `order`, then by `key`."""
    ranks = np.empty(len(key), dtype=np.int64)
    ranks[np.lexsort((key, order))] = np.arange(len(key))
    return ranks


def _in_rank_order(table: NodeTable, slots: Ints, counts: Ints, order: Ints | None) -> Ints:
    """Return one slot per member: by domain and name, so that ranks that are close are near."""
    if len(slots) == 1:
        return np.repeat(slots, counts)
    ranks = table.rank[slots]
    by = np.argsort(ranks) if order is None else np.lexsort((ranks, order[slots]))
    return np.repeat(slots[by], counts[by])
