"""Images before work on real nodes: kubelets, containerd, and a registry behind a slow wire."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import MOST_OF_A_NODE, apply, pods, until
from tools.cluster.archive import Image, write_archive, write_layer
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client
from tools.cluster.layout import CONTROL_PLANE

from fairlead.api.values.times import parse_time

pytestmark = pytest.mark.kubernetes
LAYER_BYTES = 24 << 20
RATE_MBIT = 32
PULL_SECONDS = LAYER_BYTES * 8 / (RATE_MBIT * 1e6)
MEMBERS = 2


def push(cluster: Cluster, directory: Path, name: str) -> str:
    """Push an image with a layer that nothing else has and a program that sleeps; no shell."""
    root = directory / name
    root.mkdir()
    (root / "weights").write_bytes(os.urandom(LAYER_BYTES))
    layer = directory / f"{name}.tar"
    write_layer(layer, root)
    image = f"docker.io/library/{name}:{time.time_ns()}"
    program = cluster.binaries / "pause-layer.tar"
    archive = directory / f"{name}-archive.tar"
    write_archive(archive, [Image(image, (program, layer), {"Entrypoint": ["/pause"]})])
    cluster.push_images(archive)
    return image


@contextmanager
def slow_wires(cluster: Cluster) -> Generator[None]:
    """Let each node get RATE_MBIT from all others together."""
    rate = ("rate", f"{RATE_MBIT}mbit", "burst", "64kb", "latency", "400ms")
    for node in cluster.layout.nodes:
        done = cluster.run_in(
            CONTROL_PLANE, "tc", "qdisc", "add", "dev", node, "root", "tbf", *rate
        )
        assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        for node in cluster.layout.nodes:
            cluster.run_in(CONTROL_PLANE, "tc", "qdisc", "delete", "dev", node, "root")


def start_seconds(
    cluster: Cluster, client: Client, name: str, image: str, *, is_said: bool
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


def image_set(cluster: Cluster, name: str) -> dict[str, Any]:
    return json.loads(cluster.kubectl("get", "imageset", name, "-o", "json"))


def pull_events(cluster: Cluster, image: str) -> list[str]:
    found = json.loads(cluster.kubectl("get", "events", "-A", "-o", "json"))["items"]
    reasons = ("Pulled", "Pulling")
    return [
        each["message"] for each in found if each["reason"] in reasons and image in each["message"]
    ]


def test_a_gang_whose_image_was_pulled_before_starts_without_the_time_of_the_pull(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    ahead, late = push(cluster, tmp_path, "ahead"), push(cluster, tmp_path, "late")
    body = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageSet", "metadata": {"name": "ahead"},
        "spec": {"images": [ahead]},
    }  # fmt: skip
    with slow_wires(cluster):
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
        try:
            until("the image is on all nodes", lambda: (
                image_set(cluster, "ahead").get("status", {}).get("phase") == "Ready"))  # fmt: skip
            (seen,) = image_set(cluster, "ahead")["status"]["images"]
            assert seen["present"] == len(cluster.layout.nodes)

            def size() -> int:  # as kubelets say it, some seconds after the pulls
                (seen,) = image_set(cluster, "ahead")["status"]["images"]
                return int(seen.get("sizeBytes", 0))

            until("its size is known", lambda: size() >= LAYER_BYTES)
            left = cluster.kubectl(
                "get", "pods", "-A", "-l", "fairlead.dev/image-pull", "-o", "name"
            )
            assert left == "", "pods of pulls stay"
            soon = start_seconds(cluster, client, "ahead", ahead, is_said=False)
            later = start_seconds(cluster, client, "late", late, is_said=True)
        finally:
            cluster.kubectl("delete", "imageset", "ahead")
    assert any("already present on machine" in text for text in pull_events(cluster, ahead))
    assert any("Successfully pulled image" in text for text in pull_events(cluster, late))
    print(f"with its image there {soon:.1f} s, without {later:.1f} s, a pull {PULL_SECONDS:.1f} s")
    assert later >= PULL_SECONDS
    assert soon <= later - PULL_SECONDS / 2


def test_a_name_that_is_no_image_is_said_in_the_words_of_the_kubelet(cluster: Cluster) -> None:
    body = {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageSet", "metadata": {"name": "none"},
        "spec": {"images": ["registry.example/none:1"]},
    }  # fmt: skip
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(body))
    try:

        def message() -> str:
            images = image_set(cluster, "none").get("status", {}).get("images", [{}])
            return images[0].get("message", "")

        until("the failure is said", lambda: "registry.example/none" in message())
        assert "waits after a failure" in message()
        pulls = cluster.kubectl("get", "pods", "-A", "-l", "fairlead.dev/image-pull", "-o", "name")
        assert len(pulls.split()) <= 1
    finally:
        cluster.kubectl("delete", "imageset", "none")
