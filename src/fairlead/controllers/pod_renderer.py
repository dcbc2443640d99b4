"""Pods as they are sent: what the core decided, laid over the user's whole template.

The core sees a template through a read model that drops fields that decisions do not need (security
contexts, probes, sources of volumes ...). Here they come back: the stored job is read once more,
as plain JSON, and each pod is overlaid onto its role's template. One read serves all pods of a
generation of a job, and the first pod of a role is encoded and overlaid in full; of the others only
what sets them apart from it, which is their node, host name and some variables. Templates are kept
as bytes, for many jobs wait, and decoded for the few of which pods are being made.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.core import Container, EnvVar, Pod, PodSpec
from fairlead.api.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.overlay import overlay
from fairlead.api.resources import JOBS, Resource
from fairlead.api.status import Conflict
from fairlead.decide.pinning import pinned_node, repinned_affinity
from fairlead.runtime.client import Client

#: Jobs whose templates are kept, as a kilobyte or two of JSON; the oldest goes first, and is read
#: again when it is needed.
TEMPLATES_MAX = 8_192
TEMPLATES_BYTES_MAX = 64 << 20
#: Jobs whose templates are kept decoded, and the JSON of those; decoded they are several times as
#: large.
DECODED_MAX = 256
DECODED_BYTES_MAX = 16 << 20

Obj = dict[str, Any]
T = TypeVar("T")

#: Jobs with every field that was stored.
RAW_JOBS: Resource[Obj] = Resource(JOBS.group, JOBS.version, JOBS.plural, JOBS.kind, dict)


@dataclass(slots=True)
class _Model:
    """What pods of a role are overlaid with: `base` is what `raw` looks like to the core."""

    base: Obj
    raw: Obj


@dataclass(slots=True)
class _First:
    """The first pod of a role in an attempt, and what became of its spec."""

    spec: PodSpec
    whole: Obj


@dataclass(slots=True)
class _Stored:
    """One generation of a job as it is stored; `generation` is 0 until it was read."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    generation: int = 0
    #: The version of the job at which `managedFields` were kept and no server-side apply had
    #: been used on it; "" when there was none.
    idly_tracked: str = ""
    #: JSON: pod specs by role.
    specs: bytes = b""


@dataclass(slots=True)
class _Templates:
    """The templates of one generation of a job, decoded."""

    generation: int
    #: Pod specs, by role.
    roles: dict[str, _Model]
    #: The first pod of each role in `attempt`.
    attempt: int = 0
    first: dict[str, _First] = field(default_factory=dict)


class _Kept(Generic[T]):
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
        found = self._values.pop(uid, None)
        if found is not None:
            self._byte_count -= found[1]


class PodRenderer:
    """Renders the bodies of pods. Call `forget` for a job that has ended or is deleted."""

    def __init__(
        self,
        client: Client,
        *,
        templates_max: int = TEMPLATES_MAX,
        decoded_max: int = DECODED_MAX,
        templates_bytes_max: int = TEMPLATES_BYTES_MAX,
        decoded_bytes_max: int = DECODED_BYTES_MAX,
    ) -> None:
        self._client = client
        self._stored = _Kept[_Stored](templates_max, templates_bytes_max)
        self._decoded = _Kept[_Templates](decoded_max, decoded_bytes_max)

    def __len__(self) -> int:
        """Return how many jobs' templates are kept."""
        return len(self._stored)

    def forget(self, uid: str) -> None:
        """Keep nothing of a job."""
        self._stored.discard(uid)
        self._decoded.discard(uid)

    async def body(self, job: Job, pod: Pod) -> Obj:
        """Return the pod, decided on `job`, with all that the template of its role holds.

        Fields that belong to this pod alone are left typed, for the client to encode.

        Conflict when the stored job is another one, or has another generation than `job`: the pod
        was decided on a template that may not be the stored one. NotFound when the job is gone.
        """
        stored = await self._read(job)
        return _body(self._decode(job.metadata.uid, stored), job.status.attempt, pod)

    async def can_drop_managed_fields(self, job: Job) -> bool:
        """True when `managedFields` exist and no server-side apply uses them.

        Tracking more than doubles what each write costs the server (docs/design/performance.md);
        only server-side apply reads it. The answer holds for this version of the job: a write that
        depends on it must name the version. Errors as `body`.
        """
        return (await self._read(job)).idly_tracked == job.metadata.resource_version

    def _decode(self, uid: str, stored: _Stored) -> _Templates:
        templates = self._decoded.get(uid)
        if templates is None or templates.generation != stored.generation:
            specs: dict[str, Obj] = msgspec.json.decode(stored.specs)
            roles = {role: _model(spec) for role, spec in specs.items()}
            templates = _Templates(stored.generation, roles)
            self._decoded.put(uid, templates, byte_count=len(stored.specs))
        return templates

    async def _read(self, job: Job) -> _Stored:
        """Return what is kept of the job, read again if it is of another generation."""
        uid = job.metadata.uid
        stored = self._stored.get(uid)
        if stored is None:
            stored = _Stored()
            self._stored.put(uid, stored, byte_count=0)
        if stored.generation != job.metadata.generation:
            async with stored.lock:
                if stored.generation != job.metadata.generation:
                    await self._fetch(stored, job)
                    if self._stored.get(uid) is stored:  # else forgotten while it was read
                        self._stored.put(uid, stored, byte_count=len(stored.specs))
        return stored

    async def _fetch(self, stored: _Stored, job: Job) -> None:
        meta = job.metadata
        raw = await self._client.get(RAW_JOBS, meta.name, namespace=meta.namespace)
        found = raw["metadata"]
        if found.get("uid") != meta.uid or found.get("generation", 0) != meta.generation:
            raise Conflict(
                f"job {meta.name} has changed: its pods were decided on generation "
                f"{meta.generation}, stored is {found.get('generation', 0)}"
            )
        managers = found.get("managedFields") or []
        is_idle = bool(managers) and all(each.get("operation") != "Apply" for each in managers)
        stored.idly_tracked = found["resourceVersion"] if is_idle else ""
        specs = {r["name"]: r["template"].get("spec") or {} for r in raw["spec"]["roles"]}
        stored.specs = msgspec.json.encode(specs)
        stored.generation = meta.generation


