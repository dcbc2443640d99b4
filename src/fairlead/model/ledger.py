"""Who uses what: the claims of jobs, and the pods that no claim covers.

The accounting rule (docs/design/architecture.md): a node's use is the claims of all unfinished
jobs' placements, plus every non-terminal pod that no claim covers; a pod is covered when a claim
of its job names the same role, index and node. A claim is one place for one member, so it counts
from the moment it is written until the job ends or gives it back, whether or not the pod exists at
the time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from fairlead.api import names
from fairlead.api.core import Pod
from fairlead.api.job import Placement, RolePlacement
from fairlead.api.meta import label_number
from fairlead.model.gangs import GangRequest, JobKey
from fairlead.model.nodes import NODE_AMOUNT_MAX, Ints, NodeTable, is_device
from fairlead.model.requests import Request, RequestError, RequestReader

#: Behind the name of a job: what it may have got. No name has it.
_HELD = "?"


@dataclass(frozen=True, slots=True)
class Claim:
    """The places of one job's members. `roles` holds (role, request of a member, node by index)."""

    key: JobKey
    uid: str
    roles: tuple[tuple[str, Request, tuple[str, ...]], ...]
    #: Node by (role, index).
    places: dict[tuple[str, int], str] = field(compare=False)

    @property
    def size(self) -> tuple[int, int]:
        """Devices and milli-CPU that the claim holds."""
        devices = cpu = 0
        for _, request, nodes in self.roles:
            devices += len(nodes) * sum(a for r, a in request if is_device(r))
            cpu += len(nodes) * next((a for r, a in request if r == "cpu"), 0)
        return devices, cpu

    def amount(self, resource: str) -> int:
        """Return what the claim holds of one resource."""
        return sum(
            len(nodes) * next((a for r, a in request if r == resource), 0)
            for _, request, nodes in self.roles
        )


@dataclass(frozen=True, slots=True)
class _PodUse:
    """A non-terminal pod on a node."""

    key: JobKey
    node: str
    request: Request
    job_uid: str
    member: tuple[str, int] | None
    attempt: str
    is_covered: bool


def claim_of(key: JobKey, uid: str, gang: GangRequest, placement: Placement) -> Claim:
    """Return the claim of a placement; members of roles that the job no longer has are left out."""
    requests = {role.name: role.member.request for role in gang.roles}
    roles = tuple(
        (role.role, requests[role.role], role.nodes)
        for role in placement.roles
        if role.role in requests
    )
    places = {(role, i): node for role, _, nodes in roles for i, node in enumerate(nodes)}
    return Claim(key, uid, roles, places)


