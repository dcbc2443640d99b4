"""Pods that were to be gone and are not: each holds its own node until somebody ends it.

A finalizer of another tool keeps a pod, and so does a kubelet that no longer confirms ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from fairlead.api.jobs.job import Job
from fairlead.decide.answers.explanation import OverduePod
from fairlead.decide.placement.why_not.unplaceable import eligible_nodes
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.holdings.claims import adopted_owner

#: Pods that are looked at.
OVERDUE_MAX = 10_000


def overdue_of(state: ClusterState, job: Job, now: float) -> Iterator[OverduePod]:
    """Yield pods of the job itself."""
    key, uid = job.metadata.key, job.metadata.uid
    own = (adopted_owner(key, uid), (key[0], uid, False))
    for pod, node, since, owner in islice(state.ledger.overdue(now), OVERDUE_MAX):
        if owner in own:
            yield OverduePod(pod, node, since)


def overdue_for(state: ClusterState, gang: GangRequest, now: float) -> Iterator[OverduePod]:
    """Yield pods on nodes that are available to the gang."""
    nodes = eligible_nodes(state, [role.member.constraints for role in gang.roles])
    for pod, node, since, _ in islice(state.ledger.overdue(now), OVERDUE_MAX):
        slot = state.table.slot(node)
        if slot is not None and nodes[slot]:
            yield OverduePod(pod, node, since)
