"""The metadata of what a job owns: pods, ConfigMaps, Secrets, the service, the groups."""

from __future__ import annotations

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import ObjectMeta, OwnerReference


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
