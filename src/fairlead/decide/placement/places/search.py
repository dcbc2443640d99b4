"""Find a place for a whole gang, or none: best-fit bin-packing on the node columns.

Roles are placed one after another, largest members first. A role's members fill the nodes in
packing order (`model/inventory/packing_order.py`): each node takes what it has room for, the last
one what remains. So small members fill the fullest nodes that fit, whole-node members get free
nodes, and idle nodes stay whole.

For one role this is exact: it finds a place if and only if there is one. For several roles with
different requests it is a heuristic; its "no" is not a proof, and no verdict claims that it is.

The levels of the gang's topology are tried one after another, narrowest first: among the domains
with room for all, the one with least room to spare is taken, and within it as few domains of the
narrower levels as possible (`domains.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.api.names import TEAM
from fairlead.decide.placement.places.capacity import Capacity
from fairlead.decide.placement.places.domains import (
    Domains,
    domains_of,
    domains_within,
    filling_order,
    in_rank_order,
    slices_of,
    within,
)
from fairlead.decide.placement.places.image_preference import image_starts
from fairlead.decide.placement.places.mixed import NODES_MAX, pack_mixed
from fairlead.decide.placement.places.neighbours import beside_others, fill
from fairlead.decide.placement.places.ties import place_tied, tied_room
from fairlead.model.asks.requests import Constraints, MemberClass
from fairlead.model.gang.gangs import GangRequest, RoleRequest
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable, Use, counted
from fairlead.model.inventory.packing_order import BITS_BELOW_DEVICES

_KEY_MAX = np.iinfo(np.int64).max
#: Members that are placed without sorting the nodes.
_FEW_MAX = 4
#: The packing order is below this many bits.
_TIER_BITS = 61
#: Taints that ask a member to stay away, above the packing order.
_AVOIDED_BITS, _AVOIDED_MAX = 57, 15

#: Of them, those in which all roles are tried at a time.
_DOMAINS_MIXED_MAX = 4
#: Domains tried for one gang with several roles; with one role the first always succeeds.
DOMAINS_TRIED_MAX = 64


@dataclass(frozen=True)  # no slots: `distinct_slots` is kept
class Plan:
    """The slots of every member: `slots[r][i]` for member i of role r, in the gang's role order."""

    slots: tuple[Ints, ...]

    @cached_property
    def distinct_slots(self) -> Ints:
        """The slots that are used, sorted."""
        if len(self.slots) == 1 and len(self.slots[0]) == 1:
            return self.slots[0]
        return np.unique(np.concatenate(self.slots))


def pack(fits: npt.NDArray[Any], key: Ints, count: int) -> tuple[Ints, Ints] | None:
    """Return distinct slots and how many members each takes, or None when there is too little room.

    Slots come in packing order. `count` 0 gives empty arrays.
    """
    if 0 < count <= _FEW_MAX:
        return _pack_few(fits, key, count)
    candidates = np.flatnonzero(fits > 0)
    if count > len(candidates) and count > fits.sum(dtype=np.int64):
        return None
    # Stable for its speed, as keys are unique: it merges runs, which names in order make. Each node
    # has room for one, so no more than `count` are needed.
    order = candidates[np.argsort(key[candidates], kind="stable")][:count]
    rooms = fits[order].astype(np.int64)
    filled = np.cumsum(rooms)
    used = int(np.searchsorted(filled, count)) + 1 if count else 0
    counts = rooms[:used]
    if used:
        counts[-1] -= filled[used - 1] - count
    return order[:used], counts


def _pack_few(fits: npt.NDArray[Any], key: Ints, count: int) -> tuple[Ints, Ints] | None:
    """Do the same for few members: to look for the smallest key that often takes less than to sort
    them, and no array as long as the keys.
    """
    has_room = fits > 0
    slots: list[int] = []
    counts: list[int] = []
    while count:
        smallest = np.minimum.reduce(key, where=has_room, initial=_KEY_MAX)
        if smallest == _KEY_MAX:
            return None
        slot = int((has_room & (key == smallest)).argmax())  # others may have it, too
        taken = min(count, int(fits[slot]))
        slots.append(slot)
        counts.append(taken)
        has_room[slot] = False
        count -= taken
    return np.array(slots, dtype=np.int64), np.array(counts, dtype=np.int64)


