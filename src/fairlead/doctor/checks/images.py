"""Checks of images and the container runtime: pulls, disks, and what pods name."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.audit.event import seconds_of
from fairlead.doctor.check import (
    IS_CRITICAL,
    IS_INFO,
    IS_WARNING,
    Check,
    MeasuredValue,
    Side,
    warning,
)
from fairlead.doctor.checks.of_nodes import configs, node_number, node_texts
from fairlead.doctor.checks.of_objects import listed_nodes, pods_of
from fairlead.doctor.expressions import Quantile, Recorded
from fairlead.doctor.facts import ClusterFacts, Source
from fairlead.doctor.objects import SeenContainer

K = (Source.API,)
C = (Source.KUBELET_CONFIG,)
M = (Source.KUBELET,)
N = (Source.NODE,)
NK = (Source.NODE, Source.API)
CONTAINERD = "fairlead.containerd."
#: Images from which a layer may take minutes.
LARGE_BYTES = 5e9
VERY_LARGE_BYTES = 10e9
PROGRESS_SECONDS_MIN = 600
#: What disks over a network call themselves.
NETWORK_DISKS = ("elastic block store", "persistentdisk", "virtual disk", "virtual_disk")
NETWORK_FILES = ("nfs", "ceph", "fuse", "rbd", "iscsi")


def image_sizes(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the size of each image on the sampled nodes."""
    sizes: dict[str, int] = {}
    for node in listed_nodes(facts):
        for image in node.status.images:
            names = image.names or ["<none>"]
            name = min(names, key=lambda each: ("@" in each, len(each)))
            sizes[name] = max(sizes.get(name, 0), image.size_bytes)
    if not sizes:
        raise facts.missing(Source.API, "no node reports its images")
    for name, size in sizes.items():
        yield MeasuredValue(name, size, f"{size / 1e9:.1f} GB on a node")


def _always_pulls(container: SeenContainer) -> bool:
    tag = container.image.rpartition("/")[2].partition(":")[2]
    is_latest = tag in ("", "latest") and "@" not in container.image
    policy = container.image_pull_policy or ("Always" if is_latest else "IfNotPresent")
    return policy == "Always"


def always_pulled(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read the pods of workloads that ask the registry each time that they start."""
    for each, count in pods_of(facts):
        images = [c.image for c in each.spec.template.spec.containers if _always_pulls(c)]
        text = f"{count:,} pods with imagePullPolicy Always: {', '.join(images[:3])}"
        yield MeasuredValue(each.metadata.key, count if images else 0, text)


def serial_pulls(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a kubelet pulls one image at a time."""
    for node, config in configs(facts):
        is_serial = config.get("serializeImagePulls", True) is not False
        yield MeasuredValue(
            node, float(is_serial), f"serializeImagePulls: {str(is_serial).lower()}"
        )


def unbounded_pulls(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a kubelet pulls any number of images at a time."""
    for node, config in configs(facts):
        cap = config.get("maxParallelImagePulls")
        is_unbounded = config.get("serializeImagePulls", True) is False and not cap
        yield MeasuredValue(node, float(is_unbounded), f"maxParallelImagePulls: {cap or 'not set'}")


def pull_qps(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the limit of pulls is the default."""
    for node, config in configs(facts):
        qps = config.get("registryPullQPS", 5)
        yield MeasuredValue(node, float(qps == 5), f"registryPullQPS: {qps}")


def downloads(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read how many layers of an image a runtime fetches at a time."""
    for node, count in node_number(facts, f"{CONTAINERD}max_concurrent_downloads"):
        yield MeasuredValue(node, count, f"max_concurrent_downloads = {count}")


def progress_timeout(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a runtime gives a slow layer up while there are very large images."""
    largest = max(each.value for each in image_sizes(facts))
    for node, text in node_texts(facts, f"{CONTAINERD}image_pull_progress_timeout"):
        is_short = 0 < seconds_of(text) < PROGRESS_SECONDS_MIN
        yield MeasuredValue(node, float(is_short and largest > VERY_LARGE_BYTES),
                      f"image_pull_progress_timeout = {text}, largest image "
                      f"{largest / 1e9:.1f} GB")  # fmt: skip


def whole_layers(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether a runtime fetches a layer over one connection while there are large images."""
    largest = max(each.value for each in image_sizes(facts))
    for node, size in node_number(facts, f"{CONTAINERD}concurrent_layer_fetch_buffer"):
        yield MeasuredValue(node, float(size == 0 and largest > LARGE_BYTES),
                      f"concurrent_layer_fetch_buffer = {size}, largest image "
                      f"{largest / 1e9:.1f} GB")  # fmt: skip


def sandbox_image(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether the image of every pod's sandbox may be removed from a node."""
    for node, count in node_number(facts, "fairlead.pinned_sandbox_images"):
        yield MeasuredValue(node, float(count == 0), f"{count} pinned images of the sandbox")


def disk(facts: ClusterFacts) -> Iterator[MeasuredValue]:
    """Read whether images are on a disk that turns or is reached over a network."""
    for node, text in node_texts(facts, "fairlead.containerd_disk"):
        values = facts.node_facts[node]
        model = values.get("fairlead.containerd_disk_model", "")
        turns = values.get("fairlead.containerd_disk_rotational") == "1"
        is_remote = any(each in model.lower() for each in NETWORK_DISKS)
        is_remote = is_remote or any(each in text.lower() for each in NETWORK_FILES)
        yield MeasuredValue(node, float(is_remote or turns), f"{text} {model}".rstrip())


CHECKS: tuple[Check, ...] = (
    Check(
        "IMG-07", "An image is very large", K, image_sizes, (warning(10e9),),
        "A pull of 17 GB took 30 minutes and blocked the node.",
        "split or trim the image; preload it on the machine image", "OpenAI 2018", unit="bytes",
    ),
    Check(
        "IMG-12", "Many pods ask the registry each time that they start", K, always_pulled,
        (warning(100),),
        "When they start together, the registry's limits fail all of them.",
        "a tag or digest that does not change, and imagePullPolicy: IfNotPresent",
        "Kubernetes documentation, images", unit="pods",
    ),
    Check(
        "IMG-01", "A kubelet pulls one image at a time", C, serial_pulls, IS_WARNING,
        "One image of 17 GB held up all other pods of the node for 30 minutes.",
        "serializeImagePulls: false\nmaxParallelImagePulls: 5", "OpenAI 2018", unit="bool",
    ),
    Check(
        "IMG-02", "A kubelet pulls any number of images at a time", C, unbounded_pulls, IS_WARNING,
        "Many pulls at a time hang the container runtime.",
        "maxParallelImagePulls: 5", "containerd #6692", unit="bool",
    ),
    Check(
        "IMG-03", "A kubelet's limit of pulls is the default", C, pull_qps, IS_INFO,
        "Five pulls a second delay a node where many pods start.",
        "registryPullQPS: 20\nregistryBurst: 40", "kubelet configuration", unit="bool",
    ),
    Check(
        "IMG-09", "Image pulls take long", M,
        Quantile(Source.KUBELET, "kubelet_image_pull_duration_seconds", count_min=10),
        (warning(300),),
        "Jobs wait for their slowest member.",
        "preload the image, or trim it (IMG-07)", "kubelet metrics", unit="s",
    ),
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
)  # fmt: skip
