"""When a waiting job starts if every job ahead of it takes as long as it may.

The planner's own stages (order, quota, fit, repair) run again at each end of a job, on the capacity
as it is by then (`PresentCapacity.by`), with the jobs that they placed meanwhile, and when running
jobs lose the protection of their first minute. So those ahead in the queue, later jobs that find
room first, preemption, and the reservation for the queue's head count as they do in the cluster;
there is no second algorithm, and no copy of the state.

Which job is asked about changes nothing of what happens, so one run through the ends answers for
every job that it has placed, and to its end for all: see `Forecasts`.

Assumed: a job that holds nodes uses its whole time limit and then its whole grace period, members
start as soon as they are placed, and no job that comes first is submitted, released or restarted.
Where that is not enough to say when, the answer is why not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Protocol

from fairlead.api.jobs.job import Job
from fairlead.decide.answers.explanation import (
    ENDS_MAX,
    WAITS_FOR_MAX,
    Forecast,
    PreemptionAhead,
    UnknownBound,
)
from fairlead.decide.placement.desk.context import PlanningContext
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.desk.repair import GangRelease, PlacedGang, Wait
from fairlead.decide.placement.places.capacity import PresentCapacity
from fairlead.decide.placement.places.search import Plan, take_plan
from fairlead.decide.placement.places.size import planned
from fairlead.decide.placement.places.unplaceable import eligible_nodes
from fairlead.decide.placement.stages.fit import Fit
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.health.windows import grace_seconds
from fairlead.model.inventory.labels import OWN
from fairlead.model.inventory.nodes import Ints
from fairlead.model.job_entry import JobEntry

#: With estimated ends, those within this part of the time from now are looked at together.
COARSENESS = 0.03
_UNBOUNDED = 1 << 62


class ExpectedEnds(Protocol):
    """When jobs are expected to give their nodes back."""

    def running(self, entry: JobEntry, now: float) -> float | None:
        """Return when a job that holds nodes gives them back; None where nothing says it."""
        ...

    def starting(self, entry: JobEntry, at: float) -> float | None:
        """Return the same of one that gets its nodes at an instant."""
        ...

    def is_late(self) -> bool:
        """True once the forecast has taken too long to be of use."""
        ...


def forecast(
    state: PlacementState,
    key: ObjectKey,
    now: float,
    policy: PlacementPolicy,
    *,
    ends: ExpectedEnds | None = None,
) -> Forecast | PreemptionAhead | UnknownBound:
    """Return by when a waiting job starts, or which jobs it preempts and when.

    With `ends`, when it starts if jobs end then, instead of at their limits. The members' pods of
    jobs must not be in the state: a job that ends gives back its claim. The state is used for the
    calculation and is as it was at the end.
    """
    return Forecasts(state, now, policy, ends=ends).of(key)


def preemption_of(
    state: PlacementState, key: ObjectKey, begins_at: float, victims: tuple[ObjectKey, ...]
) -> PreemptionAhead:
    """Return the preemption for a gang in the state, with what the state says of the victims."""
    cluster, team = state.cluster, state.jobs[key].lane.team
    own = cluster.table.labels.tiers(team) == OWN
    jobs = [cluster.jobs[victim] for victim in victims if victim in cluster.jobs]
    others = [
        key for each in jobs
        if each.team_name != team and cluster.ledger.claim(key := each.job.metadata.key)
    ]  # fmt: skip
    borrowed = tuple(
        int(own[cluster.ledger.slots(victim)].sum()) if victim in others else 0
        for victim in victims
    )
    statuses = [each.job.status for each in jobs]
    saves = any(s.progress and s.progress.checkpoint_step is not None for s in statuses)
    is_known = bool(jobs) and not saves and all(s.placement is not None for s in statuses)
    seconds = max((grace_seconds(each.job) for each in jobs), default=0.0)
    return PreemptionAhead(begins_at, victims, borrowed, begins_at + seconds if is_known else None)


def starts_now(
    state: PlacementState, entry: QueueEntry, now: float, policy: PlacementPolicy
) -> bool:
    """Return whether a job of the queue would start now if it waited as `entry` says.

    The state is used for the calculation and is as it was at the end.
    """
    key, queue = entry.age.job_key, state.queue
    before, policy = state.jobs[key], _unbounded(policy)
    if before.group is None:
        return False
    state.suspect(now, policy.suspect_seconds)
    queue.add(entry)  # first, so that what is remembered of its group stays
    queue.remove(before)
    state.jobs[key] = entry
    try:
        with state.cluster.transaction() as transaction:
            capacity = PresentCapacity(state.cluster, transaction)
            return _Ahead(state, policy, now, capacity, key=key).starts_at_once()
    finally:
        state.jobs[key] = before
        queue.add(before)
        queue.remove(entry)
        queue.mark_written(before)


def _unbounded(policy: PlacementPolicy) -> PlacementPolicy:
    return replace(policy, evaluations_max=_UNBOUNDED, placements_max=_UNBOUNDED)


class Forecasts:
    """What `forecast` returns for any job, as long as the state does not change.

    A run ends once the job that it was made for has its place. One that is asked about later and
    has none by then costs a new run, which goes further.
    """

    def __init__(
        self,
        state: PlacementState,
        now: float,
        policy: PlacementPolicy,
        *,
        ends: ExpectedEnds | None = None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> None:
        """A run that goes on once `is_late` answers what it has found, else TOO_LONG."""
        self._state, self._now, self._ends = state, now, ends
        self._is_late = is_late
        self._policy = _unbounded(policy)
        self._furthest: _Ahead | None = None

    def of(self, key: ObjectKey) -> Forecast | PreemptionAhead | UnknownBound:
        """Return the forecast for a waiting job."""
        if self._furthest is None or not self._furthest.knows(key):
            self._furthest = self._run(key)
        return self._furthest.answer(key)

    def _run(self, key: ObjectKey) -> _Ahead:
        state = self._state
        state.suspect(self._now, self._policy.suspect_seconds)
        with state.cluster.transaction() as transaction:
            capacity = PresentCapacity(state.cluster, transaction)
            ahead = _Ahead(state, self._policy, self._now, capacity, key=key, ends=self._ends)
            try:
                ahead.run(self._is_late)
            finally:
                ahead.restore()
                state.advance(self._now)
        return ahead


class _Ahead(PlanningContext):
    """The cluster from now on, one end after the other."""

    def __init__(
        self,
        state: PlacementState,
        policy: PlacementPolicy,
        now: float,
        capacity: PresentCapacity,
        *,
        key: ObjectKey,
        ends: ExpectedEnds | None = None,
    ) -> None:
        super().__init__(state, policy, now, capacity)
        self.foreseen = {}
        self._ends = ends
        self._key = key
        #: Jobs that wait here and do not in the state.
        self._added: dict[ObjectKey, QueueEntry] = {}
        self._is_endless = self._has_restart = False
        self._is_preempting = bool(self.state.sets.nominees)
        #: The jobs that were placed: when, and how many had ended by then.
        self._starts: dict[ObjectKey, tuple[float, int]] = {}
        #: Which jobs preempt others at last, and the victims of each.
        self._victims: dict[ObjectKey, tuple[ObjectKey, ...]] = {}
        #: Why jobs without a start have none; None while the run has not come to its end.
        self._unknown: UnknownBound | None = None
        #: When there may be more victims.
        self._retry_at = inf
        #: The jobs that have ended, in order, and where they ran.
        self._ended: list[tuple[ObjectKey, Ints]] = []
        #: What was taken since belongs to the next job that is placed.
        self._mark = 0
        self._dependents = _dependents(self.state)

    def run(self, is_late: Callable[[], bool]) -> None:
        """Look ahead until the job is placed, or as far as can be."""
        self._begin()
        seen = -inf
        for _ in range(ENDS_MAX):
            if self._place():
                return
            end = self.capacity.next_end(seen)
            accepts_at = self.state.patience.next_end()
            opens_at = self.state.cluster.table.windows.next_opening(self.now)
            instants = (end, accepts_at, opens_at, self._retry_at)
            steps = [at for at in instants if at is not None and at < inf]
            if not steps:
                self._unknown = self._cause()
                return
            seen = self.now = max(self.now, min(steps), self._coarse())
            if self._ends is not None and self._ends.is_late():
                break
            if is_late():
                self._unknown = UnknownBound.TOO_LONG
                return
            for key in self.capacity.by(seen):
                self._give_back(key)
                if key in self._dependents:
                    self._unknown = UnknownBound.DEPENDENT
                    return
                self._ended.append((key, self._slots(key)))
        self._unknown = UnknownBound.TOO_MANY

    def starts_at_once(self) -> bool:
        """Return whether the job is placed at the first instant."""
        try:
            self._begin()
            return self._place() and self._key in self._starts
        finally:
            self.restore()

    def _slots(self, key: ObjectKey) -> Ints:
        """Return the slots of a job that has nodes at this instant."""
        slots = self.placed.get(key)
        return self.state.cluster.ledger.slots(key) if slots is None else slots

    def _give_back(self, key: ObjectKey) -> None:
        """Count what a job has against no limit any more."""
        team = self.state.jobs[key].lane.team
        self.limits.give_back(key)
        self.borrowing.note(team, self._slots(key), sign=-1)

    def knows(self, key: ObjectKey) -> bool:
        """True when `answer` has one for this job."""
        return key in self._starts or self._unknown is not None

    def answer(self, key: ObjectKey) -> Forecast | PreemptionAhead | UnknownBound:
        """Return what the run has found for a job that it knows."""
        if key in self._starts:
            starts_at, ended = self._starts[key]
            waits_for = islice(self._useful_ends(key, ended), WAITS_FOR_MAX)
            return Forecast(starts_at, tuple(waits_for))
        if key in self._victims:
            return preemption_of(self.state, key, self.now, self._victims[key])
        assert self._unknown is not None
        return self._unknown

    def _useful_ends(self, key: ObjectKey, count: int) -> Iterator[ObjectKey]:
        """Yield which of the first jobs to end ran where this one could, the latest first."""
        gang = self.state.jobs[key].gang
        assert not isinstance(gang, InvalidGang)
        constraints = [role.member.constraints for role in gang.accepting.roles]
        eligible = eligible_nodes(self.state.cluster, constraints)
        return (each for each, slots in reversed(self._ended[:count]) if eligible[slots].any())

    def _coarse(self) -> float:
        """Return the next instant to look at where ends are estimates: these need no exact one."""
        now, began = self.now, self.began
        return now + (now - began) * COARSENESS if self._ends is not None else -inf

    def restore(self) -> None:
        """Take out of the queue what was put into it."""
        for entry in self._added.values():
            self.state.queue.remove(entry)

    def _begin(self) -> None:
        """Admit new jobs, release what is of no more use, note whose end is not known."""
        state, ledger = self.state, self.state.cluster.ledger
        for key in state.sets.unadmitted:
            entry, priority = state.jobs[key], state.cluster.jobs[key].priority
            spec = entry.job.spec
            if spec.adopts is None and not spec.after and isinstance(priority, int):
                self._queue(entry)
        self.capacity.without(k for k in state.sets.releasable if not ledger.awaits_binding(k))
        expected = dict[ObjectKey, float]()
        for claim in ledger.claims_by_priority():
            entry = state.cluster.jobs[claim.key]
            if self.capacity.holds(claim.key):
                end = entry.ends_at
                if self._ends is not None:
                    end = self._ends.running(entry, self.now)
                self._note_end(entry.job, end)
                if end is not None:
                    expected[claim.key] = end
        if self._ends is not None:
            self.capacity.expect(expected)
        for key in state.sets.repairable:
            self.capacity.keep(key)

    def _note_end(self, job: Job, end: float | None) -> None:
        if end is None and job.spec.time_limit_seconds is None:
            self._is_endless = True
        elif end is None:
            self._has_restart = True

    def _cause(self) -> UnknownBound:
        """Return why jobs still wait although no more ends are known."""
        if self._has_restart:
            return UnknownBound.RESTARTING
        return UnknownBound.NO_TIME_LIMIT if self._is_endless else UnknownBound.NO_ROOM

    def _queue(self, entry: QueueEntry) -> None:
        self.state.queue.add(entry)
        self._added[entry.age.job_key] = entry

    def _place(self) -> bool:
        """Place what fits at this instant; True once the job is placed, or some preempt."""
        self.state.advance(self.now)
        while True:
            added = len(self._added)
            self.reserve()
            self._mark = self.capacity.mark()
            if self._is_preempting:
                return self._end_preempting()
            fit = Fit(self)
            fit.run()
            for entry, found in self.outcomes:
                self._note_unplaced(entry, found)
            self.outcomes.clear()
            self._retry_at = fit.preempting.retry_at
            for key, found in fit.preempting.made.items():
                self._note_end(self.state.jobs[key].job, None)
                self._victims[key] = tuple(victim.key for victim in found.victims)
            if self._victims:
                return self._end_preempting()
            for key in islice(self.placed, len(self._starts), None):
                self._starts[key] = (self.now, len(self._ended))
            if self._key in self._starts:
                return True
            if len(self._added) == added:
                return False

    def _end_preempting(self) -> bool:
        """End the run: what happens once some jobs preempt others is not known."""
        self._unknown = UnknownBound.NO_TIME_LIMIT if self._is_endless else UnknownBound.PREEMPTING
        return True

    def note_placed(self, entry: QueueEntry, plan: Plan) -> None:
        """Take in the place of a job, which it holds until its end."""
        capacity, key, team = self.capacity, entry.age.job_key, entry.lane.team
        until = self.now + entry.hold_seconds if entry.hold_seconds < inf else None
        expected = until
        if self._ends is not None:
            expected = self._ends.starting(self.cluster.jobs[key], self.now)
        if capacity.holds(key):  # it moves: of old places and new ones only the new stay
            assert isinstance(entry.gang, GangRequest)
            capacity.rollback_to(self._mark)
            capacity.without([key])
            self._mark = capacity.mark()
            take_plan(capacity, entry.gang, plan)
            self.borrowing.note(team, self._slots(key), sign=-1)
        capacity.hold(key, self._mark, until, expected=expected)
        self._note_end(entry.job, expected)
        self.placed[key] = plan.distinct_slots
        self.borrowing.note(team, plan.distinct_slots)
        self.note_passed(entry, plan)
        if isinstance(entry.gang, GangRequest):
            self.limits.take(entry, planned(entry.gang, plan))
        self._mark = capacity.mark()

    def _note_unplaced(self, entry: QueueEntry, found: PlacedGang | Wait | GangRelease) -> None:
        """Take in that a gang waits with what it has, or queues again without it."""
        if isinstance(found, GangRelease):
            self.capacity.without([entry.age.job_key])
            self._give_back(entry.age.job_key)
            self._queue(entry)
        self._has_restart |= isinstance(found, Wait)


def _dependents(state: PlacementState) -> frozenset[ObjectKey]:
    """Return the jobs whose end may let another one into the queue."""
    return frozenset(
        (key[0], after.job)
        for key in state.sets.unadmitted
        for after in state.jobs[key].job.spec.after
        if not after.elements
    )
