"""The dry run of a job on a state that it is not in: could the nodes ever hold it, does it fit now,
what else keeps it.

The stages of a decision answer, on the state as it is: the limits and the budget of its team, the
quotas of its namespace, then the search. A job that fits and is over a quota is placed where the
jobs of its namespace hold nothing; its pods are refused then, so it waits in either case.
"""

from __future__ import annotations

from dataclasses import replace

from fairlead.api.job import Job
from fairlead.api.times import format_time
from fairlead.decide.placement.budget import over_budget
from fairlead.decide.placement.job_limits import RunningLimits
from fairlead.decide.placement.quota import excess_of
from fairlead.decide.placement.whatif import fits_empty, would_fit
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cluster import ClusterState
from fairlead.model.gangs import InvalidGang
from fairlead.model.job_users import user_of


def dry_run(state: ClusterState, job: Job, now: float) -> Verdict:
    """Return what a decision would say of a job that is not in the state, were it first in the
    queue; IMPOSSIBLE where no node could ever hold a member, or all nodes, empty, not the gang.
    """
    state.fits.advance(now)
    gang, metadata = state.gang_of(job), job.metadata
    verdict = fits_empty(state, gang)
    if verdict.outcome is Outcome.IMPOSSIBLE or isinstance(gang, InvalidGang):
        return verdict
    resolved = state.teams.resolve(job.spec.team, metadata.namespace)
    team = resolved if isinstance(resolved, str) else ""
    if team and state.teams.has_job_limits:
        limits, user = RunningLimits(state), user_of(metadata, job.spec.adopts)
        for key in state.ledger.nominated:  # they count from the moment that places are kept
            limits.take_job(key, state.jobs[key].gang)
        over = limits.verdict_of(metadata.key, gang, team, user)
        if over is not None:
            return over
    budget = over_budget(state, team, gang, now)
    if budget is not None:
        return budget[0]
    excess = excess_of(state, job, gang)
    if excess is not None:
        return Verdict(Reason.AWAITING_QUOTA, {"message": str(excess)})
    verdict = would_fit(state, gang.patient)
    if verdict.reason is Reason.AWAITING_PREFERRED:
        until = format_time(now + gang.topology.preferred_seconds)
        return replace(verdict, facts={**verdict.facts, "until": until})
    return verdict
