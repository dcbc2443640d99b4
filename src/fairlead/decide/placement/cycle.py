"""One decision of the planner: whom to place, whose place to take back, and why the others wait.

Jobs are tried in queue order (priority, then age), each as a whole gang. One that does not fit does
not hold up others, until it has waited at the head for `starvation_seconds`; then later jobs are
kept off the nodes that it could use. Everything is tried in one transaction, so each job sees what
the jobs before it took, and the transaction is rolled back: a placement becomes real when the write
of it is seen.

The work is bounded and grows with what changed: groups of equal jobs that cannot fit are passed
over by one comparison, verdicts are made again only where something that they depend on changed,
near the head of the queue soon and further back slowly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from fairlead.api.job import Job
from fairlead.api.meta import find_condition
from fairlead.api.names import PLACED
from fairlead.api.times import format_time, parse_time
from fairlead.decide.admission.priority import priority_verdict
from fairlead.decide.placement.actions import Action, RecordActualPlacement
from fairlead.decide.placement.capacity import PresentCapacity
from fairlead.decide.placement.outcome import changed_verdict, place_job, release_job
from fairlead.decide.placement.plan import Plan, plan_gang
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.placement.queue import Judgement, OrderKey, QueueEntry, ShapeGroup
from fairlead.decide.placement.repair import RepairScope, give_back, plan_repair, repair_scope
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.placement.unplaceable import (
    BLOCKERS_MAX,
    eligible_nodes,
    judge_empty,
    judge_present,
)
from fairlead.decide.placement.whatif import placed_facts
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.verdict import Decision, ObjectKey, Verdict
from fairlead.model.gangs import GangRequest, InvalidGang
from fairlead.model.nodes import Ints
from fairlead.model.quotas import Excess
from fairlead.model.transaction import Transaction

T = TypeVar("T")
#: Verdicts that time or other jobs' ends do not mend; such a job does not hold up others.
_BLOCKING_NO_ONE = (Reason.NODES_UNAVAILABLE,)
_PENDING_SHOWN_MAX = 10
_FAULT_LENGTH_MAX = 300


def decide(
    state: PlacementState, policy: PlacementPolicy, now: float, *, contains_faults: bool = False
) -> Decision[Action]:
    """Return the placements, releases and changed verdicts for the state as it is.

    The state is left as it was, but for what it remembers of judgements already made. The caller
    must have seen its own earlier writes (the loop's barrier), or jobs could be placed twice over.

    With `contains_faults`, a job over which this code raises gets a verdict that says so, and an
    entry in `faults`; nothing else changes by it. It is left alone until it, or a node, changes.
    """
    return _Cycle(state, policy, now, contains_faults=contains_faults).run()


class _Cycle:
    """The state of one decision."""

    def __init__(
        self, state: PlacementState, policy: PlacementPolicy, now: float, *, contains_faults: bool
    ) -> None:
        self._contains_faults = contains_faults
        self._faults: dict[ObjectKey, Exception] = {}
        self._state = state
        self._cluster = state.cluster
        self._policy = policy
        self._now = now
        self._at = format_time(now)
        self._actions: list[Action] = []
        self._verdicts: dict[ObjectKey, Verdict] = {}
        self._wakes: list[float] = []
        #: Jobs placed in this decision and the slots that they took.
        self._placed: dict[ObjectKey, Ints] = {}
        self._evaluations = 0
        self._judgements = 0
        #: The job whose turn has passed and which now keeps later ones off its nodes.
        self._barred_by: OrderKey | None = None
        self._head_index = 0
        self._capacity: PresentCapacity

    def run(self) -> Decision[Action]:
        with self._cluster.transaction() as transaction:
            self._capacity = PresentCapacity(self._cluster, transaction)
            for key in sorted(self._state.releasable):
                self._contained(key, partial(self._release, key))
            for key in sorted(self._state.held):
                self._contained(key, partial(self._refuse, key, Verdict(Reason.HELD)))
            for key, unresolved in sorted(self._state.unresolved.items()):
                self._contained(key, partial(self._refuse, key, priority_verdict(unresolved)))
            for job, placement in self._cluster.moved():
                if not self._is_left_alone(job.metadata.key):
                    self._actions.append(RecordActualPlacement(job, placement))
            while self._pass(transaction):
                pass
            if self._state.queue.has_unseen:
                self._wakes.append(self._now + self._policy.deep_refresh_seconds)
            self._judge_waiting()
            self._judge_deep()
        wake_at = min(self._wakes, default=None)
        return Decision(tuple(self._actions), self._verdicts, wake_at, self._faults)

    def _release(self, key: ObjectKey) -> None:
        # A member that another scheduler may be about to bind keeps its place until it is gone.
        if not self._cluster.ledger.awaits_binding(key):
            self._actions.append(release_job(self._state.jobs[key].job, None, self._at))

    def _refuse(self, key: ObjectKey, verdict: Verdict) -> None:
        self._write(self._state.jobs[key].job, verdict, is_fresh=True)

    # Faults

    def _is_left_alone(self, key: ObjectKey) -> bool:
        """True for a job that is not to be touched: writes on it fail, or deciding about it."""
        if key in self._state.write_blocked:
            return True
        return self._state.jobs[key].faulted_at == self._cluster.table.nodes_version

    def _contained(self, key: ObjectKey, step: Callable[[], T], otherwise: T | None = None) -> T:
        """Return what `step`, which is about one job, returns; `otherwise` if it raises."""
        if self._is_left_alone(key):
            return cast("T", otherwise)
        mark = self._capacity.mark()
        try:
            return step()
        except Exception as error:
            if not self._contains_faults:
                raise
            self._capacity.rollback_to(mark)
            self._set_aside(key, error)
            return cast("T", otherwise)

    def _set_aside(self, key: ObjectKey, error: Exception) -> None:
        entry = self._state.jobs[key]
        entry.faulted_at = self._cluster.table.nodes_version
        self._faults[key] = error
        fault = f"{type(error).__name__}: {error}"[:_FAULT_LENGTH_MAX]
        verdict = Verdict(Reason.SET_ASIDE, {"stage": "decided on", "fault": fault})
        if entry.group is not None:
            self._note_judgement(entry.group, verdict, basis=None)
        self._write(entry.job, verdict, is_fresh=True)

    # Placing

    def _pass(self, transaction: Transaction) -> bool:
        """Try everything that may fit, in order; True when another pass could place more."""
        placed_before = len(self._placed)
        heap: list[tuple[OrderKey, ShapeGroup | None, int]] = [
            (group.orders[0], group, 0) for group in self._state.queue.candidates()
        ]
        if not placed_before:
            heap += [(self._state.jobs[key].order, None, 0) for key in self._state.repairable]
        heapq.heapify(heap)
        while heap:
            order, group, index = heapq.heappop(heap)
            if self._is_exhausted():
                self._leave([order, *(item[0] for item in sorted(heap, key=lambda i: i[0]))])
                return False
            if group is None:
                repair = partial(self._confirm_or_repair, order, transaction)
                self._contained(order.job_key, repair)
                continue
            self._reserve_for_head(order)
            skipped = order.job_key in self._placed or self._is_left_alone(order.job_key)
            attempt = partial(self._try_first, group, order)
            goes_on = skipped or self._contained(order.job_key, attempt, otherwise=True)
            if goes_on and index + 1 < len(group.orders):
                heapq.heappush(heap, (group.orders[index + 1], group, index + 1))
        return len(self._placed) > placed_before

    def _is_exhausted(self) -> bool:
        return (
            self._evaluations >= self._policy.evaluations_max
            or len(self._placed) >= self._policy.placements_max
        )

    def _leave(self, orders: list[OrderKey]) -> None:
        """Leave the rest to the next decision, at once."""
        self._wakes.append(self._now)
        for order in orders[:_PENDING_SHOWN_MAX]:
            if order.job_key not in self._placed:
                ahead = self._state.queue.position(order)
                self._verdicts[order.job_key] = Verdict(Reason.PENDING_EVALUATION, {"ahead": ahead})

    def _try_first(self, group: ShapeGroup, order: OrderKey) -> bool:
        """Place the group's next job; False when it does not fit, nor hence the others."""
        gang = group.gang
        assert isinstance(gang, GangRequest)
        basis = self._basis(gang)
        if group.failed_on == basis and not self._placed:
            return False
        self._evaluations += 1
        plan = plan_gang(self._capacity, self._cluster.table, gang)
        if plan is None:
            group.failed_on = None if self._placed else basis
            return False
        self._place(self._state.jobs[order.job_key], plan)
        return True

    def _place(self, entry: QueueEntry, plan: Plan) -> None:
        slots = plan.distinct_slots
        verdict = Verdict(Reason.PLACED, placed_facts(plan, len(slots)))
        key = entry.job.metadata.key
        self._actions.append(
            place_job(entry.job, plan, verdict, self._cluster.table.names, now=self._now)
        )
        self._verdicts[key] = verdict
        self._placed[key] = slots

    # The head of the queue

    def _reserve_for_head(self, order: OrderKey) -> None:
        """Put up the bars once the queue's first job that is not placed has had its turn."""
        if self._barred_by is not None:
            return
        head = self._head(order)
        if head is None:
            return
        self._contained(head.job_key, partial(self._put_up_bars, head))

    def _put_up_bars(self, head: OrderKey) -> None:
        starves_at = self._waiting_since(head) + self._policy.starvation_seconds
        if self._now < starves_at:
            return
        entry = self._state.jobs[head.job_key]
        assert isinstance(entry.gang, GangRequest)
        constraints = [role.member.constraints for role in entry.gang.roles]
        self._capacity.barred = eligible_nodes(self._cluster, constraints)
        self._barred_by = head

    def _head(self, before: OrderKey) -> OrderKey | None:
        """Return the first job ahead of `before` that is not placed and waits for others' room."""
        queue = self._state.queue
        while (order := queue.at(self._head_index)) is not None and order < before:
            key = order.job_key
            judge = partial(self._blocks_no_one, self._state.jobs[key])
            if key not in self._placed and not self._contained(key, judge, otherwise=True):
                return order
            self._head_index += 1
        return None

    def _blocks_no_one(self, entry: QueueEntry) -> bool:
        group = entry.group
        assert group is not None
        if isinstance(group.gang, InvalidGang) or self._on_empty(group) is not None:
            return True
        if self._excess(entry) is not None:
            return True
        judgement = group.judgement
        if judgement is None or judgement.basis != self._basis(group.gang):
            return False
        return judgement.verdict.reason in _BLOCKING_NO_ONE

    def _excess(self, entry: QueueEntry) -> Excess | None:
        """Return the quota that would refuse a waiting job's pods."""
        group = entry.group
        if group is None or isinstance(group.gang, InvalidGang):
            return None
        return self._cluster.quotas.excess(entry.job, group.gang, group.over_quota)

    def _waiting_since(self, order: OrderKey) -> float:
        condition = find_condition(self._state.jobs[order.job_key].job.status.conditions, PLACED)
        if condition is None or condition.status == "True" or not condition.last_transition_time:
            return self._now
        return parse_time(condition.last_transition_time)

    # Repairs

    def _confirm_or_repair(self, order: OrderKey, transaction: Transaction) -> None:
        """Answer a gang's next attempt: the same nodes, new ones for the lost, or wait, or none."""
        entry = self._state.jobs[order.job_key]
        job, gang = entry.job, entry.gang
        self._evaluations += 1
        scope = None if isinstance(gang, InvalidGang) else repair_scope(self._cluster, job, gang)
        if scope is None or isinstance(gang, InvalidGang):
            self._actions.append(release_job(job, None, self._at))
            return
        capacity = PresentCapacity(self._cluster, transaction)
        plan = self._plan_again(capacity, gang, scope)
        if plan is not None:
            self._place(entry, plan)
            return
        status = job.status.verdict
        since = self._now
        if status is not None and status.reason == Reason.REPAIRING.value and status.since:
            since = parse_time(status.since)
        give_up_at = since + self._policy.repair_hold_seconds
        holds_nothing = scope.kept_count == 0 and job.spec.adopts is None
        if holds_nothing or self._now >= give_up_at:
            self._give_up(entry, gang, scope, capacity)
            return
        self._wakes.append(give_up_at)
        facts = {
            "members_kept": scope.kept_count,
            "members": gang.member_count,
            "nodes_lost": scope.nodes_lost,
        }
        self._write(job, Verdict(Reason.REPAIRING, facts), is_fresh=True)

    def _plan_again(
        self, capacity: PresentCapacity, gang: GangRequest, scope: RepairScope
    ) -> Plan | None:
        if not scope.nodes_lost:
            return Plan(scope.slots)
        if scope.kept_count:
            return plan_repair(capacity, self._cluster, gang, scope)
        return self._plan_elsewhere(capacity, gang, scope)

    def _plan_elsewhere(
        self, capacity: PresentCapacity, gang: GangRequest, scope: RepairScope
    ) -> Plan | None:
        """Place the whole gang as if it held nothing; `capacity` then holds old and new places."""
        mark = capacity.mark()
        give_back(capacity, gang, scope, kept=True)
        plan = plan_gang(capacity, self._cluster.table, gang)
        if plan is not None:
            give_back(capacity, gang, scope, kept=True, sign=-1)
            return plan
        capacity.rollback_to(mark)
        return None

    def _give_up(
        self, entry: QueueEntry, gang: GangRequest, scope: RepairScope, capacity: PresentCapacity
    ) -> None:
        """Move the whole gang if that is possible (another domain, say), else take all its
        nodes.
        """
        plan = self._plan_elsewhere(capacity, gang, scope)
        if plan is not None:
            self._place(entry, plan)
            return
        mark = capacity.mark()
        give_back(capacity, gang, scope, kept=True)
        verdict = judge_empty(self._cluster, gang) or judge_present(
            self._cluster, capacity, gang, barred_by=None
        )
        capacity.rollback_to(mark)
        self._verdicts[entry.job.metadata.key] = verdict
        self._actions.append(release_job(entry.job, verdict, self._at))

    # Judging

    def _judge_waiting(self) -> None:
        """Judge the head of the queue and the jobs that were never told; write what changed."""
        queue, policy = self._state.queue, self._policy
        fresh = queue.first(policy.fresh_jobs_max)
        unwritten = queue.unwritten(policy.writes_max + len(self._placed))
        is_fresh, is_new = dict.fromkeys(fresh), dict.fromkeys(unwritten)
        written = 0
        for order in sorted(dict.fromkeys([*fresh, *unwritten])):
            key = order.job_key
            entry = self._state.jobs[key]
            if key in self._placed or self._is_left_alone(key) or entry.group is None:
                continue
            if written >= policy.writes_max:
                self._wakes.append(self._now)
                break
            judge = partial(
                self._judge_one, order, may_wait=order not in is_new, is_fresh=order in is_fresh
            )
            written += self._contained(key, judge, otherwise=True)
        if queue.unwritten_count > len(unwritten) and written:
            self._wakes.append(self._now)

    def _judge_one(self, order: OrderKey, *, may_wait: bool, is_fresh: bool) -> bool:
        """Write a waiting job's verdict if it changed; True when it is written."""
        entry = self._state.jobs[order.job_key]
        assert entry.group is not None
        verdict = self._verdict(entry.group, order, may_wait=may_wait)
        if verdict is None:
            self._leave([order])
            return False
        excess = self._excess(entry)
        if excess is not None and verdict.outcome is Outcome.WAITING:
            verdict = Verdict(Reason.AWAITING_QUOTA, {"message": str(excess)})
        return self._write(entry.job, verdict, is_fresh=is_fresh)

    def _judge_deep(self) -> None:
        """Look again, a few at a time, at groups whose verdict is of other nodes than there are."""
        queue, version = self._state.queue, self._cluster.table.nodes_version
        if self._now >= queue.deep_at:
            left = self._policy.judgements_max - self._judgements
            for group in queue.outdated(version, left):
                self._contained(group.orders[0].job_key, partial(self._judge, group))
            queue.deep_at = self._now + self._policy.deep_refresh_seconds
        if queue.has_outdated(version):
            self._wakes.append(queue.deep_at)

    def _verdict(self, group: ShapeGroup, order: OrderKey, *, may_wait: bool) -> Verdict | None:
        """Return the group's verdict, made again if it is due; None when it was not got to."""
        judgement = group.judgement
        if judgement is not None:
            if judgement.basis is not None and judgement.basis == self._basis(group.gang):
                return judgement.verdict
            due_at = judgement.made_at + self._policy.refresh_seconds
            if may_wait and self._now < due_at:
                self._wakes.append(due_at)
                return judgement.verdict
        if self._judgements >= self._policy.judgements_max or self._is_untried(group):
            return None
        return self._judge(group).verdict

    def _is_untried(self, group: ShapeGroup) -> bool:
        """True when the group was not got to and may well fit."""
        if not self._is_exhausted() or isinstance(group.gang, InvalidGang):
            return False
        mark = self._capacity.mark()
        plan = plan_gang(self._capacity, self._cluster.table, group.gang)
        self._capacity.rollback_to(mark)
        return plan is not None

    def _judge(self, group: ShapeGroup) -> Judgement:
        self._judgements += 1
        gang = group.gang
        verdict = self._on_empty(group)
        if verdict is None:
            assert isinstance(gang, GangRequest)
            barred_by = None if self._barred_by is None else self._barred_by.job_key
            verdict = judge_present(self._cluster, self._capacity, gang, barred_by=barred_by)
            verdict = self._with_new_blockers(gang, verdict)
        return self._note_judgement(
            group, verdict, basis=None if self._placed else self._basis(gang)
        )

    def _note_judgement(
        self, group: ShapeGroup, verdict: Verdict, *, basis: tuple[object, ...] | None
    ) -> Judgement:
        before = group.judgement
        judgement = group.judgement = Judgement(
            verdict=verdict,
            made_at=self._now,
            nodes_version=self._cluster.table.nodes_version,
            basis=basis,
        )
        if before is None or before.verdict.outcome != verdict.outcome:
            for order in group.orders:
                self._state.queue.mark_written(self._state.jobs[order.job_key])
        return judgement

    def _with_new_blockers(self, gang: GangRequest, verdict: Verdict) -> Verdict:
        """Add the jobs placed a moment ago, whose claims are not booked yet."""
        if not self._placed or verdict.reason is Reason.BEHIND_EARLIER_JOB:
            return verdict
        nodes = eligible_nodes(self._cluster, [role.member.constraints for role in gang.roles])
        new = [key for key, slots in self._placed.items() if nodes[slots].any()]
        blockers = tuple(dict.fromkeys([*new[:BLOCKERS_MAX], *verdict.blockers]))[:BLOCKERS_MAX]
        return replace(verdict, blockers=blockers)

    def _on_empty(self, group: ShapeGroup) -> Verdict | None:
        version = self._cluster.table.nodes_version
        if group.on_empty is None or group.on_empty[0] != version:
            group.on_empty = (version, judge_empty(self._cluster, group.gang))
        return group.on_empty[1]

    def _basis(self, gang: GangRequest | InvalidGang) -> tuple[object, ...]:
        """Return a value that differs once something has changed that the gang could use."""
        if isinstance(gang, InvalidGang):
            return ()
        fits = self._cluster.fits
        changes = [fits.mask(role.member.constraints).changed_at for role in gang.roles]
        return (*changes, self._cluster.table.nodes_version, self._barred_by)

    def _write(self, job: Job, verdict: Verdict, *, is_fresh: bool) -> bool:
        self._verdicts[job.metadata.key] = verdict
        write = changed_verdict(job, verdict, self._at, is_fresh=is_fresh)
        if write is None:
            return False
        self._actions.append(write)
        return True
