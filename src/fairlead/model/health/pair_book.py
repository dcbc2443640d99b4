"""What pairs of nodes measured between them, kept by event, and where the bad ones lead.

    node    all of its latest pairs are bad, with two partners, one of which is good elsewhere
    leaf    the same of the switch above its nodes, by pairs of good nodes with other leaves
    link    a bad pair of two nodes that are good elsewhere: it is reported, and condemns nothing

The evidence of a node are its own ended tests, of each partner the latest. A good pair makes older
bad ones void, and a bad pair older good ones: what was good yesterday does not clear what is bad
today. Instants are of the wall clock, and those of `idle` of a monotonic one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from fairlead.api.cluster.machine_result import PairMeasure
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.kubernetes.core import Node
from fairlead.model.health.gang_check import BAD_MAX, BAD_SHARE, condemned
from fairlead.model.health.idle_nodes import NEVER, IdleNodes, PastTests
from fairlead.model.health.judgement import shape_of

#: The labels of the levels of the network, widest first: nodes below one switch have the same.
Leaf: TypeAlias = tuple[str, ...]
T = TypeVar("T")
#: Of a leaf, so many nodes that are bad to all make its switch bad, and not them.
LEAF_MIN = 3


@dataclass(frozen=True, slots=True)
class PairRecord:
    """A pair, as a test of one of its nodes has it; `why` it is bad, "": it is good."""

    test: NodeTest
    partner: str
    partner_uid: str
    at: float
    why: str
    measure: PairMeasure


@dataclass(frozen=True, slots=True)
class PairedNode:
    """A node, and its pairs, the newest first, that say something of it as it is now.

    `blamed_at`: when it was found to be what is wrong, in any boot; NEVER: never.
    """

    node: Node
    leaf: Leaf
    shape: str
    past: PastTests
    records: tuple[PairRecord, ...] = ()
    blamed_at: float = NEVER


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """Where bad pairs lead. `suspects` and `suspect_leaves`: not found out yet.

    `links`: bad pairs of nodes that are good elsewhere. `held`: nodes to which bad pairs lead, and
    which are so many at once that it is rather the test.
    """

    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    leaves: Mapping[Leaf, str] = field(default_factory=dict[Leaf, str])
    links: tuple[tuple[str, str, str], ...] = ()
    suspects: tuple[str, ...] = ()
    suspect_leaves: tuple[Leaf, ...] = ()
    held: tuple[str, ...] = ()


def leaf_of(node: Node, levels: Sequence[str]) -> Leaf:
    """Return where a node is in the network, by labels, widest first."""
    return tuple(node.metadata.labels.get(key, "") for key in levels)


def distance(a: Leaf, b: Leaf) -> int:
    """Return how many levels are between two leaves; 0: they are one."""
    same = 0
    while same < len(a) and a[same] == b[same]:
        same += 1
    return len(a) - same


class PairBook:
    """All nodes that may be tested in pairs."""

    def __init__(self, levels: Sequence[str], idle_seconds: float, interval_seconds: float) -> None:
        """`levels`: labels, widest first; the rest as `IdleNodes`."""
        self.levels = tuple(levels)
        self.idle = IdleNodes(idle_seconds, interval_seconds)
        self.interval_seconds = interval_seconds
        self.nodes: dict[str, PairedNode] = {}
        #: Of each leaf and distance, when a pair of it was measured last.
        self.met_at: dict[tuple[Leaf, int], float] = {}
        self._by_leaf: dict[Leaf, dict[str, None]] = {}
        #: Nodes below each switch, by the widest levels of its leaves.
        self._below: Counter[Leaf] = Counter()
        #: Nodes with a bad pair.
        self._bad: dict[str, None] = {}
        self._verdict: PairVerdict | None = None

    def put(
        self, node: Node, past: PastTests, records: Sequence[PairRecord],
        *, blamed_at: float, is_fit: bool, now: float, instant: float,
    ) -> None:  # fmt: skip
        """Take in a node and its pairs, the newest first. `is_fit`: as `IdleNodes.put`."""
        name, before = node.metadata.name, self.nodes.get(node.metadata.name)
        leaf = leaf_of(node, self.levels)
        new = PairedNode(node, leaf, shape_of(node), past, tuple(records), blamed_at)
        self.nodes[name] = new
        self.idle.put(node, past, is_fit=is_fit, now=now, instant=instant)
        is_known = before is not None and before.node.metadata.uid == node.metadata.uid
        if is_known and before is not None and _evidence(before) == _evidence(new):
            return
        self._verdict = None
        if before is not None:
            self._leave(before)
        self._by_leaf.setdefault(leaf, {})[name] = None
        self._below.update(leaf[:length] for length in range(len(leaf) + 1))
        if any(each.why for each in records):
            self._bad[name] = None
        else:
            self._bad.pop(name, None)
        for each in new.records:
            partner = self.nodes.get(each.partner)
            if partner is not None:
                self.note_met(leaf, partner.leaf, each.at)

    def remove(self, name: str) -> None:
        """Take in that a node is gone."""
        self.idle.remove(name)
        before = self.nodes.pop(name, None)
        if before is not None:
            self._leave(before)
            self._bad.pop(name, None)
            self._verdict = None

    def note_met(self, a: Leaf, b: Leaf, at: float) -> None:
        """Note that a pair of two leaves was measured."""
        far = distance(a, b)
        for leaf in (a, b):
            self.met_at[leaf, far] = max(at, self.met_at.get((leaf, far), NEVER))

    def _leave(self, before: PairedNode) -> None:
        mates = self._by_leaf.get(before.leaf, {})
        mates.pop(before.node.metadata.name, None)
        self._below.subtract(before.leaf[:length] for length in range(len(before.leaf) + 1))
        if not mates:
            self._by_leaf.pop(before.leaf, None)
            for far in range(len(self.levels) + 1):
                self.met_at.pop((before.leaf, far), None)

    def waits_since(self, leaf: Leaf) -> float:
        """Return when a leaf met the distance that it met longest ago, of those that there are."""
        size, found = len(leaf), [self.met_at.get((leaf, 0), NEVER)]
        found = found if self._below[leaf] > 1 else []
        found += [
            self.met_at.get((leaf, far), NEVER)
            for far in range(1, size + 1)
            if self._below[leaf[: size - far]] > self._below[leaf[: size - far + 1]]
        ]
        return min(found, default=NEVER)

    def alike(self, a: str, b: str) -> list[PairMeasure]:
        """Return what other pairs of the shape and distance of two nodes measured last."""
        one, two = self.nodes[a], self.nodes[b]
        far, out = distance(one.leaf, two.leaf), dict[tuple[str, str], PairRecord]()
        for name, each in self.nodes.items():
            if each.shape != one.shape:
                continue
            for record in each.records:
                partner = self.nodes.get(record.partner)
                key = (min(name, record.partner), max(name, record.partner))
                if partner is None or key == (min(a, b), max(a, b)):
                    continue
                if distance(each.leaf, partner.leaf) == far:
                    known = out.get(key)
                    out[key] = record if known is None or record.at > known.at else known
        return [record.measure for record in out.values()]

    # Where bad pairs lead

    @property
    def verdict(self) -> PairVerdict:
        """Where the bad pairs lead that are known now."""
        if self._verdict is None:
            self._verdict = self._judge() if self._bad else PairVerdict()
        return self._verdict

    def evidence(self, name: str) -> Iterator[PairRecord]:
        """Yield the pairs of a node that count, the newest first: of each partner the latest.

        One with a node that is gone, or was found to be what was wrong with it, is explained.
        """
        node, seen = self.nodes.get(name), set[str]()
        for each in node.records if node is not None else ():
            partner = self.nodes.get(each.partner)
            if each.partner in seen or partner is None:
                continue
            seen.add(each.partner)
            is_gone = partner.node.metadata.uid != each.partner_uid
            if not is_gone and not (each.why and each.at <= partner.blamed_at):
                yield each

    def is_good(self, name: str) -> bool:
        """True for a node whose latest pair is good."""
        first = next(self.evidence(name), None)
        return first is not None and not first.why

    def met(self, name: str) -> dict[str, str]:
        """Return the partners of a node since its last good pair, and what was bad; or that one."""
        return _leading((each.partner, each.why) for each in self.evidence(name))

    def _judge(self) -> PairVerdict:
        met = {name: found for name in sorted(self._bad) if (found := self.met(name))}
        for partners in tuple(met.values()):
            met |= {each: self.met(each) for each in partners if each not in met}
        met = {name: found for name, found in met.items() if found}
        found = condemned(met)
        leaves = {
            leaf: f"none of its nodes is good, {found[name]}"
            for name in found
            if (leaf := self.nodes[name].leaf) and self._is_bad_leaf(leaf)
        }
        nodes = {
            name: why for name, why in found.items()
            if self.nodes[name].leaf not in leaves and self._is_proved(name, met[name])
        }  # fmt: skip
        tested = sum(bool(each.records) for each in self.nodes.values())
        held = tuple(nodes) if len(nodes) > max(BAD_MAX, tested // BAD_SHARE) else ()
        suspects = tuple(
            name for name, partners in sorted(met.items())
            if all(partners.values()) and self.nodes[name].leaf not in leaves
            and name not in nodes and not partners.keys() <= nodes.keys()
        )  # fmt: skip
        above, open_leaves, links = self._judge_leaves({*found, *suspects})
        return PairVerdict(
            {} if held else nodes, {**leaves, **above}, links, suspects, open_leaves, held
        )

    def _is_proved(self, name: str, partners: Mapping[str, str]) -> bool:
        """True where a good node of its own leaf is among the partners of a bad one: neither the
        links above the leaf nor its switch are what is bad. One without such neighbours is a leaf.
        """
        return not self.neighbours(name) or any(
            self.nodes[each].leaf == self.nodes[name].leaf and self.is_good(each)
            for each in partners
        )

    def neighbours(self, name: str) -> list[str]:
        """Return the other nodes of the leaf and shape of a node."""
        node = self.nodes[name]
        alike = (each for each in self._by_leaf[node.leaf] if each != name)
        return [each for each in alike if self.nodes[each].shape == node.shape]

    def _is_bad_leaf(self, leaf: Leaf) -> bool:
        tested = [name for name in self._by_leaf[leaf] if next(self.evidence(name), None)]
        return len(tested) >= LEAF_MIN and not any(map(self.is_good, tested))

    def _judge_leaves(
        self, bad: Collection[str]
    ) -> tuple[dict[Leaf, str], tuple[Leaf, ...], tuple[tuple[str, str, str], ...]]:
        """Return bad leaves, those not found out yet, and bad links, by nodes that are not bad."""
        links = [
            (name, each.partner, each.why)
            for name in sorted(self._bad) if name not in bad
            for each in self.evidence(name)
            if each.why and name < each.partner and each.partner not in bad
        ]  # fmt: skip
        leaves = dict[Leaf, None]()
        for a, b, _ in links:
            one, two = self.nodes[a].leaf, self.nodes[b].leaf
            if one != two:
                leaves |= {one: None, two: None}
        met = {leaf: self._met_of_leaf(leaf, bad) for leaf in sorted(leaves)}
        for partners in tuple(met.values()):
            met |= {each: self._met_of_leaf(each, bad) for each in partners if each not in met}
        met = {leaf: partners for leaf, partners in met.items() if partners}
        found = condemned(met)
        is_open = tuple(
            leaf for leaf, partners in sorted(met.items())
            if leaf not in found and all(partners.values())
        )  # fmt: skip
        rest = tuple(
            each
            for each in links
            if not {self.nodes[each[0]].leaf, self.nodes[each[1]].leaf} & found.keys()
        )
        return found, is_open, rest

    def _met_of_leaf(self, leaf: Leaf, bad: Collection[str]) -> dict[Leaf, str]:
        """Return the leaves that good nodes of a leaf met, as `met` for nodes."""
        records = sorted(
            (
                (-each.at, self.nodes[each.partner].leaf, each.why)
                for name in self._by_leaf[leaf] if name not in bad
                for each in self.evidence(name)
                if each.partner not in bad and self.nodes[each.partner].leaf != leaf
            ),
        )  # fmt: skip
        latest: dict[Leaf, str] = {}
        for _, other, why in records:
            latest.setdefault(other, why)
        return _leading(latest.items())


def _leading(found: Iterable[tuple[T, str]]) -> dict[T, str]:
    """Return what is bad up to the first good one; that one where it is the first."""
    out: dict[T, str] = {}
    for partner, why in found:
        if out and not why:
            break
        out[partner] = why
        if not why:
            break
    return out


def _evidence(node: PairedNode) -> object:
    return node.leaf, node.shape, node.blamed_at, node.records