def plan_gang(
    capacity: Capacity, table: NodeTable, gang: GangRequest, *, order: Ints | None = None
) -> Plan | None:
    """Place the gang in `capacity`, which then holds it; None leaves `capacity` as it was.

    `order`, int64[N], goes before the packing order: the nodes with the smallest value first.
    """
    for depth, level in enumerate(gang.topology.ladder):
        if level.key:
            plan = _plan_in_domain(capacity, table, gang, depth, order=order)
        else:
            plan = _plan_on(capacity, table, gang, None, depth=depth, order=order)
            plan = plan or _plan_mixed(capacity, table, gang, None, order=order)
        if plan is not None:
            return plan
    return None


def _plan_in_domain(
    capacity: Capacity, table: NodeTable, gang: GangRequest, depth: int, *, order: Ints | None
) -> Plan | None:
    """Place the gang in one domain of a level of its ladder."""
    topology = gang.topology
    domains = domains_within(table, topology.ladder[depth].key, topology.within.key)
    for domain in _sufficient(capacity, table, domains, gang):
        admitted = domains.cells == domain
        plan = _plan_on(capacity, table, gang, admitted, depth=depth, order=order)
        if plan is not None:
            return plan
    if len(gang.roles) == 1:
        return None
    for domain in islice(_sufficient(capacity, table, domains, gang), _DOMAINS_MIXED_MAX):
        plan = _plan_mixed(capacity, table, gang, domains.cells == domain, order=order)
        if plan is not None:
            return plan
    return None


def _plan_on(
    capacity: Capacity,
    table: NodeTable,
    gang: GangRequest,
    admitted: Bools | None,
    *,
    depth: int,
    order: Ints | None,
) -> Plan | None:
    """Place the gang on admitted nodes, in few domains of the levels below `depth`."""
    if order is None and depth:
        leading = gang.roles[gang.placing_order()[0]].member
        fits, slices = capacity.fits(leading), slices_of(table, gang.topology)
        order = filling_order(table, gang, fits, admitted=admitted, depth=depth, slices=slices)
    return plan_within(capacity, table, gang, admitted, order=order)


def _plan_mixed(
    capacity: Capacity,
    table: NodeTable,
    gang: GangRequest,
    admitted: Bools | None,
    *,
    order: Ints | None,
) -> Plan | None:
    """Place several roles at a time where one by one they found no place; see `mixed`."""
    if len(gang.roles) == 1 or gang.has_neighbours or gang.topology.is_sliced or gang.has_ties:
        return None
    rooms = np.stack([capacity.fits(role.member) for role in gang.roles]).astype(np.int64)
    if admitted is not None:
        rooms[:, ~admitted] = 0
    if any(room.sum() < role.count for room, role in zip(rooms, gang.roles, strict=True)):
        return None
    key = _tiered(capacity.key, table, gang.roles[0])
    nodes = np.flatnonzero(rooms.any(axis=0))
    by = (key[nodes],) if order is None else (key[nodes], order[nodes])
    nodes = nodes[np.lexsort(by)][:NODES_MAX]
    taken = pack_mixed(table, gang.roles, rooms[:, nodes], capacity.free_on(nodes))
    if taken is None:
        return None
    slots: list[Ints] = []
    for role, counts in zip(gang.roles, taken, strict=True):
        used = np.flatnonzero(counts)
        capacity.take(nodes[used], counts[used], role.member)
        slots.append(in_rank_order(table, gang.topology, nodes[used], counts[used]))
    return Plan(tuple(slots))


def take_plan(capacity: Capacity, gang: GangRequest, plan: Plan, *, sign: int = 1) -> None:
    """Take the places of a plan; sign -1 gives them back."""
    for role, slots in zip(gang.roles, plan.slots, strict=True):
        used, counts = counted(slots)
        capacity.take(used, sign * counts, role.member)


