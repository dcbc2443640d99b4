"""What a job owns: the metadata of pods, ConfigMaps, Secrets, the service and the groups; and the
claims that a member has of its own.

Claims are made before the first pod of the member, and found there by the pods of later attempts.
"""

from __future__ import annotations

from typing import Any

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import Pod, Volume
from fairlead.api.kubernetes.pod_parts import ClaimVolumeSource
from fairlead.api.kubernetes.volumes import own_claim_name
from fairlead.api.meta import ObjectMeta, OwnerReference, to_wire


def owner_reference(job: Job) -> OwnerReference:
    """Return the reference that makes the job own what it makes."""
    return OwnerReference(
        api_version=names.API_VERSION,
        kind="Job",
        name=job.metadata.name,
        uid=job.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def owned_labels(job: Job, attempt: int) -> dict[str, str]:
    """Return the labels of what a job owns; attempt 0 is all of them."""
    return {
        names.MANAGED_BY: "fairlead",
        names.JOB_NAME: job.metadata.name,
        names.JOB_UID: job.metadata.uid,
        names.ATTEMPT: str(attempt),
    }


def owned_metadata(job: Job, name: str, attempt: int) -> ObjectMeta:
    """Return the metadata of what a job owns; attempt 0 is all of them."""
    return ObjectMeta(
        name=name,
        namespace=job.metadata.namespace,
        labels=owned_labels(job, attempt),
        owner_references=(owner_reference(job),),
    )


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
