"""The jobs controller: looks at the jobs that changed, and does what `decide_job` says.

`JobIndex` keeps what belongs to each job and marks what changed; `KeyedDecider` decides about what
is marked or due. Pods are created side by side, after the write that says that their attempt has
begun.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace as dataclass_replace
from typing import Any, assert_never

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import is_true
from fairlead.api.resources import JOBS, PODS
from fairlead.api.status import ApiError, InternalError
from fairlead.controllers import takings
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.finished_jobs import FinishedJobs
from fairlead.controllers.gangs.job_index import JobIndex, JobsMirrors, job_key_of
from fairlead.controllers.gangs.job_parts import (
    CreatePart,
    DeletePart,
    PartWriter,
    created_part_key,
    deleted_metadata,
)
from fairlead.controllers.pods.job_writer import JobWriter, with_number
from fairlead.controllers.pods.pod_refusals import PodProbes, PodRefusals, is_denial, refusal_of
from fairlead.controllers.pods.pod_renderer import PodRenderer
from fairlead.controllers.pods.stored_templates import StoredTemplates
from fairlead.decide.attempts.notes import EventReason, PendingEvent, event
from fairlead.decide.attempts.status import StatusDraft, given_up
from fairlead.decide.job_actions import JobAction, WriteJobStatus
from fairlead.decide.jobs.actions import Action, AddFinalizer, DeletePod, ProbePods
from fairlead.decide.jobs.cleanup import delete_pods, force_at
from fairlead.decide.jobs.lifecycle import decide_job
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.view import JobView, Refusal
from fairlead.decide.reasons import Reason
from fairlead.decide.takings import Taking
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.model.gang.phase import OPEN, Phase, is_new, phase_of
from fairlead.runtime.client import Client
from fairlead.runtime.clock import Clock
from fairlead.runtime.events import EventSink
from fairlead.runtime.kept.history import History
from fairlead.runtime.kept.numbers import Numbers
from fairlead.runtime.keyed_controller import KeyedController, KeyedDecider, part_key
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.barrier import Written
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader, set_aside_of
from fairlead.runtime.watching.set_aside import AsideEntry, AsideStage


class JobsController(KeyedController[Action]):
    """One per process and leader. After a crash, create a new one: its state is in the objects."""

    name = "jobs"

    def __init__(
        self,
        client: Client,
        world: ClusterWorld,
        mirrors: JobsMirrors,
        *,
        history: History,
        events: EventSink,
        policy: JobsPolicy,
        clock: Clock,
        keys: random.Random,
        numbers: Numbers | None = None,
        templates: StoredTemplates | None = None,
        reader: MirrorReader | None = None,
    ) -> None:
        """Attach to the world and register on the mirrors. DNS naming needs one of services.

        `keys` is where the keys of MPI gangs are drawn from: the operating system, or a seed.
        `numbers` and `templates` are those of the process, where it has other controllers;
        `reader` is given where the mirrors are shared; it takes the faults of the handlers.
        """
        if policy.peer_naming is PeerNaming.DNS and mirrors.services is None:
            raise ValueError("peer naming DNS needs a mirror of services")
        self._world = world
        self._cluster = world.mirrors
        self._own = mirrors
        if not history.is_durable:  # then the objects are the record
            policy = dataclass_replace(policy, keep_finished_seconds=None)
        self._policy = policy
        self._clock = clock
        self._set_aside = set_aside_of(reader)
        self._objects = ObjectWriter(client)
        self._numbers = numbers or Numbers(client)
        self._jobs = JobWriter(
            self._objects, history=history, numbers=self._numbers, events=events,
            set_aside=self._set_aside, clock=clock,
        )  # fmt: skip
        self._renderer = PodRenderer(templates or StoredTemplates(client))
        self._refusals = PodRefusals()
        self._probes = PodProbes(client, self._renderer, clock)
        self._parts = PartWriter(
            self._objects, self._renderer, self._refusals, policy=policy, clock=clock, keys=keys
        )
        self._decider = KeyedDecider[Action](
            world.mirrors.jobs,
            self._decide_one,
            set_aside=self._set_aside,
            on_fault=self._report_fault,
        )
        self._index = JobIndex(
            world,
            mirrors,
            mark=self._decider.mark,
            on_finished=self._renderer.forget,
            on_gone=self._forget,
            clock=clock,
            reader=reader,
            finished=FinishedJobs(policy.keep_finished_jobs_max),
        )
        self._unregister = world.admissions.on_declined(self._decider.mark)

    @property
    def mirrors(self) -> Sequence[Mirror[Any]]:
        """Return what it reads."""
        cluster = self._cluster
        return [cluster.jobs, cluster.pods, cluster.nodes, cluster.arrays, *self._own.all]

    def close(self) -> None:
        """Take the handlers off the mirrors, if those live longer than the controller."""
        self._index.close()
        self._unregister()

    def _forget(self, uid: str) -> None:
        for each in (self._jobs, self._renderer, self._refusals, self._probes, self._parts):
            each.forget(uid)

    def _decide_one(self, key: ObjectKey, now: float) -> Decision[Action] | None:
        job = self._cluster.jobs.get(*key)
        if job is None:
            return None
        view = self._view(job, now)
        if self._jobs.is_status_refused(job) and not job.is_finished:
            if now < view.late_until:
                return Decision(wake_at=view.late_until)  # a late pod needs the place
            return Decision(given_up(job, now).write(record=True))
        if self._jobs.is_end_denied(job) and not job.is_finished:
            going = [pod for pod in view.pods.all() if not pod.is_terminal]
            end = given_up(job, now).write(record=True)
            return Decision((*delete_pods(view, going), *end), wake_at=force_at(view, going))
        decision = decide_job(view)
        if job.spec.adopts is None:
            decision = with_number(job, decision)
        if self._jobs.is_status_denied(job) and _is_stuck(job, decision):
            # The least that ends the job may be accepted. A job that runs is left as it is: the
            # policy may be a mistake that is mended soon.
            return Decision(given_up(job, now).write(record=True))
        if self._world.state.is_forfeited(key) and phase_of(job) is Phase.PLACED:
            return None  # the scheduler takes the placement away
        was_set_aside = is_true(job.status.conditions, names.SET_ASIDE)
        if was_set_aside and not any(isinstance(a, WriteJobStatus) for a in decision.actions):
            actions = (_with_set_aside(job, now), *decision.actions)
            return replace(decision, actions=actions)
        return decision

    def _report_fault(self, entry: AsideEntry, now: float) -> Sequence[Action]:
        """Return the write of the condition of a job that cannot be decided on."""
        job = self._cluster.jobs.get(*entry.metadata.key)
        if job is None or is_true(job.status.conditions, names.SET_ASIDE):
            return ()
        return (_with_set_aside(job, now, entry.fault),)

    def _view(self, job: Job, now: float) -> JobView:
        uid = job.metadata.uid
        return self._index.view(
            job,
            self._policy,
            now,
            pod_refusal=self._refusals.get(uid),
            probe=self._probes.get(uid),
            counts_written_at=self._jobs.written_at(uid),
            late_until=self._parts.late_until(uid),
        )

    def key_of(self, action: Action) -> ObjectKey:
        """Return a key per object: that of the job, or of one of its parts."""
        if isinstance(action, CreatePart):
            return created_part_key(action)
        if isinstance(action, DeletePod):
            pod = self._cluster.pods.get(action.namespace, action.name)
            job_key = job_key_of(pod) if pod is not None else None
            return part_key(job_key or (action.namespace, ""), action.name)
        if isinstance(action, DeletePart):
            return part_key((action.namespace, ""), f"{action.part.value}:{action.name}")
        return action.job.metadata.key

    def takings(self, action: Action) -> Sequence[Taking]:
        """Return what an action takes, for the record before it."""
        return takings.time_limit(action) if isinstance(action, WriteJobStatus) else ()

    async def perform(self, action: Action) -> Written | None:
        """Carry out one action; safe to repeat."""
        if isinstance(action, WriteJobStatus) and await self._is_offered(action):
            return None
        if isinstance(action, JobAction):
            return await self._jobs.perform(action)
        if isinstance(action, CreatePart):
            try:
                return await self._parts.create(action)
            except InternalError as error:  # it is tried again, and the attempt waits no longer
                self._note_refusal(action.job, error)
                raise
        if isinstance(action, DeletePart):
            return await self._parts.delete(action)
        match action:
            case ProbePods():
                return await self._probes.ask(action)
            case AddFinalizer(job, finalizer):
                drops = await self._renderer.can_drop_managed_fields(job)
                finalizers = (*job.metadata.finalizers, finalizer)
                number = job.status.number or await self._numbers.of(job.metadata.uid)
                return await self._objects.set_finalizers(
                    JOBS, job.metadata, finalizers, drop_managed_fields=drops,
                    labels={names.JOB_NUMBER: str(number)},
                )  # fmt: skip
            case _:
                assert_never(action)

    async def _is_offered(self, action: WriteJobStatus) -> bool:
        """Offer a job that is admitted to the scheduler; False where that is to be written."""
        job = action.job
        if not is_new(job) or phase_of(replace(job, status=action.status)) is not Phase.QUEUED:
            return False
        status = await self._jobs.numbered(job, action.status)
        admitted = replace(job, status=status)
        until = self._world.admissions.offer(admitted, self._clock.now())
        if until is None:
            return False
        self._decider.mark_at(job.metadata.key, until)
        return True

    def failed(self, action: Action, error: ApiError) -> None:
        """Note that a job's pods are refused: its attempt cannot go on, or not now.

        A job of which the API takes neither the end nor anything else gives its nodes back here.
        """
        if isinstance(action, WriteJobStatus) and self._jobs.is_end_denied(action.job):
            self._forfeit(action.job)
        if isinstance(action, DeletePod) and is_denial(error):
            self._note_undeletable(action, error)
        if isinstance(action, CreatePart):
            self._note_refusal(action.job, error)

    def _note_refusal(self, job: Job, error: ApiError) -> None:
        if refusal := refusal_of(error):
            self._refusals.note(job, refusal, error.message, self._clock.now())

    def _forfeit(self, job: Job) -> None:
        """Give back the nodes of a job that makes no more pods, once none can be on its way."""
        now = self._clock.now()
        is_known = self._world.state.is_forfeited(job.metadata.key)
        if is_known or now < self._view(job, now).late_until:
            return
        self._world.forfeit(job, is_final=True)
        text = "The API server refuses every status of the job, so its nodes are free for others"
        self._jobs.emit(event(job, PendingEvent(EventReason.NODES_RELEASED, text)))

    def _note_undeletable(self, action: DeletePod, error: ApiError) -> None:
        """Set a pod aside that may not be deleted; its job, if it waits for that alone, goes on.

        Pods that have ended use no node, and no other is made before they are gone.
        """
        if not self._set_aside.is_strict:
            self._set_aside.note(PODS, deleted_metadata(action), AsideStage.ACT, error)
        pod = self._cluster.pods.get(action.namespace, action.name)
        key = job_key_of(pod) if pod is not None else None
        job = self._cluster.jobs.get(*key) if key is not None else None
        if job is not None and phase_of(job) is Phase.BETWEEN_ATTEMPTS:
            view = self._view(job, self._clock.now())
            if all(each.is_terminal for each in view.pods.all()):
                self._world.forfeit(job, is_final=False)

    def faulted(self, action: Action, error: Exception) -> None:
        """Set the object aside that an action was for; a gang whose pods cannot be made fails."""
        if isinstance(action, DeletePart):
            kind = self._parts.kind_of(action)
            self._set_aside.note(kind, deleted_metadata(action), AsideStage.ACT, error)
            return
        entry = self._set_aside.note(JOBS, action.job.metadata, AsideStage.ACT, error)
        if isinstance(action, CreatePart):
            now = self._clock.now()
            self._refusals.note(action.job, Refusal.POD_REJECTED, entry.fault, now)


def _is_stuck(job: Job, decision: Decision[Action]) -> bool:
    """True for a job that would keep its nodes for as long as its status cannot be written.

    The decision ends its attempt, or it waits between attempts for a write.
    """
    phase = phase_of(job)
    if phase not in OPEN:
        return phase in (Phase.BETWEEN_ATTEMPTS, Phase.PLACED) and bool(decision.actions)
    written = (a.status for a in decision.actions if isinstance(a, WriteJobStatus))
    records = (status.current_attempt for status in written)
    return any(record is None or record.finished_at is not None for record in records)


def _with_set_aside(job: Job, now: float, fault: str = "") -> WriteJobStatus:
    """Return the write of the condition that a job is set aside, with the fault; "": no longer."""
    message = f"cannot be decided on: {fault}" if fault else ""
    status = "True" if fault else "False"
    draft = StatusDraft.of(job, now)
    draft = draft.condition(names.SET_ASIDE, status, Reason.SET_ASIDE.value, message)
    return WriteJobStatus(job, draft.status)
