"""The quota stage: would the quotas of its namespace take all pods of a gang?

A job whose pods a ResourceQuota would refuse keeps no nodes from others, and says so. It may still
be placed: only the API server's answer is final, but for what the jobs of the namespace hold
without pods, which the API server does not count. Shares of teams belong here, too: a verdict that
makes a job wait is asked for before the search, and holds for the whole group (`queue.Group`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from fairlead.api.jobs.job import Job
from fairlead.decide.attempts.seats import member_name
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang, JobKey
from fairlead.model.holdings.quotas import Memo, Places, QuotaExcess, QuotaHolding, QuotaQuestion


class TakenQuota:
    """What jobs were given in the course of one decision, in namespaces with quotas.

    Each would have room alone, beside what others hold without pods: together they may not, and the
    API server counts no place without a pod.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self._taken: dict[str, dict[QuotaQuestion, QuotaHolding]] = {}

    def take(self, entry: QueueEntry, gang: GangRequest) -> None:
        """Take in that a waiting job is given the places of a gang."""
        key = entry.age.job_key
        if key[0] not in self.cluster.quotas or self.cluster.ledger.claim(key) is not None:
            return
        amounts: Counter[str] = Counter()
        for role in gang.roles:
            for resource, amount in (*role.member.request, *role.claims):
                amounts[resource] += amount * role.count
        asked = QuotaQuestion.of(entry.job)
        alike = self._taken.setdefault(key[0], {})
        same = alike.get(asked)
        if same is not None:
            amounts.update(same.amounts)
        alike[asked] = QuotaHolding(asked, gang, amounts)

    def of(self, namespace: str) -> Collection[QuotaHolding]:
        """Return what the jobs of a namespace were given."""
        return self._taken.get(namespace, {}).values()


def quota_verdict(taken: TakenQuota, entry: QueueEntry) -> Verdict | None:
    """Return the quota that would refuse a waiting job's pods, as a verdict; None: none would."""
    excess = _excess(taken, entry)
    return excess and Verdict(Reason.AWAITING_QUOTA, {"message": str(excess)})


def held_verdict(taken: TakenQuota, entry: QueueEntry) -> Verdict | None:
    """Return the same where jobs of the namespace have places, or for claims: the job is not placed
    then.

    The API server would not refuse its pods at a moment in which theirs have ended, or do not exist
    yet; and what a quota shows as used may be late. It refuses no pod for want of claims, which
    then has none.
    """
    excess = _excess(taken, entry)
    is_certain = excess is not None and (excess.has_places or excess.is_of_claims)
    return quota_verdict(taken, entry) if is_certain else None


def excess_of(
    taken: TakenQuota,
    job: Job,
    gang: GangRequest,
    memos: dict[QuotaQuestion, Memo] | None = None,
) -> QuotaExcess | None:
    """Return the quota of its namespace that a job exceeds with a gang (`QuotaTable.excess`)."""
    cluster, namespace = taken.cluster, job.metadata.namespace
    all_held, held = cluster.ledger.held_places, _held(cluster, job.metadata.key)
    amounts = all_held.places(namespace)
    version = (all_held.version(namespace), cluster.devices.made_version)
    places = Places(version, held, amounts, taken.of(namespace))
    return cluster.quotas.excess(job, gang, {} if memos is None else memos, places)


def _held(cluster: ClusterState, but: JobKey) -> Iterator[QuotaHolding]:
    all_held = cluster.ledger.held_places
    beyond = all_held.of(but[0])
    for key in beyond if not cluster.devices.is_used else all_held.jobs(but[0]):
        entry = cluster.jobs.get(key)
        if key == but or entry is None or isinstance(entry.gang, InvalidGang):
            continue
        amounts = Counter(beyond.get(key, {})) + _unmade(cluster, entry.job, entry.gang)
        if amounts:
            yield QuotaHolding(QuotaQuestion.of(entry.job), entry.gang, amounts)


def _unmade(cluster: ClusterState, job: Job, gang: GangRequest) -> Counter[str]:
    """Return what claims use that are yet to be made for the pods of a placed job."""
    placement, found = job.status.placement, Counter[str]()
    if placement is None or job.spec.adopts is not None:
        return found
    places = {role.role: len(role.nodes) for role in placement.roles}
    for role in gang.roles:
        if not role.claims:
            continue
        count = places.get(role.name, 0)
        names = (member_name(job, placement.attempt, role.name, i) for i in range(count))
        made = sum(cluster.devices.has_claims((job.metadata.namespace, name)) for name in names)
        for name, amount in role.claims:
            found[name] += amount * (count - made)
    return found


def _excess(taken: TakenQuota, entry: QueueEntry) -> QuotaExcess | None:
    if entry.age.job_key[0] not in taken.cluster.quotas:
        return None
    if entry.group is None or isinstance(entry.gang, InvalidGang):
        return None
    return excess_of(taken, entry.job, entry.gang, entry.group.shape.over_quota)
