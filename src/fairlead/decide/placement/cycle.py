"""One decision of the planner: order, quota, fit, repair, explain, decide.

    order      `order.py` ranks the lanes of the queue, `queue.py` keeps their jobs
    limits     `job_limits.py`: which jobs their teams and users may have in the queue, and start
    quota      `quota.py`: would the quotas of a job's namespace take its pods?
    fit        `fit.py` tries gangs in order, `strict_order.py` keeps some teams to it; `search.py`
               finds places; `repair.py` next attempts
    preempt    `preempt.py`: of the gangs that do not fit, which get the room of others;
               `victim_search.py` and `victims.py` find the cheapest whole gangs for it
    empty      `consolidation.py`: in quiet times, which gangs move so that nodes can go
    explain    `verdicts.py`: why the others wait; `unplaceable.py` finds the reason
    decide     `outcome.py` makes the writes

Everything is tried in one transaction, which is rolled back: a placement becomes real when the
write of it is seen. The work is bounded and grows with what changed.
"""

from __future__ import annotations

from functools import partial
from heapq import nsmallest
from math import inf

from fairlead.api.jobs.placement import Placement, PreemptionKind
from fairlead.api.values.times import format_time
from fairlead.decide.admission.unresolved import unresolved_verdict
from fairlead.decide.placement.actions import (
    Action,
    PlaceJob,
    RecordActualPlacement,
    WithdrawNomination,
    WithdrawPreemption,
)
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.memory import PlanMemory
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.desk.repair import GangRelease, PlacedGang, Wait
from fairlead.decide.placement.evict.consolidation import Consolidation
from fairlead.decide.placement.outcome import (
    changed_verdict,
    move_job,
    nominate_job,
    placed_job,
    preempt_job,
    release_job,
)
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.search import Plan
from fairlead.decide.placement.stages.fit import Fit
from fairlead.decide.placement.stages.verdicts import Verdicts
from fairlead.decide.placement.waiting.order import OrderKey
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Reason
from fairlead.decide.verdict import Decision, ObjectKey, Verdict

_PENDING_SHOWN_MAX = 10


def decide(
    state: PlacementState,
    policy: PlacementPolicy,
    now: float,
    *,
    contains_faults: bool = False,
    memory: PlanMemory | None = None,
) -> Decision[Action]:
    """Return the placements, releases and changed verdicts for the state as it is.

    The state is left as it was, but for what it remembers of verdicts already made. The caller
    must have seen its own earlier writes (the loop's barrier), or jobs could be placed twice over.

    With `contains_faults`, a job over which this code raises gets a verdict that says so, and an
    entry in `faults`; nothing else changes by it. It is left alone until it, or a node, changes.

    `memory` keeps the answers of earlier decisions that were used; a `GivenMemory` has those of
    another decision, on the same objects, in place of what the state remembers.
    """
    state.suspect(now, policy.suspect_seconds)
    # Before the stages begin to read the queue: with ranks of two instants the head of the
    # queue would be ahead of itself, and wait for its own reservation.
    state.advance(now)
    with state.cluster.transaction() as transaction:
        capacity = PresentCapacity(state.cluster, transaction)
        context = _DecisionContext(state, policy, now, capacity)
        context.memory = memory or context.memory
        context.kept_since = state.kept_since
        return _Cycle(context, contains_faults=contains_faults).run()


def answer_now(
    state: PlacementState, key: ObjectKey, now: float, policy: PlacementPolicy
) -> tuple[Verdict | None, Placement | None]:
    """Return what a decision made now would say of a waiting job, None where it is not got to; and
    the place that it would get, where it would get one.

    The decision is made as far as it takes for that, and the planner remembers nothing of it.
    """
    state.suspect(now, policy.suspect_seconds)
    state.advance(now)
    with state.cluster.transaction() as transaction:
        capacity = PresentCapacity(state.cluster, transaction)
        context = _DecisionContext(state, policy, now, capacity)
        context.foreseen = {}
        cycle = _Cycle(context, contains_faults=False)
        return cycle.verdict_of(key), cycle.place_of(key)


class _DecisionContext(PlanningContext):
    """That of a decision, which is written."""

    def note_placed(self, entry: QueueEntry, plan: Plan) -> None:
        """Take in the place of a job. Its write is made first: if that raises, nothing is taken."""
        found = placed_job(self.cluster, entry, plan, self.now)
        super().note_placed(entry, plan)
        self.outcomes.append((entry, found))


