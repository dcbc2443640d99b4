"""Place a gang again for its next attempt: members keep their nodes, only those on lost nodes move.

The gang's claim stays booked for the whole decision, old places and new ones, so nothing that is
decided in the same breath can count on what the repair gives up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairlead.api.job import Job, Placement
from fairlead.decide.placement.capacity import PresentCapacity
from fairlead.decide.placement.plan import Plan, domains_of, plan_within
from fairlead.model.cluster import ClusterState
from fairlead.model.gangs import GangRequest, RoleRequest
from fairlead.model.nodes import Bools, Ints


@dataclass(frozen=True, slots=True)
class RepairScope:
    """What a gang keeps. `slots[r][i]` is the member's slot; `kept[r][i]` tells whether it
    stays.
    """

    slots: tuple[Ints, ...]
    kept: tuple[Bools, ...]
    nodes_lost: int

    @property
    def kept_count(self) -> int:
        """Members that keep their nodes."""
        return int(sum(k.sum() for k in self.kept))


def repair_scope(state: ClusterState, job: Job, gang: GangRequest) -> RepairScope | None:
    """Return which members can stay; None when the placement is not one of this gang's shape.

    A member stays when its node exists, is ready, is not cordoned, has no NoExecute taint that it
    does not tolerate and was not lost in the attempt before. Pods of another tool run on while
    others of their gang move, so a cordoned node keeps them.
    """
    placement = job.status.placement
    assert placement is not None
    if [(r.role, len(r.nodes)) for r in placement.roles] != [(r.name, r.count) for r in gang.roles]:
        return None
    lost_before = _nodes_lost(job, placement)
    slots: list[Ints] = []
    kept: list[Bools] = []
    nodes_lost: dict[str, None] = {}
    usable = ~state.table.cordoned if job.spec.adopts is None else state.table.exists
    for role, placed in zip(gang.roles, placement.roles, strict=True):
        keeps_running = state.fits.mask(role.member.constraints).keeps_running
        places = np.array([state.table.occupy(n) for n in placed.nodes], dtype=np.int64)
        stays = (
            keeps_running[places]
            & usable[places]
            & np.array([n not in lost_before for n in placed.nodes])
        )
        nodes_lost.update((placed.nodes[i], None) for i in np.flatnonzero(~stays))
        slots.append(places)
        kept.append(stays)
    return RepairScope(tuple(slots), tuple(kept), len(nodes_lost))


def _nodes_lost(job: Job, placement: Placement) -> dict[str, None]:
    attempts = [a for a in job.status.attempts if a.number >= placement.attempt]
    return {node: None for attempt in attempts for node in attempt.nodes_lost}


def give_back(
    capacity: PresentCapacity, gang: GangRequest, scope: RepairScope, *, kept: bool, sign: int = 1
) -> None:
    """Release the lost members' places in `capacity`, with `kept` all; sign -1 undoes it."""
    for role, slots, stays in zip(gang.roles, scope.slots, scope.kept, strict=True):
        given = slots if kept else slots[~stays]
        if len(given):
            distinct, counts = np.unique(given, return_counts=True)
            capacity.take(distinct, -sign * counts, role.member)


def plan_repair(
    capacity: PresentCapacity, state: ClusterState, gang: GangRequest, scope: RepairScope
) -> Plan | None:
    """Place the lost members around the kept ones: on nodes outside the gang first, on nodes that
    it already uses next, on the lost nodes themselves, should they be back, last.

    On success `capacity` holds the new places beside the old ones; otherwise it is as it was.
    """
    moved = tuple(
        RoleRequest(role.name, int((~stays).sum()), role.member)
        for role, stays in zip(gang.roles, scope.kept, strict=True)
    )
    mark = capacity.mark()
    give_back(capacity, gang, scope, kept=False)
    for admitted in _preferences(state, gang, scope):
        plan = plan_within(capacity, state.table, moved, admitted)
        if plan is None:
            continue
        slots = [old.copy() for old in scope.slots]
        for all_slots, stays, new in zip(slots, scope.kept, plan.slots, strict=True):
            all_slots[~stays] = new
        capacity.rollback_to(mark)
        for role, new in zip(moved, plan.slots, strict=True):
            if len(new):
                distinct, counts = np.unique(new, return_counts=True)
                capacity.take(distinct, counts, role.member)
        return Plan(tuple(slots))
    capacity.rollback_to(mark)
    return None


def _preferences(state: ClusterState, gang: GangRequest, scope: RepairScope) -> Iterator[Bools]:
    """Yield the nodes to try, best first; within the domain of the kept members if one is asked."""
    table = state.table
    base = table.exists
    if gang.topology_key:
        domains = domains_of(table, gang.topology_key)
        homes = np.unique(
            np.concatenate(
                [domains.cells[s[k]] for s, k in zip(scope.slots, scope.kept, strict=True)]
            )
        )
        if len(homes) == 1 and homes[0] >= 0:
            home = base & (domains.cells == homes[0])
            yield from _spared(home, scope)
        if gang.topology_required:
            return
    yield from _spared(base, scope)


def _spared(base: Bools, scope: RepairScope) -> Iterator[Bools]:
    lost, own = np.zeros_like(base), np.zeros_like(base)
    for slots, stays in zip(scope.slots, scope.kept, strict=True):
        lost[slots[~stays]] = True
        own[slots[stays]] = True
    yield base & ~lost & ~own
    yield base & ~lost
    yield base
