"""A data directory that an earlier version wrote, and command lines of one version each way.

`earlier/data-82abc461.tar.xz` was recorded with revision 82abc461: `fairlead up --nodes 3`, a team,
a node pool, an array of four elements that ended, a gang that ran, and one that was held.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.earlier_version import earlier_source

pytestmark = pytest.mark.e2e
RECORDED = Path(__file__).with_name("earlier") / "data-82abc461.tar.xz"
HERE = ("--listen", "127.0.0.1:0")
Run = Callable[..., str]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The recorded directory, and commands of this version."""
    shell = Shell(tmp_path)
    with tarfile.open(RECORDED) as packed:
        packed.extractall(shell.data, filter="data")
    shell.data.chmod(0o700)
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


def test_what_an_earlier_version_stored_goes_on_and_commands_of_both_are_answered(
    shell: Shell, earlier: Run
) -> None:
    earlier("up", "--detach", "--data", str(shell.data), *HERE)
    eventually(lambda: shell.state("steady"), "Running")
    use("later-commands", lambda *arguments: shell.run(*arguments).out)
    earlier("down", "--data", str(shell.data))

    shell.up(*HERE)
    states = {line.split()[0]: line.split()[2] for line in shell.run("ps", "-a").out.splitlines()}
    assert (states["sweep"], states["held"]) == ("Succeeded", "Held")
    assert "sweep" in shell.run("history").out
    eventually(lambda: shell.state("steady"), "Running")
    assert shell.status("steady")["attempt"] == 1
    use("earlier-commands", earlier)
    shell.run("release", "held")
    shell.run("wait", "held")
    earlier("cancel", "steady")
    eventually(lambda: shell.state("steady"), "Cancelled")
