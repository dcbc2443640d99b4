"""Names, addresses and paths of one cluster, all derived from its directory, a slot and its size.

Everything that a cluster makes outside its directory (namespaces, a link, control groups) carries
an id derived from the directory's path, so that clearing up needs no memory of what was made. The
slot selects the addresses: clusters that run at the same time have different ones.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

CONTROL_PLANE = "cp"
DNS_DOMAIN = "cluster.local"
SLOTS_MAX = 8
NODES_MAX = 20
#: Where the daemons of a node expect directories of their own, whatever the machine has there.
NODE_DIRECTORIES = (
    "/var/lib/kubelet", "/var/lib/cni", "/var/lib/fairlead", "/var/log/pods",
    "/var/log/containers",
)  # fmt: skip
#: Mount points of a node that are empty after its restart, as on any machine.
NODE_RUN_DIRECTORIES = ("/run/containerd",)


def cache_directory() -> Path:
    """Return the directory of what is built once: binaries, image layers, the default cluster."""
    if own := os.environ.get("FAIRLEAD_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead"


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster of `size` nodes in `directory`, with the addresses of `slot` (0 to 7)."""

    directory: Path
    slot: int
    size: int

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that belong to the directory."""
        return hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:8]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes: node-1, node-2, ..."""
        return tuple(f"node-{index}" for index in range(1, self.size + 1))

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of all that have a network namespace: the control plane, then the nodes."""
        return (CONTROL_PLANE, *self.nodes)

    def home(self, machine: str) -> Path:
        """Return the directory of a node's or the control plane's own files."""
        return self.directory / machine

    def namespace(self, machine: str) -> str:
        """Return the name of a network namespace."""
        return f"fairlead-{self.id}-{machine}"

    @property
    def host_link(self) -> str:
        """The machine's own end of the wire to the cluster; at most 15 characters."""
        return f"fl{self.id}"

    @property
    def cgroup(self) -> str:
        """Name of the control group above those of the nodes."""
        return f"fairlead-{self.id}"

    @property
    def lan(self) -> str:
        """Return the network of the nodes."""
        return f"172.30.{self.slot}.0/24"

    def address(self, machine: str) -> str:
        """Return the address in the network of the nodes; `host` is this machine."""
        if machine == "host":
            last = 254
        elif machine == CONTROL_PLANE:
            last = 1
        else:
            last = 10 + self.index(machine)
        return f"172.30.{self.slot}.{last}"

    @staticmethod
    def index(node: str) -> int:
        """Return 1 for node-1."""
        return int(node.rpartition("-")[2])

    @property
    def pods(self) -> str:
        """The addresses of all pods."""
        return f"10.{240 + self.slot}.0.0/16"

    def pods_of(self, node: str) -> str:
        """Return the addresses of a node's pods."""
        return f"10.{240 + self.slot}.{self.index(node)}.0/24"

    @property
    def services(self) -> str:
        """The addresses of Services."""
        return f"10.{90 + self.slot}.0.0/16"

    @property
    def dns(self) -> str:
        """Address of the Service of CoreDNS."""
        return f"10.{90 + self.slot}.0.10"

    @property
    def kubernetes_service(self) -> str:
        """Address of the Service in front of the API server."""
        return f"10.{90 + self.slot}.0.1"

    @property
    def api(self) -> str:
        """The URL of the API server."""
        return f"https://{self.address(CONTROL_PLANE)}:6443"

    @property
    def registry(self) -> str:
        """Address of the registry of images, without a scheme; it speaks HTTP."""
        return f"{self.address(CONTROL_PLANE)}:5000"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def ca(self) -> Path:
        """Certificate of the cluster's authority."""
        return self.directory / "pki" / "ca.crt"


@dataclass(frozen=True, slots=True)
class Record:
    """What a cluster needs to be taken down: written before anything else is made."""

    slot: int
    size: int
    #: Directories of the machine that did not exist before: mount points of the nodes.
    made: tuple[str, ...]

    @staticmethod
    def path(directory: Path) -> Path:
        """Return where the record of a cluster is."""
        return directory / "cluster.json"

    @staticmethod
    def new(directory: Path) -> Path:
        """Return where the record is until it is whole."""
        return directory / "cluster.new"

    @classmethod
    def read(cls, directory: Path) -> Record | None:
        """Return the record, None when the directory is no cluster's."""
        try:
            found = json.loads(cls.path(directory).read_text())
        except FileNotFoundError:
            return None
        return cls(found["slot"], found["size"], tuple(found["made"]))

    def write(self, directory: Path) -> None:
        """Replace the record, at once."""
        text = json.dumps({"slot": self.slot, "size": self.size, "made": self.made})
        self.new(directory).write_text(text)
        self.new(directory).rename(self.path(directory))
