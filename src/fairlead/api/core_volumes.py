"""What a volume of a pod is made of; see `api.core`."""

from __future__ import annotations

from fairlead.api.core_env import FieldSelector
from fairlead.api.meta import Wire


class ConfigMapVolumeSource(Wire, frozen=True):
    """A ConfigMap as files."""

    name: str = ""
    optional: bool = False


class HostPathVolumeSource(Wire, frozen=True):
    """A path of the host."""

    path: str
    type: str = ""


class EmptyDirVolumeSource(Wire, frozen=True):
    """A directory that lives as long as the pod."""

    medium: str = ""


class ClaimVolumeSource(Wire, frozen=True):
    """A persistent volume claim of the pod's namespace."""

    claim_name: str
    read_only: bool = False


class DownwardFile(Wire, frozen=True):
    """A file with a field of the pod: a label, an annotation, its name, namespace or uid."""

    path: str
    field_ref: FieldSelector | None = None


class DownwardVolumeSource(Wire, frozen=True):
    """Fields of the pod as files."""

    items: tuple[DownwardFile, ...] = ()
