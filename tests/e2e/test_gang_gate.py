"""The test of a gang's nodes before its program, with real processes on this machine."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e
GATE = "fairlead-preflight"
SCRIPT = "#!/bin/sh\n#FAIRLEAD --nodes 2 --cpus 200m --preflight network\necho began as $RANK\n"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    (tmp_path / "train.sh").write_text(SCRIPT)
    try:
        shell.up("--listen", "127.0.0.1:0")
        yield shell
    finally:
        shell.down()


def _pods(shell: Shell, job: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/default/pods?labelSelector=fairlead.dev/job-name={job}"
    return list(shell.get(path)[1]["items"])


def _tests(shell: Shell, job: str) -> list[dict[str, Any]]:
    """Return the states of the tests of a job's members."""
    return [
        each["state"] for pod in _pods(shell, job)
        for each in pod["status"].get("initContainerStatuses", ())
    ]  # fmt: skip


def _in_test(shell: Shell, job: str) -> bool:
    states = _tests(shell, job)
    return len(states) == 2 and all("running" in state for state in states)


def _ended(shell: Shell, job: str) -> dict[str, Any]:
    def state() -> bool:
        return shell.state(job) in ("Succeeded", "Failed")

    eventually(state, True, seconds=3 * PATIENCE_SECONDS)
    return shell.status(job)


def _gate_pids(job: str) -> list[int]:
    """Return the processes that are the tests of a job's members."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
            environment = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"preflight" in command and f"FAIRLEAD_JOB={job}".encode() in environment:
            found.append(int(path.name))
    return sorted(found)


def test_members_test_this_machine_and_their_connection_and_then_begin(shell: Shell) -> None:
    shell.run("submit", "train.sh")
    eventually(lambda: _in_test(shell, "train-1"), True)
    assert "checking 1 node before the start" in shell.run("why", "train-1").out
    status = _ended(shell, "train-1")
    assert status["state"] == "Succeeded", status
    [attempt] = status["attempts"]
    assert attempt["preflight"]["outcome"] == "Passed", attempt
    for state in _tests(shell, "train-1"):
        result = json.loads(state["terminated"]["message"])
        outcomes = {each["test"]: each["outcome"] for each in result["measured"]}
        assert (outcomes["cpu"], outcomes["memory"]) == ("Passed", "Passed"), result
        assert [each.get("error", "") for each in result["pairs"]] == [""], result
    assert "Passed before the start (network)" in shell.run("why", "train-1").out
    logs = shell.run("logs", "train-1").out.splitlines()
    assert sorted(logs) == ["[worker-0] began as 0", "[worker-1] began as 1"]


def test_a_test_that_is_killed_costs_one_attempt_and_no_restart(shell: Shell) -> None:
    shell.run("submit", "train.sh")
    eventually(lambda: _in_test(shell, "train-1"), True)
    eventually(lambda: len(_gate_pids("train-1")) >= 1, True)
    os.kill(_gate_pids("train-1")[0], signal.SIGKILL)
    status = _ended(shell, "train-1")
    assert status["state"] == "Succeeded", status
    reasons = [each["reason"] for each in status["attempts"]]
    assert reasons == ["PreflightError", "Succeeded"], status
    assert "preflight" not in status["attempts"][1]
    assert not status.get("userFailures")
    assert not status.get("infrastructureFailures")


def test_a_cluster_that_is_killed_in_the_gate_finds_it_as_it_is(shell: Shell) -> None:
    shell.run("submit", "train.sh")
    eventually(lambda: _in_test(shell, "train-1"), True)
    os.kill(shell.pid(), signal.SIGKILL)
    shell.up("--listen", "127.0.0.1:0")
    status = _ended(shell, "train-1")
    assert status["state"] == "Succeeded", status
    [attempt] = status["attempts"]
    assert attempt["preflight"]["outcome"] == "Passed", attempt
