"""Questions about a cluster that change nothing: the same algorithm as deciding, rolled back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from fairlead.api.values.quantity import ATTACHED
from fairlead.decide.placement.places.capacity import EmptyCapacity, PresentCapacity
from fairlead.decide.placement.places.search import Plan, plan_gang
from fairlead.decide.placement.places.size import largest_plan
from fairlead.decide.placement.places.unplaceable import judge_empty, judge_present
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Fact, Verdict
from fairlead.model.asks.requests import is_device
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang


def would_fit(state: ClusterState, gang: GangRequest | InvalidGang) -> Verdict:
    """Return PLACED when the gang could start now, were it first in the queue; else why not.

    An elastic gang as large as the nodes admit.
    """
    if isinstance(gang, InvalidGang):
        return Verdict(Reason.INVALID_REQUEST, {"field": gang.field})
    with state.transaction() as transaction:
        capacity = PresentCapacity(state, transaction)
        plan_of = partial(plan_gang, capacity, state.table)
        plan = largest_plan(capacity, gang, plan_of, lambda _: True)
        if plan is not None:
            return Verdict(Reason.PLACED, placed_facts(plan, len(plan.distinct_slots)))
        impossible = judge_empty(state, gang)
        return impossible or judge_present(state, capacity, gang, reservations=())


def fits_now(state: ClusterState, gang: GangRequest) -> bool:
    """Tell whether `would_fit` says PLACED, without working out why not."""
    with state.transaction() as transaction:
        capacity = PresentCapacity(state, transaction)
        if gang.is_simple:
            (role,) = gang.roles
            return int(capacity.fits(role.member).sum()) >= role.count
        return plan_gang(capacity, state.table, gang) is not None


def fits_empty(state: ClusterState, gang: GangRequest | InvalidGang) -> Verdict:
    """Return PLACED when the gang would fit on the nodes there are, all healthy and nothing in use;
    else why it never can.

    A gang that waits for the level that it prefers may take a wider one here. For several roles
    that the planner finds no place for, without a proof that there is none, the verdict is
    FRAGMENTED.
    """
    gang = gang if isinstance(gang, InvalidGang) else gang.accepting
    impossible = judge_empty(state, gang)
    if impossible is not None or isinstance(gang, InvalidGang):
        return impossible or Verdict(Reason.INVALID_REQUEST, {"field": ""})
    plan = plan_gang(EmptyCapacity(state, available_only=False), state.table, gang)
    if plan is not None:
        return Verdict(Reason.PLACED, placed_facts(plan, len(plan.distinct_slots)))
    with state.transaction() as transaction:
        return judge_present(state, PresentCapacity(state, transaction), gang, reservations=())


def largest_shape(state: ClusterState) -> Mapping[str, int]:
    """Return what the largest node has, in base units: most devices, then memory, then CPU.

    Empty when there is no node.
    """
    table = state.table
    nodes = np.flatnonzero(table.exists)
    if not len(nodes):
        return {}
    amounts = {r: table.owned(r)[nodes] for r in table.resources}
    devices = sum((amounts[r] for r in amounts if is_device(r)), np.zeros(len(nodes), np.int64))
    order = np.lexsort((table.rank[nodes], -amounts["cpu"], -amounts["memory"], -devices))
    shown = [r for r in sorted(amounts) if not r.startswith(ATTACHED)]
    return {r: int(amounts[r][order[0]]) for r in shown if amounts[r][order[0]]}


def placed_facts(plan: Plan, nodes_used: int) -> Mapping[str, Fact]:
    """Return the facts of a PLACED verdict."""
    members = sum(len(slots) for slots in plan.slots)
    return {"nodes_used": nodes_used, "members": members}
