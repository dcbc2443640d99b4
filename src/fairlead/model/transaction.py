"""What if? Changes to a cluster's columns that are undone in full.

    with state.transaction() as what_if:
        what_if.without([job_key])                   # as if this job had never been
        what_if.with_nodes(template, 8)              # as if there were eight more such nodes
        what_if.take(slots, counts, member)          # as if these members ran there

The questions are then asked of the same columns as always. One transaction at a time, and no event
inside: at its end the columns hold the same values as before, in arrays of the same size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self, TypeAlias

from msgspec.structs import replace

from fairlead.api.kubernetes.core import Node, NodeCondition
from fairlead.api.names import HOSTNAME, READY
from fairlead.model.asks.requests import MemberClass
from fairlead.model.gang.gangs import JobKey
from fairlead.model.holdings.ledger import Ledger
from fairlead.model.inventory.fits import FitTable
from fairlead.model.inventory.nodes import Ints, NodeTable, Use


@dataclass(frozen=True, slots=True)
class _Released:
    """A job that holds nothing any more: what it had taken here, and whether its claim counted."""

    key: JobKey
    taken: tuple[Use, ...]
    had_claim: bool


@dataclass(frozen=True, slots=True)
class _Assigned:
    """A job that holds what was taken."""

    key: JobKey


@dataclass(frozen=True, slots=True)
class _Added:
    """A node that was added."""

    name: str


_Change: TypeAlias = Use | _Released | _Assigned | _Added


class Transaction:
    """Changes to the columns of a table, undone at the end."""

    def __init__(self, table: NodeTable, fits: FitTable, ledger: Ledger) -> None:
        """Begin; see `ClusterState.transaction`."""
        self._table = table
        self._fits = fits
        self._ledger = ledger
        self._undo: list[tuple[int, _Change]] = []
        #: What jobs hold that was taken here, and the jobs whose claims do not count.
        self._taken: dict[JobKey, tuple[Use, ...]] = {}
        self._released: dict[JobKey, None] = {}
        self._capacity, self._nodes_version = table.capacity, table.nodes_version
        #: Names the state of the columns: 0 as they were, else a number that never comes again.
        self.version = 0
        fits.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rollback_to(0)
        self._fits.sync()
        self._table.resize(self._capacity)
        self._table.nodes_version = self._nodes_version
        self._fits.end()

    def take(self, slots: Ints, counts: Ints, member: MemberClass) -> None:
        """Put `counts[i]` members on each of the distinct slots; a negative count releases."""
        self._book(Use(slots, counts, member.booking))

    def assign(self, key: JobKey, mark: int) -> None:
        """Let a job hold what was taken since the mark, until it is released by `without`."""
        taken = tuple(change for _, change in self._undo[mark:] if isinstance(change, Use))
        assert key not in self._taken, "a job holds what was taken for it once"
        self._taken[key] = taken
        self._note(_Assigned(key))

    def holds(self, key: JobKey) -> bool:
        """True for a job whose claim counts, or that holds what was taken here."""
        return self.claim_counts(key) or key in self._taken

    def claim_counts(self, key: JobKey) -> bool:
        """True for a job with a claim that was not released here."""
        return key not in self._released and self._ledger.claim(key) is not None

    def without(self, keys: Iterable[JobKey]) -> None:
        """Release what these jobs hold, and what their pods use beyond; other keys are ignored."""
        for key in keys:
            if not self.holds(key):
                continue
            uses = tuple(self.uses_of(key))
            taken, had_claim = self._taken.pop(key, ()), key not in self._released
            self._released[key] = None
            self._note(_Released(key, taken, had_claim))
            for slots, counts, request in uses:
                self._book(Use(slots, -counts, request))

    def uses_of(self, key: JobKey) -> Iterator[Use]:
        """Yield what `without` would release."""
        yield from self._taken.get(key, ())
        if key not in self._released:
            yield from self._ledger.uses_of(key)

    def with_nodes(self, template: Node, count: int, *, like: str = "") -> tuple[str, ...]:
        """Add `count` empty nodes like the template, ready and not cordoned; return their names.

        They have the devices that claims ask for of the node that they are `like`, "" for none.

        The names are such as no node has, after all others in order; they are also the hostname
        label. Arrays over slots that were read before may be shorter than those read after.
        """
        names = tuple(self._node_name(template, i) for i in range(count))
        for name in names:
            for resource in self._table.set_node(_node(template, name), like=like):
                self._ledger.book_resource(resource)
            self._note(_Added(name))
        return names

    def mark(self) -> int:
        """Return a point to roll back to."""
        return len(self._undo)

    def rollback_to(self, mark: int) -> None:
        """Undo everything since the mark."""
        uses: list[Use] = []
        while len(self._undo) > mark:
            self.version, change = self._undo.pop()
            match change:
                case Use():
                    uses.append(change)
                case _Assigned():
                    del self._taken[change.key]
                case _Released():
                    if change.taken:
                        self._taken[change.key] = change.taken
                    if change.had_claim:
                        del self._released[change.key]
                case _Added():
                    self._unbook(uses)
                    self._table.remove_node(change.name)
        self._unbook(uses)

    def _unbook(self, uses: list[Use]) -> None:
        """Release these uses and clear the list."""
        if not uses:
            return
        self._table.book_all([use._replace(counts=-use.counts) for use in uses])
        uses.clear()

    def _book(self, use: Use) -> None:
        self._table.book(*use)
        self._note(use)

    def _note(self, change: _Change) -> None:
        self._undo.append((self.version, change))
        self.version = self._table.draw_version()

    def _node_name(self, template: Node, index: int) -> str:
        """Return a name that no node can have: "~" is not allowed, and sorts last."""
        return f"~{template.metadata.name}/{len(self._undo):06}/{index:06}"


def _node(template: Node, name: str) -> Node:
    labels = {**template.metadata.labels, HOSTNAME: name}
    return replace(
        template,
        metadata=replace(template.metadata, name=name, labels=labels),
        spec=replace(template.spec, unschedulable=False),
        status=replace(template.status, conditions=(NodeCondition(type=READY, status="True"),)),
    )