def plan_within(
    capacity: Capacity,
    table: NodeTable,
    gang: GangRequest,
    admitted: Bools | None,
    *,
    order: Ints | None = None,
) -> Plan | None:
    """Place all roles on admitted nodes (None: all), or nothing, whatever domains they are in;
    slices are kept together. `order` goes before the packing order.

    Images decide where, and not whether: a gang for which this is a heuristic is placed without
    them first, and as well as it can be with them then.
    """
    plain = None
    prefers = [table.images_key(role.member, role.images) for role in gang.roles]
    has_images = any(each is not None for each in prefers)
    if has_images and (len(gang.roles) > 1 or gang.has_neighbours):
        mark, none = capacity.mark(), [None] * len(prefers)
        plain = _plan_roles(capacity, table, gang, admitted, order=order, prefers=none)
        if plain is None:
            return None
        capacity.rollback_to(mark)
    plan = _plan_roles(capacity, table, gang, admitted, order=order, prefers=prefers)
    if plan is None and plain is not None:
        take_plan(capacity, gang, plain)
        return plain
    return plan


def _plan_roles(
    capacity: Capacity,
    table: NodeTable,
    gang: GangRequest,
    admitted: Bools | None,
    *,
    order: Ints | None,
    prefers: Sequence[Ints | None],
) -> Plan | None:
    """Place all roles one by one; `prefers` is what their images add to the packing order."""
    mark, roles = capacity.mark(), gang.roles
    slices = slices_of(table, gang.topology)
    slots: list[Ints] = [np.zeros(0, dtype=np.int64)] * len(roles)
    for i in gang.placing_order() if len(roles) > 1 else (0,):
        role, preferred = roles[i], prefers[i]
        fits = within(admitted, capacity.fits(role.member))
        key = capacity.key if preferred is None else capacity.key + preferred
        key = _tiered(key, table, role)
        key = key if order is None else _ranked(order, key, np.flatnonzero(fits))
        if role.ties:
            fits = beside_others(capacity.marks, table, role.member, fits)
            tied = place_tied(table, role, fits, partial(_pack_by, key))
            if tied is None:
                capacity.rollback_to(mark)
                return None
            capacity.take(*counted(tied), role.member)
            slots[i] = tied
            continue
        if slices is None:
            packed = _pack_role(capacity, table, role, fits, key=key)
        else:
            fits = beside_others(capacity.marks, table, role.member, fits)
            packed = slices.pack(fits, key, role.count, order=order)
        if packed is None:
            capacity.rollback_to(mark)
            return None
        capacity.take(*packed, role.member)
        slots[i] = in_rank_order(table, gang.topology, *packed)
    return Plan(tuple(slots))


def _pack_by(key: Ints, fits: npt.NDArray[Any], count: int) -> tuple[Ints, Ints] | None:
    return pack(fits, key, count)


def members_of(gang: GangRequest, plan: Plan) -> Iterator[tuple[MemberClass, Ints]]:
    """Yield the member class of each role, and the slots of its members."""
    for role, slots in zip(gang.roles, plan.slots, strict=True):
        yield role.member, slots


def uses_of(gang: GangRequest, plan: Plan) -> Iterator[Use]:
    """Yield what the places of a plan use."""
    for member, slots in members_of(gang, plan):
        yield Use(*counted(slots), member.booking)


def _pack_role(
    capacity: Capacity, table: NodeTable, role: RoleRequest, fits: npt.NDArray[Any], *, key: Ints
) -> tuple[Ints, Ints] | None:
    """Like `pack`, with the rules about what is near."""
    if role.member.neighbours is None:
        return pack(fits, key, role.count)
    fits = beside_others(capacity.marks, table, role.member, fits)
    filled = fill(capacity.marks, table, role.member, fits, key=key, count=role.count)
    if filled is None:
        return pack(fits, key, role.count)
    return filled if int(filled[1].sum()) == role.count else None


def _tiered(key: Ints, table: NodeTable, role: RoleRequest) -> Ints:
    """Return a key by which members go to nodes that ask them to stay away last, and to spares and
    nodes that they prefer first where as many devices are free; a team's to its own before all.
    """
    constraints = role.member.constraints
    avoided = table.labels.avoided(constraints)
    if avoided is not None:
        key = key + (np.minimum(avoided, _AVOIDED_MAX) << _AVOIDED_BITS)
    if _sorts_nodes(constraints):
        below, labels = (1 << BITS_BELOW_DEVICES) - 1, table.labels
        others = ~labels.spares() if constraints.takes_spares else np.zeros_like(key)
        order = np.lexsort(
            (key & below, -labels.scores(constraints), others, key >> below.bit_length())
        )
        key = np.empty(len(order), dtype=np.int64)
        key[order] = np.arange(len(order))
    tolerations = constraints.tolerations
    own = next((t.value for t in tolerations if t.key == TEAM and t.operator == "Equal"), None)
    return key if own is None else key + (table.labels.tiers(own) << _TIER_BITS)


