"""A node is emptied for maintenance with the real kubectl, and gets nothing back until it may."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually

KUBECTL = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL"),
]
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    (tmp_path / "work.sh").write_text("true\n")
    try:
        yield shell
    finally:
        shell.down()


def _kubectl(shell: Shell, *arguments: str) -> str:
    assert KUBECTL is not None
    environment = {**shell.environment, "KUBECONFIG": str(shell.data / "kubeconfig")}
    done = subprocess.run(
        [KUBECTL, *arguments], env=environment, capture_output=True, text=True, timeout=90,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _nodes(shell: Shell, job: str) -> list[str]:
    """Return the nodes of the running members, sorted."""
    columns = "jsonpath={range .items[?(@.status.phase=='Running')]}{.spec.nodeName} {end}"
    selector = f"fairlead.dev/job-name={job}"
    return sorted(_kubectl(shell, "get", "pods", "-l", selector, "-o", columns).split())


def test_a_gang_moves_off_a_drained_node_and_stays_off(shell: Shell) -> None:
    shell.up("--nodes", "3", "--listen", "127.0.0.1:0")
    shell.run("submit", "work.sh", "--simulate", "1h", "--name", "gang", "--nodes", "2",
              "--gpus", "8")  # fmt: skip
    eventually(lambda: _nodes(shell, "gang"), ["v00000", "v00001"])
    # no --force: the members have a controller, and kubectl sees that
    assert "drained" in _kubectl(shell, "drain", "v00001", *DRAIN)
    eventually(lambda: _nodes(shell, "gang"), ["v00000", "v00002"])
    job = shell.job("gang")
    ended, present = job["status"]["attempts"]
    assert (ended["reason"], ended["cause"]) == ("Drained", "Infrastructure")
    assert ended["nodesLost"] == ["v00001"]
    assert job["status"].get("userFailures", 0) == 0
    assert "evicted from a cordoned node" in shell.run("why", "gang").out
    assert "evicted from a cordoned node" in _kubectl(shell, "get", "events")
    assert present["number"] == 2

    # No third node is left: what is evicted waits, with the reason, until one is open again.
    _kubectl(shell, "drain", "v00002", *DRAIN)
    eventually(lambda: "lost or cordoned" in shell.run("why", "gang").out, True)
    assert _nodes(shell, "gang") == []
    _kubectl(shell, "uncordon", "v00001")
    eventually(lambda: _nodes(shell, "gang"), ["v00000", "v00001"])


def test_a_no_execute_taint_moves_the_gang_and_a_removed_taint_is_gone(shell: Shell) -> None:
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    shell.run("submit", "work.sh", "--simulate", "1h", "--name", "one", "--gpus", "8")
    eventually(lambda: _nodes(shell, "one"), ["v00000"])
    _kubectl(shell, "taint", "node", "v00000", "broken=yes:NoExecute")
    eventually(lambda: _nodes(shell, "one"), ["v00001"])
    assert shell.job("one")["status"]["attempts"][0]["reason"] == "Drained"
    _kubectl(shell, "taint", "node", "v00000", "broken-")
    assert _kubectl(shell, "get", "node", "v00000", "-o", "jsonpath={.spec.taints}") == ""
