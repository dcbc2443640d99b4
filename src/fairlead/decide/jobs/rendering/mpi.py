"""The key of an MPI gang: what its members prove to each other that they belong to one attempt.

It is random, drawn by the shell, and in a Secret of its own: who may read pods, ConfigMaps and logs
may not read it. The Secret is made in front of the ConfigMap of the gang and deleted in front of
it, so that the ConfigMap, which is watched, stands for both, and no Secret is ever read.
"""

from __future__ import annotations

from base64 import b64encode

from fairlead.api import names
from fairlead.api.jobs.job import Job, Role
from fairlead.api.jobs.preflight import PreflightSuite
from fairlead.api.kubernetes.core import Secret, Volume, VolumeMount
from fairlead.api.kubernetes.pod_parts import SecretVolumeSource
from fairlead.decide.jobs.rendering.owned import owned_metadata

KEY_BYTES = 32
KEY_VOLUME = "fairlead-mpi-key"


def needs_key(job: Job) -> bool:
    """True for a gang whose members prove themselves to each other: for `fairlead.member.mpirun`,
    as its pods say or what they run, or for the test before its program.
    """
    if job.member_count == 1:
        return False
    is_tested = job.spec.preflight not in (None, PreflightSuite.NONE)
    return is_tested or any(map(_uses_mpi, job.spec.roles))


def _uses_mpi(role: Role) -> bool:
    if names.MPI in role.template.metadata.annotations:
        return role.template.metadata.annotations[names.MPI] == "true"
    containers = role.template.spec.containers
    return any(names.MPIRUN in word for c in containers for word in (*c.command, *c.args))


def key_name(job: Job, attempt: int) -> str:
    """Return the derived name of the Secret, which no later job of the same name has."""
    return f"{job.metadata.name}-{attempt}-mpi-{job.metadata.uid[:8]}"


def key_secret(job: Job, key: bytes) -> Secret:
    """Return the Secret of the current attempt."""
    attempt = job.status.attempt
    metadata = owned_metadata(job, key_name(job, attempt), attempt)
    return Secret(metadata=metadata, data={names.MPI_KEY: b64encode(key).decode()})


def key_volume(job: Job) -> tuple[Volume, VolumeMount]:
    """Return how a member of the current attempt gets the key."""
    source = SecretVolumeSource(secret_name=key_name(job, job.status.attempt))
    mount = VolumeMount(KEY_VOLUME, names.MPI_KEY_MOUNT, read_only=True)
    return Volume(KEY_VOLUME, secret=source), mount
