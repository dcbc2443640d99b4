"""The cluster as it would be with some uses taken away, on an array of its own.

A preemption asks for many such clusters, one after the other. Changing the shared columns for each
would bring every row of the fit table up to date every time; here only the member classes of one
gang are computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fairlead.model.asks.requests import MemberClass, Request
from fairlead.model.cluster import ClusterState
from fairlead.model.inventory.mark_table import MarkTable
from fairlead.model.inventory.nodes import Bools, Ints, Use


class FreedCapacity:
    """A `Capacity` over `free`, int64[D, N] in base units, which it changes as members are taken.

    Only nodes that can start pods now are used, and none that is barred.
    """

    def __init__(
        self, state: ClusterState, free: Ints, barred: Bools | None = None, *, marks: MarkTable
    ) -> None:
        self._state = state
        self.free = free
        self.barred = barred
        #: Which pods may be near which, with what was taken.
        self.marks = marks
        self._taken: list[Use] = []

    @classmethod
    def of(
        cls,
        state: ClusterState,
        uses: Iterable[Use],
        barred: Bools | None = None,
    ) -> FreedCapacity:
        """Return the cluster as it is now without these uses."""
        out = cls(state, state.table.free(), barred, marks=state.table.marks.copy())
        out.release(uses)
        return out

    def release(self, uses: Iterable[Use], *, sign: int = 1) -> None:
        """Take these uses away as well; sign -1 puts them back."""
        for slots, counts, request in uses:
            self._add(slots, sign * counts, request)

    def add(self, slots: Ints, amounts: Ints) -> None:
        """Add int64[D, U] to what is free on slots, which may occur several times."""
        for row, amount in zip(self.free, amounts, strict=True):
            np.add.at(row, slots, amount)

    def fits(self, member: MemberClass) -> Ints:
        """Return int64[N]: members that each node could take."""
        admitted = self._state.fits.mask(member.constraints).eligible
        if self.barred is not None:
            admitted = admitted & ~self.barred
        return self._state.fits.compute(member, self.free, admitted)

    def free_on(self, slots: Ints) -> Ints:
        """Return what is left there."""
        return self.free[:, slots]

    @property
    def key(self) -> Ints:
        """The packing order."""
        return self._state.table.packing_key(self.free)

    def take(self, slots: Ints, counts: Ints, member: MemberClass) -> None:
        """Put members on distinct slots."""
        self._add(slots, -counts, member.booking)
        self._taken.append(Use(slots, counts, member.booking))

    def mark(self) -> int:
        """Return a point to roll back to."""
        return len(self._taken)

    def rollback_to(self, mark: int) -> None:
        """Undo what was taken since the mark."""
        while len(self._taken) > mark:
            self._add(*self._taken.pop())

    def _add(self, slots: Ints, counts: Ints, request: Request) -> None:
        self.free[:, slots] += self._state.table.vector(request)[:, None] * counts
        self.marks.add(request, slots, -counts)
