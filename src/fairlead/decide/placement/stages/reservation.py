"""Reservations for the heads of the queue: a job that waits too long gets room kept for it.

A job that does not fit does not hold up others, until it has waited for `starvation_seconds` as the
first of those that wait for other jobs' room. From then on later jobs leave it room: with backfill
(Lifka 1995, Mu'alem and Feitelson, TPDS 2001) they may start where they do not delay it: EASY with
one head for a node, conservative with as many as `backfill_reservations_max`.

It starts at the latest once so many running jobs have reached their limits that it fits, for as
long as it may run, beside the heads before it. Until then its places need only what those jobs do
not give back; all other room, and what a later job returns in time, is for others. Where the
running jobs have no limits, or too few, all nodes that it could use are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TypeVar

import numpy as np

from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.places.kept_room import (
    FoundStart,
    KeptRoom,
    QueueReservation,
    Start,
    Token,
)
from fairlead.decide.placement.places.releases import Releases
from fairlead.decide.placement.places.unplaceable import eligible_nodes
from fairlead.decide.placement.stages.budget import budget_verdict
from fairlead.decide.placement.stages.first_start import FirstStart
from fairlead.decide.placement.waiting.known_starts import Chain
from fairlead.decide.placement.waiting.order import OrderKey
from fairlead.decide.placement.waiting.patience import waiting_since
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.placement.waiting.quota import quota_verdict
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.requests import Constraints
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.inventory.nodes import Bools, Ints

T = TypeVar("T")
#: Jobs that are looked at for further heads, once there is one.
_LOOKS_MAX = 1000


class HeadReservations:
    """Finds the heads of the queue as their turns pass, and keeps room for those that are due.

    A head is a job that waits for room on some nodes, of each of which at most
    `backfill_reservations_max` heads, itself included, could make use. So each pool of nodes has
    heads of its own.
    """

    def __init__(self, context: PlanningContext) -> None:
        self._context = context
        self._in_order = context.state.queue.in_order()
        self._next = next(self._in_order, None)
        #: The groups and namespaces whose jobs are no heads any more: quotas differ by namespace.
        self._seen: dict[tuple[int, str], None] = {}
        self._heads_max = context.policy.backfill_reservations_max
        #: How many heads there are, and whether all are counted in `_covered` as one each.
        self._count, self._is_counted = 0, True
        #: The heads that are not counted there yet, by the id of the nodes that they could use:
        #: most are never asked for.
        self._covering: dict[int, tuple[Bools, int]] = {}
        #: The ends of jobs, by whether they are predicted, and the version that they are of.
        self._ends: dict[bool, tuple[int, Releases]] = {}
        #: bool[N] by constraints: the nodes that a gang could use; and which of these meet.
        self._nodes: dict[tuple[Constraints, ...], Bools] = {}
        self._meeting: dict[tuple[int, int], bool] = {}
        #: Whether nodes of the last decision, which are held here, are the same now.
        self._same: dict[tuple[int, int], tuple[Bools, bool]] = {}
        #: All heads with a reservation, those of them that `PlanningContext.reservations` lacks
        #: yet, the tokens of all, and their numbers in the chain.
        self._heads: list[QueueReservation] = []
        #: The different nodes on which they have places; None for one that has none.
        self._places: list[Bools | None] = []
        self._pending: list[QueueReservation] = []
        self._tokens: list[Token] = []
        self._numbers: list[int] = []
        self._chain: Chain | None = None
        #: True once `KnownStarts` was asked in this decision.
        self._has_stamp = False

    def _covered(self) -> Ints:
        """Return int64[N]: the heads that could use each node. It may be changed."""
        for nodes, heads in self._covering.values():
            self._known_covered[nodes] += heads
        self._covering.clear()
        return self._known_covered

    @cached_property
    def _known_covered(self) -> Ints:
        return np.zeros(self._context.cluster.table.capacity, dtype=np.int64)

    def reserve_before(self, order: OrderKey | None) -> None:
        """Keep room for the heads that are due, of those whose turns were before this job's; None:
        of all.
        """
        context = self._context
        is_first = not self._heads
        while (head := self._next) is not None and (order is None or head < order):
            self._next = next(self._in_order, None)
            key = head.job_key
            entry = context.state.jobs[key]
            kind = (id(entry.group), head.age.namespace)
            is_kept = key in context.placed or key in context.state.sets.nominees
            if not is_kept and kind not in self._seen:
                context.contained(key, partial(self._consider, kind, entry))
        if self._pending and self._is_recalled():
            return
        self._settle()
        if is_first and self._heads and self._is_stamped:
            context.state.starts.remember(self._tokens, context.reservations)

    def _consider(self, kind: tuple[int, str], entry: QueueEntry) -> None:
        context, gang = self._context, entry.gang
        if isinstance(gang, InvalidGang):
            self._seen[kind] = None
            return
        nodes = self._nodes_of(gang)
        if self._has_heads(nodes) or not waits_for_room(context, entry):
            self._seen[kind] = None
            return
        if not self._count:
            self._in_order = islice(self._in_order, _LOOKS_MAX)
        known = self._covering.get(id(nodes))  # which `_nodes` keeps
        self._covering[id(nodes)] = (nodes, 1 if known is None else known[1] + 1)
        self._count += 1
        self._end_where_covered()
        starves_at = waiting_since(entry.job, context.began) + context.policy.starvation_seconds
        if context.now < starves_at:
            if context.policy.expects_places:
                context.wakes.append(starves_at)
            return
        self._reserve(entry, gang, nodes)

    def _nodes_of(self, gang: GangRequest) -> Bools:
        constraints = tuple(role.member.constraints for role in gang.roles)
        if constraints not in self._nodes:
            self._nodes[constraints] = eligible_nodes(self._context.cluster, constraints)
        return self._nodes[constraints]

    def _meet(self, nodes: Bools, others: Bools) -> bool:
        """True where some nodes are among both."""
        pair = (id(nodes), id(others))  # both are kept in `_nodes`
        if pair not in self._meeting:
            self._meeting[pair] = bool((nodes & others).any())
        return self._meeting[pair]

    def _are_same(self, before: Bools, nodes: Bools) -> bool:
        """True where the nodes are those of before, which most heads share with one another."""
        pair = (id(before), id(nodes))
        if pair not in self._same:
            self._same[pair] = (before, np.array_equal(before, nodes))
        return self._same[pair][1]

    def _ahead_on(self, nodes: Bools) -> Sequence[int]:
        """Return the numbers of the heads so far that have a place, and room on some nodes."""
        if all(each is nodes for each in self._places):
            return range(len(self._heads))
        return [
            number for number, each in enumerate(self._heads)
            if each.place and self._meet(each.kept.nodes, nodes)
        ]  # fmt: skip

    def _has_heads(self, nodes: Bools) -> bool:
        """True where some of the nodes have as many heads as they may."""
        if self._is_counted and self._count < self._heads_max:
            return False
        return bool(self._covered()[nodes].max(initial=0) >= self._heads_max)

    def _end_where_covered(self) -> None:
        """Look for no more heads once each node has as many as it may have."""
        if self._is_counted and self._count < self._heads_max:
            return
        if (self._covered()[self._context.cluster.table.exists] >= self._heads_max).all():
            self._in_order, self._next = iter(()), None

    def _reserve(self, entry: QueueEntry, gang: GangRequest, nodes: Bools) -> None:
        context = self._context
        since = context.kept_since.setdefault(entry.age.job_key, context.now)
        predicted_until = since + context.policy.predictions_seconds_max
        is_predicted = context.now < predicted_until and context.state.run_times.is_enough
        is_predicted = is_predicted and context.policy.backfills
        ahead = self._ahead_on(nodes)
        self._open_chain()
        if is_predicted and entry.likeness is not None:  # when it ends changes as others end
            self._chain, self._has_stamp = None, False
        holds = self._holds(entry, nodes, ahead)
        if not holds:
            self._settle()
            self._find_start(entry, gang, nodes, ahead, is_predicted=is_predicted)
        found = entry.first_start if context.policy.backfills else None
        start = None if found is None else found.start
        if start is None or not start.place:  # what is kept is all, for a time that is not known
            self._covered()[nodes], self._is_counted = self._heads_max, False
            self._end_where_covered()
        known, starts_by = start or Start(0.0), start and max(start.at, context.now)
        new = QueueReservation(
            entry.age.job_key, KeptRoom(nodes, known.amounts), starts_by, is_predicted,
            known.version, known.place, entry.hold_seconds, context.likely_seconds(entry),
        )  # fmt: skip
        self._heads.append(new)
        if not new.place or all(each is not nodes for each in self._places):
            self._places.append(nodes if new.place else None)
        self._pending.append(new)
        self._tokens.append((0 if found is None else found.token, starts_by))
        has_place = self._chain is not None and bool(known.place) and known.amounts is not None
        if self._chain is not None and has_place:
            self._numbers.append(self._chain.add(new, known, entry.lane.team))
        else:
            self._numbers.append(-1)
        if not holds:
            self._settle()

    @property
    def _is_stamped(self) -> bool:
        """True while starts are found on what `KnownStarts` has seen."""
        return self._has_stamp and self._context.capacity.version == 0

    def _open_chain(self) -> None:
        """Ask once what has changed since the last decision.

        Predicted ends change with time, and what this decision has placed is nothing that lasts.
        """
        context = self._context
        if self._heads or self._has_stamp or not context.policy.backfills:
            return
        is_predicting = context.policy.predictions_seconds_max and context.state.run_times.is_enough
        if context.capacity.version or (is_predicting and context.state.run_times.has_running):
            return
        self._has_stamp, starts = True, context.state.starts
        changes = starts.changes(context.cluster, context.capacity.endless)
        if changes is not None:
            self._chain = Chain(context.cluster, changes, context.now, stamp=starts.stamp)

    def _holds(self, entry: QueueEntry, nodes: Bools, ahead: Sequence[int]) -> bool:
        """True where the start that was found in the last decision is that of this one."""
        context, found, chain = self._context, entry.first_start, self._chain
        starts = context.state.starts
        if found is None or chain is None or not self._is_stamped or found.nodes is None:
            return False
        if not starts.is_complete(len(ahead)):
            return False
        is_known = found.stamp == starts.stamp - 1 and found.fixed == self._fixed(entry)
        if not is_known or found.ahead != _those(self._tokens, ahead):
            return False
        numbers = np.array(_those(self._numbers, ahead), dtype=np.int64)
        if (numbers < 0).any() or not self._are_same(found.nodes, nodes):
            return False
        if not chain.holds(found, entry, numbers):
            return False
        found.stamp, found.nodes = starts.stamp, nodes
        return True

    def _fixed(self, entry: QueueEntry) -> object:
        """Return what a start depends on besides the room over time and the jobs ahead."""
        context = self._context
        loans = context.borrowing.version(entry.lane.team, entry.lane.priority)
        cluster = context.cluster
        return (cluster.table.nodes_version, cluster.teams.version, loans)

    def _is_recalled(self) -> bool:
        """Keep room for the heads as in the last decision, where these are the same."""
        context, chain = self._context, self._chain
        if chain is None or len(self._pending) < len(self._heads) or not self._is_stamped:
            return False
        table = context.cluster.table
        found = context.state.starts.recall(self._tokens, self._heads, chain.changes, table)
        if found is None:
            return False
        self._pending = []
        context.reserve(*found)
        return True

    def _settle(self) -> None:
        """Keep room for the heads that none is kept for yet, each beside those behind it."""
        context, table = self._context, self._context.cluster.table
        for each in self._pending:
            amounts = each.kept.amounts
            own = KeptRoom(each.kept.nodes, None if amounts is None else amounts.copy())
            new = each.keeping(own, each.version)
            context.reserve(*(other.beside(table, new) for other in context.reservations), new)
        self._pending = []

    @cached_property
    def _predicted_ends(self) -> list[tuple[float, ObjectKey]]:
        """When jobs without a time limit end; the first such end changes the reservations."""
        context = self._context
        ends = context.state.run_times.ends(context.now)
        context.wakes += [end for end, _ in ends[:1]]
        return ends

    def _ends_of(self, *, is_predicted: bool) -> Releases:
        """Return when jobs end that hold nodes; read once for all heads."""
        context, capacity = self._context, self._context.capacity
        known = self._ends.get(is_predicted)
        if known is None or known[0] != capacity.version:
            ends = capacity.ends(self._predicted_ends if is_predicted else ())
            known = (capacity.version, Releases(ends, context.cluster.table))
            self._ends[is_predicted] = known
        return known[1]

    def _find_start(
        self, entry: QueueEntry, gang: GangRequest, nodes: Bools, numbers: Sequence[int],
        *, is_predicted: bool,
    ) -> None:  # fmt: skip
        """Look for the start of a head; remembered while nothing that it depends on changes."""
        context = self._context
        if not context.policy.backfills:
            return
        ahead = [context.reservations[number] for number in numbers]
        loans = context.borrowing.version(entry.lane.team, entry.lane.priority)
        basis = (*context.basis(gang), loans, context.cluster.ends_version)
        basis = (*basis, *_basis_of(ahead))
        if is_predicted or any(each.is_predicted for each in ahead):
            # The first one is predicted again next.
            basis = (*basis, context.state.run_times.version, *self._predicted_ends[:1])
        found = entry.first_start
        before = None if found is None else found.start
        is_moving = bool(ahead) and before is not None and before.at <= context.now
        if found is None or found.basis != basis or is_moving:
            ends = self._ends_of(is_predicted=is_predicted)
            first = FirstStart(
                context, entry, gang, ends, nodes=nodes, ahead=ahead, is_predicted=is_predicted
            )  # fmt: skip
            start = first.find()
            is_same = found is not None and _is_same(before, start)
            token = found.token if found is not None and is_same else context.state.starts.draw()
            found = entry.first_start = FoundStart(basis, start, token)
            is_proven = loans is None and entry.likeness is None
            found.proof = first.proof if is_proven else None
        found.stamp = 0
        if self._is_stamped:
            found.stamp, found.nodes = context.state.starts.stamp, nodes
            found.fixed = self._fixed(entry)
            found.ahead = _those(self._tokens, numbers)


def _those(items: Sequence[T], numbers: Sequence[int]) -> tuple[T, ...]:
    if isinstance(numbers, range):  # of all
        return tuple(items)
    return tuple(items[number] for number in numbers)


def _is_same(start: Start | None, other: Start | None) -> bool:
    """True for one instant and place."""
    if start is None or other is None or start.at != other.at:
        return False
    pairs = zip(start.place, other.place, strict=False)
    return len(start.place) == len(other.place) and all(
        np.array_equal(one[0], two[0]) and np.array_equal(one[1], two[1]) and one[2] == two[2]
        for one, two in pairs
    )


def _basis_of(ahead: Sequence[QueueReservation]) -> Iterator[object]:
    """Yield what a start depends on of the reservations ahead."""
    for each in ahead:
        yield (each.starts_by, each.version, each.hold_seconds, each.likely_seconds)


def waits_for_room(context: PlanningContext, entry: QueueEntry) -> bool:
    """True for a waiting job that nothing but the room of others keeps from its place."""
    assert entry.group is not None
    shape = entry.group.shape
    if isinstance(shape.gang, InvalidGang) or shape.gang.topology.is_patient:
        return False
    if context.on_empty(shape) is not None:
        return False
    if quota_verdict(context.quota, entry) or context.limits.verdict(entry):
        return False
    if budget_verdict(context, entry):
        return False
    return context.fits_available(entry.group)
