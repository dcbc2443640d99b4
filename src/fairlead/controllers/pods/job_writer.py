"""Performs the actions on a job that several controllers share (`fairlead.decide.job_actions`).

A status is written as a compare-and-swap of what changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from fairlead.api.jobs.job import Job, JobStatus
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.resources import JOBS
from fairlead.api.status import ApiError, Invalid, Unavailable
from fairlead.controllers.pods.pod_refusals import is_denial
from fairlead.decide.attempts.status import is_given_up
from fairlead.decide.job_actions import (
    DeleteJob,
    EmitEvent,
    JobAction,
    RecordHistory,
    RemoveFinalizer,
    WriteJobStatus,
)
from fairlead.decide.verdict import Decision
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventKind, EventSink
from fairlead.runtime.kept.history import History, HistoryError, record_of
from fairlead.runtime.kept.numbers import Numbers
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.set_aside import AsideStage, SetAside

A = TypeVar("A")
#: A status that has been refused so often, in a row, cannot be written.
REFUSALS_MAX = 3
#: What a status must say about an attempt: without it the job would stay as it is.
_ESSENTIAL = ("status.attempt", "status.conditions")
#: One step of a path: an index or a name.
_STEP = re.compile(r"\[(\d{1,9})\]|([^.\[\]]+)")


class JobWriter:
    """Performs a `JobAction`; keeps what the answers say, by uid of the job."""

    def __init__(
        self,
        objects: ObjectWriter,
        *,
        history: History,
        numbers: Numbers,
        events: EventSink,
        set_aside: SetAside,
        clock: Clock,
    ) -> None:
        """`set_aside` takes jobs whose status the API refuses in part."""
        self._objects = objects
        self._history = history
        self._numbers = numbers
        self._events = events
        self._set_aside = set_aside
        self._clock = clock
        self._written_at: dict[str, float] = {}
        #: Refusals of what a status must say, in a row.
        self._refusals: dict[str, int] = {}
        #: Refusals that name no field, in a row: those of policies and webhooks.
        self._denials: dict[str, int] = {}
        #: Jobs of which even the least that ends them was refused.
        self._ends_denied: set[str] = set()

    def written_at(self, uid: str) -> float:
        """Return when the status of a job was last written; 0 when it was not."""
        return self._written_at.get(uid, 0.0)

    def is_status_refused(self, job: Job) -> bool:
        """True when the API server refuses the status of a job in attempt after attempt."""
        return self._refusals.get(job.metadata.uid, 0) >= REFUSALS_MAX

    def is_status_denied(self, job: Job) -> bool:
        """True when a policy or a webhook refuses each status of a job that it is shown."""
        return self._denials.get(job.metadata.uid, 0) >= REFUSALS_MAX

    def is_end_denied(self, job: Job) -> bool:
        """True when a policy or a webhook refuses even the least that ends a job."""
        return job.metadata.uid in self._ends_denied

    def forget(self, uid: str) -> None:
        """Drop what is kept of a job that is gone."""
        self._written_at.pop(uid, None)
        self._refusals.pop(uid, None)
        self._denials.pop(uid, None)
        self._ends_denied.discard(uid)
        self._numbers.forget(uid)

    async def perform(self, action: JobAction) -> Written | None:
        """Carry out one action; safe to repeat."""
        match action:
            case WriteJobStatus(job, status):
                return await self._write_status(job, status)
            case EmitEvent():
                return self.emit(action)
            case RecordHistory(job):
                return await self._record(job)
            case DeleteJob(job):
                return await self._objects.delete(JOBS, job.metadata.key, uid=job.metadata.uid)
            case RemoveFinalizer(job, finalizer):
                kept = [each for each in job.metadata.finalizers if each != finalizer]
                return await self._objects.set_finalizers(JOBS, job.metadata, kept)
            case _:
                assert_never(action)

    def emit(self, event: EmitEvent) -> None:
        """Emit an event on a job."""
        kind, meta = EventKind(event.type), event.job.metadata
        self._events.record(JOBS, meta, kind, reason=event.reason, message=event.message)

    def faulted(self, action: JobAction, error: Exception) -> None:
        """Set the job aside that an action was for."""
        self._set_aside.note(JOBS, action.job.metadata, AsideStage.ACT, error)

    async def _write_status(self, job: Job, status: JobStatus) -> Written | None:
        """Send what changed.

        What the API refuses for good is left out, so that a job ends all the same and its nodes
        become free. Invalid where nothing remains of what must be said, and what the API answers
        where a policy refuses all of it.
        """
        uid = job.metadata.uid
        old, new = to_wire(job.status), to_wire(await self.numbered(job, status))
        try:
            written = await self._patch_status(job, merge_diff(old, new))
        except ApiError as error:
            fields = _refused_fields(error)
            if not fields and not is_denial(error):
                raise
            self._set_aside.note(JOBS, job.metadata, AsideStage.ACT, error)
            rest = merge_diff(old, without_fields(new, fields)) if fields else {}
            if not fields:
                self._denials[uid] = self._denials.get(uid, 0) + 1
                if is_given_up(status):
                    self._ends_denied.add(uid)
            elif any(field.startswith(_ESSENTIAL) for field in fields):
                self._refusals[uid] = self._refusals.get(uid, 0) + 1
            elif fields and not rest:
                return None
            if rest:
                return await self._patch_status(job, rest)
            raise
        self._refusals.pop(uid, None)
        self._denials.pop(uid, None)
        self._ends_denied.discard(uid)
        return written

    async def numbered(self, job: Job, status: JobStatus) -> JobStatus:
        """Return the status with the job's number, which the first write of it gives."""
        if job.status.number:
            return status
        return replace(status, number=await self._numbers.of(job.metadata.uid))

    async def _patch_status(self, job: Job, diff: dict[str, Any]) -> Written:
        written = await self._objects.patch_status(JOBS, job.metadata, diff)
        self._written_at[job.metadata.uid] = self._clock.now()
        return written

    async def _record(self, job: Job) -> None:
        try:
            status = await self.numbered(job, job.status)
            await self._history.record(record_of(replace(job, status=status)))
        except HistoryError as error:
            # The job has not ended, for the world, until it is recorded: retry like any write.
            raise Unavailable(str(error)) from error


def with_number(job: Job, decision: Decision[A]) -> Decision[A | WriteJobStatus]:
    """Return the decision, and of one that does nothing the write that gives a job its number.

    Jobs of an earlier version have none, and no other write may come for days. Those that have
    ended stay without.
    """
    if job.status.number or job.is_finished or decision.actions:
        return decision
    return replace(decision, actions=(WriteJobStatus(job, job.status),))


def _refused_fields(error: ApiError) -> list[str]:
    """Return the paths in the status that the API names as wrong; [] for any other refusal."""
    details = error.status.details
    causes = details.causes if isinstance(error, Invalid) and details is not None else ()
    return [cause.field for cause in causes if cause.field.startswith("status.")]


def without_fields(status: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return a copy of a status without what is at these paths, such as `status.attempts[0].end`.

    Of an item of a list that is wrong as a whole, the list is left out.
    """
    out: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(status))
    for path in paths:
        steps = _STEP.findall(path)[1:]
        while steps and steps[-1][0]:
            steps.pop()
        at: Any = out
        for index, name in steps[:-1]:
            key: Any = int(index) if index else name
            is_there = key in at if isinstance(at, dict) else isinstance(key, int) and key < len(at)
            at = at[key] if is_there else {}
        if steps and isinstance(at, dict):
            at.pop(steps[-1][1], None)
    return out
