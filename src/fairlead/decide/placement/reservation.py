"""Reservations for the heads of the queue: a job that waits too long gets room kept for it.

A job that does not fit does not hold up others, until it has waited for `starvation_seconds` as the
first of those that wait for other jobs' room. From then on later jobs leave it room: with backfill
(EASY; Lifka 1995, Mu'alem and Feitelson, TPDS 2001) they may start where they do not delay it.

It starts at the latest once so many running jobs have reached their limits that it fits. Until then
its places need only what those jobs do not give back; all other room, and what a later job returns
in time, is for others. Where the running jobs have no limits, or too few, all nodes that it could
use are kept.
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import islice

from fairlead.decide.placement.budget import budget_verdict
from fairlead.decide.placement.context import Context
from fairlead.decide.placement.first_start import FirstStart
from fairlead.decide.placement.kept import Kept, Reservation
from fairlead.decide.placement.order import OrderKey
from fairlead.decide.placement.patience import waiting_since
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.placement.quota import quota_verdict
from fairlead.decide.placement.unplaceable import eligible_nodes
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gangs import GangRequest, InvalidGang
from fairlead.model.nodes import Bools, Ints

#: Jobs that are looked at for further heads, once there is one.
_LOOKS_MAX = 1000


class HeadReservations:
    """Finds the heads of the queue as their turns pass, and keeps room for those that are due.

    A head is the first job that waits for room on some nodes: it and the heads before it could use
    no node in common. So each pool of nodes has one of its own.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._in_order = context.state.queue.in_order()
        self._next = next(self._in_order, None)
        #: The groups and namespaces of which a job was asked: quotas differ by namespace.
        self._seen: dict[tuple[int, str], None] = {}
        #: bool[N]: the nodes that have a head.
        self._covered: Bools | None = None

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
        self._seen[kind] = None
        if isinstance(gang, InvalidGang):
            return
        nodes = eligible_nodes(context.cluster, [role.member.constraints for role in gang.roles])
        if self._covered is not None and (self._covered & nodes).any():
            return
        if not waits_for_room(context, entry):
            return
        if self._covered is None:
            self._in_order = islice(self._in_order, _LOOKS_MAX)
        self._covered = nodes if self._covered is None else self._covered | nodes
        starves_at = waiting_since(entry.job, context.began) + context.policy.starvation_seconds
        if context.now < starves_at:
            return
        since = context.kept_since.setdefault(entry.age.job_key, context.now)
        predicted_until = since + context.policy.predictions_seconds_max
        is_predicted = context.now < predicted_until and context.state.run_times.is_enough
        is_predicted = is_predicted and context.policy.backfills
        predicted = self._predicted_ends if is_predicted else None
        starts_by, amounts = self._first_start(entry, gang, predicted)
        version = hash(None if amounts is None else amounts.tobytes())
        new = Reservation(entry.age.job_key, Kept(nodes, amounts), starts_by, is_predicted, version)
        context.reserve(*context.reservations, new)

    @cached_property
    def _predicted_ends(self) -> list[tuple[float, ObjectKey]]:
        """When jobs without a time limit end; the first such end changes the reservations."""
        context = self._context
        ends = context.state.run_times.ends(context.now)
        context.wakes += [end for end, _ in ends[:1]]
        return ends

    def _first_start(
        self, entry: QueueEntry, gang: GangRequest, predicted: list[tuple[float, ObjectKey]] | None
    ) -> tuple[float | None, Ints | None]:
        """Return what `FirstStart` finds; remembered while nothing that it depends on changes."""
        context, group = self._context, entry.group
        assert group is not None
        if not context.policy.backfills:
            return None, None
        loans = context.borrowing.version(entry.lane.team, entry.lane.priority)
        basis = (*context.basis(gang), loans, context.cluster.ends_version)
        if predicted is not None:  # the first one is predicted again next
            basis = (*basis, context.state.run_times.version, *predicted[:1])
        if group.first_start is None or group.first_start[0] != basis:
            group.first_start = (basis, FirstStart(context, entry, gang, predicted).find())
        starts_by, amounts = group.first_start[1]
        return None if starts_by is None else max(starts_by, context.now), amounts


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