def tier_shift(table: NodeTable, role: RoleRequest) -> Ints | None:
    """Return int64[N]: what the packing order of a node is raised by for a role; None where the
    role sorts the nodes in an order of its own.
    """
    if _sorts_nodes(role.member.constraints):
        return None
    return _tiered(np.zeros(table.capacity, dtype=np.int64), table, role)


def _sorts_nodes(constraints: Constraints) -> bool:
    return bool(constraints.preferred) or constraints.takes_spares


def members_fit(
    capacity: Capacity, table: NodeTable, gang: GangRequest, admitted: Bools | None = None
) -> int:
    """Return for how many of the members there is room, placing as many of each role as fit."""
    mark = capacity.mark()
    placed = 0
    for i in gang.placing_order():
        role = gang.roles[i]
        fits = within(admitted, capacity.fits(role.member))
        fits = beside_others(capacity.marks, table, role.member, fits)
        if role.ties:
            fits = tied_room(table, role, fits)
        count = min(role.count, int(fits.sum()))
        packed = fill(capacity.marks, table, role.member, fits, key=capacity.key, count=count)
        if packed is None:
            packed = pack(fits, capacity.key, count)
        count = 0 if packed is None else int(packed[1].sum())
        if packed is not None and count:
            capacity.take(*packed, role.member)
            placed += count
    capacity.rollback_to(mark)
    return placed


def members_fit_domain(capacity: Capacity, table: NodeTable, gang: GangRequest) -> int:
    """Return for how many members the best domain of the required level has room, in slices; of
    several roles in those that have most room for each role by itself.
    """
    domains = domains_of(table, gang.topology.required.key)
    slices = slices_of(table, gang.topology)
    if len(gang.roles) == 1 and (slices is not None or not gang.has_neighbours):
        role = gang.roles[0]
        fits = beside_others(capacity.marks, table, role.member, capacity.fits(role.member))
        return min(role.count, int(domains.room(fits, slices).max(initial=0)))
    rooms = [domains.room(capacity.fits(role.member)) for role in gang.roles]
    most = sum(np.minimum(n, r.count) for n, r in zip(rooms, gang.roles, strict=True))
    best = np.argsort(-np.asarray(most), kind="stable")[:DOMAINS_TRIED_MAX]
    fit = (members_fit(capacity, table, gang, domains.cells == d) for d in best)
    return max(fit, default=0)


def _sufficient(
    capacity: Capacity, table: NodeTable, domains: Domains, gang: GangRequest
) -> Iterator[int]:
    """Yield domains with room for each role by itself, the one with least room first; among equal
    ones that in which the images are there soonest.
    """
    slices = slices_of(table, gang.topology)
    fits = [capacity.fits(role.member) for role in gang.roles]
    rooms = [domains.room(each, slices) for each in fits]
    enough = np.ones(domains.count, dtype=np.bool_)
    for role, available in zip(gang.roles, rooms, strict=True):
        enough &= available >= role.count
    leading = rooms[gang.placing_order()[0]]
    sufficient = np.flatnonzero(enough)
    by_room = sufficient[np.argsort(leading[sufficient], kind="stable")]
    if len(by_room) > 1 and leading[by_room[0]] == leading[by_room[1]]:
        starts = image_starts(table, domains, gang.roles, fits)
        if starts is not None:
            by_room = sufficient[np.lexsort((starts[sufficient], leading[sufficient]))]
    for domain in by_room[:DOMAINS_TRIED_MAX]:
        yield int(domain)


def _ranked(order: Ints, key: Ints, nodes: Ints) -> Ints:
    """Return a key that sorts these nodes by `order`, then by `key`; 0 elsewhere."""
    ranks = np.zeros(len(key), dtype=np.int64)
    ranks[nodes[np.lexsort((key[nodes], order[nodes]))]] = np.arange(len(nodes))
    return ranks
