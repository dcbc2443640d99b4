"""The reservation for the head of the queue: a job that waits too long gets the nodes it could use.

A job that does not fit does not hold up others, until it has waited for `starvation_seconds` as the
first of those that wait for other jobs' room. From then on later jobs are kept off its nodes.
"""

from __future__ import annotations

from functools import partial

from fairlead.decide.placement.budget import budget_verdict
from fairlead.decide.placement.context import Context
from fairlead.decide.placement.order import OrderKey
from fairlead.decide.placement.patience import waiting_since
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.placement.quota import quota_verdict
from fairlead.decide.placement.unplaceable import eligible_nodes
from fairlead.model.gangs import GangRequest, InvalidGang


class HeadReservation:
    """Finds the head of the queue as its turn passes, and reserves nodes for it when it is due."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._in_order = context.state.queue.in_order()
        self._next = next(self._in_order, None)

    def reserve_before(self, order: OrderKey) -> None:
        """Reserve nodes for the head, if it is due and its turn was before this job's."""
        if self._context.reserved_for is None:
            head = self._head(order)
            if head is not None:
                self._context.contained(head.job_key, partial(self._reserve, head))

    def _reserve(self, head: OrderKey) -> None:
        context = self._context
        job, gang = context.state.jobs[head.job_key].job, context.state.jobs[head.job_key].gang
        starves_at = waiting_since(job, context.began) + context.policy.starvation_seconds
        if context.now < starves_at:
            return
        assert isinstance(gang, GangRequest)
        constraints = [role.member.constraints for role in gang.roles]
        context.capacity.barred = eligible_nodes(context.cluster, constraints)
        context.reserved_for = head.job_key

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
    return context.fits_available(shape)
