"""What would move for a job if running gangs were moved for it now: the planner's own search."""

from __future__ import annotations

from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.evict.moves import Moves
from fairlead.decide.placement.evict.victim_search import VictimSearch
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gang.gangs import GangRequest


def find_moves(
    state: PlacementState, key: ObjectKey, policy: PlacementPolicy, now: float
) -> tuple[Moves | None, float]:
    """Return the moves that make room for a waiting job, none where it fits as it is; None when
    there are none, and when gangs that have just started may move.
    """
    entry = state.jobs[key]
    if not isinstance(entry.gang, GangRequest):
        return None, float("inf")
    state.advance(now)
    with state.cluster.transaction() as transaction:
        context = PlanningContext(state, policy, now, PresentCapacity(state.cluster, transaction))
        mark = context.capacity.mark()
        plan = context.plan(entry, entry.gang)
        if plan is not None:
            return Moves((), plan), float("inf")
        context.capacity.rollback_to(mark)
        return VictimSearch(context).find_moves(entry.lane, key, entry.gang)
