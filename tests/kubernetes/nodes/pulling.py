"""Images on real nodes, as tests and benchmarks push, wish for, find and start them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kubernetes.nodes.running import MOST_OF_A_NODE, apply, pods, until
from tools.cluster.archive import Image, write_archive, write_layer
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client

from fairlead.api.values.times import parse_time

MEMBERS = 2


def push(
    cluster: Cluster, directory: Path, repositories: Sequence[str], *layers: int
) -> dict[str, str]:
    """Push an image of new layers of so many bytes each; return its name in each repository.

    It has a program that sleeps, and no shell; its configuration is like no other's.
    """
    files = [cluster.binaries / "pause-layer.tar"]
    for number, size in enumerate(layers):
        root = directory / f"root-{number}"
        root.mkdir()
        with (root / f"weights-{number}").open("wb") as file:
            for left in range(size, 0, -(1 << 24)):
                file.write(os.urandom(min(left, 1 << 24)))
        files.append(directory / f"layer-{number}.tar")
        write_layer(files[-1], root)
        (root / f"weights-{number}").unlink()
        root.rmdir()
    tag, archive = time.time_ns(), directory / "archive.tar"
    names = {each: f"{each}:{tag}" for each in repositories}
    entry = {"Entrypoint": ["/pause"], "Env": [f"TAG={tag}"]}
    write_archive(archive, [Image(name, tuple(files), entry) for name in names.values()])
    cluster.push_images(archive)
    for file in (archive, *files[1:]):
        file.unlink()
    return names


def wish(cluster: Cluster, name: str, images: Sequence[str], **spec: Any) -> None:
    """Create an image set."""
    body = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageSet", "metadata": {"name": name},
        "spec": {"images": list(images), **spec},
    }  # fmt: skip
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))


def image_sets(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Return the status of each set, with that of its first image, by name."""
    items = json.loads(cluster.kubectl("get", "imagesets", "-o", "json"))["items"]
    found = {each["metadata"]["name"]: each.get("status", {}) for each in items}
    return {name: each | each.get("images", [{}])[0] for name, each in found.items()}


def pulls(cluster: Cluster) -> list[str]:
    """Return the image of each pod of a pull."""
    selector = ("-l", "fairlead.dev/image-pull", "-o", "json")
    items = json.loads(cluster.kubectl("get", "pods", "-A", *selector))["items"]
    return [each["spec"]["containers"][0]["image"] for each in items]


def on_nodes(cluster: Cluster, image: str) -> int:
    """Return how many nodes have an image, as containerd says."""
    listed = ("ctr", "--namespace=k8s.io", "images", "list", "-q")
    texts = (cluster.run_in(node, *listed).stdout for node in cluster.layout.nodes)
    return sum(image in each.splitlines() for each in texts)


def start_seconds(
    cluster: Cluster, client: Client, name: str, image: str, *, is_said: bool = False
) -> float:
    """Run a gang of the image; return the time from its placement to its last member's start.

    `is_said`: `fairlead why` says meanwhile that its nodes lack the image.
    """
    requests = {"requests": {"cpu": MOST_OF_A_NODE}}
    container = {"name": "main", "image": image, "resources": requests}
    apply(cluster, name, {"containers": [container]}, count=MEMBERS)
    if is_said:
        until("it is said what is left to pull", lambda: (
            f"on 0 of {MEMBERS} nodes" in client.run("why", name)))  # fmt: skip
    job = client.until_state(name, "Running")
    started = [
        parse_time(status["state"]["running"]["startedAt"])
        for pod in pods(cluster, name) for status in pod["status"]["containerStatuses"]
    ]  # fmt: skip
    assert len(started) == MEMBERS
    client.run("cancel", name)
    client.until_state(name, "Cancelled")
    return max(started) - parse_time(job["status"]["placement"]["placedAt"])
