"""Images of 2 GB before work on three real nodes, and pulls within the rate of a registry.

A gang of two starts with its image on no node, then with the same image pulled before by an image
set: from its place to its last member's start. Then three nodes pull images from a registry that
writes down when each pull begins, at a rate of few a minute; the controllers are killed in the
middle. It needs root, and 16 GB of disk; it says so where there can be no cluster.

FAIRLEAD_TEST_CLUSTER names a cluster that runs with the settings below.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.nodes.faulty_registry import HOST, faulty_registry, starts
from tests.kubernetes.nodes.pulling import (
    MEMBERS,
    image_sets,
    on_nodes,
    pulls,
    push,
    start_seconds,
    wish,
)
from tools.cluster.cluster import Cluster, bring_up, find, take_down
from tools.cluster.install import NAMESPACE, install
from tools.cluster.jobs import Client
from tools.cluster.machine import binaries, binaries_are_built, missing

from bench.harness import Report

LAYERS = (512 << 20,) * 4
STARTS_MAX = 4
SETTINGS = {"images.startsPerRegistryMax": STARTS_MAX}
IMAGES, SMALL_BYTES = 3, 4 << 20
ROUNDS = 3
LABEL = "bench.example/images"
SECONDS_MAX = 600.0


def run(report: Report) -> None:
    """Measure; one line where there can be no cluster."""
    reason = missing() or ("" if binaries_are_built() else "kubelet is not built")
    if reason:
        print(f"real_images: {reason}", flush=True)
        return
    with tempfile.TemporaryDirectory() as scratch, _cluster(Path(scratch, "cluster")) as cluster:
        _starts(report, cluster, Path(scratch))
        _rates(report, cluster, Path(scratch))


@contextmanager
def _cluster(directory: Path) -> Generator[Cluster]:
    running = os.environ.get("FAIRLEAD_TEST_CLUSTER")
    layout = find(Path(running).resolve()) if running else None
    if layout is not None:
        yield Cluster(layout, binaries())
        return
    try:
        cluster = bring_up(directory, 3, print)
        install(cluster, print, settings=SETTINGS)
        yield cluster
    finally:
        take_down(directory)


def _starts(report: Report, cluster: Cluster, scratch: Path) -> None:
    client, nodes = Client(cluster), cluster.layout.nodes[:MEMBERS]
    (image,) = push(cluster, scratch, ["docker.io/library/large"], *LAYERS).values()
    others = cluster.layout.nodes[MEMBERS:]
    cluster.kubectl("label", "--overwrite", "nodes", *nodes, f"{LABEL}=yes")
    cluster.kubectl("cordon", *others)
    try:
        late = start_seconds(cluster, client, "late", image)
        found = list[float]()
        for number in range(ROUNDS):
            cluster.kubectl("delete", "jobs.fairlead.dev", "--all", "--wait=true")
            if number == 0:
                _forget(cluster, image)
                begun = time.monotonic()
                wish(cluster, "large", [image], nodeSelector={LABEL: "yes"})
                _until(lambda: image_sets(cluster)["large"].get("phase") == "Ready")
                print(f"    on {MEMBERS} nodes after {time.monotonic() - begun:.0f} s", flush=True)
            found.append(start_seconds(cluster, client, f"ahead-{number}", image))
    finally:
        cluster.kubectl("uncordon", *others)
        cluster.kubectl("delete", "imagesets", "--all")
        cluster.kubectl("delete", "jobs.fairlead.dev", "--all", "--wait=true")
        _forget(cluster, image)
    print(f"    without {late:.1f} s, with it {', '.join(f'{each:.1f}' for each in found)} s")
    report.add("real_images.start_without", late, "s")
    report.add("real_images.start_ahead", statistics.median(found), "s")


def _forget(cluster: Cluster, image: str) -> None:
    """Remove an image from all nodes, and wait until its content is gone."""
    for node in cluster.layout.nodes:
        cluster.run_in(node, "ctr", "--namespace=k8s.io", "images", "remove", "--sync", image)
    _until(lambda: on_nodes(cluster, image) == 0)


def _rates(report: Report, cluster: Cluster, scratch: Path) -> None:
    with faulty_registry(cluster, scratch) as log:
        images = [
            next(iter(push(cluster, scratch, [f"{HOST}/slow/{name}"], SMALL_BYTES).values()))
            for name in map(str, range(IMAGES))
        ]
        wish(cluster, "rated", images)
        try:
            _until(lambda: len(starts(log)) >= STARTS_MAX)
            killed = ("delete", "pods", "--all", "--grace-period=0", "--force")
            cluster.kubectl("-n", NAMESPACE, *killed)
            _until(lambda: image_sets(cluster).get("rated", {}).get("phase") == "Ready")
        finally:
            cluster.kubectl("delete", "imageset", "rated")
        _until(lambda: not pulls(cluster))
        at = [each for each, _, _ in starts(log)]
        assert all(on_nodes(cluster, image) == len(cluster.layout.nodes) for image in images)
    assert len(at) == IMAGES * len(cluster.layout.nodes)
    most = max(sum(since <= each < since + 60 for each in at) for since in at)
    print(f"    {len(at)} pulls began within {at[-1] - at[0]:.0f} s, {most} within a minute")
    report.add("real_images.starts_per_minute", most, "pulls")


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(1)
