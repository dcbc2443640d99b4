"""Why a gang has no place: the reason and its numbers, from the same columns and the same planner.

The questions are asked in this order, and the first "yes" is the verdict: is the request
unreadable; does no node match; is no node large enough; would the gang not even fit on an empty
cluster (all these: the request must change); would it fit but for the queue; but for nodes that are
out; but for the pods that are near; but for the domain; is there too little in all; or enough, but
in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from fairlead.api.values.quantity import ATTACHED
from fairlead.api.values.times import format_time
from fairlead.decide.placement.places.capacity import Capacity, EmptyCapacity, PresentCapacity
from fairlead.decide.placement.places.domains import domains_of
from fairlead.decide.placement.places.kept_room import QueueReservation
from fairlead.decide.placement.places.neighbours import rules_are_exact, rules_text
from fairlead.decide.placement.places.reach_words import reach_text
from fairlead.decide.placement.places.search import members_fit, members_fit_domain, plan_gang
from fairlead.decide.placement.places.ties import nodes_near
from fairlead.decide.reasons import FREE_NODES, OWNERS, SPARES, TEAM_NODES, Reason
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.decide.words import fold_names, plural, some_of
from fairlead.model.asks.requests import Constraints, is_device
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang, RoleRequest
from fairlead.model.inventory.device_offers import is_row
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable
from fairlead.model.inventory.supply import Supply

BLOCKERS_MAX = 10
#: From where volumes can be reached: of so many kinds a verdict says it.
REACHES_MAX = 3
#: Teams that a verdict names; and its nodes: so many are folded, to a text of so many characters.
OWNERS_MAX, NAMES_FOLDED_MAX, NAMES_LENGTH_MAX = 5, 200, 60
#: Claims looked at for blockers, the largest first.
_CLAIMS_SCANNED_MAX = 1000


def judge_empty(state: ClusterState, gang: GangRequest | InvalidGang) -> Verdict | None:
    """Return why the gang could never be placed on these nodes, even empty; None when it could.

    Which nodes are ready or cordoned does not matter here. With several roles, None may also mean
    that it is not proven.
    """
    if isinstance(gang, InvalidGang):
        return Verdict(Reason.INVALID_REQUEST, {"field": gang.field})
    gang, empty = gang.accepting, EmptyCapacity(state, available_only=False)
    if gang.is_simple and state.fits.empty_total(gang.roles[0].member) >= gang.roles[0].count:
        return None  # exact, for one role, and known for all gangs of such members
    verdict = _judge_empty(state, gang)
    return verdict and _with_teams(state, empty, gang, _with_spares(state, empty, gang, verdict))


def _judge_empty(state: ClusterState, gang: GangRequest) -> Verdict | None:
    for role in gang.roles:
        verdict = _judge_shape(state, role)
        if verdict is not None:
            return verdict
    capacity = EmptyCapacity(state, available_only=False)
    if plan_gang(capacity, state.table, gang) is not None:
        return None
    is_out = gang.has_reach and _is_proven_in_reach(capacity, state.table, gang)
    if is_out and _would_fit(capacity, state.table, gang.anywhere):
        return Verdict(Reason.TOO_FEW_IN_REACH, _reach_facts(capacity, state.table, gang))
    if gang.has_neighbours and _would_fit(capacity, state.table, gang.but_any_neighbours()):
        if not rules_are_exact(gang):
            return None
        if _would_fit(capacity, state.table, gang.unbound):
            return _bound_verdict(capacity, state.table, gang, is_empty=True)
        return Verdict(Reason.TOO_FEW_APART, _rule_facts(capacity, state.table, gang))
    if _is_proven(capacity, state.table, gang):
        fit = members_fit(capacity, state.table, gang)
        return Verdict(Reason.EXCEEDS_CLUSTER, {"members": gang.member_count, "members_fit": fit})
    if gang.topology.is_bound and len(gang.roles) == 1:
        for level in (gang.topology.required, gang.topology.slice_level):
            if not domains_of(state.table, level.key).count:
                facts = {"topology_key": level.name, "members": gang.member_count}
                return Verdict(Reason.NO_SUCH_TOPOLOGY, facts)
        return _bound_verdict(capacity, state.table, gang, is_empty=True)
    return None


def judge_present(
    state: ClusterState,
    capacity: PresentCapacity,
    gang: GangRequest,
    *,
    reservations: Sequence[QueueReservation],
) -> Verdict:
    """Return why the gang, which could be placed on an empty cluster, has no place now.

    `capacity` is where it was tried, with what is kept for the jobs of the reservations.
    """
    verdict = _judge_present(state, capacity, gang, reservations=reservations)
    return _with_spares(state, capacity, gang.accepting, verdict)


def _with_spares(
    state: ClusterState, capacity: Capacity, gang: GangRequest, verdict: Verdict
) -> Verdict:
    """Return a verdict that says how many spares have room, where the gang fits only with them."""
    table = state.table
    if not table.labels.has_spares or _would_fit(capacity, table, gang):
        return verdict
    gang = gang.taking_spares
    if not _would_fit(capacity, table, gang):
        return verdict
    is_open = sum(capacity.fits(role.member) for role in gang.roles) > 0
    count = int((table.labels.spares() & is_open).sum())
    return replace(verdict, facts={**verdict.facts, SPARES: count}) if count else verdict


def _with_teams(
    state: ClusterState, capacity: Capacity, gang: GangRequest, verdict: Verdict
) -> Verdict:
    """Return a verdict that says how many nodes with room belong to teams, of which the gang may
    use none.
    """
    if gang.may_borrow or not state.uses.has_owners:
        return verdict
    slots = np.flatnonzero(_has_room(capacity, gang.of_any_team) & ~_has_room(capacity, gang))
    if not len(slots):
        return verdict
    owners = state.table.labels.owners(slots)
    facts = {TEAM_NODES: len(slots), OWNERS: some_of(owners, OWNERS_MAX)}
    return replace(verdict, facts={**verdict.facts, **facts})


def _has_room(capacity: Capacity, gang: GangRequest) -> Bools:
    """Return bool[N]: nodes that hold a member of some role."""
    return np.logical_or.reduce([capacity.fits(role.member) > 0 for role in gang.roles])


def _judge_present(
    state: ClusterState,
    capacity: PresentCapacity,
    gang: GangRequest,
    *,
    reservations: Sequence[QueueReservation],
) -> Verdict:
    table = state.table
    if gang.topology.is_patient:
        patient, gang = gang, structs.replace(gang, topology=gang.topology.accepting)
        accepted = next((level for level in gang.topology.ladder if _would_fit(
            capacity, table, gang.within_level(level))), None)  # fmt: skip
        if accepted is not None:
            return Verdict(Reason.AWAITING_PREFERRED, {
                **_domain_facts(capacity, table, patient),
                "then": f"one {accepted.name}" if accepted.name else "any nodes",
            })  # fmt: skip
    if gang.borrowing is not None:
        gang = gang.accepting
        if _would_fit(capacity, table, gang):
            return Verdict(Reason.BORROW_BACK_OFF)
    maintenance = _maintenance_verdict(state, capacity, gang)
    if maintenance is not None:
        return maintenance
    unbarred = capacity.unbarred()
    if reservations and _would_fit(unbarred, table, gang):
        nodes = eligible_nodes(state, [role.member.constraints for role in gang.roles])
        near = (each for each in reservations if each.kept.meets(nodes))
        return reservation_verdict(next(near, reservations[0]))
    unavailable = _judge_available(state, gang)
    if unavailable is not None:
        return unavailable
    blockers = _blockers(state, capacity, gang)
    if gang.has_neighbours and _would_fit(unbarred, table, gang.but_any_neighbours()):
        facts = _rule_facts(unbarred, table, gang)
        return Verdict(Reason.NEIGHBOURS_IN_THE_WAY, facts, blockers)
    if gang.has_reach and _would_fit(unbarred, table, gang.anywhere):
        facts = _reach_facts(unbarred, table, gang)
        return Verdict(Reason.VOLUMES_IN_THE_WAY, facts, blockers)
    if gang.topology.is_bound and _would_fit(unbarred, table, gang.unbound):
        verdict = _bound_verdict(unbarred, table, gang, is_empty=False)
        return replace(verdict, blockers=blockers)
    short = _shortage(state, gang)
    if short is not None:
        return Verdict(Reason.INSUFFICIENT_CAPACITY, short, blockers)
    return Verdict(Reason.FRAGMENTED, _fragments(state, unbarred, gang), blockers)


def reservation_verdict(reservation: QueueReservation) -> Verdict:
    """Return for which head of the queue a gang waits, and until when, if that is known."""
    head, starts_by = reservation.head, reservation.starts_by
    if starts_by is None:
        return Verdict(Reason.BEHIND_EARLIER_JOB, {"job": "/".join(head)}, (head,))
    facts = {"job": "/".join(head), "starts_by": format_time(starts_by)}
    is_expected = reservation.is_predicted
    reason = Reason.BEHIND_EXPECTED_START if is_expected else Reason.BEHIND_RESERVATION
    return Verdict(reason, facts, (head,))


def _judge_available(state: ClusterState, gang: GangRequest) -> Verdict | None:
    """Return why the gang has no place on the nodes that are available, even empty; else None.

    None, too, when no node is out: then that is not what it waits for.
    """
    available = EmptyCapacity(state, available_only=True)
    unavailable = int(_unavailable(state, gang).sum())
    if not unavailable or _would_fit(available, state.table, gang):
        return None
    maintenance = _maintenance_verdict(state, available, gang)
    if maintenance is not None:
        return maintenance
    fit = members_fit(available, state.table, gang)
    if fit >= gang.member_count:
        return None
    facts = {"nodes_unavailable": unavailable, "members": gang.member_count, "members_fit": fit}
    return Verdict(Reason.NODES_UNAVAILABLE, {**facts, "which": _unavailable_words(state, gang)})


def _maintenance_verdict(
    state: ClusterState, capacity: Capacity, gang: GangRequest
) -> Verdict | None:
    """Return that the gang fits but for maintenance windows, for what is reserved, or for the time
    of its own reservation; None where these do not decide.
    """
    hold_seconds = gang.hold_seconds
    if hold_seconds is None or not _would_fit(capacity, state.table, gang.instant):
        return None
    closed = np.zeros(state.table.capacity, dtype=np.bool_)
    for role in gang.roles:
        mask = state.fits.mask(role.member.constraints)
        closed |= mask.matches & ~mask.is_open
    slots, windows, now = np.flatnonzero(closed), state.table.windows, state.fits.now
    own = windows.reservation(gang.reservation)
    if own is not None and not own.window.start <= now < own.window.end:
        has_ended = now >= own.window.end
        reason = Reason.RESERVATION_ENDED if has_ended else Reason.AWAITING_RESERVATION
        nodes = {} if has_ended else {"nodes": len(slots)}
        return Verdict(reason, {"reservation": own.key, **nodes, "window": own.window.words})
    first = windows.first(slots.tolist())
    if first is not None:
        return Verdict(Reason.MAINTENANCE, {"nodes": len(slots), "window": first.words})
    other = windows.first_reserved((hold_seconds, gang.reservation), slots, now)
    if other is None:
        return None
    facts = {"nodes": len(slots), "reservation": other.key, "window": other.window.words}
    return Verdict(Reason.RESERVED_FOR_OTHERS, facts)


def _blockers(
    state: ClusterState, capacity: PresentCapacity, gang: GangRequest
) -> tuple[ObjectKey, ...]:
    """Return the jobs that hold what the gang asks for, on nodes that it could use: the largest."""
    wanted = [r for r, _ in gang.roles[gang.placing_order()[0]].member.request]
    devices = [r for r in wanted if is_device(r)] or wanted
    reachable = eligible_nodes(state, [role.member.constraints for role in gang.roles])
    out: list[ObjectKey] = []
    for scanned, claim in enumerate(capacity.claims_by_size()):
        if scanned >= _CLAIMS_SCANNED_MAX or len(out) >= BLOCKERS_MAX:
            break
        holds = any(claim.amount(resource) for resource in devices)
        if holds and reachable[state.ledger.slots(claim.key)].any():
            out.append(claim.key)
    return tuple(out)


def eligible_nodes(state: ClusterState, constraints: Sequence[Constraints]) -> Bools:
    """Return bool[N]: nodes that can start pods now and that any of the constraints admits."""
    first, *others = [state.fits.mask(each).eligible for each in constraints]
    return np.logical_or.reduce([first, *others]) if others else first.copy()


def resource_order(resource: str) -> tuple[int, str]:
    """Sort devices first, then memory and CPU, then the rest: what people look at first."""
    ranks = {"memory": 1, "cpu": 2, "pods": 4}
    return (0 if is_device(resource) else ranks.get(resource, 3), resource)


def _judge_shape(state: ClusterState, role: RoleRequest) -> Verdict | None:
    """Look for one node, empty, that could hold one member."""
    table = state.table
    reservation = role.member.constraints.reservation
    if reservation and table.windows.reservation(reservation) is None:
        return Verdict(Reason.NO_SUCH_RESERVATION, {"reservation": reservation})
    constraints = role.member.constraints
    admitted = state.fits.mask(constraints).matches
    if constraints.reach and not admitted.any():
        near = state.fits.mask(structs.replace(constraints, reach=())).matches
        if near.any():
            return Verdict(Reason.VOLUMES_OUT_OF_REACH, {
                "nodes": int(near.sum()), "role": role.name, "reach": reach_text(constraints.reach)
            })  # fmt: skip
    if not admitted.any():
        return Verdict(Reason.NO_MATCHING_NODE, {"nodes": table.node_count, "role": role.name})
    for resource, asked in sorted(role.member.request, key=lambda item: resource_order(item[0])):
        owned = table.owned(resource)
        enough = admitted & (owned >= asked)
        if not enough.any():
            facts = {
                "role": role.name,
                "resource": resource,
                "asked": asked,
                "largest": int(owned[admitted].max()),
            }
            return Verdict(Reason.NO_NODE_SHAPE_FITS, facts)
        admitted = enough
    return None


def _is_proven(capacity: Capacity, table: NodeTable, gang: GangRequest) -> bool:
    """True when no placement can exist, domains aside: the planner's "no" alone is no proof."""
    if len(gang.roles) == 1:
        return int(capacity.fits(gang.roles[0].member).sum()) < gang.roles[0].count
    if any(int(capacity.fits(role.member).sum()) < role.count for role in gang.roles):
        return True
    resources = dict.fromkeys(r for role in gang.roles for r, _ in role.member.request)
    return any(gang.total(r) > int(table.owned(r)[table.exists].sum()) for r in resources)


