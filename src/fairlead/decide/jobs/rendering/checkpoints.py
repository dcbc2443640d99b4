"""Where a job keeps its checkpoints, as its members see it."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Volume, VolumeMount
from fairlead.api.kubernetes.pod_parts import ClaimVolumeSource, HostPathVolumeSource
from fairlead.decide.jobs.policy import JobsPolicy

CHECKPOINT_VOLUME = "fairlead-checkpoint"


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """Where checkpoints go: the directory as members see it, and how it gets there."""

    directory: str
    volume: Volume
    mount: VolumeMount


def checkpoint_volume(job: Job, policy: JobsPolicy) -> CheckpointPlace | None:
    """Return where the job keeps checkpoints, the same for all attempts; None when nowhere.

    In this order: the job's own path, its claim, a directory under the policy's root. A path of the
    host is mounted where it is, so that it means the same to a process without a container.
    """
    own, uid = job.spec.checkpoint, job.metadata.uid
    if own is not None and own.path:
        return _host_path(own.path)
    if own is not None and own.claim_name:
        mount = VolumeMount(CHECKPOINT_VOLUME, names.CHECKPOINT_MOUNT, sub_path=f"fairlead/{uid}")
        source = ClaimVolumeSource(claim_name=own.claim_name)
        volume = Volume(CHECKPOINT_VOLUME, persistent_volume_claim=source)
        return CheckpointPlace(names.CHECKPOINT_MOUNT, volume, mount)
    if policy.checkpoint_root:
        meta = job.metadata
        # The uid keeps a later job of the same name from reading what is not its own.
        own_part = f"{meta.namespace}/{meta.name}-{uid[:8]}"
        return _host_path(policy.checkpoint_root, own_part)
    return None


def _host_path(path: str, sub_path: str = "") -> CheckpointPlace:
    """Return a place on the host. A kubelet gives what it makes for `sub_path` the mode of `path`.

    So members of any user may write there if they may write to `path`.
    """
    source = HostPathVolumeSource(path=path, type="DirectoryOrCreate")
    directory = f"{path}/{sub_path}" if sub_path else path
    mount = VolumeMount(CHECKPOINT_VOLUME, directory, sub_path=sub_path)
    return CheckpointPlace(directory, Volume(CHECKPOINT_VOLUME, host_path=source), mount)
