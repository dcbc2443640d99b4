"""Node labels and taints as columns of small integers, and the constraints evaluated on them.

Each label key is a column of value numbers (-1: the node lacks it), each distinct set of taints
has a number. A constraint is then a few vector comparisons however many nodes there are; hundreds
of equal taint sets are judged once. Semantics: k8s.io/component-helpers
`scheduling/corev1/nodeaffinity` and `helpers.go` (tolerations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fairlead.api.kubernetes.core import NodeSelector, NodeSelectorRequirement, Taint, Toleration
from fairlead.api.names import TAINT_SPARE, TEAM
from fairlead.api.values.bounds import label_integer
from fairlead.model.asks.requests import Constraints, Reach
from fairlead.model.asks.teams import owner_of
from fairlead.model.inventory.spares import is_spare

Bools = npt.NDArray[np.bool_]
Slots = npt.NDArray[np.int64]
N = TypeVar("N", bound=np.generic)

#: Taints with these prefixes tell of a passing condition (not ready, cordoned, disk pressure, not
#: initialised); all others say whom the node is for.
CONDITION_TAINT_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")

_NUMBERS_SPARE_MAX = 1024
#: Whose a node is, seen from a team; in the order in which its members take them.
OWN, OPEN, FOREIGN = 0, 1, 2
_HARD_EFFECTS = ("NoSchedule", "NoExecute")
_SOFT_EFFECT = "PreferNoSchedule"


def is_condition_taint(taint: Taint) -> bool:
    """True for a taint that comes and goes with the node's condition."""
    return taint.key.startswith(CONDITION_TAINT_PREFIXES)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """True when the toleration covers the taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def _admits(constraints: Constraints, taint: Taint) -> bool:
    """True when a pod tolerates the taint. Tolerations of everything do not open the nodes of every
    team, and none opens spares.
    """
    if taint.key == TAINT_SPARE:
        return constraints.takes_spares and is_spare((taint,))
    given = constraints.tolerations
    return any(tolerates(t, taint) and (t.key or taint.key != TEAM) for t in given)


class _Column:
    """One label key: the number of each node's value, and the values by number."""

    __slots__ = ("cells", "numbers")

    def __init__(self, capacity: int) -> None:
        #: int32[N], -1 where the node lacks the key.
        self.cells: npt.NDArray[np.int32] = np.full(capacity, -1, dtype=np.int32)
        self.numbers: dict[str, int] = {}

    def number(self, value: str) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


