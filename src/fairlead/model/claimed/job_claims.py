"""Which claims for volumes and devices the members of a job name, and which each has alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec import Struct

from fairlead.api.jobs.job import Job, Role
from fairlead.api.kubernetes.core import Pod, PodSpec
from fairlead.api.kubernetes.volumes import PersistentVolumeClaim, own_claim_name
from fairlead.api.names import JOB_UID
from fairlead.api.pods.served_resources import ResourceNames, served_asks
from fairlead.api.validation.claim_templates import claim_of
from fairlead.model.claimed.device_asks import DeviceClaims, device_claims_of


class OwnClaims(Struct, frozen=True):
    """What each member of a role has of its own: a claim of this template, by its index."""

    names: tuple[str, ...]
    #: The claim while it is not made.
    claim: PersistentVolumeClaim


class Claims(Struct, frozen=True):
    """The claims of a job: those that all members of a role name, and their own; by role."""

    shared: tuple[tuple[str, ...], ...] = ()
    own: tuple[tuple[OwnClaims, ...], ...] = ()
    #: The claims for devices; () where no role has any.
    devices: DeviceClaims = ()
    #: Those for volumes alone; None where there are no others.
    others: Claims | None = None

    @property
    def of_volumes(self) -> Claims:
        """The same claims, without those for devices; the same object each time."""
        return self if self.others is None else self.others

    @property
    def classes(self) -> dict[str, None]:
        """The storage classes of the claims that members have of their own."""
        return dict.fromkeys(e.claim.storage_class for e in chain.from_iterable(self.own))

    @property
    def names(self) -> Iterator[str]:
        """All of them; a name may come several times."""
        yield from chain.from_iterable(self.shared)
        yield from chain.from_iterable(each.names for each in chain.from_iterable(self.own))


NO_CLAIMS = Claims()


def claims_of(job: Job, resources: ResourceNames = ()) -> Claims:
    """Return the claims of a job. Asked at each new spec: most have no volume at all.

    `resources` of containers that devices serve. msgspec.ValidationError for a template that no
    admission has seen.
    """
    spec = job.spec
    if spec.checkpoint is None or not spec.checkpoint.claim_name:
        for role in spec.roles:  # no generator, as it is asked so often
            pod = role.template.spec
            if pod.volumes or role.volume_claim_templates or pod.resource_claims:
                break
            if served_asks(pod, resources):
                break
        else:
            return NO_CLAIMS
    shared = tuple([claims_of_pod(role.template.spec) for role in spec.roles])
    checkpoint = spec.checkpoint
    if checkpoint is not None and checkpoint.claim_name and not checkpoint.path:
        shared = tuple([tuple(dict.fromkeys((*each, checkpoint.claim_name))) for each in shared])
    devices = device_claims_of(job, resources)
    has_own = any(role.volume_claim_templates for role in spec.roles)
    own = tuple(tuple(_own_claims(job, role)) for role in spec.roles) if has_own else ()
    of_volumes = Claims(shared, own) if has_own or any(shared) else NO_CLAIMS
    return Claims(shared, own, devices, of_volumes) if devices else of_volumes


def _own_claims(job: Job, role: Role) -> Iterator[OwnClaims]:
    for template in role.volume_claim_templates:
        name = template.metadata.name
        yield OwnClaims(
            tuple(own_claim_name(name, job.metadata.name, role.name, i) for i in range(role.count)),
            claim_of(template),
        )


def claims_of_pod(spec: PodSpec) -> tuple[str, ...]:
    """Return the names of the claims that are volumes of a pod."""
    if not spec.volumes:
        return ()
    sources = [volume.persistent_volume_claim for volume in spec.volumes]
    return tuple(dict.fromkeys([each.claim_name for each in sources if each is not None]))


def made_claims_of(pod: Pod) -> tuple[str, ...]:
    """Return the names of the claims that are made for a pod, its generic ephemeral volumes."""
    named = [each.name for each in pod.spec.volumes if each.ephemeral is not None]
    return tuple([f"{pod.metadata.name}-{name}" for name in named])


def job_uid_of(pod: Pod) -> str:
    """Return the uid of the job that a pod is of: its controller, or of an adopted pod, which has
    another one, what its label says.
    """
    owners = (each.uid for each in pod.metadata.owner_references if each.controller)
    return pod.metadata.labels.get(JOB_UID) or next(owners, "")
