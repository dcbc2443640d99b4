"""What the places of jobs hold beyond what their pods ask for, by namespace.

The API server counts pods that have not ended against a ResourceQuota. A job holds its place also
while it has no pods or fewer: before it starts, between two attempts, once some members are done.
Without these amounts a namespace could hold any part of a cluster in jobs whose pods have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from fairlead.model.claims import Claim, Owner
from fairlead.model.gangs import JobKey
from fairlead.model.requests import Request

_NONE: Mapping[JobKey, Mapping[str, int]] = MappingProxyType({})
_NO_AMOUNTS: Mapping[str, int] = MappingProxyType({})


class HeldSeats:
    """Fed by the ledger with each change of a claim and of a pod that belongs to a job.

    Pods come and go by the thousand, and only namespaces with quotas are asked about: a change is
    noted, and counted when `of` or `version` is asked.
    """

    def __init__(self) -> None:
        self._claimed: dict[Owner, tuple[JobKey, Counter[str]]] = {}
        #: How many pods of a job ask for what.
        self._asked: dict[Owner, dict[Request, int]] = {}
        #: Jobs of a namespace whose amounts are to be counted again.
        self._changed: dict[str, dict[Owner, None]] = {}
        self._held: dict[str, dict[JobKey, dict[str, int]]] = {}
        self._places: dict[str, Counter[str]] = {}
        self._versions: Counter[str] = Counter()

    def of(self, namespace: str) -> Mapping[JobKey, Mapping[str, int]]:
        """Return the jobs of a namespace that hold more than their pods ask for, and how much."""
        self._count(namespace)
        return self._held.get(namespace, _NONE)

    def places(self, namespace: str) -> Mapping[str, int]:
        """Return what all places of the jobs of a namespace hold, with pods or without."""
        return self._places.get(namespace, _NO_AMOUNTS)

    def version(self, namespace: str) -> int:
        """Return a number that rises whenever `of` or `places` may return something else."""
        self._count(namespace)
        return self._versions[namespace]

    def set_claim(self, claim: Claim, *, is_there: bool) -> None:
        """Take in the claim of a job, or that it is gone."""
        namespace = claim.key[0]
        self._versions[namespace] += 1
        self._changed.setdefault(namespace, {})[claim.owner] = None
        if not is_there:
            _, gone = self._claimed.pop(claim.owner)
            self._places[namespace] -= gone
            if not self._places[namespace]:
                del self._places[namespace]
            jobs = self._held.get(namespace, {})
            jobs.pop(claim.key, None)
            if not jobs:
                self._held.pop(namespace, None)
            return
        amounts: Counter[str] = Counter()
        for _, request, nodes in claim.roles:
            for resource, amount in request:
                amounts[resource] += amount * len(nodes)
        self._claimed[claim.owner] = (claim.key, amounts)
        self._places.setdefault(namespace, Counter()).update(amounts)

    def count_pod(self, owner: Owner, request: Request, sign: int) -> None:
        """Take in a pod of a job, or with -1 that it is gone or has ended."""
        pods = self._asked.setdefault(owner, {})
        pods[request] = count = pods.get(request, 0) + sign
        if not count:
            del pods[request]
            if not pods:
                del self._asked[owner]
        if owner in self._claimed:
            self._changed.setdefault(owner[0], {})[owner] = None

    def _count(self, namespace: str) -> None:
        """Count what has changed in a namespace."""
        for owner in self._changed.pop(namespace, ()):
            if owner not in self._claimed:
                continue
            key, claimed = self._claimed[owner]
            left = Counter(claimed)
            for request, count in self._asked.get(owner, {}).items():
                left.subtract({resource: count * amount for resource, amount in request})
            jobs = self._held.setdefault(namespace, {})
            if (more := dict(+left)) == jobs.get(key, {}):
                continue
            self._versions[namespace] += 1
            jobs[key] = more
            if not more:
                del jobs[key]
