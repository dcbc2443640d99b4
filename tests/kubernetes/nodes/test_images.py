"""Images before work on real nodes: kubelets, containerd, and a registry behind a slow wire."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.kubernetes.nodes.pulling import image_sets, pulls, push, start_seconds, wish
from tests.kubernetes.nodes.running import until
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
