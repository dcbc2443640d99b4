"""A line of a kernel's log takes a node out, moves its gang after a checkpoint, and it comes back.

All of it as processes: the cluster of `fairlead up` with virtual nodes, the agent of one of them on
a directory that stands for its machine, and the collector between the two.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS
from tests.unit.node.host_tree import NEXT_BOOT, HostTree

pytestmark = pytest.mark.e2e
SETTINGS = """
health:
  enabled: true
  actOn: [gpu-xid]
  validateSeconds: 2
"""
PROFILE = """
name: quick
progress: {stepSeconds: 1, checkpointEverySteps: 5, reportSecondsMin: 1}
stages:
- {name: start, match: {state: Bound}, delay: {seconds: 0}, next: {state: Running}}
- name: end
  match: {state: Running}
  delay: {seconds: 3600, annotation: fairlead.dev/simulate-seconds}
  next: {state: Succeeded, exitCodeAnnotation: fairlead.dev/simulate-exit-code}
- {name: terminate, match: {state: Terminating}, delay: {seconds: 0}, next: {state: Gone}}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    (tmp_path / "work.sh").write_text("true\n")
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    (tmp_path / "quick.yaml").write_text(PROFILE)
    try:
        yield shell
    finally:
        shell.down()


@contextmanager
def _running(shell: Shell, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = shell.start(*arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _node(shell: Shell, name: str) -> dict[str, Any]:
    return shell.get(f"/api/v1/nodes/{name}")[1]


def _taints(shell: Shell, name: str) -> list[str]:
    found = [each["key"] for each in _node(shell, name)["spec"].get("taints", [])]
    return [key for key in found if key == "fairlead.dev/unhealthy"]


def _boot(tree: HostTree) -> str:
    return (tree.root / "proc/sys/kernel/random/boot_id").read_text()


def _places(shell: Shell, job: str) -> list[str]:
    placement = shell.job(job)["status"].get("placement", {})
    return sorted(node for role in placement.get("roles", []) for node in role["nodes"])


def _agent_config(folder: Path, tree: HostTree) -> str:
    """Let the agent start its machine again: another boot, as the kernel shows it."""
    (folder / "pods").write_text('{"items": []}')
    reboot = folder / "reboot"
    boot_id = tree.root / "proc/sys/kernel/random/boot_id"
    reboot.write_text(f"#!/bin/sh\necho {NEXT_BOOT} > {boot_id}\n: > {tree.root}/dev/kmsg\n")
    reboot.chmod(0o755)
    config = folder / "agent.yaml"
    config.write_text(f"""
repairs:
  resets: true
  reboots: true
  requests: {folder}/requests
  pods: {folder}/pods
  rebootCommand: [{reboot}]
""")
    return str(config)


def test_a_line_of_the_kernel_moves_a_gang_and_its_agent_reboots_the_machine(
    shell: Shell, tmp_path: Path
) -> None:
    shell.up("--nodes", "4", "--listen", "127.0.0.1:0", "--settings", "settings.yaml",
             "--profile", "quick.yaml")  # fmt: skip
    shell.run("submit", "work.sh", "--simulate", "1h", "--name", "train", "--nodes", "2",
              "--gpus", "8")  # fmt: skip
    eventually(lambda: shell.job("train").get("status", {}).get("state"), "Running")
    before = _places(shell, "train")
    sick = before[1]
    eventually(lambda: bool(shell.job("train")["status"].get("progress")), expected=True)

    tree = HostTree(tmp_path / "machine")
    report = tmp_path / "report.json"
    agent = ("agent", "run", "--root", str(tree.root), "--state", str(tmp_path / "agent.db"),
             "--report", str(report), "--config", _agent_config(tmp_path, tree))  # fmt: skip
    with ExitStack() as stack, _running(shell, *agent) as first:
        eventually(report.exists, expected=True)
        stack.enter_context(_running(shell, "collector", "--report", str(report), "--node", sick,
                                     "--requests", str(tmp_path / "requests")))  # fmt: skip
        path = f"/apis/fairlead.dev/v1alpha1/nodereports/{sick}"
        eventually(lambda: shell.get(path)[0], 200)
        assert _taints(shell, sick) == []

        tree.xid(48, "DBE")
        eventually(lambda: _taints(shell, sick), ["fairlead.dev/unhealthy"])
        eventually(lambda: sick in _places(shell, "train"), expected=False)
        eventually(lambda: shell.job("train")["status"]["state"], "Running")
        status = shell.job("train")["status"]
        assert set(before) - {sick} < set(_places(shell, "train"))
        ended, present = status["attempts"]
        assert (ended["reason"], ended["nodesLost"]) == ("Drained", [sick])
        assert present["resumedFromStep"] >= 5
        assert status.get("userFailures", 0) == 0

        eventually(lambda: "resetting" in shell.run("node", sick).out, expected=True)
        shown = shell.run("node", sick).out
        assert "Critical gpu-xid 0000:3b:00 48" in shown
        assert "next      the agent resets the GPU" in shown
        assert "nothing runs on it" in shown
        assert sick in shell.run("nodes", "-R").out
        # No GPU of the driver is there to be reset, so the agent is asked for a reboot, and that
        # of the next boot finds nothing any more.
        eventually(lambda: NEXT_BOOT in _boot(tree), expected=True)
        assert _taints(shell, sick) == ["fairlead.dev/unhealthy"]
        first.kill()
        first.wait(PATIENCE_SECONDS)
        tree.boots(NEXT_BOOT)
        with _running(shell, *agent):
            eventually(lambda: _taints(shell, sick), [])
            answered = shell.get(path)[1]["status"]["answered"]
        assert (answered["answer"], answered["message"]) == (
            "Done",
            "the machine has started again",
        )
        assert "resetting" not in shell.run("node", sick).out
    history = shell.run("node", "show", sick, "--history").out
    for action in ("Cordon", "Resetting", "Rebooting", "Validating", "Ready"):
        assert action in history
    assert "the agent refused: no such GPU is here: 0000:3b:00" in history


def test_people_empty_a_node_and_take_it_back(shell: Shell) -> None:
    shell.up("--nodes", "3", "--listen", "127.0.0.1:0", "--profile", "quick.yaml")
    shell.run("submit", "work.sh", "--simulate", "1h", "--name", "train", "--nodes", "2",
              "--gpus", "8")  # fmt: skip
    eventually(lambda: shell.job("train").get("status", {}).get("state"), "Running")
    eventually(lambda: bool(shell.job("train")["status"].get("progress")), expected=True)
    node = _places(shell, "train")[0]
    preview = shell.run("node", "drain", node, "--within", "2h", "--dry-run").err
    assert "job default/train, 2 members: leaves after its next checkpoint" in preview
    assert "nothing was changed" in preview
    assert not _node(shell, node)["spec"].get("unschedulable")

    shell.run("node", "drain", node, "--within", "2h", "--reason", "new fan")
    assert _node(shell, node)["spec"]["unschedulable"]
    eventually(lambda: node in _places(shell, "train"), expected=False)
    assert "new fan" in shell.run("nodes", "-R").out
    assert "nothing runs on it" in shell.run("node", node).out
    shell.run("node", "resume", node)
    assert not _node(shell, node)["spec"].get("unschedulable")
    assert "fairlead.dev/drain" not in _node(shell, node)["metadata"].get("annotations", {})
    assert shell.run("node", "cordon", "v0000x", code=2).err.count("there is no node") == 1
    shell.run("node", "retire", node, "--reason", "old")
