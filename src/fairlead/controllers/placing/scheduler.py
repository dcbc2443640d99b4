"""The scheduler: decides on the cluster state, and writes what it decides.

Each decision about a job is one write of its status, with the resourceVersion and uid that it was
decided on: a placement is written as a whole or not at all. The write changes `placement`,
`verdict` and the condition Placed and, where the attempt begins with its placement, the record of
the attempt. A concurrent write wins: the job is then decided on again.

A placement whose write got no answer reserves its room until the mirror shows that the job has
changed (`controllers/placing/uncertain_placements.py`).

A job whose writes are refused for good (422 and the like) is blocked until the loop retries it;
other jobs may take the room that it would get.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError
from fairlead.api.values.times import format_time
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.placing.decision_log import Cycle, DecisionLog
from fairlead.controllers.placing.uncertain_placements import UncertainPlacements
from fairlead.controllers.pods.job_writer import REFUSALS_MAX
from fairlead.controllers.pods.pod_refusals import is_denial
from fairlead.decide.attempts.notes import is_left_to_array
from fairlead.decide.placement.actions import (
    Action,
    PlaceJob,
    PreemptJob,
    RecordActualPlacement,
    ReleaseJob,
    WithdrawNomination,
    WithdrawPreemption,
    WriteVerdict,
)
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.memory import PlanMemory
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.outcome import asked_verdict, changed_verdict, status_patch
from fairlead.decide.placement.snapshot import CarriedState
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.reasons import Outcome, Reason
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Decision, ObjectKey, Verdict
from fairlead.runtime.client import Client
from fairlead.runtime.events import Allowance, EventKind, EventSink
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Change, Mirror
from fairlead.runtime.watching.reader import MirrorReader, follow, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

#: Events of jobs that begin to wait, or wait for another reason.
WAITING_EVENTS_PER_SECOND = 2.0
WAITING_EVENTS_BURST = 50.0
#: Jobs whose refused releases are counted; the oldest is dropped first.
REFUSED_RELEASES_MAX = 10_000


class SchedulerController:
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "scheduler"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        *,
        policy: PlacementPolicy | None = None,
        events: EventSink | None = None,
        reader: MirrorReader | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
        places_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Attach to the world. Without `events` no Events are emitted.

        `places_changed` is called when `state.kept_places` has changed.

        `reader` is given where the mirrors are shared; it takes the faults of the handlers.
        `stopwatch` returns instants for the durations of decisions, in seconds.
        """
        self._world = world
        self.state = PlacementState(world.state, contain=self._contain)
        self._objects = ObjectWriter(client)
        self._policy = policy or PlacementPolicy()
        self._events = events
        #: How often in a row the API has refused that a job gives its nodes back, by uid.
        self._refused_releases: dict[str, int] = {}
        self._uncertain = UncertainPlacements(self.state, world.uncertain, world.health.usable)
        self._now = 0.0
        #: The changes that the last decision was made on, and the deadline that it set.
        self._decided_on = -1
        self._wake_at: float | None = None
        self._waiting_events = Allowance(WAITING_EVENTS_PER_SECOND, WAITING_EVENTS_BURST)
        self._set_aside = set_aside_of(reader)
        self._unregister = follow(world.mirrors.jobs, self._job_changed, reader)
        self._detach = world.admissions.attach()
        self._stopwatch, self._places_changed = stopwatch, places_changed
        #: The latest decisions, and what they were made on.
        self.decisions = DecisionLog(world, self._policy, reader)

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        seen = self._world.mirrors
        cluster = (seen.nodes, seen.jobs, seen.pods, seen.priority_classes, seen.teams, seen.pools)
        return (*cluster, seen.quotas, *seen.of_volumes, *seen.devices.all)

    @property
    def jobs(self) -> Mirror[Job]:
        """The mirror of what it places."""
        return self._world.mirrors.jobs

    def close(self) -> None:
        """Detach from the world and the mirrors, which live longer than the controller."""
        self._unregister()
        self._detach()
        self.decisions.close()
        self.state.close()

    def _contain(self, job: Job, error: Exception) -> None:
        self._world.set_aside.note(JOBS, job.metadata, AsideStage.OBSERVE, error)

    def due_at(self) -> float | None:
        """Return when to decide again: at once after a change, if there are jobs to decide on."""
        if self._world.change_count == self._decided_on:
            return self._wake_at
        is_sound = not self._set_aside and not self._world.set_aside
        return self._wake_at if is_sound and self.state.is_settled else 0.0

    def decide(self, now: float) -> Decision[Action]:
        """Decide on the state as the mirrors have it."""
        self._decided_on = self._world.change_count
        repeated = self._uncertain.take_due(now)
        self._now = now
        contains = not self._set_aside.is_strict
        self._world.state.advance_shares(now)
        memory, started_at, places = PlanMemory(), self._stopwatch(), self.state.kept_places
        decision = decide(self.state, self._policy, now, contains_faults=contains, memory=memory)
        made = Cycle(
            now, self._stopwatch() - started_at, len(self.state.queue), contains,
            decision.actions, memory.recall, CarriedState.of(self.state),
            self._world.admissions.jobs,
        )  # fmt: skip
        self.decisions.note(made)
        self._world.admissions.decided({each.job.metadata.key for each in decision.actions})
        for key, error in decision.faults.items():
            self._set_aside.note(JOBS, self.state.jobs[key].job.metadata, AsideStage.DECIDE, error)
        for key, verdict in decision.verdicts.items() if len(self._set_aside) else ():
            if verdict.reason is not Reason.SET_ASIDE:  # nor left alone since an earlier fault
                self._set_aside.clear(JOBS, key, AsideStage.DECIDE)
        reports = self._report_set_aside(now)
        self._wake_at = decision.wake_at
        if self.state.kept_places != places:
            self._places_changed()
        return replace(decision, actions=(*repeated, *decision.actions, *reports))

    def _report_set_aside(self, now: float) -> Iterator[WriteVerdict]:
        """Yield the verdicts of the jobs that could not be taken in."""
        for entry in self._world.set_aside.pop_news(JOBS):
            job = self._world.mirrors.jobs.get(*entry.metadata.key)
            if entry.stage is AsideStage.OBSERVE and job is not None:
                facts = {"stage": entry.stage.value, "fault": entry.fault}
                verdict = Verdict(Reason.SET_ASIDE, facts)
                write = changed_verdict(job, verdict, format_time(now), is_fresh=True)
                if write is not None:
                    yield write

    def key_of(self, action: Action) -> ObjectKey:
        """Return the job of an action."""
        return action.job.metadata.key

    def takings(self, action: Action) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        return (takings.preemption(action),) if isinstance(action, PreemptJob) else ()

    async def perform(self, action: Action) -> Written | None:
        """Write one decision on its job; None when the status has it already."""
        job = action.job
        patch = status_patch(action, self._stored_status(job))
        if not patch:
            return None
        if isinstance(action, PlaceJob):
            self._uncertain.send(action)
        try:
            written = await self._objects.patch_status(JOBS, job.metadata, patch)
        except ApiError as error:
            if isinstance(action, PlaceJob):
                self._uncertain.failed(action, error)
            raise
        self._set_aside.clear(JOBS, job.metadata.key, AsideStage.ACT)
        self._refused_releases.pop(job.metadata.uid, None)
        if isinstance(action, WriteVerdict) and not self._uncertain:
            self._world.note_decided(job, written.version)
        self._emit(action)
        return written

    def _stored_status(self, job: Job) -> JobStatus:
        """Return the status that the API has of this version of a job; see `Admissions`."""
        stored = self._world.mirrors.jobs.get(*job.metadata.key)
        is_same = stored is not None and stored.metadata.version == job.metadata.version
        return stored.status if stored is not None and is_same else job.status

    def changed(self, key: ObjectKey) -> None:
        """Look at a job again that was set aside; all others are looked at when they change."""
        if key in self._uncertain:
            self._uncertain.repeat(key)
        else:
            self.state.write_blocked.pop(key, None)

    def failed(self, action: Action, error: ApiError) -> None:
        """Leave the job alone until `changed` is called for it.

        Where a policy refuses again and again that a job gives its nodes back, they are free all
        the same: the job makes no pods for that placement any more.
        """
        job = action.job
        self.state.write_blocked[job.metadata.key] = None
        if not is_denial(error):
            return
        if not self._set_aside.is_strict:
            self._set_aside.note(JOBS, job.metadata, AsideStage.ACT, error)
        if isinstance(action, ReleaseJob):
            count = self._refused_releases.pop(job.metadata.uid, 0) + 1
            self._refused_releases[job.metadata.uid] = count
            if len(self._refused_releases) > REFUSED_RELEASES_MAX:
                del self._refused_releases[next(iter(self._refused_releases))]
            if count >= REFUSALS_MAX:
                self._world.forfeit(job, is_final=False)

    def faulted(self, action: Action, error: Exception) -> None:
        """Set the job aside, and leave it alone until `changed` is called for it."""
        job = action.job
        self._set_aside.note(JOBS, job.metadata, AsideStage.ACT, error)
        self.state.write_blocked[job.metadata.key] = None

    def _emit(self, action: Action) -> None:
        """Emit an event when a job has got its place, or waits for another reason than before."""
        job = action.job
        kind = EventKind.NORMAL
        if isinstance(action, PreemptJob):
            asked = asked_verdict(action)
            self._record(job, kind, asked.reason.value, asked.message)
            return
        if isinstance(action, RecordActualPlacement | WithdrawNomination | WithdrawPreemption):
            return
        if isinstance(action, PlaceJob):
            if _is_begun_at_once(action):
                return
        else:
            before, verdict = job.status.verdict, action.verdict
            if verdict is None or (before is not None and before.reason == verdict.reason):
                return
            if verdict.outcome == Outcome.IMPOSSIBLE.value:
                kind = EventKind.WARNING
            elif verdict.outcome != Outcome.WAITING.value:
                return
            elif not self._waiting_events.take(self._now):
                return  # the status says it; thousands of jobs may begin to wait at once
        self._record(job, kind, action.placed.reason, action.placed.message)

    def _record(self, job: Job, kind: EventKind, reason: str, message: str) -> None:
        if self._events is not None and not is_left_to_array(job, reason):
            self._events.record(JOBS, job.metadata, kind, reason=reason, message=message)

    def _job_changed(self, change: Change[Job]) -> None:
        self._uncertain.seen(change.key, change.new)


def _is_begun_at_once(action: PlaceJob) -> bool:
    """True for a lone member that never waited for its place: the event of its start says it."""
    job = action.job
    is_first = action.begun is not None and job.status.verdict is None
    return is_first and job.member_count == 1
