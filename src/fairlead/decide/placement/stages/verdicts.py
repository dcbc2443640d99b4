"""The explain stage: verdicts for the head of the queue and for jobs without one, within bounds.

Verdicts are remembered per shape, and made again only where something that they depend on changed:
near the head of the queue soon, further back a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.places.kept_room import QueueReservation
from fairlead.decide.placement.places.search import plan_gang
from fairlead.decide.placement.places.unplaceable import (
    BLOCKERS_MAX,
    eligible_nodes,
    judge_present,
    reservation_verdict,
)
from fairlead.decide.placement.stages.budget import budget_verdict
from fairlead.decide.placement.stages.fit import Fit
from fairlead.decide.placement.waiting.order import OrderKey
from fairlead.decide.placement.waiting.patience import with_end
from fairlead.decide.placement.waiting.queue import Judgement, QueueEntry, RequestShape
from fairlead.decide.placement.waiting.quota import quota_verdict
from fairlead.decide.reasons import Outcome, Reason, Trait
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.gang.gangs import GangRequest, InvalidGang

_FAULT_LENGTH_MAX = 300


class Verdicts:
    """Makes the verdicts of one decision."""

    def __init__(self, context: PlanningContext, fit: Fit) -> None:
        self._context = context
        self._fit = fit
        #: Jobs at the head of the queue that would have been too much.
        self.left: list[OrderKey] = []
        self._judgements = 0
        #: Jobs without a verdict that this decision looks at.
        self._unwritten_count = 0
        #: The shapes that this decision has judged.
        self._judged: dict[int, RequestShape] = {}
        #: Whether there is room for a shape beside all that this decision has placed.
        self._has_room: dict[int, bool] = {}
        #: Of shapes that were judged before: whether all is as it was then.
        self._is_current: dict[int, bool] = {}
        #: Which of the jobs ahead a request of a lane would delay.
        self._delayed: dict[object, QueueReservation | None] = {}

    def due(self) -> Iterator[tuple[OrderKey, bool, bool]]:
        """Yield the head of the queue and jobs without a verdict; of each whether every number of
        its verdict counts, and whether it may wait for one. `judge` each before the next.
        """
        context = self._context
        context.capacity.kept = context.state.starts.together(context.capacity.kept)
        queue, policy = context.state.queue, context.policy
        fresh = queue.first(policy.fresh_jobs_max)
        unwritten = self._unwritten(policy.writes_max + len(context.placed))
        self._unwritten_count = len(unwritten)
        is_fresh, is_new = dict.fromkeys(fresh), dict.fromkeys(unwritten)
        for order in sorted(dict.fromkeys([*fresh, *unwritten])):
            key = order.job_key
            is_kept = key in context.placed or self._fit.preempting.is_nominated(key)
            if not is_kept and not context.is_left_alone(key):
                yield order, order in is_fresh, order not in is_new

    @property
    def has_more(self) -> bool:
        """True while jobs without a verdict are left for the next decision."""
        return self._context.state.queue.unwritten_count > self._unwritten_count

    def judge(self, order: OrderKey, *, may_wait: bool) -> Verdict | None:
        """Return the verdict on a job that waits; None where it was not got to, or this raised."""
        context, key = self._context, order.job_key
        verdict = context.contained(key, partial(self._verdict_of, key, may_wait=may_wait))
        if verdict is None and not context.is_left_alone(key):
            self.left.append(order)
        return verdict

    def of(self, key: ObjectKey) -> Verdict | None:
        """Return the verdict on one job that the stages before have left to wait; None where it was
        not got to.
        """
        context = self._context
        context.capacity.kept = context.state.starts.together(context.capacity.kept)
        return None if context.is_left_alone(key) else self._verdict_of(key, may_wait=False)

    def of_fault(self, key: ObjectKey, error: Exception) -> Verdict:
        """Return the verdict on a job over which this code raised; its shape has it as well."""
        fault = f"{type(error).__name__}: {error}"[:_FAULT_LENGTH_MAX]
        verdict = Verdict(Reason.SET_ASIDE, {"stage": "decided on", "fault": fault})
        group = self._context.state.jobs[key].group
        if group is not None:
            self._note(group.shape, verdict, basis=None)
        return verdict

    def _unwritten(self, count: int) -> list[OrderKey]:
        """Return the first jobs whose written verdict is out of date or missing."""
        context = self._context
        queue = context.state.queue
        found = context.memory.unwritten(lambda: [o.job_key for o in queue.unwritten(count)])
        entries = (context.state.jobs.get(key) for key in found)
        return [
            OrderKey(entry.group.lane.rank, entry.age)
            for entry in entries
            if entry is not None and entry.group is not None
        ]

    def judge_deep(self) -> None:
        """Look again, a few at a time, at shapes whose verdict is of other nodes than there are."""
        context = self._context
        queue, version = context.state.queue, context.cluster.table.nodes_version
        if context.now >= queue.deep_at:
            left = context.policy.judgements_max - self._judgements
            for shape in queue.outdated(version, left):
                context.contained(shape.first.job_key, partial(self._judge, shape))
            queue.deep_at = context.now + context.policy.deep_refresh_seconds
        if queue.has_outdated(version):
            context.wakes.append(queue.deep_at)

    def _verdict_of(self, key: ObjectKey, *, may_wait: bool) -> Verdict | None:
        """Return a waiting job's verdict; None when it was not got to."""
        entry = self._context.state.jobs[key]
        assert entry.group is not None
        verdict = self._remembered(key, entry.group.shape, may_wait=may_wait)
        if verdict is None:
            verdict = self._new_verdict(entry.group.shape)
        if verdict is None or verdict.outcome is not Outcome.WAITING:
            return verdict
        verdict = with_end(verdict, entry, self._context.now)
        over = self._context.limits.verdict(entry) or budget_verdict(self._context, entry)
        over = over or quota_verdict(self._context.quota, entry)
        over = over or self._fit.strict.verdict(entry)
        over = over or self._borrow_verdict(entry)
        if over is None and verdict.reason.has(Trait.WOULD_FIT):
            over = self._delayed_verdict(entry)
        return over or verdict

    def _delayed_verdict(self, entry: QueueEntry) -> Verdict | None:
        """Return which of several jobs ahead a job would delay if it began now: the first beside
        which, and beside those before it, it has no place. None where it is the only one, or none.
        """
        context, gang = self._context, entry.gang
        if len(context.reservations) < 2 or isinstance(gang, InvalidGang):
            return None
        queue, own = context.state.queue, context.state.queue.order_of(entry)
        ahead = tuple(
            each
            for each in context.reserved(context.respected(entry))
            if queue.order_of(context.state.jobs[each.head]) < own
        )
        asked = (gang, entry.lane, tuple(each.head for each in ahead))
        if asked not in self._delayed:
            self._delayed[asked] = self._first_delayed(entry, gang.accepting, ahead)
        found = self._delayed[asked]
        return None if found is None else reservation_verdict(found)

    def _first_delayed(
        self, entry: QueueEntry, gang: GangRequest, ahead: Sequence[QueueReservation]
    ) -> QueueReservation | None:
        if not ahead or self._has_place(entry, gang, ahead):
            return None
        few, many = 0, len(ahead)
        while many - few > 1:
            middle = (few + many) // 2
            if self._has_place(entry, gang, ahead[:middle]):
                few = middle
            else:
                many = middle
        return ahead[few]

    def _has_place(
        self, entry: QueueEntry, gang: GangRequest, beside: Sequence[QueueReservation]
    ) -> bool:
        capacity = self._context.limited(entry, gang, beside)
        mark = capacity.mark()
        plan = plan_gang(capacity, self._context.cluster.table, gang)
        capacity.rollback_to(mark)
        return plan is not None

    def _borrow_verdict(self, entry: QueueEntry) -> Verdict | None:
        """Return the verdict on a job that only a limit of borrowing keeps from its place."""
        context, lane, gang = self._context, entry.lane, entry.gang
        cluster = context.cluster
        may_borrow = cluster.teams.may_borrow(lane.team, lane.priority)
        if not (cluster.teams.has_limits and may_borrow) or isinstance(gang, InvalidGang):
            return None
        capacity = context.capacity
        mark = capacity.mark()
        plan = plan_gang(capacity, cluster.table, gang)
        capacity.rollback_to(mark)
        facts = {"team": lane.team, "borrowed": cluster.uses.borrowed[lane.team]}
        return None if plan is None else Verdict(Reason.BORROW_LIMIT, facts)

    def _remembered(self, key: ObjectKey, shape: RequestShape, *, may_wait: bool) -> Verdict | None:
        """Return the verdict on the shape of a job if it was made before, and is not due again."""
        standing = partial(self._standing, shape, may_wait=may_wait)
        return self._context.memory.verdict(key, standing, is_new=id(shape) in self._judged)

    def _standing(self, shape: RequestShape, *, may_wait: bool) -> Verdict | None:
        context, judgement = self._context, shape.judgement
        if judgement is None:
            return None
        due_at = judgement.made_at + context.policy.refresh_seconds
        if not self._holds(shape, judgement):
            if not may_wait or context.now >= due_at:
                return None
            context.wakes.append(due_at)
        return judgement.verdict

    def _holds(self, shape: RequestShape, judgement: Judgement) -> bool:
        """True while nothing has changed that a judgement on a shape depends on."""
        if id(shape) in self._judged:
            return judgement.basis is not None
        if id(shape) not in self._is_current:  # asked for each job of the shape
            is_same = judgement.basis == self._context.basis(shape.gang)
            self._is_current[id(shape)] = is_same and judgement.basis is not None
        return self._is_current[id(shape)]

    def _new_verdict(self, shape: RequestShape) -> Verdict | None:
        """Return the shape's verdict, made now; None when it was not got to."""
        if self._judgements >= self._context.policy.judgements_max or self._is_untried(shape):
            return None
        return self._judge(shape)

    def _is_untried(self, shape: RequestShape) -> bool:
        """True when the shape was not got to and may well fit."""
        if not self._fit.is_exhausted or isinstance(shape.gang, InvalidGang):
            return False
        if id(shape) not in self._has_room:
            capacity = self._context.capacity
            mark = capacity.mark()
            plan = plan_gang(capacity, self._context.cluster.table, shape.gang)
            capacity.rollback_to(mark)
            self._has_room[id(shape)] = plan is not None
        return self._has_room[id(shape)]

    def _judge(self, shape: RequestShape) -> Verdict:
        self._judgements += 1
        context = self._context
        verdict = context.on_empty(shape)
        if verdict is None:
            assert isinstance(shape.gang, GangRequest)
            verdict = judge_present(
                context.cluster, context.capacity, shape.gang, reservations=context.reservations
            )
            verdict = self._with_new_blockers(shape.gang, verdict)
        self._note(shape, verdict, basis=context.basis(shape.gang))
        return verdict

    def _note(
        self, shape: RequestShape, verdict: Verdict, *, basis: tuple[object, ...] | None
    ) -> None:
        context, before = self._context, shape.judgement
        if context.foreseen is not None:
            return
        version = context.cluster.table.nodes_version
        shape.judgement = Judgement(verdict, context.now, version, basis)
        self._judged[id(shape)] = shape
        if before is None or before.verdict.outcome != verdict.outcome:
            for group in shape.groups.values():
                for age in group.ages:
                    context.state.queue.mark_written(context.state.jobs[age.job_key])

    def _with_new_blockers(self, gang: GangRequest, verdict: Verdict) -> Verdict:
        """Add the jobs placed in this decision, whose claims are not booked yet."""
        placed = self._context.placed
        if not placed or verdict.reason.has(Trait.WOULD_FIT):
            return verdict
        constraints = [role.member.constraints for role in gang.roles]
        nodes = eligible_nodes(self._context.cluster, constraints)
        new = [key for key, slots in placed.items() if nodes[slots].any()]
        blockers = tuple(dict.fromkeys([*new[:BLOCKERS_MAX], *verdict.blockers]))[:BLOCKERS_MAX]
        return replace(verdict, blockers=blockers)