def _is_proven_in_reach(capacity: Capacity, table: NodeTable, gang: GangRequest) -> bool:
    """True when the nodes that reach the volumes of a role, or of a tie, are too few."""
    for role in gang.roles:
        fits = capacity.fits(role.member)
        counts = [(fits, role.count)]
        counts += [(fits[nodes_near(table, tie)], len(tie.members)) for tie in role.ties]
        if any(int(room.sum()) < count for room, count in counts):
            return True
    return False


def _reach_facts(capacity: Capacity, table: NodeTable, gang: GangRequest) -> dict[str, int | str]:
    reaches = [role.member.constraints.reach for role in gang.roles]
    reaches += [tie.reach for role in gang.roles for tie in role.ties]
    return {
        "reach": some_of([reach_text(reach) for reach in reaches if reach], REACHES_MAX),
        "members": gang.member_count,
        "members_fit": members_fit(capacity, table, gang),
    }


def _would_fit(capacity: Capacity, table: NodeTable, gang: GangRequest) -> bool:
    mark = capacity.mark()
    plan = plan_gang(capacity, table, gang)
    capacity.rollback_to(mark)
    return plan is not None


def _rule_facts(capacity: Capacity, table: NodeTable, gang: GangRequest) -> dict[str, int | str]:
    return {
        "rules": rules_text(gang),
        "members": gang.member_count,
        "members_fit": members_fit(capacity, table, gang),
    }


