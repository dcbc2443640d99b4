"""The options of the images controller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImagesPolicy:
    """How much is pulled, where, and for whom."""

    #: Pull the images of jobs whose nodes are known before they start.
    prefetch_jobs: bool = False
    #: Pulls at a time: on a node, of a registry, for the jobs of a namespace, and in all.
    pulls_per_node_max: int = 1
    pulls_per_registry_max: int = 32
    pulls_per_namespace_max: int = 16
    pulls_max: int = 64
    #: Pulls of a registry that begin within any RATE_SECONDS.
    starts_per_registry_max: int = 120
    #: A pull that takes longer is given up.
    pull_seconds_max: int = 3600
    #: What images may take of a node's disk, in percent; beyond it the kubelet would remove others.
    disk_percent_max: int = 75
    #: Until an image that could not be pulled is tried again; doubles up to the second one.
    retry_seconds: int = 60
    retry_seconds_max: int = 3600
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
