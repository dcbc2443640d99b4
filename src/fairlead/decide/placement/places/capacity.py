"""Where a plan may put members: the cluster as it is, as it would be, or with nothing in use.

    with state.transaction() as transaction:
        capacity = PresentCapacity(state, transaction)
        capacity.with_nodes(template, 8)     # the autoscaler: would eight more such nodes do?
        capacity.without([victim])           # preemption: would it fit without this job?
        capacity.by(instant)                 # forecasts: what has ended by then?
        plan_gang(capacity, state.table, gang)

All of them answer the same few questions from the same columns, so one algorithm serves deciding
and every "what if?".
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fairlead.api.kubernetes.core import Node
from fairlead.decide.placement.places.kept_room import KeptRoom
from fairlead.model.asks.requests import MemberClass
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import JobKey
from fairlead.model.holdings.claims import Claim
from fairlead.model.inventory.mark_table import MarkTable
from fairlead.model.inventory.nodes import Bools, Ints, Use
from fairlead.model.transaction import Transaction


class Capacity(Protocol):
    """Capacity for members, and a way to take it and give it back."""

    def fits(self, member: MemberClass) -> npt.NDArray[Any]:
        """Return int[N]: members that each node can take, whatever is near. Do not change it."""
        ...

    @property
    def key(self) -> Ints:
        """int64[N]: the packing order, smaller first, unique."""
        ...

    def free_on(self, slots: Ints) -> Ints:
        """Return int64[D, slots]: what is left of each resource there, in base units."""
        ...

    @property
    def marks(self) -> MarkTable:
        """Which pods may be near which, with what was taken. Do not change it."""
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
    """The cluster as it is now, in a transaction, and what it would be.

    `with_nodes`, `without` and `by` change what the questions are about, as part of the
    transaction. They may be combined in any order, and are undone by `rollback_to`.
    """

    def __init__(self, state: ClusterState, transaction: Transaction) -> None:
        self.state = state
        self._transaction = transaction
        #: bool[N]: nodes that are left out.
        self.barred: Bools | None = None
        #: What is kept for gangs that start later.
        self.kept: tuple[KeptRoom, ...] = ()
        #: (end, job) of the jobs that hold nodes and whose end is known, in order.
        self._ends: list[tuple[float, JobKey]] | None = None
        #: Jobs that `by` does not release.
        self.endless: frozenset[JobKey] = frozenset()
        #: The same by when they are expected to end; None: at their limits.
        self._expected: list[tuple[float, JobKey]] | None = None

    @property
    def version(self) -> int:
        """Names the state of the columns: 0 as they are, else a number that never comes again."""
        return self._transaction.version

    def fits(self, member: MemberClass) -> npt.NDArray[Any]:
        """Return int[N]: members that each node can take now."""
        fits = self.state.fits.fits(member)
        for kept in self.kept:
            fits = kept.left(self.state, member, fits)
        return fits if self.barred is None else np.where(self.barred, 0, fits)

    @property
    def key(self) -> Ints:
        """The packing order now."""
        return self.state.table.key

    def free_on(self, slots: Ints) -> Ints:
        """Return what is left there now."""
        free = left = self.state.table.free(slots)
        for kept in self.kept:
            left = np.minimum(left, kept.free_on(slots, free))
        return left

    @property
    def marks(self) -> MarkTable:
        """The marks now."""
        return self.state.table.marks

    def take(self, slots: Ints, counts: Ints, member: MemberClass) -> None:
        """Put members on slots, within the transaction."""
        self._transaction.take(slots, counts, member)

    def mark(self) -> int:
        """Return a point to roll back to."""
        return self._transaction.mark()

    def rollback_to(self, mark: int) -> None:
        """Undo what was changed since the mark."""
        self._transaction.rollback_to(mark)

    def claims_by_size(self) -> Iterator[Claim]:
        """Yield the claims that count here, the one that holds most devices, then CPU, first."""
        claims = self.state.ledger.claims_by_size()
        return (claim for claim in claims if self._transaction.claim_counts(claim.key))

    def unbarred(self) -> PresentCapacity:
        """Return the same capacity, all nodes included and nothing kept."""
        return PresentCapacity(self.state, self._transaction)

    def with_nodes(self, template: Node, count: int, *, like: str = "") -> tuple[str, ...]:
        """Add `count` empty nodes like the template; return their names. They have the devices that
        claims ask for of the node that they are `like`.

        Use it first: what was read as an array over nodes may be shorter than what is read after.
        """
        return self._transaction.with_nodes(template, count, like=like)

    def without(self, keys: Iterable[JobKey]) -> None:
        """Release the claims of these jobs and what their pods use; other keys are ignored."""
        self._transaction.without(keys)

    def expect(self, ends: Mapping[JobKey, float]) -> None:
        """Let `by` release jobs at these instants, and no others; `ends` tells their limits."""
        self._expected = sorted((end, key) for key, end in ends.items())

    def hold(self, key: JobKey, mark: int, until: float | None, *, expected: float | None) -> None:
        """Let a job hold what was taken since the mark, at most `until`.

        `by` releases it from then on; after `expect`, from `expected` on.
        """
        self.keep(key)
        self._transaction.assign(key, mark)
        if until is not None:
            insort(self.known_ends(), (until, key))
        if expected is not None and self._expected is not None:
            insort(self._expected, (expected, key))

    def keep(self, key: JobKey) -> None:
        """Let `by` not release a job, whatever its limit says."""
        if self._transaction.claim_counts(key):
            self.endless |= {key}
            self._ends = [end for end in self.known_ends() if end[1] != key]
            if self._expected is not None:
                self._expected = [end for end in self._expected if end[1] != key]

    def holds(self, key: JobKey) -> bool:
        """True for a job whose claim counts here, or that holds what was taken for it."""
        return self._transaction.holds(key)

    def by(self, instant: float) -> tuple[JobKey, ...]:
        """Release the jobs that end by an instant at the latest; return them in order of end."""
        ends = self._releases()
        count = bisect_right(ends, instant, key=_end)
        ended = tuple(key for _, key in ends[:count] if self._transaction.holds(key))
        self.without(ended)
        return ended

    def next_end(self, after: float) -> float | None:
        """Return the first instant after another one at which `by` may release a job."""
        ends = self._releases()
        index = bisect_right(ends, after, key=_end)
        return ends[index][0] if index < len(ends) else None

    def ends(
        self, predicted: Iterable[tuple[float, JobKey]] = ()
    ) -> Iterator[tuple[float, Iterator[Use]]]:
        """Yield the limits that are known, and ends that are predicted, both in order, with what
        each job uses until then.
        """
        for end, key in heapq.merge(self.known_ends(), predicted):
            if self._transaction.holds(key):
                yield end, self._transaction.uses_of(key)

    def _releases(self) -> list[tuple[float, JobKey]]:
        return self.known_ends() if self._expected is None else self._expected

    def known_ends(self) -> list[tuple[float, JobKey]]:
        """Return the limits that are known, in order. Do not change it."""
        if self._ends is None:
            self._ends = self.state.held_ends.in_order.copy()
        return self._ends


def _end(entry: tuple[float, JobKey]) -> float:
    return entry[0]


class EmptyCapacity:
    """The cluster with nothing in use: all matching nodes, or only those available now.

    Nothing of the state is touched: what is taken is kept on the side.
    """

    def __init__(self, state: ClusterState, *, available_only: bool) -> None:
        self._state = state
        self._available_only = available_only
        #: bool[N]: nodes that are left out.
        self.barred: Bools | None = None
        self._taken: list[tuple[Ints, Ints, MemberClass]] = []

    def fits(self, member: MemberClass) -> npt.NDArray[Any]:
        """Return int[N]: members that each node could take."""
        mask = self._state.fits.mask(member.constraints)
        admitted = mask.eligible if self._available_only else mask.matches
        if self.barred is not None:
            admitted = admitted & ~self.barred
        return self._state.fits.compute(member, self._free(), admitted)

    @property
    def key(self) -> Ints:
        """The packing order of the empty nodes."""
        table = self._state.table
        return table.packing_key(self._free()) if self._taken else table.empty_key

    def free_on(self, slots: Ints) -> Ints:
        """Return what is left there."""
        return self._free()[:, slots]

    @property
    def marks(self) -> MarkTable:
        """The marks of what was taken."""
        marks = MarkTable()
        for slots, counts, member in self._taken:
            marks.add(member.booking, slots, counts)
        return marks

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
