"""A control plane for a fixture: the tests that ask for it are skipped where none can be had."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane, NoControlPlane, control_plane

#: How the reason of such a skip begins; the end of a run counts them by it.
WITHOUT = "no real control plane"


def own_plane(directories: pytest.TempPathFactory, **options: Any) -> Iterator[ControlPlane]:
    """Yield a control plane; `options` are those of `control_plane`."""
    try:
        with control_plane(directories.mktemp("plane"), **options) as running:
            yield running
    except NoControlPlane as reason:
        pytest.skip(f"{WITHOUT}: {reason}")
