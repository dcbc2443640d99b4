"""The reservation for the head of the queue: a job that waits too long gets room kept for it.

A job that does not fit does not hold up others, until it has waited for `starvation_seconds` as the
first of those that wait for other jobs' room. From then on later jobs leave it room: with backfill
(EASY; Lifka 1995, Mu'alem and Feitelson, TPDS 2001) they may start where they do not delay it.

It starts at the latest once so many running jobs have reached their limits that it fits. Until then
its places need only what those jobs do not give back; all other room, and what a later job returns
in time, is for others. Where the running jobs have no limits, or too few, all nodes that it could
use are kept.
"""

from __future__ import annotations

from functools import partial

from fairlead.decide.placement.budget import budget_verdict
from fairlead.decide.placement.context import Context
from fairlead.decide.placement.first_start import FirstStart
from fairlead.decide.placement.kept import Kept, Reservation
from fairlead.decide.placement.order import OrderKey
from fairlead.decide.placement.patience import waiting_since
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.placement.quota import quota_verdict
from fairlead.decide.placement.unplaceable import eligible_nodes
from fairlead.model.gangs import GangRequest, InvalidGang


class HeadReservation:
    """Finds the head of the queue as its turn passes, and keeps room for it when it is due."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._in_order = context.state.queue.in_order()
        self._next = next(self._in_order, None)

    def reserve_before(self, order: OrderKey) -> None:
        """Keep room for the head, if it is due and its turn was before this job's."""
        if self._context.reservation is None:
            head = self._head(order)
            if head is not None:
                self._context.contained(head.job_key, partial(self._reserve, head))

    def _reserve(self, head: OrderKey) -> None:
        context = self._context
        entry = context.state.jobs[head.job_key]
        starves_at = waiting_since(entry.job, context.began) + context.policy.starvation_seconds
        if context.now < starves_at:
            return
        assert isinstance(entry.gang, GangRequest)
        constraints = [role.member.constraints for role in entry.gang.roles]
        nodes = eligible_nodes(context.cluster, constraints)
        starts_by, amounts = None, None
        if context.policy.backfills:
            starts_by, amounts = FirstStart(context, entry, entry.gang).find()
        version = hash(None if amounts is None else amounts.tobytes())
        context.reserve(Reservation(head.job_key, Kept(nodes, amounts), starts_by, version))

    def _head(self, before: OrderKey) -> OrderKey | None:
        """Return the first job ahead of `before` that is not placed and waits for others' room."""
        context = self._context
        while (order := self._next) is not None and order < before:
            key = order.job_key
            judge = partial(waits_for_room, context, context.state.jobs[key])
            is_kept = key in context.placed or key in context.state.nominees
            if not is_kept and context.contained(key, judge, otherwise=False):
                return order
            self._next = next(self._in_order, None)
        return None


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