class LabelTable:
    """Labels and taints of all nodes, by slot."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._columns: dict[str, _Column] = {}
        self._labels: dict[int, dict[str, str]] = {}
        #: What `ordered_domains` returned, until a node's value changes.
        self._ordered: dict[str, tuple[Slots, int]] = {}
        #: The same within another label, with the two arrays that it follows from.
        self._within: dict[tuple[str, str], tuple[Slots, Slots, tuple[Slots, int]]] = {}
        self._taint_sets: dict[tuple[Taint, ...], int] = {}
        #: int32[N]: number of the node's taint set.
        self._taints: npt.NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self._taint_sets[()] = 0
        #: The same for the taints that say PreferNoSchedule.
        self._soft_sets: dict[tuple[Taint, ...], int] = {(): 0}
        self._soft: npt.NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        #: What `tiers` says of each set of hard taints, by team.
        self._tiers: dict[str, Slots] = {}

    def resize(self, capacity: int) -> None:
        """Have so many slots from now on."""
        self._ordered.clear()
        for column in self._columns.values():
            column.cells = resized(column.cells, capacity, fill=-1)
        self._taints = resized(self._taints, capacity)
        self._soft = resized(self._soft, capacity)
        self._capacity = capacity

    def set(self, slot: int, labels: Mapping[str, str], taints: Sequence[Taint]) -> bool:
        """Set a node's labels and taints; False when nothing that matters here changed."""
        hard = [t for t in taints if t.effect in _HARD_EFFECTS]
        plain = tuple(sorted((Taint(t.key, t.effect, t.value) for t in hard), key=_taint_order))
        number = self._taint_sets.setdefault(plain, len(self._taint_sets))
        soft = tuple(Taint(t.key, t.effect, t.value) for t in taints if t.effect == _SOFT_EFFECT)
        self._soft[slot] = self._soft_sets.setdefault(soft, len(self._soft_sets))
        before = self._labels.get(slot, {})
        if before == labels and self._taints[slot] == number:
            return False
        for key in before:
            if key not in labels:
                self._columns[key].cells[slot] = -1
                self._ordered.pop(key, None)
        for key, value in labels.items():
            if before.get(key) != value:
                column = self._columns.get(key)
                if column is None:
                    column = self._columns[key] = _Column(self._capacity)
                column.cells[slot] = column.number(value)
                self._ordered.pop(key, None)
        self._labels[slot] = dict(labels)
        self._taints[slot] = number
        for key in labels:
            if len(self._columns[key].numbers) > 2 * self._capacity + _NUMBERS_SPARE_MAX:
                self._renumber(key)
        return True

    def _renumber(self, key: str) -> None:
        """Drop the numbers of values that no node has any more (a label that keeps changing)."""
        column = self._columns[key] = _Column(self._capacity)
        for slot in sorted(self._labels):
            if key in self._labels[slot]:
                column.cells[slot] = column.number(self._labels[slot][key])

    def clear(self, slot: int) -> None:
        """Forget a node."""
        for key in self._labels.pop(slot, {}):
            self._columns[key].cells[slot] = -1
            self._ordered.pop(key, None)
        self._taints[slot] = 0
        self._soft[slot] = 0

    def labels(self, slot: int) -> Mapping[str, str]:
        """Return the labels of the node in a slot."""
        return self._labels.get(slot, {})

    def domains(self, key: str) -> tuple[npt.NDArray[np.int32], list[str]]:
        """Return each slot's domain number under a label key (-1: none) and the domains' names."""
        column = self._columns.get(key)
        if column is None:
            return np.full(self._capacity, -1, dtype=np.int32), []
        return column.cells, list(column.numbers)

    def ordered_domains(self, key: str) -> tuple[Slots, int]:
        """Return int64[N], the place of each slot's domain among their names in order (-1: none),
        and how many domains have nodes. Do not change it.
        """
        if key not in self._ordered:
            cells, names = self.domains(key)
            has_nodes = np.bincount(cells + 1, minlength=len(names) + 1)[1:] > 0
            numbers = sorted(np.flatnonzero(has_nodes).tolist(), key=names.__getitem__)
            places = np.full(len(names) + 1, -1, dtype=np.int64)
            places[np.array(numbers, dtype=np.int64)] = np.arange(len(numbers))
            self._ordered[key] = (places[cells], len(numbers))
        return self._ordered[key]

    def ordered_domains_within(self, key: str, outer: str) -> tuple[Slots, int]:
        """Like `ordered_domains`, each domain split where it reaches into several of an outer
        label; nodes without that are in none.
        """
        (cells, _), (around, outer_count) = map(self.ordered_domains, (key, outer))
        known = self._within.get((key, outer))
        if known is None or known[0] is not cells or known[1] is not around:
            found = np.where((cells >= 0) & (around >= 0), cells * outer_count + around, -1)
            pairs = np.unique(found[found >= 0])
            places = np.where(found >= 0, np.searchsorted(pairs, found), -1)
            known = self._within[key, outer] = (cells, around, (places, len(pairs)))
        return known[2]

    def selected(self, constraints: Constraints, slots: Slots) -> Bools:
        """Return which of the slots the node selector and the required affinity admit."""
        out = np.ones(len(slots), dtype=np.bool_)
        for key, value in constraints.node_selector:
            out &= self._equal(key, (value,), slots)
        if constraints.affinity is not None:
            out &= self._affinity(constraints.affinity, slots)
        return out

    def reached(self, reach: Reach, slots: Slots) -> Bools:
        """Return which of the slots reach the volumes of a pod."""
        out = np.ones(len(slots), dtype=np.bool_)
        for selector in reach:
            out &= self._affinity(selector, slots)
        return out

    def by_taints(self, judge: Callable[[tuple[Taint, ...]], int]) -> Slots:
        """Return int64[N]: what `judge` says of each node's hard taints; asked once per set."""
        numbers = np.zeros(len(self._taint_sets), dtype=np.int64)
        for taints, number in self._taint_sets.items():
            numbers[number] = judge(taints)
        return numbers[self._taints]

    def tiers(self, team: str) -> Slots:
        """Return int64[N]: OWN for nodes of the team, OPEN for those of no team, else FOREIGN."""
        tiers = self._tiers.get(team)
        if tiers is None or len(tiers) < len(self._taint_sets):
            owners = map(owner_of, self._taint_sets)  # in the order of their numbers
            tiers = self._tiers[team] = np.array(
                [OPEN if not owner else OWN if owner == team else FOREIGN for owner in owners],
                dtype=np.int64,
            )
        return tiers[self._taints]

    def owners(self, slots: Slots) -> tuple[str, ...]:
        """Return the teams that have some of these nodes, by name."""
        owners = list(map(owner_of, self._taint_sets))  # in the order of their numbers
        numbers = np.unique(self._taints[slots]).tolist()
        return tuple(sorted({owners[number] for number in numbers} - {""}))

    @property
    def has_spares(self) -> bool:
        """True while some node may be a spare."""
        return any(map(is_spare, self._taint_sets))

    def spares(self) -> Bools:
        """Return bool[N]: which nodes are spares."""
        return self.by_taints(is_spare) > 0

    def avoided(self, constraints: Constraints) -> Slots | None:
        """Return int64[N]: how many taints of each node ask such a pod to stay away; None: none."""
        if len(self._soft_sets) == 1:
            return None
        numbers = [
            sum(not any(tolerates(t, taint) for t in constraints.tolerations) for taint in taints)
            for taints in self._soft_sets
        ]
        return np.array(numbers, dtype=np.int64)[self._soft]

    def scores(self, constraints: Constraints) -> Slots:
        """Return int64[N]: the weights of the preferences that each node fulfils, together."""
        everywhere = np.arange(self._capacity)
        out = np.zeros(self._capacity, dtype=np.int64)
        for each in constraints.preferred:
            term = NodeSelector((each.preference,))
            out += each.weight * self._affinity(term, everywhere)
        return out

    def tolerated(self, constraints: Constraints, slots: Slots) -> tuple[Bools, Bools, Bools]:
        """Return which slots' taints are tolerated: lasting ones, passing ones, NoExecute ones."""
        count = len(self._taint_sets)
        table = np.ones((3, count), dtype=np.bool_)
        for taints, number in self._taint_sets.items():
            for taint in taints:
                if _admits(constraints, taint):
                    continue
                table[1 if is_condition_taint(taint) else 0, number] = False
                if taint.effect == "NoExecute":
                    table[2, number] = False
        cells = self._taints[slots]
        return table[0, cells], table[1, cells], table[2, cells]

    def _equal(self, key: str, values: Sequence[str], slots: Slots) -> Bools:
        column = self._columns.get(key)
        if column is None:
            return np.zeros(len(slots), dtype=np.bool_)
        numbers = [column.numbers[v] for v in values if v in column.numbers]
        cells = column.cells[slots]
        if len(numbers) == 1:
            return cells == numbers[0]
        return np.isin(cells, np.array(numbers, dtype=np.int32))

    def _affinity(self, affinity: NodeSelector, slots: Slots) -> Bools:
        out = np.zeros(len(slots), dtype=np.bool_)
        for term in affinity.node_selector_terms:
            if not term.match_expressions and not term.match_fields:
                continue  # An empty term matches nothing (nodeaffinity.go).
            admitted = np.ones(len(slots), dtype=np.bool_)
            for requirement in term.match_expressions:
                admitted &= self._requirement(requirement.key, requirement, slots)
            for requirement in term.match_fields:
                admitted &= self._requirement(f"field:{requirement.key}", requirement, slots)
            out |= admitted
        return out

    def _requirement(self, key: str, requirement: NodeSelectorRequirement, slots: Slots) -> Bools:
        operator = requirement.operator
        if operator == "In":
            return self._equal(key, requirement.values, slots)
        if operator == "NotIn":
            return ~self._equal(key, requirement.values, slots)
        column = self._columns.get(key)
        present = (
            np.zeros(len(slots), dtype=np.bool_) if column is None else column.cells[slots] >= 0
        )
        if operator == "Exists":
            return present
        if operator == "DoesNotExist":
            return ~present
        if column is None or operator not in ("Gt", "Lt") or len(requirement.values) != 1:
            return np.zeros(len(slots), dtype=np.bool_)
        return present & self._compared(column, requirement, slots)

    @staticmethod
    def _compared(column: _Column, requirement: NodeSelectorRequirement, slots: Slots) -> Bools:
        bound = label_integer(requirement.values[0])
        table = np.zeros(len(column.numbers), dtype=np.bool_)
        for value, number in column.numbers.items():
            amount = label_integer(value)
            if bound is not None and amount is not None:
                table[number] = amount > bound if requirement.operator == "Gt" else amount < bound
        return table[column.cells[slots]]


def resized(array: npt.NDArray[N], count: int, *, fill: float = 0) -> npt.NDArray[N]:
    """Return an array whose last axis has `count` cells: cut off, or filled up."""
    out = np.full((*array.shape[:-1], count), fill, dtype=array.dtype)
    kept = min(count, array.shape[-1])
    out[..., :kept] = array[..., :kept]
    return out


def _taint_order(taint: Taint) -> tuple[str, str, str]:
    return (taint.key, taint.effect, taint.value)
