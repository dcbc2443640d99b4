"""The claims that a member has of its own: its volumes, and the objects that are made for it.

They are made before the first pod of the member, and found there by the pods of later attempts.
"""

from __future__ import annotations

from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import Pod, Volume
from fairlead.api.kubernetes.pod_parts import ClaimVolumeSource
from fairlead.api.kubernetes.volumes import own_claim_name
from fairlead.api.meta import to_wire
from fairlead.decide.jobs.owned import owned_labels, owner_reference


def own_volumes(job: Job, role: Role, index: int) -> tuple[Volume, ...]:
    """Return the volumes that a member has of its own."""
    if not role.volume_claim_templates:  # as nearly always, and asked for each member
        return ()
    return tuple([
        Volume(name, persistent_volume_claim=ClaimVolumeSource(
            own_claim_name(name, job.metadata.name, role.name, index)))
        for name in (template.metadata.name for template in role.volume_claim_templates)
    ])  # fmt: skip


def own_claims(job: Job, pod: Pod) -> list[dict[str, Any]]:
    """Return the claims that have to be there before a member's pod: they are the job's, so they
    are collected with it.
    """
    if not any(role.volume_claim_templates for role in job.spec.roles):
        return []
    labels = pod.metadata.labels
    role = next(each for each in job.spec.roles if each.name == labels[names.ROLE])
    index = int(labels[names.INDEX])
    found: list[dict[str, Any]] = []
    for template in role.volume_claim_templates:
        own = owned_labels(job, 0)
        own |= {names.ROLE: role.name, names.INDEX: str(index)}
        given = template.metadata
        name = own_claim_name(given.name, job.metadata.name, role.name, index)
        metadata = {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {**given.labels, **own},
            "annotations": given.annotations,
            "ownerReferences": [to_wire(owner_reference(job))],
        }
        found.append({"metadata": metadata, "spec": template.spec})
    return found
