"""The drill: a cluster is saved while jobs run, lost as a whole, and goes on from the file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import Gang, crash, history_rows, kill, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("disasters")]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A cluster of the test's own."""
    shell = Shell(tmp_path)
    shell.up("--nodes", "4", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


def test_a_cluster_that_is_lost_as_a_whole_goes_on_from_a_backup_of_while_it_ran(
    shell: Shell,
) -> None:
    shell.run("run", "--name", "ended", "--", "echo", "what it said")
    gang = Gang(shell, "running")
    gang.submit()
    saved = shell.run("backup", "saved.tar.gz", "--data", str(shell.data))
    assert f"Saved {shell.data} as saved.tar.gz" in saved.err
    refused = shell.run("restore", "saved.tar.gz", "--data", str(shell.data), code=4)
    assert f"error[E712]: {shell.data} is not empty" in refused.err

    crash(shell)
    kill(processes_of(shell.data))
    shutil.rmtree(shell.data)
    restored = shell.run("restore", "saved.tar.gz", "--data", str(shell.data))
    assert f"to {shell.data}." in restored.err
    shell.up()
    eventually(lambda: gang.status()["state"], "Running")
    status = gang.finish()
    ends = [(each["number"], each["reason"]) for each in status["attempts"]]
    assert [number for number, _ in ends] == [1, 2]
    assert ends[-1][1] == "Succeeded"
    assert status["infrastructureFailures"] == 1, "the user's limit is not touched"
    assert len(history_rows(shell, "running")) == len(history_rows(shell, "ended")) == 1
    assert shell.run("logs", "ended").out == "what it said\n"
