"""Rules about the pods near a member, as the search asks them: where it may not go, and how many
members fit when some keep apart or are spread.

What may be near what is booked as marks (`model/asks/neighbours.py`). Rules about one node (host
ports, anti-affinity by host name) rule out nodes, or allow one member on each, and the packing goes
on as always. With rules about domains members are placed one by one: each goes to the first node in
packing order whose domains admit one more. With one such rule that finds room for as many members
as any other way would; with several it is a heuristic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.model.asks.neighbours import is_port
from fairlead.model.asks.requests import (
    CARRIED,
    MEMBERS_PER_NODE_MAX,
    NAME_COLUMN,
    SHUNNED,
    MemberClass,
    NeighbourMark,
    Neighbours,
    Spread,
)
from fairlead.model.gang.gangs import GangRequest
from fairlead.model.inventory.mark_table import MarkTable
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable


def rules_are_exact(gang: GangRequest) -> bool:
    """True when the search finds a place for a gang with rules whenever there is one.

    Rules about one node limit what each node takes, and the search is as exact as without rules.
    """
    if len(gang.roles) != 1:
        return False
    beside = gang.roles[0].member.neighbours
    about_domains = 0 if beside is None else len(_domain_marks(beside)) + len(beside.spreads)
    return not about_domains or (about_domains == 1 and not gang.topology.is_bound)


def rules_text(gang: GangRequest) -> str:
    """Return which kinds of rules bind a gang's members: "host ports and anti-affinity"."""
    found = [role.member.neighbours for role in gang.roles if role.member.neighbours is not None]
    marks = [mark for each in found for mark in (*each.carries, *each.shuns)]
    spread = {rule.mark for each in found for rule in each.spreads}
    kinds = {
        "host ports": any(is_port(mark) for mark in marks),
        "anti-affinity": any(not is_port(mark) and mark not in spread for mark in marks),
        "topology spread": bool(spread),
    }
    return " and ".join(kind for kind, is_there in kinds.items() if is_there)


