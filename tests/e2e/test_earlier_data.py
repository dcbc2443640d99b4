"""A data directory that an earlier version writes, and command lines of one version each way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.earlier_version import earlier_source

pytestmark = pytest.mark.e2e
HERE = ("--listen", "127.0.0.1:0")
Run = Callable[..., str]
GROUP = "fairlead.dev/v1alpha1"
_PATH, _DEFAULT = f"/apis/{GROUP}", f"/apis/{GROUP}/namespaces/default"
PATHS = {
    "Team": f"{_PATH}/teams", "NodePool": f"{_PATH}/nodepools",
    "JobArray": f"{_DEFAULT}/jobarrays", "Job": f"{_DEFAULT}/jobs",
}  # fmt: skip
DAY_SECONDS = 86_400


def role(count: int, seconds: int, gpus: int = 0) -> dict[str, Any]:
    """A role whose pods run on virtual nodes for so long."""
    limits = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    container = {"name": "c", "image": "i", "command": ["train"], "resources": limits}
    annotations = {"fairlead.dev/simulate-seconds": str(seconds)}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [container]}}
    return {"name": "worker", "count": count, "template": template}


def objects() -> Iterator[dict[str, Any]]:
    """A team, a node pool, an array that ends, a gang that runs, and one that is held."""
    yield {"kind": "Team", "metadata": {"name": "vision"},
           "spec": {"namespaces": ["default"], "shares": [{"nodes": 1}]}}  # fmt: skip
    resources = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "8", "pods": "110"}
    yield {"kind": "NodePool", "metadata": {"name": "cloud"},
           "spec": {"max": 2, "provider": {"type": "External"},
                    "template": {"resources": resources}}}  # fmt: skip
    yield {"kind": "JobArray", "metadata": {"name": "sweep"},
           "spec": {"indices": "0-3", "template": {"roles": [role(1, 1)]}}}  # fmt: skip
    yield {"kind": "Job", "metadata": {"name": "steady"},
           "spec": {"roles": [role(2, DAY_SECONDS, gpus=8)]}}  # fmt: skip
    yield {"kind": "Job", "metadata": {"name": "held"},
           "spec": {"suspend": True, "roles": [role(2, 1)]}}  # fmt: skip


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Commands of this version."""
    shell = Shell(tmp_path)
    try:
        yield shell
    finally:
        shell.down()


@pytest.fixture
def earlier(shell: Shell) -> Run:
    """Runs a command of the earlier version; returns what it printed."""
    tree = earlier_source(shell.root / "earlier")
    environment = {**shell.environment, "PYTHONPATH": str(tree / "src")}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fairlead", *arguments], cwd=shell.root, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def use(name: str, run: Run) -> None:
    """Do what people do all day, with commands of one version and a cluster of another."""
    assert "steady" in run("ps")
    assert "steady" in run("why", "steady")
    assert "16/24" in run("nodes")
    assert run("run", "--name", name, "--", "echo", "skew") == "skew\n"
    assert run("logs", name) == "skew\n"
    assert name in run("history")


def states(shell: Shell) -> dict[str, str]:
    """The state of each job and array, by its name."""
    rows = (line.split() for line in shell.run("ps", "-a").out.splitlines())
    return {row[0]: row[2] for row in rows}


def test_what_an_earlier_version_stored_goes_on_and_commands_of_both_are_answered(
    shell: Shell, earlier: Run
) -> None:
    earlier("up", "--detach", "--data", str(shell.data), "--nodes", "3", *HERE)
    for each in objects():
        shell.create(PATHS[each["kind"]], {"apiVersion": GROUP, **each})
    eventually(lambda: shell.state("steady"), "Running")
    eventually(lambda: states(shell).get("sweep"), "Succeeded")
    use("later-commands", lambda *arguments: shell.run(*arguments).out)
    earlier("down", "--data", str(shell.data))

    shell.up(*HERE)
    found = states(shell)
    assert (found["sweep"], found["held"]) == ("Succeeded", "Held")
    assert "sweep" in shell.run("history").out
    eventually(lambda: shell.state("steady"), "Running")
    assert shell.status("steady")["attempt"] == 1
    use("earlier-commands", earlier)
    shell.run("release", "held")
    shell.run("wait", "held")
    earlier("cancel", "steady")
    eventually(lambda: shell.state("steady"), "Cancelled")
