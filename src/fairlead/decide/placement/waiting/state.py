"""What the planner keeps between decisions: the cluster, the queue, and which jobs it must act on.

    state = PlacementState.of(nodes, jobs, pods)      # or PlacementState(cluster), fed elsewhere
    state.cluster.job_changed(job)                    # the queue follows the cluster state

The cluster state holds what exists and is shared; queue, order and remembered verdicts belong to
the planner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import Placement
from fairlead.api.kubernetes.core import Node, Pod
from fairlead.api.names import DEFRAGMENT
from fairlead.decide.placement.waiting.job_limits import QueueLimits
from fairlead.decide.placement.waiting.known_starts import KnownStarts
from fairlead.decide.placement.waiting.order import FairShareOrder, LaneKey, Order, age_of
from fairlead.decide.placement.waiting.patience import Patience
from fairlead.decide.placement.waiting.queue import EqualJobs, QueueEntry, WaitQueue
from fairlead.decide.placement.waiting.run_times import Likeness, RunTimes, elapsed_before
from fairlead.decide.verdict import Verdict
from fairlead.model.asks.priorities import Unresolved
from fairlead.model.asks.teams import UnresolvedTeam
from fairlead.model.claimed.devices import UnmatchedDevices
from fairlead.model.claimed.job_reaches import Unusable
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import GangRequest, InvalidGang, JobKey
from fairlead.model.gang.phase import OPEN, RELEASABLE, Phase, is_failing
from fairlead.model.job_entry import JobEntry

T = TypeVar("T")


@dataclass(slots=True)
class EmptyingMemory:
    """The latest search for nodes to empty. Instants are seconds since the epoch."""

    #: What it looked at; it is searched again when that differs.
    basis: tuple[object, ...] = ()
    looked_at: float = float("-inf")
    #: When time alone may change what it finds.
    again_at: float = float("-inf")
    #: Nodes that found no place for their gangs, on the same basis.
    tried: dict[str, None] = field(default_factory=dict[str, None])


class JobSets(NamedTuple, Generic[T]):
    """Something of each set of jobs that need a decision for another reason than that they wait.

    What `PlacementState` has are their keys, in the order in which they came.
    """

    #: Jobs whose placement must be released.
    releasable: T
    #: Jobs that were never admitted and may be.
    unadmitted: T
    #: Admitted jobs without a placement that are held.
    held: T
    #: Jobs with a placement of an earlier attempt, to confirm or repair.
    repairable: T
    #: Jobs that a place is kept for, and jobs that give theirs back for another one.
    nominees: T
    preempted: T
    #: Jobs that have a place and are about to give it back.
    leaving: T
    #: Jobs that may have to leave for others: placed, and not leaving anyway.
    evictable: T


_IN_NO_SET = JobSets(*(False for _ in JobSets._fields))


class PlacementState:
    """A cluster state, the queue over it, and the jobs that need a decision for another reason."""

    def __init__(
        self,
        cluster: ClusterState | None = None,
        *,
        order: Order | None = None,
        contain: Callable[[Job, Exception], None] | None = None,
    ) -> None:
        """Take in the jobs that the cluster state has, and follow it until `close`.

        `order` ranks the lanes of the queue; None: by priority and fair share.
        `contain` is called with each of these jobs that cannot be taken in; None: the error is
        raised. What a later change raises goes to the caller that made the change.
        """
        self.cluster = cluster or ClusterState()
        self.queue = WaitQueue(self.cluster.fits, order or FairShareOrder(self.cluster))
        #: Which waiting jobs the limits of their teams and users keep out of the queue; and of
        #: these the ones whose status does not say so.
        self.queue_limits = QueueLimits(self.cluster)
        self.unsaid: dict[JobKey, Verdict] = {}
        self.patience = Patience(self.queue, self.cluster)
        #: How long jobs run, as those tell that have ended and are still known.
        self.run_times = RunTimes()
        #: Since when room is kept for waiting jobs.
        self.kept_since: dict[JobKey, float] = {}
        #: Where those of them are going to be whose places are known, the head of the queue first.
        self.kept_places: dict[JobKey, tuple[str, ...]] = {}
        #: What the start of each of them was found on.
        self.starts = KnownStarts()
        #: Which nodes the latest decisions have tried to empty.
        self.emptying = EmptyingMemory()
        #: Every job known, finished ones too.
        self.jobs: dict[JobKey, QueueEntry] = {}
        #: Admitted jobs without a placement that have no priority, no team or no volume, and why.
        self.unresolved: dict[JobKey, Unresolved | UnresolvedTeam | Unusable] = {}
        #: Jobs that no decision touches for now, because writes of them keep failing.
        self.write_blocked: dict[JobKey, None] = {}
        self.sets = JobSets[dict[JobKey, None]](*({} for _ in JobSets._fields))
        self.evictable_version = 0  # rises whenever one is added or removed
        for key, entry in self.cluster.jobs.items():
            try:
                self._job_changed(key, entry)
            except Exception as error:
                if contain is None:
                    raise
                contain(entry.job, error)
        self.close = self.cluster.on_job_change(self._job_changed)

    @classmethod
    def of(
        cls, nodes: Iterable[Node] = (), jobs: Iterable[Job] = (), pods: Iterable[Pod] = ()
    ) -> PlacementState:
        """Build a state from lists."""
        return cls(ClusterState.of(nodes, jobs, pods))

    @property
    def is_settled(self) -> bool:
        """True while there is no job to decide on: no change of a node or a pod can matter.

        A stage that acts on jobs which do not wait adds what it acts on here: with node pools that
        are consolidated, those that run. Never true where there are teams: what they use is
        integrated from decision to decision.
        """
        if len(self.cluster.teams) or self.cluster.pools.consolidates_to:
            return False
        sets = self.sets
        waiting = self.queue or sets.held or self.unresolved or sets.nominees
        due = sets.releasable or sets.repairable or sets.preempted
        return not waiting and not due and not self.cluster.ledger.has_misplaced

    def book_uncertain(self, job: Job, placement: Placement) -> None:
        """Book a placement whose write has an unknown outcome, and leave the job alone.

        Until `unbook_uncertain`.
        """
        if self.cluster.book_uncertain(job, placement):
            self.write_blocked[job.metadata.key] = None

    def unbook_uncertain(self, key: JobKey) -> None:
        """End what `book_uncertain` began."""
        self.write_blocked.pop(key, None)
        self.cluster.unbook_uncertain(key)

    def recall(self, before: QueueEntry, group: EqualJobs | None) -> None:
        """Remember of a job, which is as it was in a group again, what was known of both."""
        entry = self.jobs[before.age.job_key]
        entry.faulted_at, entry.first_start = before.faulted_at, before.first_start
        if group is not None:
            self.queue.recall(entry, group)

    def _job_changed(self, key: JobKey, entry: JobEntry | None) -> None:
        """Take in a job, new or changed; None: it is gone."""
        before = self.jobs.get(key)
        self.run_times.put(key, entry)
        if entry is None:
            self._forget(key, before)
            return
        job, priority = entry.job, entry.priority
        level = priority if isinstance(priority, int) else 0
        team = entry.team_name
        user = entry.user if self.cluster.teams.counts_users(team) else None
        asks_moves = job.metadata.annotations.get(DEFRAGMENT) == "true"
        lane = LaneKey(team, level, entry.may_preempt, user, asks_moves)
        unresolved = _unresolved(entry)
        self.unresolved.pop(key, None)
        phase = entry.phase
        is_forfeited = self.cluster.is_forfeited(key)
        waits = phase is Phase.QUEUED and not is_forfeited
        is_ready = waits and unresolved is None
        gang = self.patience.request(job, entry.gang) if is_ready else entry.gang
        if not is_ready:
            self.kept_since.pop(key, None)
        likeness = None
        if is_ready and job.spec.time_limit_seconds is None:
            likeness = Likeness.of(entry, elapsed=elapsed_before(job))
        after = self.jobs[key] = QueueEntry(
            job, gang, lane, age_of(job), entry.user, entry.hold_seconds, likeness,
            waits and job.status.nomination is None and job.status.preemption is None,
        )  # fmt: skip
        if not after.only_waits or not (before is None or before.only_waits):
            self._put_into_sets(key, sets_of(entry, is_forfeited=is_forfeited))
        if before is not None and before.unrepaired_on is not None and before.gang is gang:
            held, holds = before.job.status, job.status
            if (held.placement, held.attempts) == (holds.placement, holds.attempts):
                after.unrepaired_on = before.unrepaired_on
        self.patience.put(after, entry.gang, waits=is_ready)
        is_limited = self.queue_limits.put(before, after, waits=is_ready)
        is_out = is_limited and key in self.queue_limits
        self._enqueue(before, after, waits=is_ready and not is_out)
        if is_limited:
            self._follow_limits(key)
        else:
            self.unsaid.pop(key, None)
        if waits and unresolved is not None:
            self.unresolved[key] = unresolved

    def _put_into_sets(self, key: JobKey, is_in: JobSets[bool]) -> None:
        """Put a job into these sets, and take it out of the others."""
        self.evictable_version += is_in.evictable is not (key in self.sets.evictable)
        for keys, belongs in zip(self.sets, is_in, strict=True):
            if belongs:
                keys[key] = None
            else:
                keys.pop(key, None)

    def suspect(self, now: float, seconds: float) -> None:
        """Suspect the nodes that have shown a sign in so many seconds; outside a transaction."""
        self.cluster.table.set_suspects(self.cluster.suspects.since(now - seconds))

    def advance(self, now: float) -> None:
        """Put the queue as it stands at a time, which may be earlier than the last one."""
        self.cluster.follow_claims()
        self.cluster.fits.advance(now)
        self.patience.advance(now)
        self.queue.reorder(now)

    def _forget(self, key: JobKey, before: QueueEntry | None) -> None:
        if before is not None:
            self.queue.remove(before)
            self.patience.remove(key)
            del self.jobs[key]
            is_limited = self.queue_limits.put(before, None, waits=False)
            if is_limited:
                self._follow_limits(key)
            else:
                self.unsaid.pop(key, None)
        for keys in (self.unresolved, self.kept_since, self.write_blocked):
            keys.pop(key, None)
        if before is not None and not before.only_waits:
            self._put_into_sets(key, _IN_NO_SET)

    def _follow_limits(self, changed: JobKey) -> None:
        """Let jobs join or leave the queue because another one has changed, or their limits."""
        for key in dict.fromkeys((changed, *self.queue_limits.changes())):
            entry, is_out = self.jobs.get(key), key in self.queue_limits
            self.unsaid.pop(key, None)
            if entry is None:
                continue
            if is_out:
                self.queue.remove(entry)
                verdict, written = self.queue_limits.verdict(key), entry.job.status.verdict
                found = (verdict.reason.value, dict(verdict.facts))
                if written is None or (written.reason, written.facts) != found:
                    self.unsaid[key] = verdict
            elif key != changed and entry.group is None:
                self.queue.add(entry)

    def _enqueue(self, before: QueueEntry | None, entry: QueueEntry, *, waits: bool) -> None:
        if before is not None and before.group is not None:
            if waits and _is_equal(before, entry):
                entry.group, entry.first_start = before.group, before.first_start
                self.queue.mark_written(entry)
                return
            self.queue.remove(before)
        if waits:
            self.queue.add(entry)


def _unresolved(entry: JobEntry) -> Unresolved | UnresolvedTeam | Unusable | None:
    if not isinstance(entry.priority, int):
        return entry.priority
    if not isinstance(entry.team, str):
        return entry.team
    return None if isinstance(entry.reaches, tuple) else entry.reaches


def sets_of(entry: JobEntry, *, is_forfeited: bool) -> JobSets[bool]:
    """Return for each set whether a job belongs to it; most that wait are in none."""
    job, phase, status = entry.job, entry.phase, entry.job.status
    is_placed, is_admitted = status.placement is not None, status.attempt > 0
    is_leaving = is_placed and _is_leaving(job, phase)
    # A gang that waits for a replacement of a lost node keeps the others.
    is_placed_now = is_placed and phase in (Phase.ACTIVE, Phase.PLACED, Phase.BETWEEN_ATTEMPTS)
    is_matched = not isinstance(entry.reaches, UnmatchedDevices)  # till then it keeps its place
    return JobSets(
        releasable=_is_releasable(job, phase, is_forfeited=is_forfeited),
        unadmitted=phase is Phase.UNADMITTED and not is_admitted,
        held=phase is Phase.HELD and is_admitted and not is_placed,
        repairable=phase is Phase.REPAIRING and not is_forfeited,
        nominees=status.nomination is not None and is_matched,
        preempted=status.preemption is not None,
        leaving=is_leaving,
        evictable=is_placed_now and not is_leaving,
    )


def _is_releasable(job: Job, phase: Phase, *, is_forfeited: bool) -> bool:
    """True for a job that has a placement, or a verdict at its end, and no more use for it.

    Not while the record of an attempt is open: its pods may still be on their way to the API, and
    the nodes that a release frees would be given away before they arrive (docs/design/jobs.md,
    "The hand-over"). Opening the record and releasing are compare-and-swaps on the same status, so
    exactly one of them wins. The place of a job that is failing holds nothing already.
    """
    is_unused = phase in RELEASABLE or (is_forfeited and phase not in OPEN)
    if not is_unused or job.metadata.deletion_timestamp is not None:
        return False
    is_over = phase is Phase.FINISHED
    if is_failing(job) and not is_over:
        return False
    return job.status.placement is not None or (is_over and job.status.verdict is not None)


def _is_leaving(job: Job, phase: Phase) -> bool:
    """True for a job that gives its place back within its grace period.

    Of a group of other tools' pods its owner decides when those end.
    """
    is_stopping = phase is Phase.STOPPING and job.spec.adopts is None
    return is_stopping or phase in RELEASABLE or job.status.preemption is not None


def _is_equal(entry: QueueEntry, other: QueueEntry) -> bool:
    """True when both stand at the same place of the same group."""
    is_same = entry.gang is other.gang or (_is_reduced(other.gang) and entry.gang == other.gang)
    is_same = is_same and entry.lane == other.lane
    is_same = is_same and entry.hold_seconds == other.hold_seconds
    is_same = is_same and entry.likeness == other.likeness
    return is_same and entry.age == other.age


def _is_reduced(gang: GangRequest | InvalidGang) -> bool:
    """True for a request that is made again with each change of the job."""
    if isinstance(gang, InvalidGang):
        return False
    return gang.topology.is_patient or gang.borrowing is not None
