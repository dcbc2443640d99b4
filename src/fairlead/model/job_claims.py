"""Which claims the members of a job name, and which each has of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec import Struct

from fairlead.api.claim_templates import claim_of
from fairlead.api.core import PodSpec
from fairlead.api.job import Job, Role
from fairlead.api.volumes import PersistentVolumeClaim, own_claim_name


class OwnClaims(Struct, frozen=True):
    """What each member of a role has of its own: a claim of this template, by its index."""

    names: tuple[str, ...]
    #: The claim while it is not made.
    claim: PersistentVolumeClaim


class Claims(Struct, frozen=True):
    """The claims of a job: those that all members of a role name, and their own; by role."""

    shared: tuple[tuple[str, ...], ...] = ()
    own: tuple[tuple[OwnClaims, ...], ...] = ()

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


def claims_of(job: Job) -> Claims:
    """Return the claims of a job. Asked at each new spec: most have no volume at all.

    msgspec.ValidationError for a template that no admission has seen.
    """
    spec = job.spec
    if spec.checkpoint is None or not spec.checkpoint.claim_name:
        for role in spec.roles:  # no generator, as it is asked so often
            if role.template.spec.volumes or role.volume_claim_templates:
                break
        else:
            return NO_CLAIMS
    shared = tuple([claims_of_pod(role.template.spec) for role in spec.roles])
    checkpoint = spec.checkpoint
    if checkpoint is not None and checkpoint.claim_name and not checkpoint.path:
        shared = tuple([tuple(dict.fromkeys((*each, checkpoint.claim_name))) for each in shared])
    has_own = any(role.volume_claim_templates for role in spec.roles)
    if not has_own:
        return Claims(shared) if any(shared) else NO_CLAIMS
    own = tuple(tuple(_own_claims(job, role)) for role in spec.roles)
    return Claims(shared, own)


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
