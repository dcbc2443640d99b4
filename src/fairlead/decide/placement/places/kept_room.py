"""What is kept free for a gang that starts later: which members leave room for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.requests import MemberClass
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import RoleRequest
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable, Use

#: What a reserved job is known by: a number of its own for each instant and place that were found;
#: and when it starts, which may be later, since an instant that has passed moves with time.
Token: TypeAlias = tuple[int, float | None]
#: When a job ends, and what it uses until then.
End: TypeAlias = tuple[float, tuple[Use, ...]]


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """Room on nodes that nothing may take which could still be there when the gang starts."""

    #: bool[N]: the nodes that it could use.
    nodes: Bools
    #: int64[D, N], in base units: what must stay free now, so that with what others give back by
    #: then there is room for the gang; negative where more is free then. None: everything on these
    #: nodes.
    amounts: Ints | None = None
    #: What `add` has been called with; None where no one is to take it back.
    added: list[tuple[Sequence[Use], int]] | None = None

    def left(
        self, state: ClusterState, member: MemberClass, fits: npt.NDArray[Any]
    ) -> npt.NDArray[Any]:
        """Return int[N]: of the members that fit, those that leave what is kept.

        Rules between pods are not judged ahead, so members that have some keep off all nodes.
        """
        if self.amounts is None or member.neighbours is not None:
            return np.where(self.nodes, 0, fits)
        beside = state.fits.compute(member, state.table.free() - self.amounts, self.nodes)
        return np.where(self.nodes, np.minimum(fits, beside), fits)

    def free_on(self, slots: Ints, free: Ints) -> Ints:
        """Return what is left of int64[D, slots] that is free."""
        if self.amounts is None:
            return np.where(self.nodes[slots], 0, free)
        return free - np.where(self.nodes[slots], self.amounts[:, slots], 0)

    def limit(self, room: Ints, free: Ints) -> None:
        """Lower `room`, int64[D, N], to what others leave for the gang of what is free now."""
        np.minimum(room, free if self.amounts is None else free - self.amounts, out=room,
                   where=self.nodes)  # fmt: skip

    def add(self, table: NodeTable, uses: Sequence[Use], *, sign: int = 1) -> None:
        """Keep this as well; with sign -1 so much less, as the free room is less until then."""
        if self.amounts is None:
            return
        if self.added is not None:
            self.added.append((uses, sign))
        for slots, counts, request in uses:
            self.amounts[:, slots] += sign * table.vector(request)[:, None] * counts

    def meets(self, nodes: Bools) -> bool:
        """True where something is kept on some of these nodes."""
        return bool((self.nodes & nodes).any())

    def but(self, nodes: Bools) -> KeptRoom:
        """Return the same with nothing kept on some nodes."""
        return replace(self, nodes=self.nodes & ~nodes)


def together(kept: Sequence[KeptRoom]) -> tuple[KeptRoom, ...]:
    """Return the same in as few parts as there can be: what is kept is the most at any instant."""
    known = [(each.nodes, each.amounts) for each in kept if each.amounts is not None]
    if len(known) < 2:
        return tuple(kept)
    amounts = np.zeros_like(known[0][1])
    for nodes, each in known:
        np.maximum(amounts, each, out=amounts, where=nodes)
    nodes = np.logical_or.reduce([each for each, _ in known])
    return (KeptRoom(nodes, amounts), *(each for each in kept if each.amounts is None))


@dataclass(frozen=True, slots=True)
class Start:
    """When a gang starts at the latest, where, and what of these nodes must stay free now."""

    #: Past where jobs are overdue.
    at: float
    #: int64[D, N] in base units, negative where more is free then than now. With `place`, None
    #: where it is not known what the gang leaves to others: it has rules between pods.
    amounts: Ints | None = None
    place: tuple[Use, ...] = ()
    #: Differs once a gang that left no room for this one may leave some.
    version: int = 0


@dataclass(slots=True)
class Proof:
    """What the start of a gang of one role rests on, besides where and when it is."""

    role: RoleRequest
    #: int64[D]: what a member asks for.
    request: Ints
    #: From this instant until the start there is room for at least `slack` members less.
    first: float
    slack: float
    #: The slot that is chosen last, and its place in the order of the nodes.
    last: int
    rank: tuple[int, int]
    #: More members than the gang has would have room.
    has_spare: bool


@dataclass(slots=True)
class FoundStart:
    """A start that was found, and on what: see `known_starts.py`."""

    basis: object
    start: Start | None
    #: The same number as before for the same instant and place.
    token: int
    proof: Proof | None = None
    #: The decision in which it held, and what was the same then: all but the room over time.
    stamp: int = 0
    fixed: object = None
    nodes: Bools | None = None
    #: The tokens of the jobs ahead on these nodes.
    ahead: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueReservation:
    """What is kept for a job at the head of the queue."""

    head: ObjectKey
    kept: KeptRoom
    #: When it starts at the latest if running jobs use their whole limits; None: they do not say.
    starts_by: float | None = None
    #: Jobs without a limit count by their predicted run times, so it may start later than that.
    is_predicted: bool = False
    #: Differs once a gang that left no room for the job may leave some.
    version: int = 0
    #: What it uses from then on, for how long at most, and for how long as is predicted; nothing
    #: where that is not known.
    place: tuple[Use, ...] = ()
    hold_seconds: float = inf
    likely_seconds: float = inf

    @property
    def at(self) -> float:
        """When it starts, of one that has a place."""
        assert self.starts_by is not None
        return self.starts_by

    def ends_by(self, *, is_predicted: bool) -> float:
        """When it ends, of one that has a place."""
        return self.at + (self.likely_seconds if is_predicted else self.hold_seconds)

    def turns(self, *, is_predicted: bool) -> Iterator[End]:
        """Yield its start, with negative counts, and its end if that is known; of one without a
        place nothing.
        """
        if not self.place:
            return
        yield self.at, tuple(use._replace(counts=-use.counts) for use in self.place)
        if (end := self.ends_by(is_predicted=is_predicted)) < inf:
            yield end, self.place

    def keeping(self, kept: KeptRoom, version: int) -> QueueReservation:
        """Return the same with something else that is kept, of a version."""
        return replace(self, kept=kept, version=version)

    def beside(self, table: NodeTable, later: QueueReservation) -> QueueReservation:
        """Return the same once a job behind it has a reservation: what that one uses when this one
        starts is not free for others, either.
        """
        if not later.place or self.kept.amounts is None:
            return self
        if not later.at <= self.at < later.ends_by(is_predicted=self.is_predicted):
            return self
        self.kept.add(table, later.place)
        return replace(self, version=hash((self.version, later.version)))
