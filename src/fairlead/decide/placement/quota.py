"""The quota stage: would the quotas of its namespace take all pods of a gang?

A job whose pods a ResourceQuota would refuse keeps no nodes from others, and says so. It may still
be placed: only the API server's answer is final. Shares of teams belong here, too: a verdict that
makes a job wait is asked for before the search, and holds for the whole group (`queue.Group`).
"""

from __future__ import annotations

from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cluster import ClusterState
from fairlead.model.gangs import InvalidGang


def quota_verdict(cluster: ClusterState, entry: QueueEntry) -> Verdict | None:
    """Return the quota that would refuse a waiting job's pods, as a verdict; None: none would."""
    if entry.group is None or isinstance(entry.gang, InvalidGang):
        return None
    shape = entry.group.shape
    excess = cluster.quotas.excess(entry.job, entry.gang, shape.over_quota)
    return excess and Verdict(Reason.AWAITING_QUOTA, {"message": str(excess)})