def _model(raw: Obj) -> _Model:
    return _Model(to_wire(msgspec.convert(raw, PodSpec)), raw)


def _body(templates: _Templates, attempt: int, pod: Pod) -> Obj:
    if templates.attempt != attempt:
        templates.attempt, templates.first = attempt, {}
    role = pod.metadata.labels[names.ROLE]
    first = templates.first.get(role)
    spec = _as_first(pod.spec, first) if first is not None else None
    if spec is None:
        model = templates.roles[role]
        spec = overlay(to_wire(pod.spec), model.base, model.raw)
        templates.first[role] = _First(pod.spec, spec)
    return {"metadata": pod.metadata, "spec": spec}


def _as_first(spec: PodSpec, first: _First) -> Obj | None:
    """Return the overlaid spec, made from the first pod's; None if it differs in more than usual.

    Everything else is shared with the first pod's, so no one may write into it.
    """
    old, whole = first.spec, first.whole
    here, there = pinned_node(old), pinned_node(spec)
    if bool(old.node_name) != bool(spec.node_name) or bool(here) != bool(there):
        return None
    is_pinned = bool(here) and not spec.node_name
    affinity = old.affinity
    if is_pinned and affinity is not None:
        affinity = repinned_affinity(affinity, here, there)
    same = replace(
        spec,
        node_name=old.node_name,
        affinity=old.affinity if affinity == spec.affinity else spec.affinity,
        hostname=old.hostname,
        containers=old.containers,
        init_containers=old.init_containers,
    )
    if same != old or bool(spec.hostname) != bool(old.hostname):
        return None
    out: Obj = dict(whole)
    if is_pinned:
        out["affinity"] = _repinned(whole["affinity"], here, there)
    elif spec.node_name:
        out["nodeName"] = spec.node_name
    if spec.hostname:
        out["hostname"] = spec.hostname
    for name, new, before in (
        ("containers", spec.containers, old.containers),
        ("initContainers", spec.init_containers, old.init_containers),
    ):
        if len(new) != len(before):
            return None
        if new:
            containers = list(map(_container_as_first, new, before, whole[name]))
            if None in containers:
                return None
            out[name] = containers
    return out


def _repinned(affinity: Obj, here: str, there: str) -> Obj:
    nodes = affinity["nodeAffinity"]
    required = nodes["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [
        {**term, "matchFields": [_moved(field, here, there) for field in term["matchFields"]]}
        for term in required["nodeSelectorTerms"]
    ]
    required = {**required, "nodeSelectorTerms": terms}
    return {
        **affinity,
        "nodeAffinity": {**nodes, "requiredDuringSchedulingIgnoredDuringExecution": required},
    }


def _moved(field: Obj, here: str, there: str) -> Obj:
    is_pin = field["key"] == "metadata.name" and list(field.get("values", ())) == [here]
    return {**field, "values": [there]} if is_pin else field


def _container_as_first(new: Container, old: Container, whole: Obj) -> Obj | None:
    """Return the overlaid container where only values of variables differ, else None."""
    if len(new.env) != len(old.env) or replace(new, env=old.env) != old:
        return None
    if not new.env:
        return whole
    env: list[Obj] = whole["env"]
    variables: list[Obj | EnvVar] = [
        theirs if a is b or a == b else a
        for a, b, theirs in zip(new.env, old.env, env, strict=True)
    ]
    return {**whole, "env": variables}
