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

import numpy as np

from fairlead.decide.placement.budget import budget_verdict
from fairlead.decide.placement.context import Context
from fairlead.decide.placement.ends import Ends
from fairlead.decide.placement.first_start import FirstStart
from fairlead.decide.placement.kept import Kept, Reservation, Start
from fairlead.decide.placement.order import OrderKey
from fairlead.decide.placement.patience import waiting_since
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.placement.quota import quota_verdict
from fairlead.decide.placement.unplaceable import eligible_nodes
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gangs import GangRequest, InvalidGang
from fairlead.model.nodes import Bools

#: Jobs that are looked at for further heads, once there is one.
_LOOKS_MAX = 1000


class HeadReservations:
    """Finds the heads of the queue as their turns pass, and keeps room for those that are due.

    A head is a job that waits for room on some nodes, of each of which at most
    `backfill_reservations_max` heads, itself included, could make use. So each pool of nodes has
    heads of its own.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._in_order = context.state.queue.in_order()
        self._next = next(self._in_order, None)
        #: The groups and namespaces whose jobs are no heads any more: quotas differ by namespace.
        self._seen: dict[tuple[int, str], None] = {}
        self._heads_max = context.policy.backfill_reservations_max
        #: int64[N]: the heads that could use each node.
        self._covered = np.zeros(context.cluster.table.capacity, dtype=np.int64)
        #: The ends of jobs, by whether they are predicted, and the version that they are of.
        self._ends: dict[bool, tuple[int, Ends]] = {}

    def reserve_before(self, order: OrderKey) -> None:
        """Keep room for the heads that are due, of those whose turns were before this job's."""
        context = self._context
        while (head := self._next) is not None and head < order:
            self._next = next(self._in_order, None)
            key = head.job_key
            entry = context.state.jobs[key]
            kind = (id(entry.group), head.age.namespace)
            is_kept = key in context.placed or key in context.state.nominees
            if not is_kept and kind not in self._seen:
                context.contained(key, partial(self._consider, kind, entry))

    def _consider(self, kind: tuple[int, str], entry: QueueEntry) -> None:
        context, gang = self._context, entry.gang
        if isinstance(gang, InvalidGang):
            self._seen[kind] = None
            return
        nodes = eligible_nodes(context.cluster, [role.member.constraints for role in gang.roles])
        has_heads = self._covered[nodes].max(initial=0) >= self._heads_max
        if has_heads or not waits_for_room(context, entry):
            self._seen[kind] = None
            return
        if not self._covered.any():
            self._in_order = islice(self._in_order, _LOOKS_MAX)
        self._covered += nodes
        self._end_where_covered()
        starves_at = waiting_since(entry.job, context.began) + context.policy.starvation_seconds
        if context.now < starves_at:
            return
        self._reserve(entry, gang, nodes)

    def _end_where_covered(self) -> None:
        """Look for no more heads once each node has as many as it may have."""
        if (self._covered[self._context.cluster.table.exists] >= self._heads_max).all():
            self._in_order, self._next = iter(()), None

    def _reserve(self, entry: QueueEntry, gang: GangRequest, nodes: Bools) -> None:
        context = self._context
        since = context.kept_since.setdefault(entry.age.job_key, context.now)
        predicted_until = since + context.policy.predictions_seconds_max
        is_predicted = context.now < predicted_until and context.state.run_times.is_enough
        is_predicted = is_predicted and context.policy.backfills
        start = self._first_start(entry, gang, nodes, is_predicted=is_predicted)
        if start is None or not start.place:  # what is kept is all, for a time that is not known
            self._covered[nodes] = self._heads_max
            self._end_where_covered()
        start, starts_by = start or Start(0.0), start and max(start.at, context.now)
        amounts = None if start.amounts is None else start.amounts.copy()
        new = Reservation(
            entry.age.job_key, Kept(nodes, amounts), starts_by, is_predicted, start.version,
            start.place, entry.hold_seconds, context.likely_seconds(entry),
        )  # fmt: skip
        table = context.cluster.table
        context.reserve(*(each.beside(table, new) for each in context.reservations), new)

    @cached_property
    def _predicted_ends(self) -> list[tuple[float, ObjectKey]]:
        """When jobs without a time limit end; the first such end changes the reservations."""
        context = self._context
        ends = context.state.run_times.ends(context.now)
        context.wakes += [end for end, _ in ends[:1]]
        return ends

    def _ends_of(self, *, is_predicted: bool) -> Ends:
        """Return when jobs end that hold nodes; read once for all heads."""
        context, capacity = self._context, self._context.capacity
        known = self._ends.get(is_predicted)
        if known is None or known[0] != capacity.version:
            ends = capacity.ends(self._predicted_ends if is_predicted else ())
            known = (capacity.version, Ends(ends, context.cluster.table))
            self._ends[is_predicted] = known
        return known[1]

    def _first_start(
        self, entry: QueueEntry, gang: GangRequest, nodes: Bools, *, is_predicted: bool
    ) -> Start | None:
        """Return what `FirstStart` finds; remembered while nothing that it depends on changes."""
        context = self._context
        if not context.policy.backfills:
            return None
        ahead = [each for each in context.reservations if each.place and each.kept.meets(nodes)]
        loans = context.borrowing.version(entry.lane.team, entry.lane.priority)
        basis = (*context.basis(gang), loans, context.cluster.ends_version)
        basis = (*basis, *_basis_of(ahead))
        if is_predicted or any(each.is_predicted for each in ahead):
            # The first one is predicted again next.
            basis = (*basis, context.state.run_times.version, *self._predicted_ends[:1])
        found = entry.first_start
        is_moving = bool(ahead) and found is not None and found[1] and found[1].at <= context.now
        if found is None or found[0] != basis or is_moving:
            ends = self._ends_of(is_predicted=is_predicted)
            first = FirstStart(
                context, entry, gang, ends, nodes=nodes, ahead=ahead, is_predicted=is_predicted
            )  # fmt: skip
            found = entry.first_start = (basis, first.find())
        return found[1]


def _basis_of(ahead: Sequence[Reservation]) -> Iterator[object]:
    """Yield what a start depends on of the reservations ahead."""
    for each in ahead:
        yield (each.starts_by, each.version, each.hold_seconds, each.likely_seconds)


def waits_for_room(context: Context, entry: QueueEntry) -> bool:
    """True for a waiting job that nothing but the room of others keeps from its place."""
    assert entry.group is not None
    shape = entry.group.shape
    if isinstance(shape.gang, InvalidGang) or shape.gang.topology.is_patient:
        return False
    if context.on_empty(shape) is not None:
        return False
    if quota_verdict(context.cluster, entry) or context.limits.verdict(entry):
        return False
    if budget_verdict(context, entry):
        return False
    return context.fits_available(entry.group)
