"""What the places of jobs hold beyond what their pods ask for, by namespace.

The API server counts pods that have not ended against a ResourceQuota. A job holds its place also
while it has no pods or fewer: before it starts, between two attempts, once some members are done.
Without these amounts a namespace could hold any part of a cluster in jobs whose pods have ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from fairlead.model.asks.requests import Request
from fairlead.model.gang.gangs import JobKey
from fairlead.model.holdings.claims import Claim
from fairlead.model.holdings.pod_owner import Owner

_NONE: Mapping[JobKey, Mapping[str, int]] = MappingProxyType({})
_NO_AMOUNTS: Mapping[str, int] = MappingProxyType({})


class _Counted(NamedTuple):
    """A job with places: what they hold, and how much of it beyond what its pods ask for."""

    key: JobKey
    amounts: Counter[str]
    left: dict[str, int]


class HeldPlaces:
    """Fed by the ledger with each change of a claim and of a pod that belongs to a job.

    Claims and pods change by the thousand, and only namespaces with quotas are asked about: a
    change is noted, and counted when its namespace is asked about.
    """

    def __init__(self) -> None:
        self._claims: dict[Owner, Claim] = {}
        #: How many pods of a job ask for what.
        self._asked: dict[Owner, dict[Request, int]] = {}
        #: By namespace: jobs that are to be counted again, and what was counted last.
        self._changed: dict[str, dict[Owner, None]] = {}
        self._counted: dict[str, dict[Owner, _Counted]] = {}
        self._held: dict[str, dict[JobKey, dict[str, int]]] = {}
        self._places: dict[str, Counter[str]] = {}
        self._versions: Counter[str] = Counter()

    def of(self, namespace: str) -> Mapping[JobKey, Mapping[str, int]]:
        """Return the jobs of a namespace that hold more than their pods ask for, and how much."""
        self._count(namespace)
        return self._held.get(namespace, _NONE)

    def jobs(self, namespace: str) -> list[JobKey]:
        """Return the jobs of a namespace that have places."""
        self._count(namespace)
        return [each.key for each in self._counted.get(namespace, {}).values()]

    def places(self, namespace: str) -> Mapping[str, int]:
        """Return what all places of the jobs of a namespace hold, with pods or without."""
        self._count(namespace)
        return self._places.get(namespace, _NO_AMOUNTS)

    def version(self, namespace: str) -> int:
        """Return a number that rises whenever `of` or `places` may return something else."""
        self._count(namespace)
        return self._versions[namespace]

    def set_claim(self, claim: Claim, *, is_there: bool) -> None:
        """Take in the claim of a job, or that it is gone."""
        namespace, owner = claim.key[0], claim.owner
        if is_there:
            self._claims[owner] = claim
        else:
            del self._claims[owner]
        if is_there or owner in self._counted.get(namespace, ()):
            self._changed.setdefault(namespace, {})[owner] = None
        elif changed := self._changed.get(namespace):  # of a namespace that is not asked about
            changed.pop(owner, None)

    def count_pod(self, owner: Owner, request: Request, sign: int) -> None:
        """Take in a pod of a job, or with -1 that it is gone or has ended."""
        pods = self._asked.setdefault(owner, {})
        pods[request] = count = pods.get(request, 0) + sign
        if not count:
            del pods[request]
            if not pods:
                del self._asked[owner]
        if owner in self._claims:
            self._changed.setdefault(owner[0], {})[owner] = None

    def _count(self, namespace: str) -> None:
        """Count what has changed in a namespace."""
        changed = self._changed.pop(namespace, None)
        if changed is None:
            return
        jobs = self._held.setdefault(namespace, {})
        places = self._places.get(namespace, Counter[str]())
        counted = self._counted.setdefault(namespace, {})
        gone = {owner: counted.pop(owner) for owner in changed if owner in counted}
        come = {owner: self._count_job(owner) for owner in changed if owner in self._claims}
        for each in gone.values():
            places = places - each.amounts
            jobs.pop(each.key, None)
        for each in come.values():
            places = places + each.amounts
            if each.left:
                jobs[each.key] = each.left
        counted.update(come)
        self._places[namespace] = places
        self._versions[namespace] += gone != come

    def _count_job(self, owner: Owner) -> _Counted:
        claim = self._claims[owner]
        amounts: Counter[str] = Counter()
        for _, request, nodes in claim.roles:
            for resource, amount in request:
                amounts[resource] += amount * len(nodes)
        left = Counter(amounts)
        for request, count in self._asked.get(owner, {}).items():
            left.subtract({resource: count * amount for resource, amount in request})
        return _Counted(claim.key, amounts, dict(+left))