def beside_others(
    marks: MarkTable, table: NodeTable, member: MemberClass, fits: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """Return `fits` without the nodes that pods near them rule out."""
    beside = member.neighbours
    if beside is None:
        return fits
    blocked = np.zeros(len(fits), dtype=np.bool_)
    for name, mark in _opposed(beside):
        slots, _ = marks.counts(name)
        if not len(slots):
            continue
        if mark.key == NAME_COLUMN:
            blocked[slots] = True
            continue
        cells = table.labels.domains(mark.key)[0]
        blocked |= np.isin(cells, cells[slots]) & (cells >= 0)
    return np.where(blocked, 0, fits)


def fill(
    marks: MarkTable,
    table: NodeTable,
    member: MemberClass,
    fits: npt.NDArray[Any],
    *,
    key: Ints,
    count: int,
) -> tuple[Ints, Ints] | None:
    """Return distinct slots and how many members each takes, `count` together or as many as fit.

    None when no rule is about domains: then `fits` says it all.
    """
    beside = member.neighbours
    if beside is None or not (_domain_marks(beside) or beside.spreads):
        return None
    nodes = np.flatnonzero(fits)
    nodes = nodes[np.argsort(key[nodes])]
    rules = [
        *(_Apart.of(table, mark) for mark in _domain_marks(beside)),
        *(_Even.of(marks, table, member, spread) for spread in beside.spreads),
    ]
    if not len(nodes):
        return nodes, nodes
    groups = _Groups(np.stack([rule.cells[nodes] for rule in rules]), fits[nodes])
    taken = np.zeros(len(nodes), dtype=np.int64)
    for _ in range(count):
        admitted = groups.rooms > 0
        for rule, domains in zip(rules, groups.domains, strict=True):
            admitted &= rule.admits(domains)
        if not admitted.any():
            break
        group = int(np.where(admitted, groups.heads, len(nodes)).argmin())
        taken[groups.heads[group]] += 1
        groups.take(group)
        for rule, domains in zip(rules, groups.domains, strict=True):
            rule.take(int(domains[group]))
    used = np.flatnonzero(taken)
    return nodes[used], taken[used]


def rules_hold(
    marks: MarkTable, table: NodeTable, members: Iterable[tuple[MemberClass, Ints]]
) -> bool:
    """True when members, which are booked in `marks` on these slots, break no rule there."""
    for member, slots in members:
        beside = member.neighbours
        if beside is None:
            continue
        for name, mark in _opposed(beside):
            cells = _cells(table, mark.key)
            counts = _by_domain(marks, name, cells)
            own = 1 if mark in beside.apart else 0
            domains = cells[slots]
            if (counts[domains[domains >= 0]] > own).any():
                return False
        for spread in beside.spreads:
            rule = _Even.of(marks, table, member, spread)
            if rule.exceeds(rule.cells[slots]):
                return False
    return True


def _opposed(beside: Neighbours) -> Iterable[tuple[str, NeighbourMark]]:
    """Yield what must not be near a member: who carries what it shuns, and who shuns it."""
    for mark in beside.shuns:
        yield CARRIED + mark.name, mark
    for mark in beside.carries:
        yield SHUNNED + mark.name, mark


def _domain_marks(beside: Neighbours) -> tuple[NeighbourMark, ...]:
    return tuple(mark for mark in beside.apart if mark.key != NAME_COLUMN)


def _cells(table: NodeTable, key: str) -> Ints:
    return table.labels.domains(key)[0].astype(np.int64)


def _by_domain(marks: MarkTable, name: str, cells: Ints) -> Ints:
    """Return int64[domains]: how often "+mark" or "-mark" is in each domain."""
    slots, counts = marks.counts(name)
    inside = cells[slots] >= 0
    size = int(cells.max(initial=-1)) + 1
    found = np.bincount(cells[slots[inside]], weights=counts[inside], minlength=size)
    return found.astype(np.int64)


class _Groups:
    """Nodes in packing order, grouped by their domains under every rule.

    `domains` int64[groups] for each rule, `rooms` int64[groups], `heads` int64[groups]: the first
    node with room. Taking a member is a step within one group.
    """

    def __init__(self, domains: Ints, fits: npt.NDArray[Any]) -> None:
        found, inverse = np.unique(domains, axis=1, return_inverse=True)
        self.domains: list[Ints] = list(found)
        group_of = inverse.reshape(-1)
        self._left = np.minimum(fits, MEMBERS_PER_NODE_MAX).astype(np.int64)
        self.rooms = np.bincount(group_of, weights=self._left).astype(np.int64)
        order = np.argsort(group_of, kind="stable")
        starts = np.searchsorted(group_of[order], np.arange(len(self.rooms)))
        self.heads = order[starts]
        self._nodes = np.split(order, starts[1:])
        self._steps = np.zeros(len(self.rooms), dtype=np.int64)

    def take(self, group: int) -> None:
        """Take one member's room from the first node of a group that has some."""
        head = self.heads[group]
        self._left[head] -= 1
        self.rooms[group] -= 1
        if not self._left[head] and self.rooms[group]:
            self._steps[group] += 1
            self.heads[group] = self._nodes[group][self._steps[group]]


@dataclass(slots=True)
class _Apart:
    """At most one member in each domain; nodes without a domain are free of the rule."""

    cells: Ints
    taken: Bools

    @classmethod
    def of(cls, table: NodeTable, mark: NeighbourMark) -> _Apart:
        cells = _cells(table, mark.key)
        return cls(cells, np.zeros(int(cells.max(initial=-1)) + 2, dtype=np.bool_))

    def admits(self, domains: Ints) -> Bools:
        return ~self.taken[domains]  # -1 is the last, which is never taken

    def take(self, domain: int) -> None:
        if domain >= 0:
            self.taken[domain] = True


@dataclass(slots=True)
class _Even:
    """No domain has more than `max_skew` carriers above the least; only nodes in one are used."""

    cells: Ints
    counts: Ints
    #: bool[domains]: the domains that are compared.
    counted: Bools
    max_skew: int
    has_few: bool
    carries: int

    @classmethod
    def of(cls, marks: MarkTable, table: NodeTable, member: MemberClass, spread: Spread) -> _Even:
        """Read the rule and what is counted now: core/v1 TopologySpreadConstraint."""
        eligible = table.exists.copy()
        everywhere = np.arange(table.capacity)
        if spread.honors_affinity:
            eligible &= table.labels.selected(member.constraints, everywhere)
        if spread.honors_taints:
            lasting, passing, _ = table.labels.tolerated(member.constraints, everywhere)
            eligible &= lasting & passing & ~table.cordoned
        beside = member.neighbours
        assert beside is not None
        for other in beside.spreads:
            eligible &= _cells(table, other.mark.key) >= 0
        cells = np.where(eligible, _cells(table, spread.mark.key), -1)
        counts = _by_domain(marks, CARRIED + spread.mark.name, cells)
        counted = np.zeros(len(counts), dtype=np.bool_)
        counted[cells[cells >= 0]] = True
        has_few = int(counted.sum()) < spread.min_domains
        carries = int(spread.mark in beside.carries)
        return cls(cells, counts, counted, spread.max_skew, has_few, carries)

    @property
    def least(self) -> int:
        return 0 if self.has_few else int(self.counts[self.counted].min(initial=2**62))

    def admits(self, domains: Ints) -> Bools:
        if not len(self.counts):
            return np.zeros(len(domains), dtype=np.bool_)
        after = self.counts[domains] + self.carries
        return (domains >= 0) & (after - self.least <= self.max_skew)

    def take(self, domain: int) -> None:
        self.counts[domain] += self.carries

    def exceeds(self, domains: Ints) -> bool:
        """True when members that are booked in these domains are too many there."""
        if (domains < 0).any():
            return True
        return bool((self.counts[domains] - self.least > self.max_skew).any())
