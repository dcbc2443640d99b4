"""The gangs that nodes are bought for, in the order in which they are placed."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from fairlead.api.jobs.job import Job
from fairlead.decide.placement.waiting.order import FairShareOrder, LaneKey, OrderKey, age_of
from fairlead.decide.placement.waiting.patience import confined_at
from fairlead.decide.reasons import Reason, Trait
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, JobKey
from fairlead.model.gang.phase import Phase, phase_of


def lacks_nodes(job: Job) -> bool:
    """True for a job that waits, and that more nodes could place, going by its verdict.

    One that backs off from borrowing has no use for idle nodes of other teams, so nodes may be
    bought for it. Others wait for a user, a quota or their turn.
    """
    verdict = job.status.verdict
    reason = Reason.of(verdict.reason) if verdict is not None else None
    helps = reason is not None and reason.has(Trait.NODES_HELP)
    return helps and phase_of(job) is Phase.QUEUED


def gangs_in_order(
    state: ClusterState, jobs: Iterable[JobKey], now: float
) -> list[tuple[JobKey, GangRequest]]:
    """Return the gangs of jobs in the order of the scheduler's queue."""
    order = FairShareOrder(state)
    out: list[tuple[OrderKey, GangRequest]] = []
    for key in jobs:
        entry = state.jobs.get(key)
        if entry is None or not isinstance(entry.gang, GangRequest):
            continue
        priority = entry.priority if isinstance(entry.priority, int) else 0
        rank = order.rank(LaneKey(entry.team_name, priority), now)
        gang = confined_at(entry.job, entry.gang, now)
        out.append((OrderKey(rank, age_of(entry.job)), gang))
    out.sort(key=itemgetter(0))
    return [(place.job_key, gang) for place, gang in out]
