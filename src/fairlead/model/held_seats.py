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
    """Fed by the ledger with each change of a claim and of a pod that belongs to a job."""

    def __init__(self) -> None:
        self._claimed: dict[Owner, tuple[JobKey, Counter[str]]] = {}
        self._asked: dict[Owner, Counter[str]] = {}
        self._held: dict[str, dict[JobKey, dict[str, int]]] = {}
        self._places: dict[str, Counter[str]] = {}
        self._versions: Counter[str] = Counter()

    def of(self, namespace: str) -> Mapping[JobKey, Mapping[str, int]]:
        """Return the jobs of a namespace that hold more than their pods ask for, and how much."""
        return self._held.get(namespace, _NONE)

    def places(self, namespace: str) -> Mapping[str, int]:
        """Return what all places of the jobs of a namespace hold, with pods or without."""
        return self._places.get(namespace, _NO_AMOUNTS)

    def version(self, namespace: str) -> int:
        """Return a number that rises whenever `of` or `places` may return something else."""
        return self._versions[namespace]

    def set_claim(self, claim: Claim, *, is_there: bool) -> None:
        """Take in the claim of a job, or that it is gone."""
        if not is_there:
            self._drop(claim.owner)
            return
        amounts: Counter[str] = Counter()
        for _, request, nodes in claim.roles:
            for resource, amount in request:
                amounts[resource] += amount * len(nodes)
        self._claimed[claim.owner] = (claim.key, amounts)
        self._places.setdefault(claim.key[0], Counter()).update(amounts)
        self._versions[claim.key[0]] += 1
        self._update(claim.owner)

    def count_pod(self, owner: Owner, request: Request, sign: int) -> None:
        """Take in a pod of a job, or with -1 that it is gone or has ended."""
        asked = self._asked.setdefault(owner, Counter())
        for resource, amount in request:
            asked[resource] += sign * amount
            if not asked[resource]:
                del asked[resource]
        if not asked:
            del self._asked[owner]
        self._update(owner)

    def _update(self, owner: Owner) -> None:
        if owner not in self._claimed:
            return
        key, claimed = self._claimed[owner]
        asked = self._asked.get(owner, Counter())
        left = {name: more for name, n in claimed.items() if (more := n - asked[name]) > 0}
        jobs = self._held.setdefault(owner[0], {})
        if left == jobs.get(key, {}):
            return
        self._versions[owner[0]] += 1
        if left:
            jobs[key] = left
        else:
            del jobs[key]

    def _drop(self, owner: Owner) -> None:
        namespace, (key, amounts) = owner[0], self._claimed.pop(owner)
        self._versions[namespace] += 1
        places = self._places[namespace] - amounts
        self._places[namespace] = places
        jobs = self._held.get(namespace, {})
        jobs.pop(key, None)
        if not jobs:
            self._held.pop(namespace, None)
        if not places:
            del self._places[namespace]
