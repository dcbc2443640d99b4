"""What real clusters have beside Kubernetes: a provisioner of local volumes, a driver of devices.

The provisioner is Rancher's (github.com/rancher/local-path-provisioner), the driver ours, on the
library that drivers are made with (`tools/dra-driver`). `tools/kubernetes/build.sh --nodes` builds
them. They run as processes of the test rather than from images: the driver with the files, the
network and the credentials of its node.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kubernetes.nodes.running import IMAGE, until
from tools.cluster.cluster import ENDS_WITH_US, Cluster
from tools.cluster.credentials import kubeconfig_path

#: Of the storage class; the provisioner is the default one of its program.
LOCAL_PATH = "local-path"
_STORAGE = "local-path-storage"
#: On every node, in the directory that a node has for itself.
_VOLUMES = "/var/lib/kubelet/local-path"
#: The name of the driver, and of its class of devices.
DRIVER = "gpu.example.com"


@contextmanager
def running(command: list[str], log: Path) -> Generator[subprocess.Popen[bytes]]:
    """Run a program for the length of the block."""
    with log.open("ab") as output:
        process = subprocess.Popen([*ENDS_WITH_US, *command], stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


def create(cluster: Cluster, *objects: dict[str, Any]) -> None:
    """Create objects."""
    items = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(items))


# --- volumes


def _storage_objects() -> Iterable[dict[str, Any]]:
    meta = {"name": _STORAGE, "namespace": _STORAGE}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _STORAGE}}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    # The arguments of both are -p PATH -s BYTES -m MODE.
    scripts = {"setup": 'mkdir -m 0777 -p "$2"', "teardown": 'rm -rf "$2"'}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": scripts}
    yield {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": LOCAL_PATH},
        "provisioner": "rancher.io/local-path", "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
    }  # fmt: skip


@contextmanager
def local_path_provisioner(cluster: Cluster) -> Generator[None]:
    """Make volumes on nodes for claims of the class `local-path`, in the block.

    At its end no volume may be left: they go with their claims.
    """
    home = cluster.layout.directory / "local-path"
    home.mkdir(exist_ok=True)
    where = [{"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [_VOLUMES]}]
    (home / "config.json").write_text(json.dumps({"nodePathMap": where}))
    helper = {"containers": [{"name": "helper-pod", "image": IMAGE}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "helper-pod"}, "spec": helper}
    (home / "helper.json").write_text(json.dumps(pod))
    create(cluster, *_storage_objects())
    command = [
        str(cluster.binaries / "local-path-provisioner"), "start",
        f"--kubeconfig={cluster.layout.kubeconfig}", f"--config={home / 'config.json'}",
        f"--helper-pod-file={home / 'helper.json'}", f"--namespace={_STORAGE}",
        f"--configmap-name={_STORAGE}", f"--service-account-name={_STORAGE}",
    ]  # fmt: skip
    try:
        with running(command, home / "log"):
            yield
            until("all volumes are gone", lambda: not cluster.kubectl("get", "pv", "-o", "name"))
    finally:
        cluster.kubectl(
            "delete", "--wait=false", f"storageclass/{LOCAL_PATH}", f"namespace/{_STORAGE}"
        )


# --- devices


@dataclass
class Devices:
    """The drivers of the nodes, each with a number of devices."""

    cluster: Cluster
    _running: dict[str, ExitStack] = field(default_factory=dict[str, ExitStack])
    _counts: dict[str, int] = field(default_factory=dict[str, int])

    def serve(self, node: str, count: int) -> None:
        """Have the driver of a node publish this many devices: gpu-0, gpu-1, ..."""
        if (before := self._running.pop(node, None)) is not None:
            before.close()
        home = self.cluster.layout.home(node)
        command = [
            "nsenter", f"--target={self.cluster.init(node)}", "--mount", "--net", "--uts", "--",
            str(self.cluster.binaries / "dra-driver"), f"--node={node}", f"--devices={count}",
            f"--prepared={self._directory(node)}",
            f"--kubeconfig={kubeconfig_path(self.cluster.layout, node)}",
        ]  # fmt: skip
        stack = self._running[node] = ExitStack()
        stack.enter_context(running(command, home / "dra-driver.log"))
        self._counts[node] = count

    def published(self) -> bool:
        """Whether the devices of all nodes are known to the API server."""
        slices = json.loads(self.cluster.kubectl("get", "resourceslices", "-o", "json"))["items"]
        specs = [each["spec"] for each in slices]
        return {e["nodeName"]: len(e.get("devices", ())) for e in specs} == self._counts

    def prepared(self) -> dict[str, str]:
        """Return the nodes by the uids of the claims whose devices they have prepared."""
        nodes = self.cluster.layout.nodes
        return {path.name: node for node in nodes for path in self._directory(node).glob("*")}

    def _directory(self, node: str) -> Path:
        return self.cluster.layout.home(node) / "prepared"

    def end(self) -> None:
        """End all drivers; what they have published goes as well."""
        for stack in self._running.values():
            stack.close()
        self.cluster.kubectl("delete", "resourceslices", "--all")


@contextmanager
def device_driver(cluster: Cluster, count: int) -> Generator[Devices]:
    """Run the driver on each node, with so many devices, and have its class."""
    chosen = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    create(cluster, {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
        "spec": {"selectors": [chosen]},
    })  # fmt: skip
    devices = Devices(cluster)
    try:
        for node in cluster.layout.nodes:
            devices.serve(node, count)
        until("the nodes have devices", devices.published)
        yield devices
    finally:
        devices.end()
        cluster.kubectl("delete", "deviceclass", DRIVER)