class Ledger:
    """Claims and uncovered pods, booked on the node table."""

    def __init__(self, table: NodeTable, reader: RequestReader) -> None:
        self._table = table
        self._reader = reader
        self._claims: dict[JobKey, Claim] = {}
        self._claims_by_uid: dict[str, Claim] = {}
        self._slots_of_claim: dict[JobKey, Ints] = {}
        #: (-devices, -milli-CPU, job), the largest holder first.
        self._by_size: list[tuple[int, int, JobKey]] = []
        #: By key of the job.
        self._held: dict[JobKey, Claim] = {}
        self._pods: dict[JobKey, _PodUse] = {}
        #: Keys of the pods of each job, in order of arrival.
        self._pods_by_job: dict[str, dict[JobKey, None]] = {}
        #: How many pods of a job no claim covers, by its uid.
        self._strays: dict[str, int] = {}

    def claim(self, key: JobKey) -> Claim | None:
        """Return the claim of a job."""
        return self._claims.get(key)

    def claims_by_size(self) -> Iterator[Claim]:
        """Yield claims, the one that holds most devices, then CPU, first."""
        for _, _, key in self._by_size:
            yield self._claims[key]

    def set_claim(self, key: JobKey, claim: Claim | None) -> None:
        """Replace the claim of a job and see again which of its pods are covered."""
        before = self._claims.get(key)
        if before == claim:
            return
        if before is not None:
            self._drop(before)
        if claim is not None:
            self._claims[key] = claim
            self._claims_by_uid[claim.uid] = claim
            devices, cpu = claim.size
            insort(self._by_size, (-devices, -cpu, key))
            self._book_claim(claim, 1)
        for uid in dict.fromkeys(c.uid for c in (before, claim) if c is not None):
            for pod_key in list(self._pods_by_job.get(uid, ())):
                self._cover_again(self._pods[pod_key])

    def hold(self, claim: Claim) -> None:
        """Book places that a job may have got and nobody has seen yet, beside what it has.

        Nobody's pods are covered by them, and they are no claim that the job could give back.
        """
        self.let_go(claim.key)
        seen = self._claims.get(claim.key)
        had = seen.places if seen is not None else {}
        roles = tuple(
            (role, request, tuple(n for i, n in enumerate(nodes) if had.get((role, i)) != n))
            for role, request, nodes in claim.roles
        )
        held = Claim((claim.key[0], claim.key[1] + _HELD), claim.uid, roles, {})
        self._held[claim.key] = held
        self._book_claim(held, 1)

    def let_go(self, key: JobKey) -> None:
        """Take back what `hold` booked for a job, if anything."""
        held = self._held.pop(key, None)
        if held is not None:
            self._book_claim(held, -1)
            del self._slots_of_claim[held.key]

    def set_pod(self, pod: Pod) -> None:
        """Book a pod, or take its booking back when it is terminal or has no node."""
        key = pod.metadata.key
        if pod.is_terminal or not pod.spec.node_name:
            self.remove_pod(key)
            return
        before = self._pods.get(key)
        labels = pod.metadata.labels
        job_uid = labels.get(names.JOB_UID, "")
        member = _member_of(labels.get(names.ROLE, ""), labels.get(names.INDEX, ""))
        if before is not None and (before.node, before.job_uid, before.member) == (
            pod.spec.node_name,
            job_uid,
            member,
        ):
            return  # A pod's request does not change once it is bound (in-place resize: not yet).
        self.remove_pod(key)
        covered = self._is_covered(job_uid, member, pod.spec.node_name)
        use = _PodUse(
            key=key,
            node=pod.spec.node_name,
            request=self._request(pod),
            job_uid=job_uid,
            member=member,
            attempt=labels.get(names.ATTEMPT, ""),
            is_covered=covered,
        )
        self._pods[key] = use
        if job_uid:
            self._pods_by_job.setdefault(job_uid, {})[key] = None
        if not covered:
            self._book_pod(use, 1)

    def remove_pod(self, key: JobKey) -> None:
        """Forget a pod; unknown ones are ignored."""
        use = self._pods.pop(key, None)
        if use is None:
            return
        if use.job_uid:
            keys = self._pods_by_job[use.job_uid]
            del keys[key]
            if not keys:
                del self._pods_by_job[use.job_uid]
        if not use.is_covered:
            self._book_pod(use, -1)

    def strayed(self) -> Iterator[tuple[JobKey, str, tuple[RolePlacement, ...]]]:
        """Yield the jobs whose members are all on nodes, some on others than claimed.

        With the attempt that their pods say they are of, and the nodes that they are on.
        """
        for uid in self._strays:
            claim = self._claims_by_uid.get(uid)
            uses = [self._pods[key] for key in self._pods_by_job[uid]]
            found = {use.member: use.node for use in uses}
            attempts = {use.attempt for use in uses}
            if claim is None or len(attempts) != 1 or len(uses) != len(found):
                continue
            if found.keys() == claim.places.keys():
                roles = tuple(
                    RolePlacement(role, tuple(found[role, i] for i in range(len(nodes))))
                    for role, _, nodes in claim.roles
                )
                yield claim.key, attempts.pop(), roles

    def book_resource(self, resource: str) -> None:
        """Book what claims and pods use of a resource that has just got its row."""
        table, used = self._table, dict[str, int]()
        for claim in (*self._claims.values(), *self._held.values()):
            for _, request, nodes in claim.roles:
                amount = _amount(request, resource)
                for node in nodes if amount else ():
                    used[node] = used.get(node, 0) + amount
        for use in self._pods.values():
            amount = 0 if use.is_covered else _amount(use.request, resource)
            if amount:
                used[use.node] = used.get(use.node, 0) + amount
        if used:
            slots = np.array([table.occupy(node) for node in used], dtype=np.int64)
            unit = np.zeros(len(table.resources), dtype=np.int64)
            unit[table.row(resource)] = 1
            table.add(slots, np.array(list(used.values()), dtype=np.int64), unit)

    def slots(self, key: JobKey) -> Ints:
        """Return the distinct slots that a job's claim uses."""
        return self._slots_of_claim[key]

    def _drop(self, claim: Claim) -> None:
        del self._claims[claim.key]
        self._claims_by_uid.pop(claim.uid, None)
        devices, cpu = claim.size
        self._by_size.pop(bisect_left(self._by_size, (-devices, -cpu, claim.key)))
        self._book_claim(claim, -1)
        del self._slots_of_claim[claim.key]

    def _book_claim(self, claim: Claim, sign: int) -> None:
        table = self._table
        used: list[Ints] = []
        for _, request, nodes in claim.roles:
            places = np.array([table.occupy(n) for n in nodes], dtype=np.int64)
            slots, counts = np.unique(places, return_counts=True)
            used.append(slots)
            table.add(slots, counts * sign, table.vector(request))
            if sign < 0:
                for slot in slots[~table.exists[slots]]:
                    table.vacate(int(slot))
        empty = np.zeros(0, dtype=np.int64)
        self._slots_of_claim[claim.key] = np.unique(np.concatenate([empty, *used]))

    def _book_pod(self, use: _PodUse, sign: int) -> None:
        table = self._table
        slot = table.occupy(use.node)
        table.add(np.array([slot]), np.array([sign]), table.vector(use.request))
        if use.job_uid:
            left = self._strays.get(use.job_uid, 0) + sign
            if left:
                self._strays[use.job_uid] = left
            else:
                del self._strays[use.job_uid]
        if sign < 0:
            table.vacate(slot)

    def _is_covered(self, uid: str, member: tuple[str, int] | None, node: str) -> bool:
        claim = self._claims_by_uid.get(uid)
        return claim is not None and member is not None and claim.places.get(member) == node

    def _cover_again(self, use: _PodUse) -> None:
        covered = self._is_covered(use.job_uid, use.member, use.node)
        if covered == use.is_covered:
            return
        self._pods[use.key] = replace(use, is_covered=covered)
        self._book_pod(use, -1 if covered else 1)

    def _request(self, pod: Pod) -> Request:
        try:
            return self._reader.request(pod.spec)
        except RequestError:
            # No request that is to be placed; but the pod is on its node, so it counts there.
            return self._reader.bound_request(pod.spec, self._table.resources)


def _amount(request: Request, resource: str) -> int:
    """Return what a request books of one resource."""
    asked = next((amount for name, amount in request if name == resource), 0)
    return min(asked, NODE_AMOUNT_MAX + 1)


def _member_of(role: str, index: str) -> tuple[str, int] | None:
    number = label_number(index)
    return None if number is None else (role, number)
