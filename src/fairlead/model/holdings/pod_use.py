"""A pod as the ledger counts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.model.asks.requests import Request
from fairlead.model.gang.gangs import JobKey
from fairlead.model.holdings.claims import Claim, Member, Owner
from fairlead.model.inventory.nodes import NODE_AMOUNT_MAX


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
    #: When a pod that is being deleted is to be gone; None: it stays.
    leaves_at: float | None = None
    labels: Mapping[str, str] = field(compare=False, default_factory=dict[str, str])


def stranded_use(node: str, lost: Request, what: str) -> PodUse:
    """Return what nobody can have of a node: parts of devices that others cover, or volumes that
    are attached for no pod.

    It is of no pod: it has no namespace, and leaves for nobody.
    """
    return PodUse(("", f"{what} {node}"), node, lost, None, None, "", team=None)


def fills(use: PodUse, claim: Claim) -> bool:
    """True when a pod asks for at least what its place holds: to follow it takes nothing."""
    place = claim.places.get(use.member) if use.member is not None else None
    return place is not None and not excess(place[1], use.request)


def excess(request: Request, covered: Request) -> Request:
    """Return what a request asks beyond another one."""
    if request == covered:
        return ()
    given = dict(covered)
    return tuple((r, more) for r, amount in request if (more := amount - given.get(r, 0)) > 0)


def booked_amount(request: Request, resource: str) -> int:
    """Return what a request books of one resource."""
    asked = next((amount for name, amount in request if name == resource), 0)
    return min(asked, NODE_AMOUNT_MAX + 1)
