"""Strict order within a team: no job starts before an earlier one that waits for the same nodes.

Teams with the queueing strategy StrictFIFO give up utilisation for order: a large job of theirs is
not passed by small ones. Only nodes that the earlier job could use count, so a job that waits for
one pool holds up none of another pool, and none of another team.
"""

from __future__ import annotations

from functools import partial

from fairlead.api.cluster.team import QueueingStrategy
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.places.unplaceable import eligible_nodes
from fairlead.decide.placement.stages.reservation import waits_for_room
from fairlead.decide.placement.waiting.order import OrderKey
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Verdict
from fairlead.model.gang.gangs import InvalidGang
from fairlead.model.inventory.nodes import Bools


class StrictOrder:
    """The jobs that hold up others, found as the queue is walked in order; one per walk."""

    def __init__(self, context: PlanningContext) -> None:
        self._context = context
        self._teams = frozenset(
            team.metadata.name
            for team in context.cluster.teams
            if team.spec.queueing_strategy is QueueingStrategy.STRICT_FIFO
        )
        self._in_order = context.state.queue.in_order() if self._teams else iter(())
        self._next = next(self._in_order, None)
        #: By team, in order: jobs that wait for room, and bool[N], the nodes that each could use.
        self._heads: dict[str, list[tuple[OrderKey, Bools]]] = {}

    def verdict(self, entry: QueueEntry) -> Verdict | None:
        """Return that a job waits for an earlier one of its team; None where it does not.

        Every job before it must have had its turn.
        """
        team, gang = entry.lane.team, entry.gang
        if team not in self._teams or isinstance(gang, InvalidGang):
            return None
        assert entry.group is not None
        order = OrderKey(entry.group.lane.rank, entry.age)  # the rank by which the queue is walked
        self._walk(order)
        own: Bools | None = None
        for head, nodes in self._heads.get(team, ()):
            if head >= order:
                break
            own = self._nodes_of(entry) if own is None else own
            if (own & nodes).any():
                key = head.job_key
                return Verdict(Reason.BEHIND_TEAM_JOB, {"job": "/".join(key)}, (key,))
        return None

    def _walk(self, before: OrderKey) -> None:
        """Find the jobs ahead of `before` that hold up others: one for each part of the nodes."""
        context = self._context
        while (order := self._next) is not None and order < before:
            self._next = next(self._in_order, None)
            key = order.job_key
            entry = context.state.jobs[key]
            is_kept = key in context.placed or key in context.state.sets.nominees
            if entry.lane.team not in self._teams or is_kept or isinstance(entry.gang, InvalidGang):
                continue
            # A job whose last write failed waits as before; it is not judged meanwhile.
            was_refused = key in context.state.write_blocked
            judge = partial(waits_for_room, context, entry)
            if context.contained(key, judge, otherwise=was_refused):
                self._note(order, entry)

    def _note(self, order: OrderKey, entry: QueueEntry) -> None:
        heads = self._heads.setdefault(entry.lane.team, [])
        nodes = self._nodes_of(entry)
        if not any((nodes <= known).all() for _, known in heads):
            heads.append((order, nodes))

    def _nodes_of(self, entry: QueueEntry) -> Bools:
        assert not isinstance(entry.gang, InvalidGang)
        constraints = [role.member.constraints for role in entry.gang.roles]
        return eligible_nodes(self._context.cluster, constraints)
