"""Checks of a node's container runtime: how it fetches images, on which disk, and its limits."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.audit.event import seconds_of
from fairlead.doctor.check import IS_CRITICAL, IS_INFO, IS_WARNING, Check, Reading, Side, warning
from fairlead.doctor.checks.nodes import node_number, node_texts
from fairlead.doctor.checks.objects import image_sizes
from fairlead.doctor.expressions import Recorded
from fairlead.doctor.facts import Facts, Source

N, NK = (Source.NODE,), (Source.NODE, Source.API)
CONTAINERD = "fairlead.containerd."
#: Images from which a layer may take minutes.
LARGE_BYTES, VERY_LARGE_BYTES = 5e9, 10e9
PROGRESS_SECONDS_MIN = 600
#: What disks over a network call themselves.
NETWORK_DISKS = ("elastic block store", "persistentdisk", "virtual disk", "virtual_disk")
NETWORK_FILES = ("nfs", "ceph", "fuse", "rbd", "iscsi")


def downloads(facts: Facts) -> Iterator[Reading]:
    """Read how many layers of an image a runtime fetches at a time."""
    for node, count in node_number(facts, f"{CONTAINERD}max_concurrent_downloads"):
        yield Reading(node, count, f"max_concurrent_downloads = {count}")


def progress_timeout(facts: Facts) -> Iterator[Reading]:
    """Read whether a runtime gives a slow layer up while there are very large images."""
    largest = max(each.value for each in image_sizes(facts))
    for node, text in node_texts(facts, f"{CONTAINERD}image_pull_progress_timeout"):
        is_short = 0 < seconds_of(text) < PROGRESS_SECONDS_MIN
        yield Reading(node, float(is_short and largest > VERY_LARGE_BYTES),
                      f"image_pull_progress_timeout = {text}, largest image "
                      f"{largest / 1e9:.1f} GB")  # fmt: skip


def whole_layers(facts: Facts) -> Iterator[Reading]:
    """Read whether a runtime fetches a layer over one connection while there are large images."""
    largest = max(each.value for each in image_sizes(facts))
    for node, size in node_number(facts, f"{CONTAINERD}concurrent_layer_fetch_buffer"):
        yield Reading(node, float(size == 0 and largest > LARGE_BYTES),
                      f"concurrent_layer_fetch_buffer = {size}, largest image "
                      f"{largest / 1e9:.1f} GB")  # fmt: skip


def sandbox_image(facts: Facts) -> Iterator[Reading]:
    """Read whether the image of every pod's sandbox may be removed from a node."""
    for node, count in node_number(facts, "fairlead.pinned_sandbox_images"):
        yield Reading(node, float(count == 0), f"{count} pinned images of the sandbox")


def disk(facts: Facts) -> Iterator[Reading]:
    """Read whether images are on a disk that turns or is reached over a network."""
    for node, text in node_texts(facts, "fairlead.containerd_disk"):
        values = facts.node_facts[node]
        model = values.get("fairlead.containerd_disk_model", "")
        turns = values.get("fairlead.containerd_disk_rotational") == "1"
        is_remote = any(each in model.lower() for each in NETWORK_DISKS)
        is_remote = is_remote or any(each in text.lower() for each in NETWORK_FILES)
        yield Reading(node, float(is_remote or turns), f"{text} {model}".rstrip())


def locked_memory(facts: Facts) -> Iterator[Reading]:
    """Read whether a node with RDMA bounds the memory that containers may lock."""
    for node, text in node_texts(facts, "fairlead.containerd_memlock"):
        devices = facts.node_facts[node].get("fairlead.rdma_devices", "0")
        is_bad = text != "unlimited" and devices not in ("", "0")
        yield Reading(node, float(is_bad), f"locked memory {text}, {devices} RDMA devices")


CHECKS: tuple[Check, ...] = (
    Check(
        "IMG-08", "The sandbox image of a node is not pinned", N, sandbox_image, IS_CRITICAL,
        "Without it no container starts, and a registry that refuses the node takes all of it out.",
        "sandbox = 'REGISTRY.INSIDE/pause:3.10' under pinned_images in containerd's configuration "
        "(2.0 or newer; sandbox_image before that), and the image on the machine image",
        "OpenAI 2018", unit="bool",
    ),
    Check(
        "IMG-11", "Images are on a slow disk", N, disk, IS_WARNING,
        "Unpacking is what a pull waits for, and it writes every byte twice.",
        "root = '/mnt/nvme/containerd' in containerd's configuration, on a local NVMe disk",
        "OpenAI 2018", unit="bool",
    ),
    Check(
        "IMG-05", "A runtime gives up slow pulls of very large images", NK, progress_timeout,
        IS_WARNING,
        "A layer of 15 GB without progress for 5 minutes begins again from the start.",
        "image_pull_progress_timeout = '30m' in containerd's configuration",
        "OpenAI 2018; containerd #12811", unit="bool",
    ),
    Check(
        "IMG-04", "A runtime fetches few layers at a time", N, downloads, (warning(4),),
        "Images queue behind each other although the network is idle.",
        "max_concurrent_downloads = 10 in containerd's configuration: under "
        "io.containerd.transfer.v1.local from 2.1 on, before that under the plugin cri",
        "OpenAI 2018; containerd, CheckLocalImagePullConfigs", Side.BELOW, unit="layers",
    ),
    Check(
        "IMG-06", "A runtime fetches a large layer over one connection", NK, whole_layers, IS_INFO,
        "One stream does not fill a fast network.",
        "concurrent_layer_fetch_buffer = 8388608 in containerd's configuration (2.2 or newer), "
        "under io.containerd.transfer.v1.local",
        "containerd #10450", unit="bool",
    ),
    Check(
        "IMG-10", "Nodes pull images at a rate near that of a registry's limits",
        (Source.KUBELET, Source.RECORDED),
        Recorded(Source.KUBELET, 'max_over_time(sum(rate(kubelet_runtime_operations_total{job=~'
                 '"$job", operation_type="pull_image"}[5m]))[1d:5m])'),
        (warning(1_400),),
        "Registries of clouds allow 2,000 to 3,000 requests a second in a region, and a pull is "
        "several.",
        "preload images (IMG-08); a mirror of the registry inside; IfNotPresent (IMG-12)",
        "EKS, ultra scale", unit="/s", growth=1,
    ),
    Check(
        "SYS-10", "Containers of a node with RDMA may lock little memory", N, locked_memory,
        IS_WARNING,
        "Memory for RDMA is locked: NCCL and MPI fail or fall back to TCP.",
        "LimitMEMLOCK=infinity in containerd's unit", "libibverbs", unit="bool",
    ),
)  # fmt: skip
