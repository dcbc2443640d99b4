"""The quota stage: would the quotas of its namespace take all pods of a gang?

A job whose pods a ResourceQuota would refuse keeps no nodes from others, and says so. It may still
be placed: only the API server's answer is final, but for what the jobs of the namespace hold
without pods, which the API server does not count. Shares of teams belong here, too: a verdict that
makes a job wait is asked for before the search, and holds for the whole group (`queue.Group`).
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.api.job import Job
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cluster import ClusterState
from fairlead.model.gangs import GangRequest, InvalidGang, JobKey
from fairlead.model.quotas import Held, Memo, Places, QuotaExcess, QuotaQuestion


def quota_verdict(cluster: ClusterState, entry: QueueEntry) -> Verdict | None:
    """Return the quota that would refuse a waiting job's pods, as a verdict; None: none would."""
    excess = _excess(cluster, entry)
    return excess and Verdict(Reason.AWAITING_QUOTA, {"message": str(excess)})


def held_verdict(cluster: ClusterState, entry: QueueEntry) -> Verdict | None:
    """Return the same where jobs of the namespace have places: the job is not placed then.

    The API server would not refuse its pods at a moment in which theirs have ended, or do not exist
    yet; and what a quota shows as used may be late.
    """
    excess = _excess(cluster, entry)
    return quota_verdict(cluster, entry) if excess is not None and excess.has_places else None


def excess_of(
    cluster: ClusterState,
    job: Job,
    gang: GangRequest,
    memos: dict[QuotaQuestion, Memo] | None = None,
) -> QuotaExcess | None:
    """Return the quota of its namespace that a job exceeds with a gang (`QuotaTable.excess`)."""
    namespace, seats = job.metadata.namespace, cluster.ledger.held
    if namespace not in cluster.quotas:
        return None
    held = _held(cluster, job.metadata.key)
    places = Places(seats.version(namespace), held, seats.places(namespace))
    return cluster.quotas.excess(job, gang, {} if memos is None else memos, places)


def _held(cluster: ClusterState, but: JobKey) -> Iterator[Held]:
    for key, amounts in cluster.ledger.held.of(but[0]).items():
        entry = cluster.jobs.get(key)
        if key != but and entry is not None and isinstance(entry.gang, GangRequest):
            yield Held(QuotaQuestion.of(entry.job), entry.gang, amounts)


def _excess(cluster: ClusterState, entry: QueueEntry) -> QuotaExcess | None:
    if entry.group is None or isinstance(entry.gang, InvalidGang):
        return None
    return excess_of(cluster, entry.job, entry.gang, entry.group.shape.over_quota)
