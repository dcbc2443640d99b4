"""Place a gang again for its next attempt: members keep their nodes, only those on lost nodes move.

These may go to spares (`model/inventory/spares.py`), and do so first where as many devices are
free. A whole gang that gives up its healthy nodes takes no spares, nor do members beyond those of
the attempt before.

The gang's claim stays booked for the whole decision, old places and new ones, so other jobs in this
decision cannot use the capacity that the repair frees: the write may still fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import le

import numpy as np
from msgspec import structs

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.api.values.times import parse_time
from fairlead.decide.placement.actions import PlaceJob
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.desk.slice_repair import place_slices
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.domains import domains_of
from fairlead.decide.placement.places.image_preference import with_images
from fairlead.decide.placement.places.neighbours import rules_hold
from fairlead.decide.placement.places.search import Plan, members_of, plan_gang, plan_within
from fairlead.decide.placement.places.size import largest_plan
from fairlead.decide.placement.places.ties import nodes_near
from fairlead.decide.placement.places.unplaceable import judge_empty, judge_present
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.asks.requests import Request
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable, counted


@dataclass(frozen=True, slots=True)
class PlacedGang:
    """The gang has a place."""

    verdict: Verdict
    action: PlaceJob


@dataclass(frozen=True, slots=True)
class Wait:
    """The gang keeps its nodes and waits for replacements, until an instant."""

    verdict: Verdict
    until: float


@dataclass(frozen=True, slots=True)
class GangRelease:
    """The gang releases all its nodes; without a verdict its placement is of no use to it."""

    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class GangGrowth:
    """Where a gang may get members beyond its least, and of which sizes it may be.

    `capacity` is of the same transaction as that of the repair, with less in it: what is kept for
    others is left to them.
    """

    capacity: PresentCapacity
    admits: Callable[[GangRequest], bool]


def repair(
    capacity: PresentCapacity,
    entry: QueueEntry,
    policy: PlacementPolicy,
    now: float,
    *,
    growth: GangGrowth | None,
    may_fit: bool = True,
) -> Plan | Wait | GangRelease:
    """Answer a gang's next attempt: the same nodes, new ones for the lost, or wait, or release.

    An elastic gang keeps its members on healthy nodes and takes as many others as it may be given.
    Without `may_fit` it is known that there is no place for those that have to move.
    `capacity` then holds the new places of a plan beside the old ones; else it is as it was.
    """
    job, gang, state = entry.job, entry.gang, capacity.state
    scope = None if isinstance(gang, InvalidGang) else repair_scope(state, job, gang)
    if scope is None or isinstance(gang, InvalidGang):
        return GangRelease(None)
    gang = with_images(state.table, job, gang)
    again = partial(_plan_again, scope=scope)
    keeping = gang.keeping(scope.kept_counts)
    plan = _largest(capacity, keeping, again, growth) if may_fit else None
    if plan is not None:
        return plan
    status, since = job.status.verdict, now
    if status is not None and status.reason == Reason.REPAIRING.value and status.since:
        since = parse_time(status.since)
    give_up_at = since + policy.repair_hold_seconds
    holds_nothing = scope.kept_count == 0 and job.spec.adopts is None
    if holds_nothing or now >= give_up_at:
        return _give_up(capacity, gang, scope, growth)
    facts = {
        "members_kept": scope.kept_count,
        "members": gang.member_count,
        "nodes_lost": scope.nodes_lost,
    }
    return Wait(Verdict(Reason.REPAIRING, facts), give_up_at)


def grown(capacity: PresentCapacity, gang: GangRequest, plan: Plan, growth: GangGrowth) -> Plan:
    """Return a plan, which `capacity` holds, with more members where an elastic gang gets them."""
    kept = tuple(np.ones(len(slots), dtype=np.bool_) for slots in plan.slots)
    scope = RepairScope(plan.slots, kept, 0)
    again = partial(_plan_again, scope=scope)
    return _largest(capacity, gang.keeping(scope.kept_counts), again, growth) or plan


def _largest(
    capacity: PresentCapacity,
    gang: GangRequest,
    plan_of: Callable[[PresentCapacity, GangRequest], Plan | None],
    growth: GangGrowth | None,
) -> Plan | None:
    """Return the plan of the largest size, with members beyond the least as `growth` admits."""
    if growth is None or not gang.is_elastic:
        return plan_of(capacity, gang)
    least = gang.member_count

    def sized(at: GangRequest) -> Plan | None:
        return plan_of(capacity if at.member_count == least else growth.capacity, at)

    return largest_plan(capacity, gang, sized, growth.admits)


def _plan_again(capacity: PresentCapacity, gang: GangRequest, scope: RepairScope) -> Plan | None:
    counts = [role.count for role in gang.roles]
    if not scope.nodes_lost and scope.counts == counts:
        return Plan(scope.slots)
    if scope.replaces(counts) and capacity.state.table.labels.has_spares:
        gang = gang.taking_spares
    if scope.kept_count:
        return plan_repair(capacity, gang, scope)
    return _plan_elsewhere(capacity, gang, scope)


def _plan_elsewhere(
    capacity: PresentCapacity, gang: GangRequest, scope: RepairScope
) -> Plan | None:
    """Place the whole gang as if it held nothing; `capacity` then holds old and new places."""
    mark = capacity.mark()
    give_back(capacity, gang, scope, kept=True)
    plan = plan_gang(capacity, capacity.state.table, gang)
    if plan is not None:
        give_back(capacity, gang, scope, kept=True, sign=-1)
        return plan
    capacity.rollback_to(mark)
    return None


def _give_up(
    capacity: PresentCapacity, gang: GangRequest, scope: RepairScope, growth: GangGrowth | None
) -> Plan | GangRelease:
    """Move the whole gang if that is possible (another domain, say), else release its nodes."""
    plan = _largest(capacity, gang, partial(_plan_elsewhere, scope=scope), growth)
    if plan is not None:
        return plan
    mark = capacity.mark()
    give_back(capacity, gang, scope, kept=True)
    verdict = judge_empty(capacity.state, gang) or judge_present(
        capacity.state, capacity, gang, reservations=()
    )
    capacity.rollback_to(mark)
    return GangRelease(verdict)


@dataclass(frozen=True, slots=True)
class RepairScope:
    """What a gang keeps. `slots[r][i]` is the member's slot; `kept[r][i]` tells whether it stays.

    `vacant[r][i]`: nobody needs a place there, and the gang's claim has none. () for none.
    """

    slots: tuple[Ints, ...]
    kept: tuple[Bools, ...]
    nodes_lost: int
    vacant: tuple[Bools, ...] = ()

    @property
    def counts(self) -> list[int]:
        """Members of each role."""
        return [len(slots) for slots in self.slots]

    @property
    def kept_counts(self) -> list[int]:
        """Members of each role that keep their nodes."""
        return [int(stays.sum()) for stays in self.kept]

    @property
    def kept_count(self) -> int:
        """Members that keep their nodes."""
        return sum(self.kept_counts)

    def replaces(self, counts: Sequence[int]) -> bool:
        """True when nodes are lost, and an attempt of so many members only replaces these."""
        return bool(self.nodes_lost) and all(map(le, counts, self.counts))

    def seats(self, gang: GangRequest) -> tuple[tuple[Ints, ...], tuple[Bools, ...]]:
        """Return `slots` and `kept` for a gang of this size: lost members are left out, the last
        ones first, and new ones added, whose slots are -1.
        """
        slots, kept = list(self.slots), list(self.kept)
        for i, role in enumerate(gang.roles):
            more = role.count - len(slots[i])
            left_out = np.flatnonzero(~kept[i])[more:] if more < 0 else np.zeros(0, dtype=np.int64)
            slots[i] = np.append(np.delete(slots[i], left_out), np.full(max(more, 0), -1))
            kept[i] = np.append(
                np.delete(kept[i], left_out), np.zeros(max(more, 0), dtype=np.bool_)
            )
        return tuple(slots), tuple(kept)


def repair_scope(state: ClusterState, job: Job, gang: GangRequest) -> RepairScope | None:
    """Return which members can stay; None when the placement is not one of this gang's shape.

    A member stays when its node exists, is ready, is not cordoned, has no NoExecute taint that it
    does not tolerate, is not closed for maintenance, was not lost in the attempt before and offers
    what its members ask: where a GPU has failed, the last ones leave. Pods of another tool run on
    while others of their gang move, so a cordoned, closed or smaller node keeps them.
    """
    placement = job.status.placement
    assert placement is not None
    if not gang.has_size([(place.role, len(place.nodes)) for place in placement.roles]):
        return None
    lost_before = _nodes_lost(job, placement)
    slots: list[Ints] = []
    kept: list[Bools] = []
    vacant: list[Bools] = []
    vacated = job.status.vacant
    nodes_lost: dict[str, None] = {}
    for role, placed in zip(gang.roles, placement.roles, strict=True):
        mask = state.fits.mask(role.member.constraints)
        usable = mask.keeps_running
        if job.spec.adopts is None:
            usable = usable & mask.is_open & ~state.table.cordoned
            if role.member.constraints.reach:
                usable = usable & mask.matches
        places = np.array([state.table.occupy(n) for n in placed.nodes], dtype=np.int64)
        stays = usable[places] & np.array([n not in lost_before for n in placed.nodes])
        for tie in role.ties:  # a volume that was made elsewhere
            members = list(tie.members)
            stays[members] &= nodes_near(state.table, tie)[places[members]]
        if job.spec.adopts is None:
            for i in _crowded_out(state, places, role.member.request):
                stays[i] = False
        free = np.array([(placed.role, i) in vacated for i in range(len(places))], dtype=np.bool_)
        stays |= free
        vacant.append(free)
        nodes_lost.update((placed.nodes[i], None) for i in np.flatnonzero(~stays))
        slots.append(places)
        kept.append(stays)
    empty = tuple(vacant) if vacated else ()
    return RepairScope(tuple(slots), tuple(kept), len(nodes_lost), empty)


def _crowded_out(state: ClusterState, places: Ints, request: Request) -> Iterator[int]:
    """Yield members, the last ones first, without which their nodes offer what is claimed there.

    Places that are kept for others, and pods that are leaving, do not count.
    """
    table, ledger = state.table, state.ledger
    full = counted(places)[0]
    for slot in full[(table.free(full) < 0).any(axis=0)].tolist():
        name = table.names[slot]
        claimed = Counter[str]()
        for claim in ledger.claims_on(slot):
            for _, asked, nodes in claim.roles:
                for resource, amount in asked:
                    claimed[resource] += amount * nodes.count(name)
        for i in reversed(np.flatnonzero(places == slot).tolist()):
            if all(claimed[resource] <= table.owned(resource)[slot] for resource, _ in request):
                break
            claimed.subtract(dict(request))
            yield i


def _nodes_lost(job: Job, placement: Placement) -> dict[str, None]:
    attempts = [a for a in job.status.attempts if a.number >= placement.attempt]
    return {node: None for attempt in attempts for node in attempt.nodes_lost}


def give_back(
    capacity: PresentCapacity, gang: GangRequest, scope: RepairScope, *, kept: bool, sign: int = 1
) -> None:
    """Release the lost members' places in `capacity`, with `kept` all; sign -1 undoes it."""
    vacant = scope.vacant or tuple(np.zeros(len(s), dtype=np.bool_) for s in scope.slots)
    roles = zip(gang.roles, scope.slots, scope.kept, vacant, strict=True)
    for role, slots, stays, empty in roles:
        given = slots[~empty] if kept else slots[~stays]
        if len(given):
            distinct, counts = counted(given)
            capacity.take(distinct, -sign * counts, role.member)


