"""The budget stage: has a team used the GPU-hours that it may use over time?

What its jobs have held is summed up and halved every half-life, so a team that stops comes back
below its budget. A job that asks for GPUs does not start before; jobs that run, and places that are
kept already, are left alone.
"""

from __future__ import annotations

import math

from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang, gpus_of

#: While a team's jobs run, when it comes below its budget is not known: look again so often.
_AGAIN_SECONDS_MIN = 60.0


def budget_verdict(context: PlanningContext, entry: QueueEntry) -> Verdict | None:
    """Return that a waiting job's team is over its budget; None when the job may start.

    The decision is made again when the team may be below it, at the earliest.
    """
    found = over_budget(context.cluster, entry.lane.team, entry.gang, context.now)
    if found is None:
        return None
    verdict, seconds = found
    if seconds is not None:
        context.wakes.append(context.now + max(seconds, _AGAIN_SECONDS_MIN))
    return verdict


def over_budget(
    cluster: ClusterState, name: str, gang: GangRequest | InvalidGang, now: float
) -> tuple[Verdict, float | None] | None:
    """Return that a team is over its budget, for a job that asks for GPUs; else None.

    And after how many seconds it is below if no job of it runs; None when it never is.
    """
    team = cluster.teams.get(name)
    if team is None or team.spec.budget.gpu_hours is None or not gpus_of(gang):
        return None
    limit, sums = team.spec.budget.gpu_hours, cluster.uses.gpu_seconds
    hours = sums.at(name, now) / 3600.0
    if limit and hours < limit:
        return None
    seconds = sums.half_life(name) * math.log2(hours / limit) if limit else None
    facts = {"team": name, "limit": limit, "days": team.spec.budget.half_life_days}
    return Verdict(Reason.GPU_BUDGET, facts), seconds
