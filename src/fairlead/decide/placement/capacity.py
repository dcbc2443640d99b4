"""Where a plan may put members: the cluster as it is, or as it would be with nothing in use.

Both answer the same few questions, so one algorithm serves deciding and every "what if?".
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fairlead.model.cluster import ClusterState, Transaction
from fairlead.model.nodes import Bools, Ints
from fairlead.model.requests import MemberClass


class Capacity(Protocol):
    """Capacity for members, and a way to take it and give it back."""

    def fits(self, member: MemberClass) -> npt.NDArray[Any]:
        """Return int[N]: members that each node can take. Do not change it."""
        ...

    @property
    def key(self) -> Ints:
        """int64[N]: the packing order, smaller first, unique."""
        ...

    def take(self, slots: Ints, counts: Ints, member: MemberClass) -> None:
        """Put `counts[i]` members on each of the distinct slots."""
        ...

    def mark(self) -> int:
        """Return a point to roll back to."""
        ...

    def rollback_to(self, mark: int) -> None:
        """Undo what was taken since the mark."""
        ...


class PresentCapacity:
    """The cluster as it is now, in a transaction. `barred` nodes are left out."""

    def __init__(
        self, state: ClusterState, transaction: Transaction, barred: Bools | None = None
    ) -> None:
        self.state = state
        self.transaction = transaction
        self.barred = barred

    def fits(self, member: MemberClass) -> npt.NDArray[Any]:
        """Return int[N]: members that each node can take now."""
        fits = self.state.fits.fits(member)
        return fits if self.barred is None else np.where(self.barred, 0, fits)

    @property
    def key(self) -> Ints:
        """The packing order now."""
        return self.state.table.key

    def take(self, slots: Ints, counts: Ints, member: MemberClass) -> None:
        """Put members on slots, within the transaction."""
        self.transaction.take(slots, counts, member)

    def mark(self) -> int:
        """Return a point to roll back to."""
        return self.transaction.mark()

    def rollback_to(self, mark: int) -> None:
        """Undo what was taken since the mark."""
        self.transaction.rollback_to(mark)


class EmptyCapacity:
    """The cluster with nothing in use: all matching nodes, or only those available now.

    Nothing of the state is touched: what is taken is kept on the side.
    """

    def __init__(self, state: ClusterState, *, available_only: bool) -> None:
        self._state = state
        self._available_only = available_only
        self._taken: list[tuple[Ints, Ints, MemberClass]] = []

    def fits(self, member: MemberClass) -> npt.NDArray[Any]:
        """Return int[N]: members that each node could take."""
        mask = self._state.fits.mask(member.constraints)
        admitted = mask.eligible if self._available_only else mask.matches
        return self._state.fits.compute(member, self._free(), admitted)

    @property
    def key(self) -> Ints:
        """The packing order of the empty nodes."""
        return self._state.table.packing_key(self._free())

    def take(self, slots: Ints, counts: Ints, member: MemberClass) -> None:
        """Put members on slots."""
        self._taken.append((slots, counts, member))

    def mark(self) -> int:
        """Return a point to roll back to."""
        return len(self._taken)

    def rollback_to(self, mark: int) -> None:
        """Undo what was taken since the mark."""
        del self._taken[mark:]

    def _free(self) -> Ints:
        table = self._state.table
        vectors = [table.vector(member.request) for _, _, member in self._taken]
        if not self._taken:
            return table.allocatable
        free = table.allocatable.copy()
        for (slots, counts, _), vector in zip(self._taken, vectors, strict=True):
            free[: len(vector), slots] -= vector[:, None] * counts
        return free
