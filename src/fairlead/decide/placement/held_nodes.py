"""What a plan gives a gang, for accounting: its GPUs by pool with their price now, and by the team
that lends them.
"""

from __future__ import annotations

from collections import Counter

from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.names import POOL
from fairlead.api.values.quantity import is_gpu
from fairlead.decide.placement.places.search import Plan
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import InvalidGang


def held_nodes(cluster: ClusterState, entry: QueueEntry, plan: Plan) -> tuple[HeldNodes, ...]:
    """Return the GPUs of a planned gang; () where all are of no pool and borrowed of no team.

    A team that lends nodes to members without GPUs is named, too.
    """
    if isinstance(entry.gang, InvalidGang):
        return ()
    table, owner, gpus = cluster.table, cluster.uses.owner, Counter[tuple[str, str]]()
    if not cluster.uses.has_owners and not table.labels.ordered_domains(POOL)[1]:
        return ()
    for role, slots in zip(entry.gang.roles, plan.slots, strict=True):
        each = sum(amount for name, amount in role.member.request if is_gpu(name))
        if not each and not cluster.uses.has_owners:
            continue
        alike = slots if cluster.uses.has_owners else table.labels.domains(POOL)[0][slots]
        one_each = dict(zip(alike.tolist(), slots.tolist(), strict=True))
        for group, count in Counter[int](alike.tolist()).items():
            slot = one_each[group]
            team = owner(table.names[slot])
            lender = team if team != entry.lane.team else ""
            if each or lender:
                gpus[table.labels.labels(slot).get(POOL, ""), lender] += each * count
    if set(gpus) <= {("", "")}:
        return ()
    price = cluster.pools.gpu_hour_micros
    return tuple(
        HeldNodes(pool, lender, count, price.get(pool, 0) if count else 0)
        for (pool, lender), count in sorted(gpus.items())
    )
