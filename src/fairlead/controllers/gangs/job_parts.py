"""Creates and deletes what belongs to a job: pods, peers, service, groups.

What is made for a job is made under a derived name, so that making it again finds it.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, TypeAlias, assert_never

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Service
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.podgroups import GroupApi, pod_groups, workloads
from fairlead.api.resources import CLAIMS, CONFIG_MAPS, PODS, SECRETS, SERVICES, Resource
from fairlead.api.status import ApiError
from fairlead.controllers.placing.uncertain_placements import may_come_late
from fairlead.controllers.pods.pod_refusals import PodRefusals
from fairlead.controllers.pods.pod_renderer import PodRenderer
from fairlead.decide.jobs.actions import (
    CreatePod,
    CreatePodGroup,
    CreateShared,
    DeletePod,
    DeleteShared,
    SharedPart,
)
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.jobs.rendering import native
from fairlead.decide.jobs.rendering.mpi import KEY_BYTES, key_secret, needs_key
from fairlead.decide.jobs.rendering.owned import own_claims
from fairlead.decide.jobs.view import Refusal
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.clock import Clock
from fairlead.runtime.keyed_controller import part_key
from fairlead.runtime.object_writer import NameTaken, ObjectWriter
from fairlead.runtime.watching.barrier import Written

CreatePart: TypeAlias = CreatePod | CreateShared | CreatePodGroup
DeletePart: TypeAlias = DeletePod | DeleteShared

#: Kinds of which a job has one object, whatever its attempt: another one would want the same name.
_OF_ALL_ATTEMPTS = ("Service", "Workload")


class PartWriter:
    """Performs creates and deletes of parts of jobs, and keeps what the answers say, by uid."""

    def __init__(
        self,
        objects: ObjectWriter,
        renderer: PodRenderer,
        refusals: PodRefusals,
        *,
        policy: JobsPolicy,
        clock: Clock,
        keys: random.Random,
    ) -> None:
        """`keys` is where the keys of MPI gangs are drawn from."""
        self._objects = objects
        self._renderer = renderer
        self._refusals = refusals
        self._policy = policy
        self._clock = clock
        self._keys = keys
        #: Until which instant a pod may appear whose creation got no answer: a clock may be set.
        self._late_until: dict[str, float] = {}

    def late_until(self, uid: str) -> float:
        """Return until when a pod of a job may appear whose creation got no answer; 0: none."""
        left = self._late_until.get(uid, 0.0) - asyncio.get_running_loop().time()
        return self._clock.now() + left if left > 0 else 0.0

    def forget(self, uid: str) -> None:
        """Drop what is kept of a job that is gone."""
        self._late_until.pop(uid, None)

    async def create(self, action: CreatePart) -> Written:
        """Create a part, or find it; Conflict where an object of another owner has its name."""
        job = action.job
        match action:
            case CreatePod(_, pod):
                for claim in own_claims(job, pod):
                    key = (job.metadata.namespace, claim["metadata"]["name"])
                    await self._objects.create_unread(CLAIMS, key, claim)
                body = await self._renderer.body(job, pod)
                return await self._create(PODS, job, pod.metadata.name, body)
            case CreateShared(_, shared):
                resource = SERVICES if isinstance(shared, Service) else CONFIG_MAPS
                if resource is CONFIG_MAPS and needs_key(job):
                    await self._create_key(job)
                return await self._create(resource, job, shared.metadata.name, to_wire(shared))
            case CreatePodGroup():
                return await self._create_group(job)
            case _:
                assert_never(action)

    async def delete(self, action: DeletePart) -> Written | None:
        """Delete a part; None when it is gone already."""
        if isinstance(action, DeleteShared) and action.key:
            await self._objects.delete(SECRETS, (action.namespace, action.key))
        return await self._objects.delete(
            self.kind_of(action), (action.namespace, action.name), uid=action.uid,
            grace_seconds=action.grace_seconds if isinstance(action, DeletePod) else None,
        )  # fmt: skip

    def kind_of(self, action: DeletePart) -> Resource[Any]:
        """Return the kind of what is to be deleted."""
        if isinstance(action, DeletePod):
            return PODS
        match action.part:
            case SharedPart.CONFIG_MAP:
                return CONFIG_MAPS
            case SharedPart.SERVICE:
                return SERVICES
            case SharedPart.POD_GROUP:
                return pod_groups(self._groups)
            case _:
                assert_never(action.part)

    @property
    def _groups(self) -> GroupApi:
        assert self._policy.groups is not None
        return self._policy.groups

    async def _create_key(self, job: Job) -> None:
        """Draw and store the key of an MPI gang. One that is there already is the attempt's key."""
        secret = key_secret(job, self._keys.randbytes(KEY_BYTES))
        await self._objects.create_unread(SECRETS, secret.metadata.key, to_wire(secret))

    async def _create_group(self, job: Job) -> Written:
        """Create the group, and before it the job's Workload, which all its groups refer to."""
        workload = native.workload_body(job)
        await self._create(workloads(self._groups), job, job.metadata.name, workload)
        group = native.pod_group_body(job, self._groups)
        name = native.group_name(job, job.status.attempt)
        return await self._create(pod_groups(self._groups), job, name, group)

    async def _create(
        self, resource: Resource[Any], job: Job, name: str, body: dict[str, Any]
    ) -> Written:
        uid, now = job.metadata.uid, self._clock.now
        key = (job.metadata.namespace, name)
        try:
            written = await self._objects.create(
                resource, key, body, owner=job.metadata,
                awaits_collection=resource.kind in _OF_ALL_ATTEMPTS,
            )  # fmt: skip
        except NameTaken as error:
            self._refusals.note(job, Refusal.NAME_TAKEN, error.message, now())
            raise
        except ApiError as error:
            if resource is PODS and may_come_late(error):
                instant = asyncio.get_running_loop().time()
                self._late_until[uid] = instant + self._policy.late_pod_seconds
            raise
        self._refusals.clear(uid)
        return written


def created_part_key(action: CreatePart) -> ObjectKey:
    """Return the key of a part that is created: parts of a job are acted on side by side."""
    job_key = action.job.metadata.key
    match action:
        case CreatePod(_, pod):
            return part_key(job_key, pod.metadata.name)
        case CreateShared(_, shared):
            return part_key(job_key, f"{type(shared).__name__}:{shared.metadata.name}")
        case CreatePodGroup(job):
            return part_key(job_key, f"podgroup:{job.status.attempt}")
        case _:
            assert_never(action)


def deleted_metadata(action: DeletePart) -> ObjectMeta:
    """Return the metadata of the object that is to be deleted."""
    return ObjectMeta(action.name, namespace=action.namespace, uid=action.uid)
