"""Real nodes for tests: skipped by name, with the reason, where this machine cannot run them."""

from __future__ import annotations

import pytest
from tests.kubernetes.own_plane import WITHOUT
from tools.cluster.machine import binaries_are_built, missing


@pytest.fixture(scope="session")
def real_nodes() -> None:
    """Skip where there can be no cluster of real nodes."""
    reason = missing()
    if reason is None and not binaries_are_built():
        reason = "kubelet is not built: tools/kubernetes/build.sh --nodes"
    if reason is not None:
        pytest.skip(f"{WITHOUT}, no real nodes: {reason}")
