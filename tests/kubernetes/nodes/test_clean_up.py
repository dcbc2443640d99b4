"""A cluster on one machine leaves nothing behind: when it is taken down, when its start is
interrupted or killed, when it was killed itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubernetes.controlplane import ROOT
from tests.kubernetes.nodes.machine_state import machine_state, processes_of
from tools.cluster.cluster import FailedError, bring_up, find, pid_file, take_down
from tools.cluster.layout import CONTROL_PLANE, Layout, Record
from tools.cluster.processes import recorded

pytestmark = [pytest.mark.kubernetes, pytest.mark.usefixtures("real_nodes")]
SECONDS_MAX = 120.0
#: Reached in this order while a cluster of one node starts.
POINTS = ("cluster.json", "pki/ca.crt", "cp/node.json", "cp/pid", "node-1/pid")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory for a cluster, which is taken down whatever happens."""
    path = tmp_path / "cluster"
    yield path
    take_down(path)


def begin(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.cluster", "up", "--nodes=1", f"--directory={directory}"]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def until(path: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.005)


def test_a_cluster_that_is_taken_down_leaves_nothing(directory: Path) -> None:
    before = machine_state(), processes_of(directory)
    cluster = bring_up(directory, 1, print)
    assert len(processes_of(directory)) > len(before[1]) + 8, "the daemons are found while they run"
    assert machine_state() != before[0], "and so is what they made"
    assert cluster.layout.kubeconfig.stat().st_mode & 0o077 == 0
    assert take_down(directory)
    assert (machine_state(), processes_of(directory)) == before
    assert not directory.exists()
    assert not take_down(directory), "and may be taken down again"


@pytest.mark.parametrize("point", POINTS)
def test_a_start_that_is_killed_leaves_nothing_that_is_not_found(
    directory: Path, point: str
) -> None:
    before = machine_state(), processes_of(directory)
    command = begin(directory)
    until(directory / point)
    command.kill()
    command.communicate()
    assert Record.read(directory) is not None
    assert take_down(directory)
    assert (machine_state(), processes_of(directory)) == before


def test_ctrl_c_takes_down_what_was_started(directory: Path) -> None:
    before = machine_state(), processes_of(directory)
    command = begin(directory)
    until(directory / POINTS[-1])
    command.send_signal(signal.SIGINT)
    said, _ = command.communicate(timeout=SECONDS_MAX)
    assert command.returncode == 130, said
    # A process that was killed may need a moment to be gone.
    deadline = time.monotonic() + SECONDS_MAX
    while processes_of(directory) != before[1] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (machine_state(), processes_of(directory)) == before
    assert (directory / "cp" / "init.log").exists(), "the logs stay for a look"


def test_what_a_killed_node_leaves_is_cleared(directory: Path) -> None:
    before = machine_state(), processes_of(directory)
    layout = bring_up(directory, 1, print).layout
    for machine in layout.machines:
        pid = recorded(pid_file(layout, machine))
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert take_down(directory)
    assert (machine_state(), processes_of(directory)) == before


def test_a_process_id_that_was_given_to_another_process_is_not_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        home = tmp_path / CONTROL_PLANE
        home.mkdir()
        (home / "pid").write_text(f"{other.pid} 1 {boot}")
        Record(0, 1, ()).write(tmp_path)
        (tmp_path / "node-1").mkdir()
        assert take_down(tmp_path)
        assert other.poll() is None
        other.kill()


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FailedError, match="not empty and no cluster"):
        bring_up(tmp_path, 1, print)
    assert not take_down(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    assert find(tmp_path) is None


def test_clusters_of_two_directories_share_no_name() -> None:
    first, second = (Layout(Path(name), 0, 1) for name in ("/a", "/b"))
    assert first.namespace("cp") != second.namespace("cp")
    assert first.host_link != second.host_link
    assert len(first.host_link) <= 15
