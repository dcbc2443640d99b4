"""The log of a detached cluster is bounded, also while it runs for months."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.app import run_file
from fairlead.app.local import embedded_process
from fairlead.app.local.embedded_process import _LogStream
from fairlead.app.run_file import LOG_FILE, open_log, rotate_log


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory whose log may have 100 bytes."""
    monkeypatch.setattr(run_file, "LOG_BYTES_MAX", 100)
    (tmp_path / LOG_FILE).parent.mkdir()
    return tmp_path


def logs(data: Path) -> list[int]:
    path = data / LOG_FILE
    return [each.stat().st_size for each in (path, Path(f"{path}.1")) if each.exists()]


def test_a_descriptor_writes_the_new_log_from_then_on(data: Path) -> None:
    log = open_log(data)
    os.write(log, b"x" * 101)
    rotate_log(data, [log])
    os.write(log, b"y")
    os.close(log)
    assert logs(data) == [1, 101]
    assert (data / LOG_FILE).read_bytes() == b"y"


def test_a_short_log_and_that_of_another_process_stay(data: Path) -> None:
    log, other = open_log(data), os.open(os.devnull, os.O_WRONLY)
    os.write(log, b"x" * 100)
    rotate_log(data, [log])
    assert logs(data) == [100]
    os.write(log, b"x")
    rotate_log(data, [other])
    assert logs(data) == [101]
    rotate_log(data)  # before the cluster's process opens it
    assert logs(data) == [101]
    assert not (data / LOG_FILE).exists()
    os.close(log)
    os.close(other)


def test_what_a_running_cluster_says_is_bounded(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(data)
    monkeypatch.setattr(embedded_process, "_LOG_DESCRIPTORS", (log,))
    monkeypatch.setattr(embedded_process, "_LOG_LOOK_CHARACTERS", 50)
    with os.fdopen(log, "w") as file:
        stream = _LogStream(file, data)
        for number in range(1000):
            stream.write(f"{number:09}\n")
        stream.flush()
        assert len(logs(data)) == 2
        assert max(logs(data)) <= 100 + 2 * 60
        assert (data / LOG_FILE).read_text().endswith("000000999\n")


def test_a_log_that_cannot_be_rotated_goes_on(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(embedded_process, "rotate_log", fails)
    monkeypatch.setattr(embedded_process, "_LOG_LOOK_CHARACTERS", 0)
    with os.fdopen(open_log(data), "w") as file:
        stream = _LogStream(file, data)
        assert stream.write("a line\n") == 7
        stream.flush()
    assert logs(data) == [7]