def plan_repair(capacity: PresentCapacity, gang: GangRequest, scope: RepairScope) -> Plan | None:
    """Place the lost members around the kept ones: on nodes outside the gang first, on nodes that
    it already uses next, on the lost nodes themselves, should they be back, last. A slice that
    finds no room in its domain moves as a whole. The gang may be of another size than before.

    On success `capacity` holds the new places beside the old ones; otherwise it is as it was.
    """
    state, mark = capacity.state, capacity.mark()
    give_back(capacity, gang, scope, kept=False)
    for moves_slices in (False, True) if gang.topology.is_sliced else (False,):
        for admitted in _preferences(state, gang, scope):
            if gang.topology.is_sliced:
                found = place_slices(
                    capacity, gang, scope.slots, scope.kept,
                    admitted=admitted, moves_slices=moves_slices,
                )  # fmt: skip
            else:
                found = _place_lost(capacity, gang, scope, admitted)
            if found is None:
                continue
            capacity.rollback_to(mark)
            places = zip(gang.roles, *scope.seats(gang), found, strict=True)
            for role, old, stays, new in places:
                moved = new[~stays | (new != old)]
                if len(moved):
                    distinct, counts = counted(moved)
                    capacity.take(distinct, counts, role.member)
            return Plan(found)
    capacity.rollback_to(mark)
    return None


