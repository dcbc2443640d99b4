"""Images before work on real nodes: kubelets, containerd, and a registry behind a slow wire."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kubernetes.nodes.pulling import (
    MEMBERS,
    image_sets,
    on_nodes,
    pulls,
    push,
    start_seconds,
    wish,
)
from tests.kubernetes.nodes.running import apply, until
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client
from tools.cluster.layout import CONTROL_PLANE

pytestmark = pytest.mark.kubernetes
LAYER_BYTES = 24 << 20
RATE_MBIT = 32
PULL_SECONDS = LAYER_BYTES * 8 / (RATE_MBIT * 1e6)


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


def pull_events(cluster: Cluster, image: str) -> list[str]:
    found = json.loads(cluster.kubectl("get", "events", "-A", "-o", "json"))["items"]
    reasons = ("Pulled", "Pulling")
    return [
        each["message"] for each in found if each["reason"] in reasons and image in each["message"]
    ]


def test_a_gang_whose_image_was_pulled_before_starts_without_the_time_of_the_pull(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    (ahead,), (late,) = (
        push(cluster, tmp_path, [f"docker.io/library/{name}"], LAYER_BYTES).values()
        for name in ("ahead", "late")
    )
    with slow_wires(cluster):
        wish(cluster, "ahead", [ahead])
        try:
            until("the image is on all nodes", lambda: (
                image_sets(cluster)["ahead"].get("phase") == "Ready"))  # fmt: skip
            assert image_sets(cluster)["ahead"]["present"] == len(cluster.layout.nodes)
            # As kubelets say it, some seconds after the pulls.
            until("its size is known", lambda: (
                image_sets(cluster)["ahead"].get("sizeBytes", 0) >= LAYER_BYTES))  # fmt: skip
            assert pulls(cluster) == [], "pods of pulls stay"
            soon = start_seconds(cluster, client, "ahead", ahead)
            later = start_seconds(cluster, client, "late", late, is_said=True)
        finally:
            cluster.kubectl("delete", "imageset", "ahead")
    assert any("already present on machine" in text for text in pull_events(cluster, ahead))
    assert any("Successfully pulled image" in text for text in pull_events(cluster, late))
    print(f"with its image there {soon:.1f} s, without {later:.1f} s, a pull {PULL_SECONDS:.1f} s")
    assert later >= PULL_SECONDS
    assert soon <= later - PULL_SECONDS / 2


def test_a_small_image_waits_for_no_large_one_and_two_gangs_pull_on_the_same_node(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    sizes = {"large": 6 * LAYER_BYTES, "one": LAYER_BYTES // 3, "two": LAYER_BYTES // 3, "small": 1}
    images = {
        name: next(iter(push(cluster, tmp_path, [f"docker.io/library/{name}"], size).values()))
        for name, size in sizes.items()
    }
    node = cluster.layout.nodes[0]
    with slow_wires(cluster):
        wish(cluster, "large", [images["large"]], nodeSelector={
            "kubernetes.io/hostname": node})  # fmt: skip
        try:
            until("the large image is being pulled", lambda: pulls(cluster) == [images["large"]])
            starts(cluster, "small", images["small"], 1, node)
            client.until_state("small", "Running")
            # Its pull went while the small one started; begun again, the kubelet finishes it.
            until("it is pulled again", lambda: pulls(cluster) == [images["large"]])
            for name in ("one", "two"):
                starts(cluster, name, images[name], MEMBERS, node)
            for name in ("one", "two"):
                client.until_state(name, "Running")
            assert on_nodes(cluster, images["large"]) == 0, "they waited for the large one"
        finally:
            cluster.kubectl("delete", "imageset", "large")
    for name in ("one", "two"):
        assert any("Successfully pulled" in text for text in pull_events(cluster, images[name]))
    until("no pull is left", lambda: pulls(cluster) == [])


def starts(cluster: Cluster, name: str, image: str, count: int, node: str) -> None:
    """Create a job that asks for next to nothing of a node."""
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "10m"}}}
    here = {"kubernetes.io/hostname": node}
    apply(cluster, name, {"containers": [container], "nodeSelector": here}, count=count)


def test_an_image_that_a_node_removes_is_not_pulled_again_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    (image,) = push(cluster, tmp_path, ["docker.io/library/removed"], 1 << 20).values()
    node = cluster.layout.nodes[0]
    wish(cluster, "removed", [image], nodeSelector={"kubernetes.io/hostname": node})

    def says(words: str) -> bool:
        return words in image_sets(cluster)["removed"].get("message", "")

    try:
        until("the node reports it", lambda: (
            image_sets(cluster)["removed"].get("sizeBytes", 0) > 0))  # fmt: skip
        # As the kubelet's collection of garbage does where the disk is too full.
        gone = ("ctr", "--namespace=k8s.io", "images", "remove", "--sync", image)
        assert cluster.run_in(node, *gone).returncode == 0
        until("its removal is said", lambda: says("removed it, and is asked again later"))
        assert pulls(cluster) == []
        assert on_nodes(cluster, image) == 0
    finally:
        cluster.kubectl("delete", "imageset", "removed")
