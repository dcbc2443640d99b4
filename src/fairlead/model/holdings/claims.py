"""What is counted on nodes: the claim of a job, one place for each of its members; and pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.api.values.quantity import is_gpu
from fairlead.model.asks.neighbours import marks_in
from fairlead.model.asks.requests import Request, is_device
from fairlead.model.gang.gangs import GangRequest, JobKey
from fairlead.model.holdings.pod_owner import Owner, adopted_owner
from fairlead.model.inventory.nodes import NODE_AMOUNT_MAX

#: (role, index)
Member: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """The places of one job's members. `roles` holds (role, request of a member, node by index)."""

    key: JobKey
    uid: str
    roles: tuple[tuple[str, Request, tuple[str, ...]], ...]
    is_adopted: bool = False
    priority: int = 0
    #: The team of the job.
    team: str = ""
    #: Node and request by (role, index).
    places: dict[Member, tuple[str, Request]] = field(compare=False, default_factory=dict)

    @property
    def owner(self) -> Owner:
        """What pods must be of to be covered."""
        if self.is_adopted:
            return adopted_owner(self.key, self.uid)
        return (self.key[0], self.uid, False)

    @property
    def is_marked(self) -> bool:
        """True when it matters which pods are near its members."""
        return any(marks_in(request) for _, request, _ in self.roles)

    @property
    def size(self) -> tuple[int, int]:
        """Devices and milli-CPU that the claim holds."""
        devices = cpu = 0
        for _, request, nodes in self.roles:
            for resource, amount in request:
                if is_device(resource):
                    devices += len(nodes) * amount
                elif resource == "cpu":
                    cpu += len(nodes) * amount
        return devices, cpu

    @property
    def size_order(self) -> tuple[int, int, JobKey]:
        """Sorts claims, the one that holds most first."""
        devices, cpu = self.size
        return (-devices, -cpu, self.key)

    @property
    def gpus(self) -> int:
        """GPUs, of any vendor, that the claim holds."""
        return sum(
            len(nodes) * amount
            for _, request, nodes in self.roles
            for name, amount in request
            if is_gpu(name)
        )

    def amount(self, resource: str) -> int:
        """Return what the claim holds of one resource."""
        return sum(
            len(nodes) * next((a for r, a in request if r == resource), 0)
            for _, request, nodes in self.roles
        )


def claim_of(
    job: Job, gang: GangRequest, placement: Placement, *, priority: int = 0, team: str = ""
) -> Claim:
    """Return the claim of a placement.

    Members of roles that the job no longer has are left out, and seats that are given back.
    """
    requests = {role.name: role.member.booking for role in gang.roles}
    placed = [(role.role, role.nodes) for role in placement.roles if role.role in requests]
    places = {
        (role, i): (node, requests[role]) for role, nodes in placed for i, node in enumerate(nodes)
    }
    if job.status.seats and placement is job.status.placement:
        vacant = job.status.vacant
        places = {seat: place for seat, place in places.items() if seat not in vacant}
        held = {role: [n for i, n in enumerate(nodes) if (role, i) in places]
                for role, nodes in placed}  # fmt: skip
        placed = [(role, tuple(nodes)) for role, nodes in held.items()]
    roles = tuple((role, requests[role], nodes) for role, nodes in placed)
    return Claim(
        job.metadata.key, job.metadata.uid, roles, is_adopted=job.spec.adopts is not None,
        priority=priority, team=team, places=places,
    )  # fmt: skip


@dataclass(slots=True)
class PodUse:
    """A non-terminal pod: on a node, or of a job and not bound yet (`node` is "")."""

    key: JobKey
    node: str
    request: Request
    owner: Owner | None
    member: Member | None
    attempt: str
    #: What of the request no claim covers.
    booked: Request = field(compare=False, default=())
    #: It has the place of its member.
    is_seated: bool = field(compare=False, default=False)
    #: `booked` is on the node's account.
    is_counted: bool = field(compare=False, default=False)
    #: The team that it names, "" for none. None: a pod of a DaemonSet, which no team has chosen.
    team: str | None = ""
    #: When a pod that is being deleted is to be gone, by the clock of the API server, and how much
    #: later that is than its deletion; None: it stays.
    leaves_at: float | None = None
    grace_seconds: int = 0
    labels: Mapping[str, str] = field(compare=False, default_factory=dict[str, str])

    @classmethod
    def stranded(cls, node: str, lost: Request, what: str) -> PodUse:
        """Return what no pod can have of a node: parts of devices that others cover, or volumes
        that are attached for no pod.

        It is of no pod: it has no namespace, and never leaves.
        """
        return cls(("", f"{what} {node}"), node, lost, None, None, "", team=None)

    def fills(self, claim: Claim) -> bool:
        """True when a pod asks for at least what its place holds: to follow it takes nothing."""
        place = claim.places.get(self.member) if self.member is not None else None
        return place is not None and not _excess(place[1], self.request)

    def beyond(self, covered: Request) -> Request:
        """Return what it asks beyond another request."""
        return _excess(self.request, covered)


def _excess(request: Request, covered: Request) -> Request:
    if request == covered:
        return ()
    given = dict(covered)
    return tuple((r, more) for r, amount in request if (more := amount - given.get(r, 0)) > 0)


def booked_amount(request: Request, resource: str) -> int:
    """Return what a request books of one resource."""
    asked = next((amount for name, amount in request if name == resource), 0)
    return min(asked, NODE_AMOUNT_MAX + 1)
