"""Where a job's members run: the place that it has, and the one that is kept for it.

    placement     the job has these nodes
    nomination    these nodes are kept for the job; others, its victims, still have to leave them
    preemption    the job is a victim and gives its placement back

A victim that has a nomination of its own moves: its next attempt is placed there. It may move for
no other job, so that nodes of a pool empty.

The scheduler alone writes them (docs/design/preemption.md).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Self

from fairlead.api.meta import Instant, Wire
from fairlead.api.values.bounds import doc


class RolePlacement(Wire, frozen=True):
    """Places of one role: `nodes[i]` is the node of member i."""

    role: Annotated[str, doc("Name of the role.")]
    nodes: Annotated[tuple[str, ...], doc("Node of each member, in the order of their index.")]


class EmptySeats(Wire, frozen=True):
    """Seats of one role of a group of other tools' pods that have no member now, by index."""

    role: Annotated[str, doc("Name of the role.")]
    done: Annotated[tuple[int, ...], doc("Their members ended well in their places.")] = ()
    vacant: Annotated[
        tuple[int, ...], doc("Their nodes are given back: the placement no longer holds them.")
    ] = ()


class FormerPlaces(Wire, frozen=True):
    """Nodes that seats of one role had before the placement moved or was released.

    Seat `indices[i]` had `nodes[i]`; a seat that moved twice is there twice.
    """

    role: Annotated[str, doc("Name of the role.")]
    indices: Annotated[tuple[int, ...], doc("Indices of the seats.")]
    nodes: Annotated[tuple[str, ...], doc("The node that each of them had.")]


class HeldNodes(Wire, frozen=True):
    """Nodes that a gang was given: those of one pool, and of one team that lends them."""

    pool: Annotated[str, doc("Pool of the nodes. Default: none.")] = ""
    lender: Annotated[str, doc("Team that lends the nodes. Default: none.")] = ""
    gpus: Annotated[int, doc("GPUs that the members on them hold.")] = 0
    gpu_hour_micros: Annotated[
        int,
        doc(
            "What one of these GPUs cost per hour when the gang was placed, in millionths, by "
            "pricePerHour of the pool. Default: no price was known."
        ),
    ] = 0


class Placement(Wire, frozen=True):
    """Every member's node, for one attempt. Its presence is the reservation."""

    attempt: Annotated[int, doc("The attempt that this placement is for.")]
    roles: Annotated[tuple[RolePlacement, ...], doc("The members' nodes, role by role.")]
    placed_at: Annotated[Instant | None, doc("When the scheduler placed the gang.")] = None
    team: Annotated[str, doc("Team of the job, whose taint its pods tolerate.")] = ""
    may_borrow: Annotated[bool, doc("Its pods tolerate all teams' taints.")] = False
    held: Annotated[
        tuple[HeldNodes, ...],
        doc(
            "Its GPUs by pool and by the team that lends them, for accounting. Default: all of no "
            "pool, and borrowed of no team."
        ),
    ] = ()
    priority: Annotated[
        int | None,
        doc(
            "Priority that the gang was placed with: it has no higher one while this attempt "
            "lasts. Default: that of its PriorityClass."
        ),
    ] = None

    @property
    def sizes(self) -> dict[str, int]:
        """Members by role."""
        return {place.role: len(place.nodes) for place in self.roles}


class PreemptionKind(Enum):
    """What a job that gives its place back does it for."""

    _value_: str
    #: The job goes on in a place that is kept for it.
    is_move: bool

    def __new__(cls, value: str, is_move: bool) -> Self:  # noqa: FBT001
        """Make a member."""
        kind = object.__new__(cls)
        kind._value_, kind.is_move = value, is_move
        return kind

    #: A job of higher priority, or of the team that owns the nodes, needs them.
    PREEMPT = "Preempt", False
    #: Another job needs a block of nodes.
    MOVE = "Move", True
    #: The nodes are to be removed; no job needs them.
    EMPTY = "Empty", True


class Victim(Wire, frozen=True):
    """A job that gives its nodes back for another one."""

    namespace: Annotated[str, doc("Namespace of the job.")]
    name: Annotated[str, doc("Name of the job.")]
    uid: Annotated[str, doc("Uid of the job: a namesake is another job.")]


class Nomination(Wire, frozen=True):
    """A whole gang's places, kept for it while its victims leave them."""

    roles: Annotated[tuple[RolePlacement, ...], doc("The members' nodes, role by role.")]
    victims: Annotated[tuple[Victim, ...], doc("The jobs that have to leave.")] = ()
    nominated_at: Annotated[
        Instant | None, doc("When the scheduler chose the places and the victims.")
    ] = None
    kind: Annotated[
        PreemptionKind,
        doc(
            "What is asked of the victims. With Move each leaves once a place elsewhere is kept "
            "for it. Default: Preempt."
        ),
    ] = PreemptionKind.PREEMPT


def nodes_of(place: Placement | Nomination | None) -> tuple[str, ...]:
    """Return the node of each member, role by role; () without a place."""
    return tuple(node for role in place.roles for node in role.nodes) if place is not None else ()


class Preemption(Wire, frozen=True):
    """A request to give the placement back, for the sake of another job or to empty nodes."""

    namespace: Annotated[str, doc("Namespace of the job that needs the nodes.")] = ""
    name: Annotated[str, doc("Name of the job that needs the nodes.")] = ""
    uid: Annotated[str, doc("Uid of that job.")] = ""
    priority: Annotated[int, doc("Its priority.")] = 0
    requested_at: Annotated[Instant | None, doc("When it was requested.")] = None
    checkpoint_step: Annotated[
        int | None, doc("Step of the latest checkpoint then: a later one is the answer to it.")
    ] = None
    kind: Annotated[
        PreemptionKind,
        doc(
            "What for. With Move and Empty the job's nomination is its next place; with Empty no "
            "job needs its nodes. Default: Preempt."
        ),
    ] = PreemptionKind.PREEMPT
    empties: Annotated[
        tuple[str, ...],
        doc("With Empty: nodes that the job leaves so that they can be removed."),
    ] = ()
