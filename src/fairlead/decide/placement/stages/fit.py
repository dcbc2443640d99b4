"""The fit stage: waiting gangs are tried in order, and gangs with a next attempt are repaired.

Everything is tried in one transaction, so each job sees what the jobs before it took.
"""

from __future__ import annotations

import heapq
from functools import partial
from math import inf

from fairlead.decide.admission.unresolved import unresolved_verdict
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.repair import GangRelease, Wait, repair
from fairlead.decide.placement.evict.preempt import Preempting
from fairlead.decide.placement.places.search import Plan
from fairlead.decide.placement.stages.budget import budget_verdict
from fairlead.decide.placement.stages.reservation import HeadReservations
from fairlead.decide.placement.stages.strict_order import StrictOrder
from fairlead.decide.placement.waiting.order import OrderKey
from fairlead.decide.placement.waiting.queue import EqualJobs, QueueEntry
from fairlead.decide.placement.waiting.quota import held_verdict
from fairlead.decide.placement.waiting.run_times import Likeness
from fairlead.decide.verdict import ObjectKey
from fairlead.model.claimed.devices import UnmatchedDevices
from fairlead.model.gang.gangs import GangRequest, InvalidGang

#: Stands for a repair where `Recall.failed` has a number of reservations.
_REPAIR = -1