def _domain_facts(capacity: Capacity, table: NodeTable, gang: GangRequest) -> dict[str, int | str]:
    level = gang.topology.required
    return {
        "topology_key": level.name,
        "members": gang.member_count,
        "members_fit": members_fit_domain(capacity, table, gang),
        "domains": domains_of(table, level.key).count,
    }


def _bound_verdict(
    capacity: Capacity, table: NodeTable, gang: GangRequest, *, is_empty: bool
) -> Verdict:
    """Return which of domain and slices has no room for a gang for which there are nodes."""
    topology = gang.topology
    if not (topology.is_sliced and _would_fit(capacity, table, gang.unsliced)):
        reason = Reason.NO_DOMAIN_FITS if is_empty else Reason.TOPOLOGY_UNAVAILABLE
        return Verdict(reason, _domain_facts(capacity, table, gang.unsliced))
    facts = {
        "slice_size": topology.slice_size,
        "slice_level": topology.slice_level.name,
        "within": f"the best {topology.required.name}" if topology.required.key else "the cluster",
        "members": gang.member_count,
        "members_fit": members_fit_domain(capacity, table, gang),
    }
    reason = Reason.NO_SLICES_FIT if is_empty else Reason.SLICES_UNAVAILABLE
    return Verdict(reason, facts)


