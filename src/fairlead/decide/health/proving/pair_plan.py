"""Which nodes are tested in pairs now, and with whom.

    opinions    of a bad pair each node meets a good one, until the node, leaf or link is found
    due nodes   the longest untested first, each with one that was not tested for long either

Each pair covers two nodes and what is between them. A leaf meets its own nodes and those at each
distance in turn, what it met longest ago first, so its links are covered in as many rounds as there
are distances. Only nodes of one shape meet: others are no measure for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

from fairlead.api.cluster.node_suites import pair_suite
from fairlead.api.cluster.node_test import NodeTestCause, NodeTestPeer
from fairlead.decide.health.proving.testing import CreateTest
from fairlead.model.health.idle_nodes import NEVER, RETRY_SECONDS, DueNode
from fairlead.model.health.pair_book import Leaf, PairBook, PairedNode, distance

#: Due nodes that one decision looks at.
_LOOK_MAX = 256
#: Bad pairs of a node that follow at once; more say no more.
OPINIONS_MAX = 3
#: Of the interval between two pairs of a node: before it is over, a node is no cheap partner.
_FRESH_SHARE = 0.5


def _both(book: PairBook, a: str, b: str) -> Iterator[CreateTest]:
    one, two = _test(book.nodes[a]), _test(book.nodes[b])
    for own, other, listens in ((one, two, False), (two, one, True)):
        meta = other.node.metadata
        peer = NodeTestPeer(meta.name, meta.uid, other.name, listens)
        yield CreateTest(own.node, own.suite, own.number, own.cause, peer)


def _test(node: PairedNode) -> CreateTest:
    return CreateTest(node.node, pair_suite().name, node.past.number + 1, NodeTestCause.IDLE)


class PairPlan:
    """The pairs of one decision, each as two tests, one after the other.

    Nodes in `taken` are not free, and those that it chooses are added.
    """

    def __init__(self, book: PairBook, now: float, taken: dict[str, None]) -> None:
        self._book = book
        self._now = now
        self._taken = taken
        self._met_at = dict[tuple[Leaf, int], float]()

    def opinions(self, room: int) -> Iterator[CreateTest]:
        """Yield the pairs that tell where bad ones lead; `room`: so many nodes may be tested."""
        yield from self._tests(self._opinions(), room)

    def rotation(self, due: Iterable[DueNode], room: int) -> Iterator[CreateTest]:
        """Yield pairs of nodes that are due, which come in the order of their turns."""
        yield from self._tests(self._rotation(due), room)

    def _tests(self, pairs: Iterator[tuple[str, str]], room: int) -> Iterator[CreateTest]:
        while room >= 2 and (pair := next(pairs, None)) is not None:
            yield from _both(self._book, *pair)
            room -= 2

    def _opinions(self) -> Iterator[tuple[str, str]]:
        verdict = self._book.verdict
        for name in verdict.suspects:
            if self._may_ask(name) and (partner := self._witness(name)) is not None:
                yield self._chosen(name, partner)
        for leaf in verdict.suspect_leaves:
            pair = self._across(leaf, verdict.suspect_leaves)
            if pair is not None:
                yield self._chosen(*pair)

    def _rotation(self, due: Iterable[DueNode]) -> Iterator[tuple[str, str]]:
        for each in sorted(islice(due, _LOOK_MAX), key=self._order):
            name = each.node.metadata.name
            partner = self._partner(name) if self._is_free(name) else None
            if partner is not None:
                yield self._chosen(name, partner)

    def _chosen(self, a: str, b: str) -> tuple[str, str]:
        self._taken |= {a: None, b: None}
        one, two = self._book.nodes[a].leaf, self._book.nodes[b].leaf
        for leaf in (one, two):
            self._met_at[leaf, distance(one, two)] = self._now
        return a, b

    def _is_free(self, name: str) -> bool:
        return name not in self._taken and self._book.idle.is_free(name)

    def _may_ask(self, name: str) -> bool:
        """True for a free node; after a pair that measured nothing, or many, some time later."""
        book, node = self._book, self._book.nodes[name]
        is_new = node.records[0].at >= node.past.tried_at and len(book.met(name)) < OPINIONS_MAX
        return self._is_free(name) and (is_new or self._now >= node.past.tried_at + RETRY_SECONDS)

    def _witness(self, name: str) -> str | None:
        """Return the node that a suspect meets, none that it has met: a good one of its leaf, or
        another suspect there, as two that are good together are cleared both; else the nearest
        good one.
        """
        book, node, known = self._book, self._book.nodes[name], {name, *self._book.met(name)}
        here = [each for each in book.neighbours(name) if each not in known and self._is_free(each)]
        found = [(not book.is_good(each), each) for each in here]
        if found and not any(book.nodes[each].leaf == node.leaf for each in known - {name}):
            return min(found)[1]
        good = (
            (distance(node.leaf, book.nodes[each].leaf), each)
            for each in book.idle.free()
            if each not in known and each not in self._taken and self._is_alike(node, each)
            and book.is_good(each)
        )  # fmt: skip
        return min(good, default=(0, None))[1]

    def _across(self, leaf: Leaf, suspects: Collection[Leaf]) -> tuple[str, str] | None:
        """Return good nodes of a leaf and of one that is not suspected, and that it has not met."""
        book = self._book
        known, good = {leaf, *suspects, *book.verdict.leaves}, dict[Leaf, list[str]]()
        for name in book.idle.free():
            if self._is_free(name) and book.is_good(name):
                good.setdefault(book.nodes[name].leaf, []).append(name)
        for own in sorted(good.get(leaf, ())):
            known |= {book.nodes[each.partner].leaf for each in book.evidence(own) if each.why}
        others = sorted(other for other in good if other not in known)
        for own in sorted(good.get(leaf, ())):
            for other in others:
                for name in sorted(good[other]):
                    if self._is_alike(book.nodes[own], name):
                        return own, name
        return None

    def _order(self, due: DueNode) -> tuple[bool, float, tuple[bool, float, str]]:
        """Suspects choose first, then nodes of leaves that wait longest for one of their links."""
        leaf = self._book.nodes[due.node.metadata.name].leaf
        return due.order[0], self._book.waits_since(leaf), due.order

    def _partner(self, name: str) -> str | None:
        """Return the node that a due one meets; None: there is no other one now."""
        book, node = self._book, self._book.nodes[name]
        before = {name, *(each.partner for each in node.records)}
        fresh_since = self._now - _FRESH_SHARE * book.interval_seconds
        found = list[tuple[tuple[bool, float, int, bool, float, float], str]]()
        for leaf, names in self._groups.get(node.shape, {}).items():
            for other in (self._first(names, before), self._first(names, {name})):
                if other is None:
                    continue
                far, at = distance(node.leaf, leaf), book.nodes[other].past.tested_at
                met, met_other = self._met(node.leaf, far), self._met(leaf, far)
                order = (at > fresh_since, met, far, other in before, met_other, at)
                found.append((order, other))
        return min(found)[1] if found else None

    def _first(self, names: Collection[str], but: Collection[str]) -> str | None:
        return next((each for each in names if each not in self._taken and each not in but), None)

    @cached_property
    def _groups(self) -> Mapping[str, Mapping[Leaf, Sequence[str]]]:
        """The free nodes by shape and leaf, the longest untested first."""
        out: dict[str, dict[Leaf, list[str]]] = {}
        free = ((self._book.nodes[name], name) for name in self._book.idle.free())
        for node, name in sorted(free, key=lambda each: (each[0].past.tested_at, each[1])):
            out.setdefault(node.shape, {}).setdefault(node.leaf, []).append(name)
        return out

    def _met(self, leaf: Leaf, far: int) -> float:
        return self._met_at.get((leaf, far), self._book.met_at.get((leaf, far), NEVER))

    def _is_alike(self, node: PairedNode, other: str) -> bool:
        return self._book.nodes[other].shape == node.shape