class Fit:
    """Tries what may fit, within the bounds of one decision."""

    def __init__(self, context: PlanningContext) -> None:
        self._context = context
        self.preempting = Preempting(context)
        self._heads = HeadReservations(context)
        #: As of the last pass.
        self.strict = StrictOrder(context)
        self._evaluations = self._passes = 0

    def run(self) -> list[OrderKey]:
        """Try everything that may fit; return what was left out because it was too much."""
        self.preempting.place_nominees()
        is_first = True
        while True:
            placed_before = len(self._context.placed)
            left = self._pass(with_repairs=is_first)
            is_first = False
            self._passes += 1
            if left or len(self._context.placed) == placed_before or self._is_all_placed:
                break
        memory, most = self._context.memory, self._context.policy.evaluations_max
        if self._evaluations + len(memory.recall.failed) < most:
            memory.forget_failures()
        return left

    def reserve_for_heads(self) -> None:
        """Keep room for all heads that are due, also for those after which no job comes."""
        self._heads.reserve_before(None)

    @property
    def is_exhausted(self) -> bool:
        """True once as much was tried or placed as one decision may."""
        policy = self._context.policy
        return (
            self._evaluations >= policy.evaluations_max
            or len(self._context.placed) >= policy.placements_max
        )

    @property
    def _is_all_placed(self) -> bool:
        """True once no job of the queue is left."""
        placed, jobs = self._context.placed, self._context.state.jobs
        waited = sum(jobs[key].group is not None for key in placed)
        return waited == len(self._context.state.queue)

    def _pass(self, *, with_repairs: bool) -> list[OrderKey]:
        context = self._context
        self.strict = StrictOrder(context)
        queue, jobs = context.state.queue, context.state.jobs
        groups = self._candidates()
        if with_repairs:
            groups += self.preempting.seekers()
        distinct = {id(group): group for group in groups}
        heap: list[tuple[OrderKey, EqualJobs | None, int]] = [
            (group.order(0), group, 0) for group in distinct.values()
        ]
        if with_repairs:
            repairs = (
                jobs[key] for key in context.state.sets.repairable if self._is_to_repair(key)
            )
            heap += [(queue.order_of(entry), None, 0) for entry in repairs]
        heapq.heapify(heap)
        while heap:
            order, group, index = heapq.heappop(heap)
            if self.is_exhausted:
                return [order, *sorted(item[0] for item in heap)]
            key = order.job_key
            if group is None:
                self._try_repair(order, jobs[key])
                continue
            self._heads.reserve_before(order)
            is_kept = key in context.placed or self.preempting.is_nominated(key)
            skipped = is_kept or context.is_left_alone(key)
            if not skipped and held_verdict(context.quota, jobs[key]) is not None:
                following = group.of_other_namespace(index)
            else:
                attempt = partial(self._try_first, group, jobs[key])
                goes_on = skipped or context.contained(key, attempt, otherwise=True)
                following = index + 1 if goes_on else self._next_shorter(group, index)
            if following is not None and following < len(group.ages):
                heapq.heappush(heap, (group.order(following), group, following))
        return []

    def _is_to_repair(self, key: ObjectKey) -> bool:
        """True for a gang that this decision, or a look ahead, has not placed or released."""
        context = self._context
        is_done = key in context.placed or context.state.jobs[key].group is not None
        return key not in context.state.sets.leaving and not is_done

    def _try_repair(self, order: OrderKey, entry: QueueEntry) -> None:
        """Have a gang repaired; its places are not sought again before something has changed that
        it could use: many gangs that wait must not keep the others from their turn.
        """
        context, gang = self._context, entry.gang
        basis: tuple[object, ...] | None = None
        if isinstance(gang, GangRequest):
            if gang.is_elastic:
                self._heads.reserve_before(order)
            loans = context.borrowing.version(entry.lane.team, entry.lane.priority)
            basis = (*context.basis(gang), loans)
            if context.cluster.table.labels.has_spares:
                basis = (*basis, *context.basis(gang.taking_spares))
        failure = (self._passes, order.job_key, _REPAIR)
        is_known = basis is not None and entry.unrepaired_on == basis
        has_failed = context.memory.has_failed(failure, is_known=is_known)
        self._evaluations += not has_failed
        attempt = partial(self._repair, entry, may_fit=not has_failed)
        is_unrepaired = context.contained(order.job_key, attempt, otherwise=False)
        if is_unrepaired and context.foreseen is None:
            entry.unrepaired_on = basis

    def _repair(self, entry: QueueEntry, *, may_fit: bool) -> bool:
        """Place a gang's next attempt, or let it wait with what it has, or release that.

        Returns whether it waits because there is no place for those that have to move.
        """
        context, gang = self._context, entry.gang
        reaches = context.cluster.jobs[entry.age.job_key].reaches
        if not isinstance(reaches, tuple) and entry.job.spec.adopts is None:
            verdict = unresolved_verdict(reaches)
            is_brief = isinstance(reaches, UnmatchedDevices)
            found = Wait(verdict, inf) if is_brief else GangRelease(verdict)
            context.outcomes.append((entry, found))
            return False
        growth = context.growth(entry)
        is_invalid = isinstance(gang, InvalidGang)
        room = context.capacity.unbarred() if is_invalid else context.limited(entry, gang)
        found = repair(room, entry, context.policy, context.now, growth=growth, may_fit=may_fit)
        if isinstance(found, Plan):
            context.note_placed(entry, found)
        else:
            context.outcomes.append((entry, found))
        return isinstance(found, Wait)

    def _candidates(self) -> list[EqualJobs]:
        """Return the groups that may fit now; where these are too many, some of them in turn."""
        queue, memory = self._context.state.queue, self._context.memory
        due = memory.turn(self._passes)
        if due is not None:
            return [g for g in queue.groups(lambda _: True) if g.order(0).job_key in due]
        groups = [g for shape in queue.candidates() for g in shape.groups.values()]
        firsts = [group.order(0).job_key for group in groups] if queue.has_unseen else None
        memory.note_turn(firsts)
        return groups

    def _next_shorter(self, group: EqualJobs, index: int) -> int | None:
        """Return which job of a group, after one that has no place, respects fewer reservations;
        None where there is none.
        """
        context = self._context
        entry = context.state.jobs[group.ages[index].job_key]
        sure, predicted = -inf, -inf
        for each in context.reserved(context.respected(entry)):
            if each.starts_by is not None:
                sure = max(sure, each.starts_by - context.now)
                if each.is_predicted:
                    predicted = max(predicted, each.starts_by - context.now)
        if sure == -inf:
            return None

        def is_short(likeness: Likeness) -> bool:
            seconds = context.state.run_times.predicted(likeness)
            return seconds is not None and seconds <= predicted

        return group.following(index, sure, is_short)

    def _try_first(self, group: EqualJobs, entry: QueueEntry) -> bool:
        """Place the group's next job, or keep a place for it that others leave.

        False when neither is possible; then it is not possible for the others either.
        """
        context, shape = self._context, group.shape
        assert isinstance(shape.gang, GangRequest)
        if context.limits.verdict(entry) or budget_verdict(context, entry):
            return False
        if self.strict.verdict(entry):
            return False
        loans = context.borrowing.version(entry.lane.team, entry.lane.priority)
        respected = context.respected(entry)
        reserved = context.reserved(respected)
        versions = (reservation.version for reservation in reserved)
        basis = (*context.basis(shape.gang), loans, *versions)
        failure = (self._passes, entry.age.job_key, respected)
        is_known = context.has_failed(shape, respected, basis)
        if not context.memory.has_failed(failure, is_known=is_known):
            self._evaluations += 1
            plan = context.plan(entry, shape.gang, reserved)
            if plan is not None:
                context.note_placed(entry, plan)
                return True
            context.note_failure(shape, respected, basis)
        return self.preempting.nominate(group, entry)
