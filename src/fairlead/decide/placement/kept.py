"""What is kept free for a gang that starts later: which members leave room for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.decide.verdict import ObjectKey
from fairlead.model.cluster import ClusterState
from fairlead.model.nodes import Bools, Ints
from fairlead.model.requests import MemberClass


@dataclass(frozen=True, slots=True)
class Kept:
    """Room on nodes that nothing may take which could still be there when the gang starts."""

    #: bool[N]: the nodes that it could use.
    nodes: Bools
    #: int64[D, N], in base units: what must stay free now, so that with what others give back by
    #: then there is room for the gang. None: everything on these nodes.
    amounts: Ints | None = None

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

    def but(self, nodes: Bools) -> Kept:
        """Return the same with nothing kept on some nodes."""
        return replace(self, nodes=self.nodes & ~nodes)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept for the job at the head of the queue."""

    head: ObjectKey
    kept: Kept
    #: When it starts at the latest if running jobs use their whole limits; None: they do not say.
    starts_by: float | None = None
    #: Jobs without a limit count by their predicted run times, so it may start later than that.
    is_predicted: bool = False
    #: Differs once a gang that left no room for the job may leave some.
    version: int = 0
