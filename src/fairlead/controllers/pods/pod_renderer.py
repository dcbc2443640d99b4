"""Pods as they are sent: what the core decided, laid over the user's whole template.

The core sees a template through a read model that drops fields that decisions do not need (security
contexts, probes, sources of volumes ...). Here they come back: each pod is overlaid onto its role's
template as it is stored (`stored_templates.py`). The first pod of a role is encoded and overlaid in
full; of the others only what sets them apart from it, which is their node, host name and some
variables. Templates are decoded for the few jobs of which pods are being made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import Any

import msgspec
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Container, Pod, PodSpec
from fairlead.api.meta import ObjectMeta, to_wire
from fairlead.api.overlay import overlay
from fairlead.controllers.pods.stored_templates import KeptByUid, Stored, StoredTemplates
from fairlead.decide.jobs.rendering.preflight import SECURITY
from fairlead.decide.pinning import pinned_node, repinned_affinity

#: Jobs whose templates are kept decoded, and the JSON of those; decoded they are several times as
#: large.
DECODED_MAX = 256
DECODED_BYTES_MAX = 16 << 20

Obj = dict[str, Any]


@dataclass(slots=True)
class _Model:
    """What pods of a role are overlaid with: `base` is what `raw` looks like to the core."""

    base: Obj
    raw: Obj


@dataclass(slots=True)
class _First:
    """The first pod of a role in an attempt, and what became of it. `node` is as `pinned_node`."""

    pod: Pod
    metadata: Obj
    spec: Obj
    node: str


@dataclass(slots=True)
class _Templates:
    """The templates of one generation of a job, decoded."""

    generation: int
    #: Pod specs, by role.
    roles: dict[str, _Model]
    #: The first pod of each role in `attempt`.
    attempt: int = 0
    first: dict[str, _First] = field(default_factory=dict)


class PodRenderer:
    """Renders the bodies of pods. Call `forget` for a job that has ended or is deleted."""

    def __init__(
        self,
        stored: StoredTemplates,
        *,
        decoded_max: int = DECODED_MAX,
        decoded_bytes_max: int = DECODED_BYTES_MAX,
    ) -> None:
        self._stored = stored
        self._decoded = KeptByUid[_Templates](decoded_max, decoded_bytes_max)

    def forget(self, uid: str) -> None:
        """Keep nothing of a job."""
        self._stored.forget(uid)
        self._decoded.discard(uid)

    async def body(self, job: Job, pod: Pod) -> Obj:
        """Return the pod, decided on `job`, with all that the template of its role holds.

        Conflict when the stored job is another one, or has another generation than `job`: the pod
        was decided on a template that may not be the stored one. NotFound when the job is gone.
        """
        stored = await self._stored.read(job)
        return _body(self._decode(job.metadata.uid, stored), job.status.attempt, pod)

    async def can_drop_managed_fields(self, job: Job) -> bool:
        """True when `managedFields` exist and no server-side apply uses them.

        Tracking more than doubles what each write costs the server (docs/design/performance.md);
        only server-side apply reads it. The answer holds for this version of the job: a write that
        depends on it must name the version. Errors as `body`.
        """
        return (await self._stored.read(job)).idly_tracked == job.metadata.resource_version

    def _decode(self, uid: str, stored: Stored) -> _Templates:
        templates = self._decoded.get(uid)
        if templates is None or templates.generation != stored.generation:
            specs: dict[str, Obj] = msgspec.json.decode(stored.specs)
            roles = {role: _model(spec) for role, spec in specs.items()}
            templates = _Templates(stored.generation, roles)
            self._decoded.put(uid, templates, byte_count=len(stored.specs))
        return templates


def _model(raw: Obj) -> _Model:
    return _Model(to_wire(msgspec.convert(raw, PodSpec)), raw)


def _body(templates: _Templates, attempt: int, pod: Pod) -> Obj:
    if templates.attempt != attempt:
        templates.attempt, templates.first = attempt, {}
    role = pod.metadata.labels[names.ROLE]
    first = templates.first.get(role)
    if first is not None:
        spec = _as_first(pod.spec, first)
        if spec is not None:
            return {"metadata": _metadata_as_first(pod.metadata, first), "spec": spec}
    model = templates.roles[role]
    spec = _secured(overlay(to_wire(pod.spec), model.base, model.raw))
    metadata: Obj = to_wire(pod.metadata)
    templates.first[role] = _First(pod, metadata, spec, pinned_node(pod.spec))
    return {"metadata": metadata, "spec": spec}


def _metadata_as_first(metadata: ObjectMeta, first: _First) -> Obj:
    """Return plain metadata, which share with the first pod's what is equal."""
    old = first.pod.metadata
    if not metadata.labels or replace(metadata, name=old.name, labels=old.labels) != old:
        return to_wire(metadata)
    out = first.metadata.copy()
    out["name"], out["labels"] = metadata.name, metadata.labels
    return out


def _secured(spec: Obj) -> Obj:
    """Return the spec in which the test of the node has the least rights; the read model knows
    none.
    """
    inits: Sequence[Obj] = spec.get("initContainers", ())
    if not any(each["name"] == names.PREFLIGHT_CONTAINER for each in inits):
        return spec
    more: Obj = {"securityContext": dict(SECURITY)}
    secured = [
        {**each, **more} if each["name"] == names.PREFLIGHT_CONTAINER else each for each in inits
    ]
    return {**spec, "initContainers": secured}


def _as_first(spec: PodSpec, first: _First) -> Obj | None:
    """Return the overlaid spec, made from the first pod's; None if it differs in more than usual.

    Everything else is shared with the first pod's, so no one may write into it.
    """
    old, whole = first.pod.spec, first.spec
    here, there = first.node, pinned_node(spec)
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
    out = whole.copy()
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
    if not new.env or new.env is old.env:
        return whole
    env: list[Obj] = list(whole["env"])
    for i in compress(range(len(env)), map(is_not, new.env, old.env)):
        variable = new.env[i]
        is_text = variable.value and variable.value_from is None
        env[i] = {"name": variable.name, "value": variable.value} if is_text else to_wire(variable)
    out = whole.copy()
    out["env"] = env
    return out