class _Cycle:
    """The actions and verdicts of one decision, as its stages make them."""

    def __init__(self, context: PlanningContext, *, contains_faults: bool) -> None:
        self._context = context
        self._state = context.state
        self._at = format_time(context.now)
        self._actions: list[Action] = []
        self._verdicts: dict[ObjectKey, Verdict] = {}
        self._fit = Fit(context)
        self._preempting = self._fit.preempting
        self._explaining = Verdicts(context, self._fit)
        if contains_faults:
            context.on_fault = self._note_fault

    def run(self) -> Decision[Action]:
        """Decide."""
        self._settle()
        self._leave(self._try())
        self._nominate()
        self._leave(self._explain())
        self._preempt()
        self._consolidate()
        if self._context.policy.expects_places:  # last, as nothing else of this decision knows
            self._fit.reserve_for_heads()
            self._state.kept_places = self._kept_places()
        if self._state.queue.has_unseen:
            again_at = self._context.now + self._context.policy.deep_refresh_seconds
            self._context.wakes.append(again_at)
        accepts_at = self._state.patience.next_end()
        opens_at = self._state.cluster.table.windows.next_opening(self._context.now)
        self._context.wakes += [at for at in (accepts_at, opens_at) if at is not None]
        wake_at = min(self._context.wakes, default=None)
        return Decision(tuple(self._actions), self._verdicts, wake_at, self._context.faults)

    def _kept_places(self) -> dict[ObjectKey, tuple[str, ...]]:
        """Return the nodes of the jobs that room is kept for, where they are known."""
        names = self._state.cluster.table.names
        return {
            each.head: tuple(names[slot] for slots, _, _ in each.place for slot in slots.tolist())
            for each in self._context.reservations if each.place
        }  # fmt: skip

    def verdict_of(self, key: ObjectKey) -> Verdict | None:
        """Return the verdict on one job, without those on jobs that the decision leaves to wait."""
        unresolved = self._state.unresolved.get(key)
        if unresolved is not None:
            return unresolved_verdict(unresolved)
        self._try()
        self._nominate()
        if key in self._verdicts or self._state.jobs[key].group is None:
            return self._verdicts.get(key)
        return self._explaining.of(key)

    def place_of(self, key: ObjectKey) -> Placement | None:
        """Return the place that a job has got so far."""
        places = (a for a in self._actions if isinstance(a, PlaceJob))
        return next((a.placement for a in places if a.job.metadata.key == key), None)

    def _settle(self) -> None:
        """Decide about the jobs that are not to be placed now."""
        contained, state = self._context.contained, self._state
        for key in sorted(state.sets.releasable):
            contained(key, partial(self._release, key))
        for key in sorted(state.sets.held):
            contained(key, partial(self._write, key, Verdict(Reason.HELD), True))
        for key, unresolved in sorted(state.unresolved.items()):
            contained(key, partial(self._write, key, unresolved_verdict(unresolved), True))
        unsaid = [key for key in state.unsaid if not self._context.is_left_alone(key)]
        for key in nsmallest(self._context.policy.writes_max, unsaid):
            contained(key, partial(self._write, key, state.unsaid[key], True))
        if len(unsaid) > self._context.policy.writes_max:
            self._context.wakes.append(self._context.now)
        for job, placement in sorted(state.cluster.moved(), key=lambda each: each[0].metadata.key):
            if not self._context.is_left_alone(job.metadata.key):
                self._actions.append(RecordActualPlacement(job, placement))

    def _nominate(self) -> None:
        """Write the nominations of this decision, and why the nominated gangs wait."""
        names = self._state.cluster.table.names
        for key, found in self._preempting.made.items():
            job, victims = self._state.jobs[key].job, tuple(v.key for v in found.victims)
            facts = {"victims": len(victims), "nodes": len(found.plan.distinct_slots)}
            verdict, kind = Verdict(Reason.PREEMPTING, facts, victims), PreemptionKind.PREEMPT
            if not victims:
                verdict = Verdict(Reason.RESERVED, {"nodes": facts["nodes"]})
            elif key == self._preempting.moves_for:
                facts = {"moves": len(victims), "nodes": facts["nodes"]}
                kind = PreemptionKind.MOVE
                verdict = Verdict(Reason.DEFRAGMENTING, facts, victims)
            self._verdicts[key] = verdict
            self._actions.append(nominate_job(job, found, verdict, names, at=self._at, kind=kind))
        for key, standing in self._preempting.standing.items():
            self._write(key, self._preempting.verdict(standing), True)

    def _explain(self) -> list[OrderKey]:
        """Write why jobs wait; return those at the head that would have been too much."""
        context, written = self._context, 0
        for order, is_fresh, may_wait in self._explaining.due():
            if written >= context.policy.writes_max:
                context.wakes.append(context.now)
                break
            verdict = self._explaining.judge(order, may_wait=may_wait)
            if verdict is not None:
                written += self._write(order.job_key, verdict, is_fresh)
        if self._explaining.has_more and written:
            context.wakes.append(context.now)
        self._explaining.judge_deep()
        return self._explaining.left

    def _note_fault(self, key: ObjectKey, error: Exception) -> None:
        self._write(key, self._explaining.of_fault(key, error), True)

    def _preempt(self) -> None:
        """Request of victims to leave; withdraw what does not hold any more."""
        written = {action.job.metadata.key for action in self._actions}
        for key in self._preempting.dropped:
            if key not in written:
                self._actions.append(WithdrawNomination(self._state.jobs[key].job))
        for other, victim in self._preempting.requests():
            if (key := victim.age.job_key) not in written:
                asked = preempt_job(
                    victim.job, other.job, other.lane.priority, self._at,
                    place=self._preempting.moves.get(key), names=self._state.cluster.table.names,
                )  # fmt: skip
                self._actions.append(asked)
        for entry in self._preempting.withdrawals():
            if entry.age.job_key not in written:
                self._actions.append(WithdrawPreemption(entry.job))

    def _consolidate(self) -> None:
        """Request of gangs to move so that nodes of pools empty, when there is nothing else."""
        if self._actions:
            return
        found = Consolidation(self._context, self._preempting.search).find()
        names = self._state.cluster.table.names
        for key, plan in found.places.items():
            job, leaves = self._state.jobs[key].job, found.nodes[key]
            self._actions.append(move_job(job, leaves, self._at, place=plan, names=names))

    def _release(self, key: ObjectKey) -> None:
        # A member that another scheduler may be about to bind keeps its place until it is gone.
        if not self._state.cluster.ledger.awaits_binding(key):
            self._actions.append(release_job(self._state.jobs[key].job, None, self._at))

    def _try(self) -> list[OrderKey]:
        """Write what becomes of the gangs that are tried; return what was left out."""
        left, contained = self._fit.run(), self._context.contained
        for entry, found in self._context.outcomes:
            contained(entry.age.job_key, partial(self._take_in, entry, found))
        return left

    def _take_in(self, entry: QueueEntry, found: PlacedGang | Wait | GangRelease) -> None:
        key = entry.age.job_key
        match found:
            case PlacedGang(verdict, action):
                self._actions.append(action)
                self._verdicts[key] = verdict
            case Wait(verdict, until):
                self._context.wakes += [until] if until < inf else []
                self._write(key, verdict, True)
            case GangRelease(verdict):
                if verdict is not None:
                    self._verdicts[key] = verdict
                self._actions.append(release_job(entry.job, verdict, self._at))

    def _write(self, key: ObjectKey, verdict: Verdict, is_fresh: bool) -> bool:  # noqa: FBT001
        """Write a verdict if the job's status does not say it; True when it is written."""
        self._verdicts[key] = verdict
        entry = self._state.jobs[key]
        job = entry.job
        is_nominee = key in self._state.sets.nominees
        if is_nominee and (entry.group is None or key in self._preempting.dropped):
            return False  # the nomination is withdrawn first
        write = changed_verdict(job, verdict, self._at, is_fresh=is_fresh)
        if write is None:
            return False
        self._actions.append(write)
        return True

    def _leave(self, orders: list[OrderKey]) -> None:
        """Leave the rest to the next decision, at once."""
        if orders:
            self._context.wakes.append(self._context.now)
        for order in orders[:_PENDING_SHOWN_MAX]:
            if order.job_key not in self._context.placed:
                ahead = self._state.queue.position(order)
                self._verdicts[order.job_key] = Verdict(Reason.PENDING_EVALUATION, {"ahead": ahead})
