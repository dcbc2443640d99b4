"""When a waiting job starts if every job ahead of it takes as long as it may.

The planner's own stages (order, quota, fit, repair) run again at each end of a job, on the capacity
as it is by then (`PresentCapacity.by`), with the jobs that they placed meanwhile, and when running
jobs lose the protection of their first minute. So those ahead in the queue, later jobs that find
room first, preemption, and the reservation for the queue's head count as they do in the cluster;
there is no second algorithm, and no copy of the state.

Assumed: a job that holds nodes uses its whole time limit and then its whole grace period, members
start as soon as they are placed, and no job that comes first is submitted, released or restarted.
Where that is not enough to say when, the answer is why not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import inf
from typing import Protocol

from fairlead.api.job import Job
from fairlead.decide.placement.capacity import PresentCapacity
from fairlead.decide.placement.context import Context
from fairlead.decide.placement.fit import Fit
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.placement.queue import QueueEntry
from fairlead.decide.placement.repair import Release, Wait, repair
from fairlead.decide.placement.search import Plan, take_plan
from fairlead.decide.placement.size import planned
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.placement.unplaceable import eligible_nodes
from fairlead.decide.verdict import ObjectKey
from fairlead.model.cluster import JobEntry
from fairlead.model.gangs import GangRequest, InvalidGang
from fairlead.model.phase import Phase, phase_of

WAITS_FOR_MAX = 10
#: Ends that are looked at; a job behind more of them gets no forecast.
ENDS_MAX = 500
#: With estimated ends, those within this part of the time from now are looked at together.
COARSENESS = 0.03
_UNBOUNDED = 1 << 62


class Unknown(Enum):
    """Why there is no bound, in words."""

    NO_TIME_LIMIT = "a job that holds the room, or is ahead, has no time limit"
    RESTARTING = "a job that holds the room restarts"
    PREEMPTING = "a job of higher priority preempts others first"
    DEPENDENT = "a job that waits for another one may come first"
    NO_ROOM = "the ends of all jobs together do not make room for it"
    TOO_MANY = f"more than {ENDS_MAX} jobs end before"


@dataclass(frozen=True, slots=True)
class Forecast:
    """By when the gang starts under the assumptions above."""

    may_start_by: float
    #: The last jobs on nodes that it could use whose end it waits for, the latest first, at most
    #: WAITS_FOR_MAX.
    waits_for: tuple[ObjectKey, ...]


@dataclass(frozen=True, slots=True)
class Preemption:
    """Jobs of lower priority have to give their nodes to the gang, from an instant on.

    Without victims the gang gets nodes that others leave anyway.
    """

    begins_at: float
    victims: tuple[ObjectKey, ...]


class Ends(Protocol):
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
    ends: Ends | None = None,
) -> Forecast | Preemption | Unknown:
    """Return by when a waiting job starts, or which jobs it preempts and when.

    With `ends`, when it starts if jobs end then, instead of at their limits. The members' pods of
    jobs must not be in the state: a job that ends gives back its claim. The state is used for the
    calculation and is as it was at the end.
    """
    unbounded = replace(policy, evaluations_max=_UNBOUNDED, placements_max=_UNBOUNDED)
    with state.cluster.transaction() as transaction:
        capacity = PresentCapacity(state.cluster, transaction)
        ahead = _Ahead(Context(state, unbounded, now, capacity), key, ends)
        try:
            return ahead.run()
        finally:
            ahead.restore()
            state.advance(now)


class _Ahead:
    """The cluster from now on, one end after the other."""

    def __init__(self, context: Context, key: ObjectKey, ends: Ends | None) -> None:
        self._context = context
        self._ends = ends
        self._state, self._capacity = context.state, context.capacity
        self._key = key
        #: Jobs that wait here and do not in the state.
        self._added: dict[ObjectKey, QueueEntry] = {}
        self._is_endless = self._has_restart = False
        self._is_preempting = bool(context.state.nominees)
        #: The victims of the job itself, once it has some.
        self._victims: tuple[ObjectKey, ...] | None = None
        #: When there may be more victims.
        self._retry_at = inf
        self._waits_for: list[ObjectKey] = []
        #: What was taken since belongs to the next job that is placed.
        self._mark = 0
        gang = self._state.jobs[key].gang
        assert not isinstance(gang, InvalidGang)
        constraints = [role.member.constraints for role in gang.accepting.roles]
        self._eligible = eligible_nodes(self._state.cluster, constraints)
        self._dependents = _dependents(self._state)

    def run(self) -> Forecast | Preemption | Unknown:
        self._begin()
        context, seen = self._context, -inf
        for _ in range(ENDS_MAX):
            if self._place():
                if self._victims is not None:
                    return Preemption(context.now, self._victims)
                if self._is_preempting:
                    return Unknown.NO_TIME_LIMIT if self._is_endless else Unknown.PREEMPTING
                waits_for = tuple(reversed(self._waits_for[-WAITS_FOR_MAX:]))
                return Forecast(context.now, waits_for)
            end = self._capacity.next_end(seen)
            accepts_at = self._state.patience.next_end()
            opens_at = self._state.cluster.table.windows.next_end(context.now)
            instants = (end, accepts_at, opens_at, self._retry_at)
            steps = [at for at in instants if at is not None and at < inf]
            if not steps:
                return self._unknown()
            seen = context.now = max(context.now, min(steps), self._coarse())
            if self._ends is not None and self._ends.is_late():
                break
            for key in self._capacity.by(seen):
                context.limits.give_back(key)
                if key in self._dependents:
                    return Unknown.DEPENDENT
                slots = context.placed.get(key)
                slots = self._state.cluster.ledger.slots(key) if slots is None else slots
                if self._eligible[slots].any():
                    self._waits_for.append(key)
        return Unknown.TOO_MANY

    def _coarse(self) -> float:
        """Return the next instant to look at where ends are estimates: these need no exact one."""
        now, began = self._context.now, self._context.began
        return now + (now - began) * COARSENESS if self._ends is not None else -inf

    def restore(self) -> None:
        """Take out of the queue what was put into it."""
        for entry in self._added.values():
            self._state.queue.remove(entry)

    def _begin(self) -> None:
        """Admit new jobs, release what is of no more use, note whose end is not known."""
        state, ledger = self._state, self._state.cluster.ledger
        for key, entry in state.jobs.items():
            job, priority = entry.job, state.cluster.jobs[key].priority
            is_free = job.spec.adopts is None and not job.spec.after
            if is_free and _is_new(job) and isinstance(priority, int):
                self._queue(entry)
        self._capacity.without(k for k in state.releasable if not ledger.awaits_binding(k))
        expected = dict[ObjectKey, float]()
        for claim in ledger.claims_by_priority():
            entry = state.cluster.jobs[claim.key]
            if claim.key != self._key and self._capacity.holds(claim.key):
                end = entry.ends_at
                if self._ends is not None:
                    end = self._ends.running(entry, self._context.now)
                self._note_end(entry.job, end)
                if end is not None:
                    expected[claim.key] = end
        if self._ends is not None:
            self._capacity.expect(expected)
        for key in state.repairable:
            self._capacity.keep(key)

    def _note_end(self, job: Job, end: float | None) -> None:
        if end is None and job.spec.time_limit_seconds is None:
            self._is_endless = True
        elif end is None:
            self._has_restart = True

    def _unknown(self) -> Unknown:
        if self._has_restart:
            return Unknown.RESTARTING
        return Unknown.NO_TIME_LIMIT if self._is_endless else Unknown.NO_ROOM

    def _queue(self, entry: QueueEntry) -> None:
        self._state.queue.add(entry)
        self._added[entry.age.job_key] = entry

    def _place(self) -> bool:
        """Place what fits at this instant; True once the job is placed, or others preempt."""
        context = self._context
        self._state.advance(context.now)
        while True:
            added = len(self._added)
            context.reserve()
            self._mark = self._capacity.mark()
            if self._is_preempting:
                return True
            fit = Fit(context, self._on_plan, self._on_repair)
            fit.run()
            self._retry_at = fit.preempting.retry_at
            for key, found in fit.preempting.made.items():
                self._note_end(self._state.jobs[key].job, None)
                self._is_preempting = True
                if key == self._key:
                    self._victims = tuple(victim.key for victim in found.victims)
            if self._is_preempting or self._key in context.placed:
                return True
            if len(self._added) == added:
                return False

    def _on_plan(self, entry: QueueEntry, plan: Plan) -> None:
        capacity, job, key = self._capacity, entry.job, entry.age.job_key
        now = self._context.now
        until = now + entry.hold_seconds if entry.hold_seconds < inf else None
        expected = until
        if self._ends is not None:
            expected = self._ends.starting(self._state.cluster.jobs[key], now)
        if capacity.holds(key):  # it moves: of old places and new ones only the new stay
            assert isinstance(entry.gang, GangRequest)
            capacity.rollback_to(self._mark)
            capacity.without([key])
            self._mark = capacity.mark()
            take_plan(capacity, entry.gang, plan)
        capacity.hold(key, self._mark, until, expected=expected)
        self._note_end(job, expected)
        self._context.placed[key] = plan.distinct_slots
        if isinstance(entry.gang, GangRequest):
            self._context.limits.take(entry, planned(entry.gang, plan))
        self._mark = capacity.mark()

    def _on_repair(self, entry: QueueEntry) -> None:
        key = entry.age.job_key
        if key in self._context.placed or key in self._added:
            return
        context = self._context
        growth = context.growth(entry)
        room = self._capacity.unbarred()
        match repair(room, entry, context.policy, context.now, growth=growth):
            case Plan() as plan:
                self._on_plan(entry, plan)
            case Release():
                self._capacity.without([key])
                context.limits.give_back(key)
                self._queue(entry)
                self._mark = self._capacity.mark()
            case Wait():
                self._has_restart = True


def _dependents(state: PlacementState) -> frozenset[ObjectKey]:
    """Return the jobs whose end may let another one into the queue."""
    return frozenset(
        (entry.job.metadata.namespace, after.job)
        for entry in state.jobs.values()
        if entry.job.spec.after and _is_new(entry.job)
        for after in entry.job.spec.after
    )


def _is_new(job: Job) -> bool:
    """True for a job that was never admitted and may be."""
    return job.status.attempt == 0 and phase_of(job) is Phase.UNADMITTED
