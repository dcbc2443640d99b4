"""The test of a gang's nodes before its program, in real containers of real kubelets."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.nodes.running import IMAGE, MOST_OF_A_NODE, pods, submit, until
from tools.cluster.cluster import Cluster
from tools.cluster.jobs import Client

from fairlead.api import names

pytestmark = pytest.mark.kubernetes
GATE = "fairlead-preflight"


def _gate(pod: dict[str, Any]) -> dict[str, Any]:
    [status] = pod["status"]["initContainerStatuses"]
    assert status["name"] == GATE
    return dict(status["state"])


def _only_slow(job: dict[str, Any]) -> None:
    """Assert that no attempt but the last has ended, or for a start that took too long: a machine
    with much else to do needs more than the minute of these tests for images and containers.
    """
    attempts = job["status"]["attempts"]
    assert {each["reason"] for each in attempts[:-1]} <= {"StartTimeout"}, attempts


def _first_process(job: str, index: int) -> int | None:
    """Return the first process of the test in a member, by its number on this machine: in its own
    container it takes no signal from others. None where none runs.
    """
    wanted = {f"{names.ENV_JOB}={job}".encode(), f"{names.ENV_INDEX}={index}".encode()}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"preflight" not in (path / "cmdline").read_bytes().split(b"\0"):
                continue
            numbers = (path / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
            environment = (path / "environ").read_bytes().split(b"\0")
            if wanted <= set(environment) and numbers[-1] == "1":
                return int(path.name)
    return None


def test_a_gang_on_two_nodes_measures_cpu_memory_and_its_connection_before_its_program(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    options = ("--nodes", "2", "--cpus", MOST_OF_A_NODE, "--preflight", "network")
    submit(client, tmp_path, "echo began", "--name", "gate", *options)
    job = client.until_state("gate", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", job["status"]
    _only_slow(job)
    found = pods(cluster, "gate")
    assert len({pod["spec"]["nodeName"] for pod in found}) == 2
    for pod in found:
        [container] = pod["spec"]["initContainers"]
        assert container["securityContext"]["runAsNonRoot"] is True
        assert container["resources"] == pod["spec"]["containers"][0]["resources"]
        ended = _gate(pod)["terminated"]
        assert ended["exitCode"] == 0, ended
        result = json.loads(ended["message"])
        outcomes = {each["test"]: each["outcome"] for each in result["measured"]}
        assert (outcomes["cpu"], outcomes["memory"]) == ("Passed", "Passed"), result
        [pair] = result["pairs"]
        assert pair["bytesPerSecond"] > 1e6, result
    attempt = job["status"]["attempts"][-1]
    assert attempt["preflight"]["outcome"] == "Passed", attempt
    assert attempt["preflight"]["suite"] == "Network"
    assert "Passed before the start (network)" in client.run("why", "gate")


def test_a_test_that_is_killed_ends_the_attempt_and_the_next_one_starts_without_it(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    options = ("--nodes", "2", "--cpus", MOST_OF_A_NODE, "--preflight", "quick")
    submit(client, tmp_path, "echo began", "--name", "killed", *options)

    until(
        "both members are in the test", lambda: all(_first_process("killed", i) for i in range(2))
    )
    tested = _first_process("killed", 1)
    assert tested is not None
    os.kill(tested, signal.SIGKILL)
    job = client.until_state("killed", "Succeeded", "Failed")
    assert job["status"]["state"] == "Succeeded", job["status"]
    ended, last = job["status"]["attempts"][-2:]
    assert ended["reason"] == "PreflightError", job["status"]["attempts"]
    assert ended.get("cause") is None
    assert last.get("preflight") is None


def test_the_test_has_an_image_of_its_own_and_the_program_its_own_exit_code(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    """The container of the test has an image of its own, so that of the user needs nothing."""
    submit(client, tmp_path, "exit 3", "--name", "bare", "--preflight", "quick")
    job = client.until_state("bare", "Succeeded", "Failed")
    _only_slow(job)
    attempt = job["status"]["attempts"][-1]
    assert attempt["preflight"]["outcome"] == "Passed", attempt
    assert (attempt["reason"], attempt["exitCode"]) == ("ExitCode", 3)
    [pod] = pods(cluster, "bare")
    images = [each["image"] for each in pod["spec"]["initContainers"]]
    assert images != [IMAGE], "it is not the user's"
