"""Volumes of a job's pods, in the short form of `--mount` and of the defaults of teams.

A mount names one source and the path where it appears; `volume_of` and `mount_of` are what a pod
has for it. The form has no field for another namespace: claims, ConfigMaps and Secrets are those of
the job's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Annotated

from fairlead.api.causes import invalid, required
from fairlead.api.kubernetes.core import Volume, VolumeMount
from fairlead.api.kubernetes.pod_parts import (
    ClaimVolumeSource,
    ConfigMapVolumeSource,
    EmptyDirVolumeSource,
    HostPathVolumeSource,
    SecretVolumeSource,
)
from fairlead.api.meta import Wire
from fairlead.api.pods.pod_rules import OBJECT_NAME_WHY, is_object_name
from fairlead.api.status import StatusCause
from fairlead.api.values.bounds import PATH_MAX, ObjectName, doc


class EmptyDir(Enum):
    """What an empty directory that lives as long as the pod is kept on."""

    DISK = "Disk"
    MEMORY = "Memory"


class JobMount(Wire, frozen=True):
    """A volume and where it appears in the containers; exactly one source is set."""

    path: Annotated[
        str, doc("Absolute directory at which containers see the volume.", maxLength=PATH_MAX)
    ]
    claim: Annotated[
        ObjectName, doc("PersistentVolumeClaim of the job's namespace. No default.")
    ] = ""
    config_map: Annotated[
        ObjectName, doc("ConfigMap of the job's namespace, each key a file. No default.")
    ] = ""
    secret: Annotated[
        ObjectName, doc("Secret of the job's namespace, each key a file. No default.")
    ] = ""
    empty_dir: Annotated[
        EmptyDir | None,
        doc("Disk or Memory: an empty directory that lives as long as the pod. No default."),
    ] = None
    host_path: Annotated[
        str,
        doc(
            "Directory of the node. Only in the settings of the cluster. No default.",
            maxLength=PATH_MAX,
        ),
    ] = ""
    sub_path: Annotated[
        str,
        doc("Directory or file within the volume. Default: all of it.", maxLength=PATH_MAX),
    ] = ""
    read_only: Annotated[bool, doc("True: containers cannot write to it. Default false.")] = False

    @property
    def source(self) -> str:
        """What is mounted, in words: `claim data`, `/scratch of the node`."""
        if self.host_path:
            return f"{self.host_path} of the node"
        if self.empty_dir is not None:
            return f"an empty directory ({self.empty_dir.value.lower()})"
        named = (("claim", self.claim), ("ConfigMap", self.config_map), ("Secret", self.secret))
        return next((f"{kind} {name}" for kind, name in named if name), "nothing")


def volume_of(mount: JobMount, name: str) -> Volume:
    """Return the volume of a mount, under this name."""
    if mount.claim:
        return Volume(name=name, persistent_volume_claim=ClaimVolumeSource(mount.claim))
    if mount.config_map:
        return Volume(name=name, config_map=ConfigMapVolumeSource(name=mount.config_map))
    if mount.secret:
        return Volume(name=name, secret=SecretVolumeSource(secret_name=mount.secret))
    if mount.host_path:
        # A node without the directory says so; without a type it would be made, and empty.
        host = HostPathVolumeSource(path=mount.host_path, type="Directory")
        return Volume(name=name, host_path=host)
    medium = "Memory" if mount.empty_dir is EmptyDir.MEMORY else ""
    return Volume(name=name, empty_dir=EmptyDirVolumeSource(medium=medium))


def mount_of(mount: JobMount, name: str) -> VolumeMount:
    """Return where the volume of this name appears."""
    return VolumeMount(
        name=name, mount_path=mount.path, sub_path=mount.sub_path, read_only=mount.read_only
    )


def mount_causes(mount: JobMount, path: str) -> Iterator[StatusCause]:
    """Yield what is wrong with a mount that stands at `path`."""
    named = (("claim", mount.claim), ("configMap", mount.config_map), ("secret", mount.secret))
    for field, name in named:
        if name and not is_object_name(name):
            yield invalid(f"{path}.{field}", name, OBJECT_NAME_WHY)
    given = [field for field, name in named if name]
    given += ["hostPath"] if mount.host_path else []
    given += ["emptyDir"] if mount.empty_dir is not None else []
    if len(given) != 1:
        got = f"; got {' and '.join(given)}" if given else ""
        yield required(path, f"claim, configMap, secret, emptyDir or hostPath, one of them{got}")
    for field, text in (("path", mount.path), ("hostPath", mount.host_path)):
        if text or field == "path":
            yield from _directory(f"{path}.{field}", text)
    if mount.sub_path.startswith("/") or ".." in mount.sub_path.split("/"):
        yield invalid(f"{path}.subPath", mount.sub_path, "must lead into the volume")


def _directory(field: str, text: str) -> Iterator[StatusCause]:
    if not text.startswith("/") or text.strip("/") == "":
        yield invalid(field, text, "must be an absolute directory below /")
    elif ".." in text.split("/") or ":" in text or "\0" in text:
        yield invalid(field, text, "must not contain '..', ':' or a NUL character")
