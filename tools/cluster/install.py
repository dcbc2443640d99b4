"""Fairlead on the cluster: its image and its chart in the registry, installed by Helm."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.cluster.cluster import ENDS_WITH_US, Cluster, FailedError, Say, until
from tools.cluster.images import ROOT, build_archive, fairlead_name

from fairlead.api import names

CHART = ROOT / "deploy" / "helm" / "fairlead"
NAMESPACE = "fairlead-system"
RELEASE = "fairlead"
WAIT_SECONDS = 240
#: Asked about, never made.
JOB = {
    "apiVersion": names.API_VERSION,
    "kind": "Job",
    "metadata": {"generateName": "webhook-", "namespace": "default"},
    "spec": {"roles": [{"name": "worker", "count": 1, "template": {"spec": {"containers": [
        {"name": "main", "image": "none", "command": ["true"]}]}}}]},
}  # fmt: skip


def helm(cluster: Cluster, *arguments: str) -> str:
    """Run Helm on the cluster and return what it prints; its own files stay in the cluster's."""
    home = cluster.layout.directory / "helm"
    own = {f"HELM_{part}_HOME": str(home / part.lower()) for part in ("CACHE", "CONFIG", "DATA")}
    command = [str(cluster.binaries / "helm"), f"--kubeconfig={cluster.layout.kubeconfig}"]
    done = subprocess.run(
        [*ENDS_WITH_US, *command, *arguments],
        env={**os.environ, **own}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise FailedError(f"helm {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def push_chart(cluster: Cluster, chart: Path) -> str:
    """Put a chart into the registry of the cluster; return its name there, with its digest."""
    repository = f"oci://{cluster.layout.registry}/charts"
    with TemporaryDirectory() as directory:
        helm(cluster, "package", str(chart), "--destination", directory)
        (file,) = Path(directory).iterdir()
        said = helm(cluster, "push", str(file), repository, "--plain-http")
    (digest,) = (line.partition(": ")[2] for line in said.splitlines() if "Digest" in line)
    return f"{repository}/{chart.name}@{digest}"


def shared_directory(cluster: Cluster) -> Path:
    """Return the directory that all nodes see, as they would a network file system."""
    return cluster.layout.directory / "shared"


def _clear_interrupted(cluster: Cluster) -> None:
    """Remove the release if Helm was killed while it worked on it: it would wait for ever."""
    releases = helm(cluster, "list", "--namespace", NAMESPACE, "--pending", "--short")
    if RELEASE in releases.split():
        helm(cluster, "uninstall", RELEASE, "--namespace", NAMESPACE, "--wait")


def install(
    cluster: Cluster,
    say: Say,
    *,
    with_examples: bool = False,
    settings: Mapping[str, float | str] | None = None,
) -> None:
    """Push the image and install or upgrade the chart; return once it is available.

    `settings` are those of the chart that shall differ from their defaults.
    """
    archive = build_archive(say, with_examples=with_examples)
    digest = cluster.push_images(archive)[fairlead_name()]
    say(f"the image of Fairlead is in the registry, {cluster.layout.registry}")
    checkpoints = shared_directory(cluster) / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    checkpoints.chmod(0o1777)  # members run as any user
    _clear_interrupted(cluster)
    values = {"checkpointRoot": checkpoints, "image.digest": digest}
    values |= {f"settings.{name}": value for name, value in (settings or {}).items()}
    given = ",".join(f"{name}={value}" for name, value in values.items())
    helm(
        cluster, "upgrade", "--install", RELEASE, push_chart(cluster, CHART), "--plain-http",
        "--namespace", NAMESPACE, "--create-namespace", "--set", given,
        "--wait", "--timeout", f"{WAIT_SECONDS}s",
    )  # fmt: skip
    # A pod that is ready is known to every node's proxy a moment later.
    until("the webhook answers", lambda: bool(cluster.kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=json.dumps(JOB))))  # fmt: skip
    say("Fairlead is installed, with two replicas")
