"""What the claims that members have of their own must fulfil, in the words of the API server."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from fairlead.api.causes import LABEL, LABEL_RULE, cause, duplicate, from_msgspec, invalid, required
from fairlead.api.jobs.job import ClaimTemplate, JobSpec, Role
from fairlead.api.kubernetes.volumes import PersistentVolumeClaim, PersistentVolumeClaimSpec
from fairlead.api.names import HOSTNAME
from fairlead.api.status import StatusCause
from fairlead.api.values.quantity import QuantityError, to_base

_STORAGE = "storage"


def claim_of(template: ClaimTemplate) -> PersistentVolumeClaim:
    """Return a claim as a template has it, without a name; msgspec.ValidationError."""
    spec = msgspec.convert(template.spec, PersistentVolumeClaimSpec)
    return PersistentVolumeClaim(spec=spec)


def claim_template_causes(spec: JobSpec, role: Role, path: str) -> Iterator[StatusCause]:
    """Yield what is wrong with the templates of a role, which is at `path`."""
    taken = {volume.name for volume in role.template.spec.volumes}
    for i, template in enumerate(role.volume_claim_templates):
        at = f"{path}.volumeClaimTemplates[{i}]"
        name = template.metadata.name
        if not LABEL.fullmatch(name):
            yield invalid(f"{at}.metadata.name", name, LABEL_RULE)
        elif name in taken:
            yield duplicate(f"{at}.metadata.name", name)
        taken.add(name)
        yield from _claim_causes(template, f"{at}.spec")
    if role.volume_claim_templates:
        yield from _beside(spec, role, f"{path}.volumeClaimTemplates")


def _claim_causes(template: ClaimTemplate, path: str) -> Iterator[StatusCause]:
    try:
        spec = claim_of(template).spec
    except msgspec.ValidationError as error:
        yield from_msgspec(error, path)
        return
    if not spec.access_modes:
        yield required(f"{path}.accessModes", "at least one access mode")
    if spec.volume_name:
        why = "each member has a claim of its own, so they cannot all have one volume"
        yield cause("Forbidden", f"{path}.volumeName", f"Forbidden: {why}")
    size = spec.resources.requests.get(_STORAGE)
    try:
        if size is None or to_base(_STORAGE, size) <= 0:
            yield required(f"{path}.resources.requests.storage", "how much storage, such as 10Gi")
    except QuantityError as error:
        yield invalid(f"{path}.resources.requests.storage", size, str(error))


def _beside(spec: JobSpec, role: Role, path: str) -> Iterator[StatusCause]:
    """Yield what does not go together with members whose volumes tie them to nodes of their own."""
    pod, why = role.template.spec, ""
    anti = pod.affinity.pod_anti_affinity if pod.affinity is not None else None
    if spec.adopts is not None:
        why = "the volumes of a group's pods are for the tool that makes them"
    elif spec.topology is not None and spec.topology.slice_size:
        why = "does not go together with topology.sliceSize"
    elif role.least < role.count:
        why = "the claims are of a fixed number of members: does not go together with minCount"
    elif any(e.when_unsatisfiable != "ScheduleAnyway" for e in pod.topology_spread_constraints):
        why = "does not go together with topologySpreadConstraints that must hold"
    elif anti is not None and any(term.topology_key != HOSTNAME for term in anti.required):
        why = f"does not go together with anti-affinity by another label than {HOSTNAME}"
    if why:
        yield cause("Forbidden", path, f"Forbidden: {why}")
