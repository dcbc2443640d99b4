"""The idle controller: looks at what running jobs use of their GPUs, warns owners and ends jobs.

A round looks at all members, with pauses, and folds what they used into streaks
(`decide/use/idle.py`). That a pod is a member, its job says. What GPUs are idle is reported to
metrics whatever the policy; the rest is for jobs whose streak is long enough. Streaks are in memory
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.decide.attempts.logged_members import claimed_job, logged_member
from fairlead.decide.attempts.notes import EventReason
from fairlead.decide.attempts.usage import gpu_count
from fairlead.decide.takings import Taking
from fairlead.decide.use.idle import (
    ClearIdle,
    EndIdle,
    IdleAction,
    IdlePolicy,
    IdleStreak,
    MemberLook,
    ReportIdle,
    WarnIdle,
    decide_idle,
    ends_in_hour,
    follow,
    is_watched,
)
from fairlead.decide.use.present_use import IDLE_SECONDS
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.exported.use_metrics import IdleReport
from fairlead.runtime.logs import SILENT, Logger
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader, set_aside_of
from fairlead.runtime.watching.set_aside import AsideStage

#: Returns what running pods have used so far.
Measured = Callable[[], Iterable[MemberLook]]
#: Other tasks get a turn after so many members.
_BATCH = 64


@dataclass(slots=True)
class _Found:
    """What one round has found of one job."""

    job: Job
    looks: dict[str, MemberLook] = field(default_factory=dict[str, MemberLook])


class IdleController:
    """One per process and leader."""

    name = "idle"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        measured: Measured,
        *,
        events: EventSink,
        clock: Clock,
        policy: IdlePolicy,
        reader: MirrorReader | None = None,
        log: Logger = SILENT,
    ) -> None:
        """`measured` reads the nodes, or the sampler."""
        self.report: IdleReport = IdleReport()
        self._pods, self._jobs = world.mirrors.pods, world.mirrors.jobs
        self._objects = ObjectWriter(client)
        self._measured = measured
        self._events = events
        self._clock = clock
        self._policy = policy
        self._log = log
        self._set_aside = set_aside_of(reader)
        #: By uid: the streaks of jobs that run; and the jobs that were looked at and not decided.
        self._streaks: dict[str, IdleStreak] = {}
        self._looked: dict[str, ObjectKey] = {}
        self._ends: list[float] = []
        self._next_at = 0.0

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        return (self._jobs, self._pods)

    def close(self) -> None:
        """Do nothing: it follows no mirror."""

    async def observe(self) -> None:
        """Look at all jobs from time to time, until cancelled."""
        await self._pods.wait_synced()
        await self._jobs.wait_synced()
        while True:
            await self._round()
            await asyncio.sleep(self._policy.round_seconds)

    async def _round(self) -> None:
        """Look once, and follow the streaks of all jobs that were found."""
        found = await self._look()
        jobs, gpus = dict[str, int](), dict[str, int]()
        now = self._clock.now()
        for count, (uid, each) in enumerate(sorted(found.items()), 1):
            streak = follow(
                each.job, each.looks, self._streaks.get(uid), policy=self._policy, now=now
            )
            if streak is None:
                self._streaks.pop(uid, None)
            else:
                self._streaks[uid] = streak
            if streak is not None and streak.seconds >= IDLE_SECONDS:
                team = each.job.spec.team
                jobs[team] = jobs.get(team, 0) + 1
                gpus[team] = gpus.get(team, 0) + gpu_count(each.job)
            if count % _BATCH == 0:
                await asyncio.sleep(0)
        for uid in [each for each in self._streaks if each not in found]:
            del self._streaks[uid]
        self.report = IdleReport(jobs, gpus)
        self._looked = {uid: each.job.metadata.key for uid, each in found.items()}

    async def _look(self) -> Mapping[str, _Found]:
        """Return the jobs that are watched, by uid, with the looks at those members that say what
        they used.
        """
        found: dict[str, _Found] = {}
        for count, look in enumerate(self._measured(), 1):
            if count % _BATCH == 0:
                await asyncio.sleep(0)
            pod = self._pods.get(*look.pod)
            job = None if pod is None else self._jobs.get(*claimed_job(pod))
            if pod is None or job is None or pod.is_terminal or not is_watched(job, self._policy):
                continue
            member = logged_member(pod, job)
            if member is not None and member.attempt == job.status.attempt:
                found.setdefault(job.metadata.uid, _Found(job)).looks[pod.metadata.uid] = look
        return found

    def decide(self, now: float) -> Decision[IdleAction]:
        """Decide about the jobs of the latest round."""
        actions: list[IdleAction] = []
        self._ends = ends_in_hour(self._ends, now)
        left = self._policy.ends_per_hour_max - len(self._ends)
        for uid, key in sorted(self._looked.items(), key=lambda each: each[1]):
            job = self._jobs.get(*key)
            if job is None or job.metadata.uid != uid or not is_watched(job, self._policy):
                continue
            decided = decide_idle(job, self._streaks.get(uid), self._policy, ends_left=left)
            left -= sum(isinstance(each, EndIdle) for each in decided)
            actions += decided
        self._looked = {}
        self._next_at = now + self._policy.round_seconds
        return Decision(tuple(actions), wake_at=self._next_at)

    def due_at(self) -> float | None:
        """Return when to decide again: after the next round, whatever changes."""
        return self._next_at

    def key_of(self, action: IdleAction) -> ObjectKey:
        """Actions with the same key run in order, others side by side."""
        return action.job.metadata.key

    def takings(self, action: IdleAction) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        return (takings.idle_end(action),) if isinstance(action, EndIdle) else ()

    async def perform(self, action: IdleAction) -> Written | None:
        """Carry out one action; Conflict means: decide again on newer objects."""
        job, written = action.job, None
        match action:
            case WarnIdle(record=record, after=after):
                diff = {"idle": to_wire(record)}
                written = await self._objects.patch_status(JOBS, job.metadata, diff)
                self._keep(job, after)
                self._note(job, EventReason.IDLE, f"Warning {record.warnings}: {record.message}")
            case EndIdle(message=message):
                patch = {"spec": {"cancel": True},
                         "metadata": {"annotations": {names.STOPPED_EARLY: message}}}  # fmt: skip
                written = await self._objects.patch(JOBS, job.metadata, patch)
                self._ends.append(self._clock.now())
                self._note(job, EventReason.IDLE_ENDED, message[:1].upper() + message[1:])
            case ReportIdle(message=message, after=after):
                self._keep(job, after)
                text = message[:1].upper() + message[1:]
                self._note(job, EventReason.IDLE_REPORTED, text)
            case ClearIdle():
                written = await self._objects.patch_status(JOBS, job.metadata, {"idle": None})
            case _:
                assert_never(action)
        return written

    def _keep(self, job: Job, after: IdleStreak) -> None:
        """Take in what was done, unless the job was used meanwhile."""
        uid = job.metadata.uid
        if (now := self._streaks.get(uid)) is not None:
            self._streaks[uid] = now.noted(after)

    def _note(self, job: Job, reason: EventReason, text: str) -> None:
        meta = job.metadata
        kind = EventKind.NORMAL if reason is EventReason.IDLE_REPORTED else EventKind.WARNING
        self._events.record(JOBS, meta, kind, reason=reason.value, message=text)
        self._log.info(
            "Idle policy", action=reason.value, namespace=meta.namespace, job=meta.name,
            uid=meta.uid, user=meta.annotations.get(names.SUBMITTED_BY, ""), team=job.spec.team,
            gpus=gpu_count(job), mode=self._policy.mode.value, message=text,
        )  # fmt: skip

    def changed(self, key: ObjectKey) -> None:
        """Leave it: the next round looks at every job."""

    def failed(self, action: IdleAction, error: ApiError) -> None:
        """Leave it: the next round looks at every job."""

    def faulted(self, action: IdleAction, error: Exception) -> None:
        """Our own code raised over this job: set it aside, so that the others go on."""
        self._set_aside.note(JOBS, action.job.metadata, AsideStage.ACT, error)