def _unavailable(state: ClusterState, gang: GangRequest) -> Bools:
    """Return bool[N]: nodes that match and can start no pods now."""
    matches = np.zeros(state.table.capacity, dtype=np.bool_)
    for role in gang.roles:
        matches |= state.fits.mask(role.member.constraints).matches
    eligible = eligible_nodes(state, [role.member.constraints for role in gang.roles])
    return matches & ~eligible


def _unavailable_words(state: ClusterState, gang: GangRequest) -> str:
    """Return which nodes that match are out, by cause: "n[1-3] (cordoned), n7 (not ready)"."""
    table, out = state.table, _unavailable(state, gang)
    masks = [state.fits.mask(role.member.constraints) for role in gang.roles]
    is_open = np.logical_or.reduce([mask.is_open for mask in masks])
    parts: list[str] = []
    for cause, holds in (
        ("cordoned", table.cordoned),
        ("not ready", ~table.ready),
        ("closed for maintenance or a reservation", ~is_open),
        ("tainted", np.ones_like(out)),
    ):
        slots = np.flatnonzero(out & holds)
        out &= ~holds
        if len(slots):
            parts.append(f"{_node_words(table, slots)} ({cause})")
    return ", ".join(parts)


def _node_words(table: NodeTable, slots: Ints) -> str:
    """Return the names of nodes, folded; their number where that is too long to read."""
    count = plural(len(slots), "node")
    if len(slots) > NAMES_FOLDED_MAX:
        return count
    names = fold_names(table.names[slot] for slot in slots.tolist())
    return names if len(names) <= NAMES_LENGTH_MAX else count


