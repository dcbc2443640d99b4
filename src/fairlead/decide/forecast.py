"""When a waiting job starts if every job ahead of it takes as long as it may.

The scheduler's own decision is asked again at each end of a job, with the jobs that it placed
meanwhile. So those ahead in the queue, later jobs that find room first, and the protection of the
queue's head count as they do in the cluster; there is no second algorithm.

Assumed: a job that holds nodes uses its whole time limit and then its whole grace period, members
start as soon as they are placed, and no job that comes first is submitted, released or restarted.
Where that is not enough to say when, the answer is why not.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from fairlead.api.job import Job, JobStatus
from fairlead.api.meta import Condition
from fairlead.api.names import SUCCEEDED
from fairlead.decide.placement import PlacementPolicy, decide
from fairlead.decide.placement.actions import PlaceJob, ReleaseJob, WriteVerdict
from fairlead.decide.placement.completion import ends_at
from fairlead.decide.placement.outcome import status_after
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.placement.unplaceable import eligible_nodes
from fairlead.decide.verdict import ObjectKey
from fairlead.model.gangs import InvalidGang
from fairlead.model.phase import Phase, phase_of

WAITS_FOR_MAX = 10
#: Ends that are looked at; a job behind more of them gets no forecast.
ENDS_MAX = 500
_ENDED = Condition(type=SUCCEEDED, status="True")


class Unknown(Enum):
    """Why there is no bound, in words."""

    NO_TIME_LIMIT = "a job that holds the room, or is ahead, has no time limit"
    RESTARTING = "a job that holds the room restarts"
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


def forecast(
    state: PlacementState, key: ObjectKey, now: float, policy: PlacementPolicy
) -> Forecast | Unknown:
    """Return by when a waiting job starts.

    The members' pods of jobs must not be in the state: a job that ends gives back its claim. The
    state is used for the calculation and is as it was at the end.
    """
    ahead = _Ahead(state, key, now, policy)
    try:
        return ahead.run()
    finally:
        ahead.restore()


class _Ahead:
    """The cluster from now on, one end after the other."""

    def __init__(
        self, state: PlacementState, key: ObjectKey, now: float, policy: PlacementPolicy
    ) -> None:
        self._state = state
        self._key = key
        self._now = now
        self._policy = policy
        self._before: dict[ObjectKey, Job] = {}
        self._ends: list[tuple[float, ObjectKey]] = []
        self._is_endless = self._has_restart = False
        self._waits_for: list[ObjectKey] = []
        gang = state.jobs[key].gang
        assert not isinstance(gang, InvalidGang)
        self._eligible = eligible_nodes(
            state.cluster, [role.member.constraints for role in gang.roles]
        )
        self._dependents = _dependents(state)

    def run(self) -> Forecast | Unknown:
        self._admit_new()
        for claim in self._state.cluster.ledger.claims_by_size():
            job = self._state.jobs[claim.key].job
            if not job.is_finished and claim.key != self._key:
                self._expect_end(job)
        now = self._now
        for _ in range(ENDS_MAX):
            if self._place(now):
                return Forecast(now, tuple(reversed(self._waits_for[-WAITS_FOR_MAX:])))
            if not self._ends:
                return self._unknown()
            at, _ = self._ends[0]
            now = max(now, at)
            while self._ends and self._ends[0][0] <= now:
                ended = heapq.heappop(self._ends)[1]
                if ended in self._dependents:
                    return Unknown.DEPENDENT
                self._end(ended)
        return Unknown.TOO_MANY

    def restore(self) -> None:
        """Put the state back."""
        for job in self._before.values():
            self._state.cluster.job_changed(job)

    def _unknown(self) -> Unknown:
        if self._has_restart:
            return Unknown.RESTARTING
        return Unknown.NO_TIME_LIMIT if self._is_endless else Unknown.NO_ROOM

    def _admit_new(self) -> None:
        """Put into the queue what the jobs controller will admit at once."""
        for entry in list(self._state.jobs.values()):
            job = entry.job
            is_new = _is_new(job) and job.spec.adopts is None
            if is_new and not job.spec.after:
                self._change(job, replace(job.status, attempt=1))

    def _place(self, now: float) -> bool:
        """Carry out the scheduler's decisions at this instant; True once the job is placed."""
        while True:
            has_placed = False
            for action in decide(self._state, self._policy, now).actions:
                if not isinstance(action, PlaceJob | ReleaseJob | WriteVerdict):
                    continue
                self._change(action.job, status_after(action))
                if isinstance(action, PlaceJob):
                    has_placed = True
                    key = action.job.metadata.key
                    if key == self._key:
                        return True
                    self._expect_end(self._state.jobs[key].job)
            if not has_placed:
                return False

    def _expect_end(self, job: Job) -> None:
        end = ends_at(job)
        if end is not None:
            heapq.heappush(self._ends, (max(end, self._now), job.metadata.key))
        elif job.spec.time_limit_seconds is None:
            self._is_endless = True
        else:
            self._has_restart = True

    def _end(self, key: ObjectKey) -> None:
        job = self._state.jobs[key].job
        slots = self._state.cluster.ledger.slots(key)
        if any(self._eligible[slot] for slot in slots):
            self._waits_for.append(key)
        conditions = (*job.status.conditions, _ENDED)
        self._change(job, replace(job.status, conditions=conditions, placement=None))

    def _change(self, job: Job, status: JobStatus) -> None:
        self._before.setdefault(job.metadata.key, self._state.jobs[job.metadata.key].job)
        self._state.cluster.job_changed(replace(job, status=status))


def _dependents(state: PlacementState) -> frozenset[ObjectKey]:
    """Return the jobs whose end may let another one into the queue."""
    return frozenset(
        (entry.job.metadata.namespace, after.job)
        for entry in state.jobs.values()
        if _is_new(entry.job)
        for after in entry.job.spec.after
    )


def _is_new(job: Job) -> bool:
    """True for a job that was never admitted and may be."""
    return phase_of(job) is Phase.UNADMITTED and job.status.attempt == 0
