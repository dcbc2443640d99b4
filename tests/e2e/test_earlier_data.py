"""A data directory that an earlier version wrote, and that version's command line.

`earlier/data-82abc461.tar.xz` was recorded with revision 82abc461: `fairlead up --nodes 3`, a team,
a node pool, an array of four elements that ended, a gang that ran, and one that was held.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.earlier_version import earlier_source

pytestmark = pytest.mark.e2e
RECORDED = Path(__file__).with_name("earlier") / "data-82abc461.tar.xz"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A cluster of this version in the recorded directory."""
    shell = Shell(tmp_path)
    with tarfile.open(RECORDED) as packed:
        packed.extractall(shell.data, filter="data")
    shell.data.chmod(0o700)
    shell.up("--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()


def test_what_an_earlier_version_stored_goes_on_and_its_commands_are_answered(
    shell: Shell,
) -> None:
    states = {line.split()[0]: line.split()[2] for line in shell.run("ps", "-a").out.splitlines()}
    assert states["sweep"] == "Succeeded"
    assert states["held"] == "Held"
    assert "sweep" in shell.run("history").out
    eventually(lambda: shell.state("steady"), "Running")
    assert shell.status("steady")["attempt"] == 1
    shell.run("release", "held")
    shell.run("wait", "held")

    tree = earlier_source(shell.root / "earlier")

    def earlier(*arguments: str) -> str:
        environment = {**shell.environment, "PYTHONPATH": str(tree / "src")}
        done = subprocess.run([sys.executable, "-m", "fairlead", *arguments], cwd=shell.root,
                              env=environment, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "steady" in earlier("ps")
    assert "steady" in earlier("why", "steady")
    assert earlier("run", "--name", "from-before", "--", "echo", "skew") == "skew\n"
    assert "16/24" in earlier("nodes")
    assert "from-before" in shell.run("history").out
    earlier("cancel", "steady")
    eventually(lambda: shell.state("steady"), "Cancelled")
