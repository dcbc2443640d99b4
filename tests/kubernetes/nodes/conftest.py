"""Real nodes for tests: skipped by name, with the reason, where this machine cannot run them.

FAIRLEAD_TEST_CLUSTER names the directory of a cluster that runs (`make cluster EXAMPLES=1`): the
tests use that one and leave it running.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.nodes.running import SETTINGS
from tests.kubernetes.own_plane import WITHOUT
from tools.cluster.cluster import Cluster, FailedError, bring_up, find, take_down
from tools.cluster.install import install
from tools.cluster.jobs import Client
from tools.cluster.machine import binaries, binaries_are_built, missing


@pytest.fixture(scope="session")
def real_nodes() -> None:
    """Skip where there can be no cluster of real nodes."""
    reason = missing()
    if reason is None and not binaries_are_built():
        reason = "kubelet is not built: tools/kubernetes/build.sh --nodes"
    if reason is not None:
        pytest.skip(f"{WITHOUT}, no real nodes: {reason}")


@pytest.fixture(scope="session")
def cluster(real_nodes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with Fairlead and the image of the examples, for all tests."""
    if running := os.environ.get("FAIRLEAD_TEST_CLUSTER"):
        layout = find(Path(running).resolve())
        if layout is None:
            raise FailedError(f"FAIRLEAD_TEST_CLUSTER={running}: no cluster is there")
        cluster = Cluster(layout, binaries())
        install(cluster, print, with_examples=True, settings=SETTINGS)
        yield cluster
        install(cluster, print, with_examples=True)
        return
    directory = tmp_path_factory.mktemp("nodes") / "cluster"
    try:
        cluster = bring_up(directory, 3, print)
        install(cluster, print, with_examples=True, settings=SETTINGS)
        yield cluster
    finally:
        take_down(directory)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """Fairlead's command line; jobs of the test are deleted at its end."""
    client = Client(cluster)
    yield client
    cluster.kubectl("delete", "jobs.fairlead.dev", "--all", "--wait=true", "--timeout=60s")
