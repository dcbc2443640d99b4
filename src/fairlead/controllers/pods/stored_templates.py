"""The pod templates of jobs as they are stored, with what the read model of a job drops.

They are kept as JSON, for many jobs wait. The jobs controller reads a job once more in front of its
pods; the arrays controller keeps what the server answers to the creation of an element, so that
this read is left out. What is kept is of one generation, and never answers for another.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from fairlead.api.jobs.job import Job
from fairlead.api.meta import ObjectMeta, OnlyMetadata, Wire
from fairlead.api.resources import JOBS, Resource
from fairlead.api.status import Conflict
from fairlead.runtime.client import Client

#: Jobs whose templates are kept, as a kilobyte or two of JSON; the oldest goes first, and is read
#: again when it is needed.
TEMPLATES_MAX = 8_192
TEMPLATES_BYTES_MAX = 64 << 20

T = TypeVar("T")


class _Manager(Wire, frozen=True):
    operation: str = ""


class _StoredMeta(ObjectMeta, frozen=True):
    managed_fields: tuple[_Manager, ...] | None = None


class _StoredTemplate(Wire, frozen=True):
    spec: dict[str, Any] | None = None


class _StoredRole(Wire, frozen=True):
    name: str
    template: _StoredTemplate = _StoredTemplate()


class _StoredSpec(Wire, frozen=True):
    roles: tuple[_StoredRole, ...] = ()


class StoredJob(OnlyMetadata, frozen=True):
    """A job with the templates of its roles as plain JSON."""

    metadata: _StoredMeta = _StoredMeta()
    spec: _StoredSpec = _StoredSpec()


STORED_JOBS = Resource(JOBS.group, JOBS.version, JOBS.plural, JOBS.kind, StoredJob)


@dataclass(slots=True)
class Stored:
    """One generation of a job as it is stored; `generation` is 0 until it was read."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    generation: int = 0
    #: The version of the job at which `managedFields` were kept and no server-side apply had
    #: been used on it; "" when there was none.
    idly_tracked: str = ""
    #: JSON: pod specs by role.
    specs: bytes = b""

    def put(self, job: StoredJob) -> None:
        """Take the job in as it is stored."""
        meta = job.metadata
        managers = meta.managed_fields or ()
        is_idle = bool(managers) and all(each.operation != "Apply" for each in managers)
        self.idly_tracked = meta.resource_version if is_idle else ""
        specs = {role.name: role.template.spec or {} for role in job.spec.roles}
        self.specs = msgspec.json.encode(specs)
        self.generation = meta.generation


class KeptByUid(Generic[T]):
    """Values by uid of a job, bounded in number and bytes: what was put first goes first."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        """A value that has more than `bytes_max` bytes is kept alone."""
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._values: dict[str, tuple[T, int]] = {}
        self._byte_count = 0

    def __len__(self) -> int:
        return len(self._values)

    def get(self, uid: str) -> T | None:
        """Return the value of a job, or None."""
        found = self._values.get(uid)
        return None if found is None else found[0]

    def put(self, uid: str, value: T, *, byte_count: int) -> None:
        """Keep a value in place of the job's last one, and drop the oldest beyond the bounds."""
        self.discard(uid)
        self._values[uid] = (value, byte_count)
        self._byte_count += byte_count
        while len(self) > self._count_max or (self._byte_count > self._bytes_max and len(self) > 1):
            self.discard(next(iter(self._values)))

    def discard(self, uid: str) -> None:
        """Drop the value of a job, if there is one."""
        found = self._values.pop(uid, None)
        if found is not None:
            self._byte_count -= found[1]


class StoredTemplates:
    """The templates of the jobs of one process. Call `forget` for a job that needs no more pods."""

    def __init__(
        self,
        client: Client,
        *,
        templates_max: int = TEMPLATES_MAX,
        bytes_max: int = TEMPLATES_BYTES_MAX,
    ) -> None:
        self._client = client
        self._stored = KeptByUid[Stored](templates_max, bytes_max)

    @property
    def count(self) -> int:
        """How many jobs' templates are kept."""
        return len(self._stored)

    def forget(self, uid: str) -> None:
        """Keep nothing of a job."""
        self._stored.discard(uid)

    def keep(self, job: StoredJob) -> None:
        """Keep the templates of a job that the server has just answered with."""
        stored = Stored()
        stored.put(job)
        self._stored.put(job.metadata.uid, stored, byte_count=len(stored.specs))

    async def read(self, job: Job) -> Stored:
        """Return the templates of this very generation of a job, read if they are not kept.

        Conflict when the stored job is another one, or has another generation: what was decided on
        `job` may not be for the stored one. NotFound when the job is gone.
        """
        uid = job.metadata.uid
        stored = self._stored.get(uid)
        if stored is None:
            stored = Stored()
            self._stored.put(uid, stored, byte_count=0)
        if stored.generation != job.metadata.generation:
            async with stored.lock:
                if stored.generation != job.metadata.generation:
                    stored.put(await self._fetch(job))
                    if self._stored.get(uid) is stored:  # else forgotten while it was read
                        self._stored.put(uid, stored, byte_count=len(stored.specs))
        return stored

    async def _fetch(self, job: Job) -> StoredJob:
        meta = job.metadata
        found = await self._client.get(STORED_JOBS, meta.name, namespace=meta.namespace)
        if found.metadata.uid != meta.uid or found.metadata.generation != meta.generation:
            raise Conflict(
                f"job {meta.name} has changed: its pods were decided on generation "
                f"{meta.generation}, stored is {found.metadata.generation}"
            )
        return found