def _shortage(state: ClusterState, gang: GangRequest) -> dict[str, int | str] | None:
    """Return the facts of the worst shortage: over all roles, or roles with equal constraints."""
    by_constraints: dict[Constraints, list[RoleRequest]] = {}
    for role in gang.roles:
        by_constraints.setdefault(role.member.constraints, []).append(role)
    parts = [gang.roles] if len(by_constraints) == 1 else [gang.roles, *by_constraints.values()]
    worst: dict[str, int | str] | None = None
    worst_order: tuple[float, tuple[int, str]] | None = None
    for roles in parts:
        part = GangRequest(tuple(roles))
        for resource in sorted({r for role in roles for r, _ in role.member.request}):
            supply = _supply(state, part, resource)
            asked = part.total(resource)
            short = asked - supply.unused
            order = (-short / asked, resource_order(resource))
            if short > 0 and (worst_order is None or order < worst_order):
                worst_order = order
                worst = _capacity_facts(supply, resource, asked=asked)
    return worst


def _supply(state: ClusterState, gang: GangRequest, resource: str) -> Supply:
    """Return what nodes have of a resource that any role of the gang could use."""
    constraints = dict.fromkeys(role.member.constraints for role in gang.roles)
    if len(constraints) == 1:
        return state.fits.supply(next(iter(constraints)), resource)
    nodes, table = eligible_nodes(state, list(constraints)), state.table
    return Supply.of(table.unused(resource)[nodes], table.owned(resource)[nodes])


def _capacity_facts(supply: Supply, resource: str, *, asked: int) -> dict[str, int | str]:
    facts: dict[str, int | str] = {
        "resource": resource,
        "asked": asked,
        "free": supply.unused,
        "total": supply.owned,
        "short": asked - supply.unused,
    }
    if is_row(resource):
        facts |= {FREE_NODES: supply.free_nodes, "nodes": supply.nodes}
    if resource.startswith(ATTACHED):
        facts["node_limit"] = supply.largest
    return facts


def _fragments(state: ClusterState, capacity: Capacity, gang: GangRequest) -> dict[str, int | str]:
    resources = sorted({r for role in gang.roles for r, _ in role.member.request})
    free = {r: _supply(state, gang, r).unused for r in resources}
    asked = {r: gang.total(r) for r in resources}
    # The resource that is tightest, devices before others: that is what people watch.
    resource = min(
        resources,
        key=lambda r: (not is_device(r), -asked[r] / max(free[r], 1), r),
    )
    return {
        "resource": resource,
        "free": free[resource],
        "asked": asked[resource],
        "members": gang.member_count,
        "members_fit": members_fit(capacity, state.table, gang),
    }
