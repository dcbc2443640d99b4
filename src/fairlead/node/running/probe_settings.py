"""Settings of what the agent asks and tries: monitors of others, the cloud, storage, services."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from fairlead.api.values.sections import Section, about, within

Target = Annotated[str, Meta(min_length=1, max_length=253)]


class NvmlSettings(Section, frozen=True):
    """What NVIDIA's driver says of its GPUs."""

    gpus: Annotated[int, within(0, 64, "The machine has so many; fewer are a fault; 0: not judged.")
    ] = 0  # fmt: skip
    nvlinks: Annotated[
        int, within(0, 36, "Each GPU has so many active links of NVLink (H100, GB200: 18); fewer "
                           "are a fault; 0: not judged.")
    ] = 0  # fmt: skip


class StorageSettings(Section, frozen=True):
    """File systems of a network."""

    mounts: Annotated[
        tuple[Target, ...],
        Meta(max_length=32, description="Places where something is mounted, such as /data; one "
             "where nothing is, is a fault."),
    ] = ()  # fmt: skip
    types: Annotated[
        tuple[str, ...],
        Meta(max_length=32, description="Types that are tried, each mount in a thread of its own."),
    ] = ("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "wekafs", "cifs", "smb3", "glusterfs")
    seconds_max: Annotated[
        int, within(1, 600, "A mount that does not answer for longer hangs.")
    ] = 30


class SmartSettings(Section, frozen=True):
    """What disks say of themselves."""

    errors_max: Annotated[
        int, within(0, 10**9, "So many errors of a disk's medium, or sectors that cannot be read, "
                              "are a warning (node-problem-detector: 100); 0: not judged.")
    ] = 100  # fmt: skip
    worn_percent_max: Annotated[
        int, within(0, 255, "So much of a disk's life is used: information; 0: not judged.")
    ] = 100


class ServiceSettings(Section, frozen=True):
    """The kubelet and the container runtime."""

    kubelet: Annotated[
        str, Meta(max_length=512, description="Page of the kubelet's health on the loopback, such "
                  "as http://127.0.0.1:10248/healthz; empty: not judged."),
    ] = ""  # fmt: skip
    runtime_socket: Annotated[
        str, Meta(max_length=512, description="Socket of the container runtime, such as "
                  "/run/containerd/containerd.sock, which is greeted and asked nothing; empty: not "
                  "judged."),
    ] = ""  # fmt: skip
    processes: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=15)], ...],
        Meta(max_length=16, description="Names of processes whose restarts are counted."),
    ] = ("kubelet", "containerd", "crio", "dockerd")
    restarts_max: Annotated[
        int, within(1, 1000, "More restarts within 20 minutes are a warning "
                             "(node-problem-detector: 5).")
    ] = 5  # fmt: skip


class ReachSettings(Section, frozen=True):
    """What the machine should reach."""

    names: Annotated[
        tuple[Target, ...],
        Meta(max_length=16, description="Names that are resolved as programs resolve them."),
    ] = ()
    registries: Annotated[
        tuple[Target, ...],
        Meta(max_length=16, description="Registries of images, such as https://registry.example."
             "com; any answer below 500 is one, and no image is asked for."),
    ] = ()  # fmt: skip
    peers: Annotated[
        tuple[Target, ...],
        Meta(max_length=1024, description="Other machines as HOST:PORT, such as their kubelets' "
             "10.0.0.7:10250; a connection is made and closed."),
    ] = ()  # fmt: skip
    peer_sample: Annotated[
        int, within(2, 16, "So many of them, drawn each time, are tried at a look; where none "
                           "answers twice in a row, it is this machine.")
    ] = 3  # fmt: skip
    seconds_max: Annotated[int, within(1, 60, "An answer that takes longer is none.")] = 5


class MonitorSettings(Section, frozen=True):
    """Monitors of others on this machine, which a cluster that has them keeps."""

    gpud: Annotated[
        str, Meta(max_length=256, description="Page of gpud's states on the loopback, such as "
                  "https://127.0.0.1:15132/v1/states; empty: not read."),
    ] = ""  # fmt: skip
    dcgm: Annotated[
        str, Meta(max_length=256, description="Page of DCGM's exporter on the loopback, such as "
                  "http://127.0.0.1:9400/metrics; empty: not read."),
    ] = ""  # fmt: skip


class CloudProvider(Enum):
    """Whose metadata service tells the machine of its maintenance."""

    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"


class CloudSettings(Section, frozen=True):
    """What the cloud tells the machine alone."""

    provider: Annotated[
        CloudProvider | None,
        about("Its metadata service is asked for maintenance and preemption; none: not asked."),
    ] = None
    lead_seconds: Annotated[
        int, within(30, 86_400, "Maintenance that stops the machine and begins within so long is "
                                "critical: the node is to be empty by then.")
    ] = 900  # fmt: skip
