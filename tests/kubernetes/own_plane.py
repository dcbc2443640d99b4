"""A control plane for a fixture: the tests that ask for it are skipped where none can be had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.kubernetes.controlplane import ControlPlane, NoControlPlane, control_plane

#: How the reason of such a skip begins; the end of a run counts them by it.
WITHOUT = "no real control plane"


#: What a killed etcd has written the kernel still has, and nothing here outlives the machine.
_UNSYNCED = ("--unsafe-no-fsync",)


def own_plane(
    directories: pytest.TempPathFactory, *, syncs: bool = False, etcd_flags: Sequence[str] = (),
    **options: Any,
) -> Iterator[ControlPlane]:  # fmt: skip
    """Yield a control plane; `options` are those of `control_plane`.

    `syncs`: etcd waits for the disk with each write, as it does elsewhere, and measures that.
    """
    flags = (*(() if syncs else _UNSYNCED), *etcd_flags)
    try:
        with control_plane(directories.mktemp("plane"), etcd_flags=flags, **options) as running:
            yield running
    except NoControlPlane as reason:
        pytest.skip(f"{WITHOUT}: {reason}")
