"""What a machine says of itself, by the kernel's own files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.node.running import host
from fairlead.node.sources.disks import parse_mounts

LINE = b"36 25 8:1 / /data/\xff\xa9 rw - ext4 /dev/sda1 rw\n"


def test_a_mount_with_any_bytes_in_its_name_is_a_place_that_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mountinfo"
    file.write_bytes(LINE)
    monkeypatch.setattr(host, "Path", lambda _: file)
    (mount,) = parse_mounts(host.kernel_mounts(), ("ext4",))
    assert os.fsencode(mount.place) == b"/data/\xff\xa9"