def _place_lost(
    capacity: PresentCapacity,
    gang: GangRequest,
    scope: RepairScope,
    admitted: Bools,
) -> tuple[Ints, ...] | None:
    """Return the slots of all members, with those that are not kept on admitted nodes."""
    old, kept = scope.seats(gang)
    mark, table = capacity.mark(), capacity.state.table
    roles = zip(gang.roles, kept, strict=True)
    lost = structs.replace(gang, roles=tuple(
        role.only(np.flatnonzero(~stays).tolist()) for role, stays in roles
    ))  # fmt: skip
    plan = plan_within(capacity, table, lost, admitted)
    if plan is None:
        return None
    slots = tuple(each.copy() for each in old)
    for all_slots, stays, new in zip(slots, kept, plan.slots, strict=True):
        all_slots[~stays] = new
    is_smaller = gang.member_count < sum(scope.counts)
    if not is_smaller or rules_hold(capacity.marks, table, members_of(gang, Plan(slots))):
        return slots
    capacity.rollback_to(mark)  # those that are left out had kept the others evenly spread
    return None


def _preferences(state: ClusterState, gang: GangRequest, scope: RepairScope) -> Iterator[Bools]:
    """Yield the nodes to try, best first: in the domains of the kept members, narrowest first."""
    table = state.table
    base = table.exists
    *preferred, required = gang.topology.ladder
    if required.key:
        home = _home(table, required.key, scope)
        if home is None:
            return
        base = base & home
    for level in preferred:
        home = _home(table, level.key, scope)
        if home is not None:
            yield from _spared(base & home, scope)
    yield from _spared(base, scope)


def _home(table: NodeTable, key: str, scope: RepairScope) -> Bools | None:
    """Return the nodes of the domain in which all kept members are; None when there is none."""
    cells = domains_of(table, key).cells
    homes = np.unique(
        np.concatenate([cells[s[k]] for s, k in zip(scope.slots, scope.kept, strict=True)])
    )
    return cells == homes[0] if len(homes) == 1 and homes[0] >= 0 else None


def _spared(base: Bools, scope: RepairScope) -> Iterator[Bools]:
    if not scope.nodes_lost:  # it only grows: as it would have been packed
        yield base
        return
    lost, own = np.zeros_like(base), np.zeros_like(base)
    for slots, stays in zip(scope.slots, scope.kept, strict=True):
        lost[slots[~stays]] = True
        own[slots[stays]] = True
    yield base & ~lost & ~own
    yield base & ~lost
    yield base
