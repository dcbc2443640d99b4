"""What the jobs controller writes: a job's status and finalizers, and what belongs to the job.

A status is written as a compare-and-swap of what changed. What is made for a job is made under a
derived name, so that to make it again finds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.api.job import Job, JobStatus, owner_reference_of
from fairlead.api.meta import merge_diff, to_wire
from fairlead.api.podgroups import GroupApi, pod_groups, workloads
from fairlead.api.resources import CONFIG_MAPS, JOBS, PODS, SERVICES, Resource
from fairlead.api.status import AlreadyExists, ApiError, Conflict, Invalid, NotFound, Unavailable
from fairlead.controllers.jobs_state import RefusalBook
from fairlead.controllers.jobs_templates import PodBodies
from fairlead.controllers.unanswered import may_come_late
from fairlead.decide.jobs import native
from fairlead.decide.jobs.actions import CreatePod, DeleteConfigMap, DeletePodGroup, DeleteService
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.view import Refusal
from fairlead.runtime.barrier import Written
from fairlead.runtime.client import Client, Propagation
from fairlead.runtime.clock import Clock
from fairlead.runtime.history import History, HistoryError, record_of

#: Where a status says what happened to an attempt: without it the job would stay as it is.
_ESSENTIAL = ("status.attempt", "status.conditions")
#: One step of a path: an index or a name.
_STEP = re.compile(r"\[(\d{1,9})\]|([^.\[\]]+)")


class JobWrites:
    """The writes of one controller, and what it learned from their answers, by uid of the job."""

    def __init__(
        self,
        client: Client,
        *,
        policy: JobsPolicy,
        history: History,
        clock: Clock,
        on_refused: Callable[[Job, Invalid], None],
    ) -> None:
        self.refusals = RefusalBook()
        self.counts_written_at: dict[str, float] = {}
        #: Until when a pod may come whose creation got no answer.
        self.late_until: dict[str, float] = {}
        self.bodies = PodBodies(client)
        #: How many writes of a status were refused for what they must say, in a row.
        self.status_refusals: dict[str, int] = {}
        self._on_refused = on_refused
        self._client = client
        self._policy = policy
        self._history = history
        self._clock = clock

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self.counts_written_at.pop(uid, None)
        self.refusals.forget(uid)
        self.late_until.pop(uid, None)
        self.status_refusals.pop(uid, None)
        self.bodies.forget(uid)

    async def create_pod(self, action: CreatePod) -> Written:
        """Create a member's pod from its job's template as it is stored."""
        job, pod = action.job, action.pod
        body = await self.bodies.body(job, pod)
        return await self.create(PODS, job, pod.metadata.name, body)

    async def write_status(self, job: Job, status: JobStatus) -> Written | None:
        """Send what changed, and never what the scheduler owns.

        What the API refuses of it for good is left out, so that a job ends all the same and gives
        its nodes back. Invalid where nothing remains of what must be said.
        """
        old, new = to_wire(_without_place(job.status)), to_wire(_without_place(status))
        try:
            written = await self._patch_status(job, merge_diff(old, new))
        except Invalid as error:
            self._on_refused(job, error)
            fields = _refused_fields(error)
            rest = merge_diff(old, without_fields(new, fields)) if fields else {}
            if any(field.startswith(_ESSENTIAL) for field in fields):
                uid = job.metadata.uid
                self.status_refusals[uid] = self.status_refusals.get(uid, 0) + 1
            elif fields and not rest:
                return None
            if rest:
                return await self._patch_status(job, rest)
            raise
        self.status_refusals.pop(job.metadata.uid, None)
        return written

    async def _patch_status(self, job: Job, diff: dict[str, Any]) -> Written:
        meta = job.metadata
        patch = {"metadata": {"resourceVersion": meta.resource_version}, "status": diff}
        written = await self._client.patch(
            JOBS.only_metadata, meta.name, patch, namespace=meta.namespace, subresource="status"
        )
        self.counts_written_at[meta.uid] = self._clock.now()
        return Written.of(JOBS, written)

    async def add_finalizer(self, job: Job, finalizer: str) -> Written | None:
        """Add a finalizer."""
        untrack = await self.bodies.may_untrack(job)
        return await self._set_finalizers(
            job, (*job.metadata.finalizers, finalizer), untrack=untrack
        )

    async def remove_finalizer(self, job: Job, finalizer: str) -> Written | None:
        """Remove a finalizer."""
        kept = tuple(f for f in job.metadata.finalizers if f != finalizer)
        return await self._set_finalizers(job, kept)

    async def _set_finalizers(
        self, job: Job, finalizers: tuple[str, ...], *, untrack: bool = False
    ) -> Written | None:
        """Write them; `untrack` also tells the server to keep no `managedFields` of the job."""
        meta = job.metadata
        new: dict[str, Any] = {
            "resourceVersion": meta.resource_version,
            "finalizers": list(finalizers) or None,
        }
        if untrack:  # the reset that "Server-Side Apply" documents; it ends the tracking
            new["managedFields"] = [{}]
        patch = {"metadata": new}
        written = await self._client.patch(
            JOBS.only_metadata, meta.name, patch, namespace=meta.namespace
        )
        if not finalizers and meta.deletion_timestamp is not None:
            return Written.deletion(JOBS, meta.key, meta.uid)
        return Written.of(JOBS, written)

    async def create(
        self, resource: Resource[Any], job: Job, name: str, obj: dict[str, Any]
    ) -> Written:
        """Create, or find that we did so before. A name that somebody else has ends the attempt."""
        namespace = job.metadata.namespace
        answer = resource.only_metadata
        try:
            made = await self._client.create(answer, obj, namespace=namespace)
        except AlreadyExists:
            made = await self._client.get(answer, name, namespace=namespace)
            owner = owner_reference_of(made.metadata)
            if owner is None or owner.uid != job.metadata.uid:
                text = f"{resource.kind} {name} exists already and does not belong to this job"
                self.refusals.note(job, Refusal.NAME_TAKEN, text, self._clock.now())
                raise Conflict(text) from None
        except ApiError as error:
            if resource is PODS and may_come_late(error):
                until = self._clock.now() + self._policy.late_pod_seconds
                self.late_until[job.metadata.uid] = until
            raise
        self.refusals.made(job.metadata.uid)
        return Written.of(resource, made)

    def kind_of(self, action: DeleteConfigMap | DeleteService | DeletePodGroup) -> Resource[Any]:
        """Return the kind of what is to be deleted."""
        match action:
            case DeleteConfigMap():
                return CONFIG_MAPS
            case DeleteService():
                return SERVICES
            case DeletePodGroup():
                return pod_groups(self._groups)

    @property
    def _groups(self) -> GroupApi:
        assert self._policy.groups is not None
        return self._policy.groups

    async def create_group(self, job: Job) -> Written:
        """Create the group, and before it the job's Workload, which all its groups refer to."""
        workload = native.workload_body(job)
        await self.create(workloads(self._groups), job, job.metadata.name, workload)
        group, name = (
            native.pod_group_body(job, self._groups),
            native.group_name(job, job.status.attempt),
        )
        return await self.create(pod_groups(self._groups), job, name, group)

    async def delete(
        self,
        resource: Resource[Any],
        namespace: str,
        name: str,
        *,
        uid: str,
        grace: int | None = None,
    ) -> Written | None:
        """Delete an object of this uid; None when it is gone already."""
        try:
            await self._client.delete(
                resource,
                name,
                namespace=namespace,
                grace_period_seconds=grace,
                propagation=Propagation.BACKGROUND,
                uid=uid,
            )
        except NotFound:
            return None
        return Written.deletion(resource, (namespace, name), uid)

    async def record(self, job: Job) -> None:
        """Put an ended job into the history."""
        try:
            await self._history.record(record_of(job))
        except HistoryError as error:
            # Not ended, for the world, until it is recorded: try again as with any other store.
            raise Unavailable(str(error)) from error


def _without_place(status: JobStatus) -> JobStatus:
    return replace(status, placement=None, verdict=None)


def _refused_fields(error: Invalid) -> list[str]:
    """Return the paths in the status that the API names as wrong; [] for any other refusal."""
    details = error.status.details
    causes = details.causes if details is not None else ()
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
