"""The options of the images controller."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.decide.images.settings import ImagesSettings

#: Settings say what the fields of their names are for, and have the defaults.
_SETTINGS = ImagesSettings()


@dataclass(frozen=True, slots=True)
class ImagesPolicy:
    """How much is pulled, where, and for whom."""

    prefetch_jobs: bool = _SETTINGS.prefetch_jobs
    pulls_per_node_max: int = _SETTINGS.pulls_per_node_max
    pulls_per_registry_max: int = _SETTINGS.pulls_per_registry_max
    pulls_per_namespace_max: int = _SETTINGS.pulls_per_namespace_max
    pulls_max: int = _SETTINGS.pulls_max
    starts_per_registry_max: int = _SETTINGS.starts_per_registry_max
    pull_seconds_max: int = _SETTINGS.pull_seconds_max
    disk_percent_max: int = _SETTINGS.disk_percent_max
    retry_seconds: int = _SETTINGS.retry_seconds
    retry_seconds_max: int = _SETTINGS.retry_seconds_max
    #: A node is taken to have what was pulled for so long, where it does not say itself.
    believed_seconds: float = 3600.0
    #: Waiting jobs whose images are pulled, and images of each.
    jobs_max: int = 64
    images_per_job_max: int = 8
    #: Between two decisions.
    loop_seconds: float = 1.0
    #: Where the pods of image sets are, and the priority class of all pulls; "": none.
    namespace: str = "kube-system"
    priority_class: str = ""


#: The window of the rate of a registry.
RATE_SECONDS = 60.0
#: A kubelet reports a new image at the latest after so long (`nodeStatusReportFrequency`).
REPORT_SECONDS = 300.0
#: What an image takes while a node unpacks it, in times of the size that nodes report: the
#: compressed layers and the files (containerd #4249).
UNPACKED_FACTOR = 3
#: The size of an image that no node has.
UNKNOWN_BYTES = 20 * 10**9
