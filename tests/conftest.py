"""What all tests share: the real control plane, and repeatable property tests.

`plane` is started once, for the tests marked `kubernetes`. Hypothesis draws the same examples each
time; FAIRLEAD_RANDOM=1 lets it look for new ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.kubernetes.controlplane import ControlPlane, NoControlPlane, control_plane

settings.register_profile("repeatable", derandomize=True)
if not os.environ.get("FAIRLEAD_RANDOM"):
    settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start etcd, kube-apiserver and a few controllers; skip the test where there are none."""
    try:
        with control_plane(tmp_path_factory.mktemp("plane")) as running:
            yield running
    except NoControlPlane as reason:
        pytest.skip(f"no real control plane: {reason}")
