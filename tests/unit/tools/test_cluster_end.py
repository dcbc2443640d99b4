"""The end of a cluster on this machine: all at once, in time, and it says what it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_SECONDS
from tools.cluster import cluster, processes
from tools.cluster.cluster import FailedError
from tools.cluster.layout import Layout, Record

SLEEPS = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]


@pytest.fixture
def records(tmp_path: Path) -> Iterator[list[Path]]:
    """Recorded processes, as the first ones of three nodes."""
    found = [tmp_path / f"{name}.pid" for name in ("cp", "node-1", "node-2")]
    for record in found:
        processes.start(record, SLEEPS, tmp_path / "log")
    yield found
    processes.end(found, [], time.monotonic() + 5, print)


def pids(records: list[Path]) -> list[int]:
    found = [processes.recorded(record) for record in records]
    return [pid for pid in found if pid is not None]


def test_all_processes_end_at_once_and_their_records_go(records: list[Path]) -> None:
    started = pids(records)
    assert len(started) == 3
    said: list[str] = []
    processes.end(records, ["no-such-namespace"], time.monotonic() + 5, said.append)
    assert pids(records) == said == []
    assert not any(record.exists() for record in records)
    processes.end(records, [], time.monotonic() + 5, said.append)  # and again


def test_what_does_not_end_is_named_at_the_deadline_and_its_record_stays(
    records: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel ends no process that waits for a device; here the signal means nothing."""
    said: list[str] = []
    started = pids(records)
    with monkeypatch.context() as patch:
        patch.setattr(signal, "SIGKILL", 0)  # planted: asks only whether it is there
        patch.setattr(processes, "SAY_SECONDS", 0.1)
        with pytest.raises(TimeoutError, match=rf"do not end: .*\({min(started)}, [SR]\)"):
            processes.end(records, [], time.monotonic() + 0.5, said.append)
    assert said
    assert said[0].startswith("waits for 3 processes: ")
    assert sorted(pids(records)) == sorted(started)


def test_a_process_id_that_means_another_process_by_now_is_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        record = tmp_path / "pid"
        record.write_text(f"{other.pid} 1 {boot}")
        processes.end([record], [], time.monotonic() + 5, print)
        assert other.poll() is None
        other.kill()


def test_files_that_are_not_removed_in_time_are_removed_by_a_process_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "rm"
    slow.parent.mkdir()
    gate = tmp_path / "gate"
    slow.write_text(f'#!/bin/sh\nuntil test -e {gate}; do sleep 0.02; done\nexec /bin/rm "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(processes, "SAY_SECONDS", 0.05)
    monkeypatch.setattr(cluster, "LOCK_SECONDS_MAX", 0.0)
    directory, said = tmp_path / "cluster", list[str]()
    (directory / "node-1" / "root").mkdir(parents=True)
    Record(0, 1, ()).write(directory)
    layout = Layout(directory, 0, 1)
    with cluster.lock(directory) as descriptor:
        removing = cluster._remove(layout, descriptor, with_directory=True)
        assert not cluster._has_removed(removing, layout, time.monotonic() + 0.1, said.append)
    assert said[0] == f"removes the files in {directory}"
    with pytest.raises(FailedError, match="another command is at work"), cluster.lock(directory):
        pass
    gate.touch()
    assert removing.wait(PATIENCE_SECONDS) == 0
    assert not directory.exists()
