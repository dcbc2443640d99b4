"""What pods and nodes use now, as the real kubectl asks for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.disaster_world import kill, processes_of
from tests.patience import PATIENCE_SECONDS

KUBECTL = os.environ.get("FAIRLEAD_KUBECTL") or shutil.which("kubectl")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(KUBECTL is None, reason="no kubectl on the PATH or in FAIRLEAD_KUBECTL"),
]
METRICS = "/apis/metrics.k8s.io/v1beta1"
#: Holds 100 MiB and uses a part of a processor until it is ended.
BUSY = """
import time
held = bytearray(100 << 20)
for at in range(0, len(held), 4096): held[at] = 1
while True: time.sleep(0.001) or sum(range(20_000))
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("top"))
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    try:
        yield shell
    finally:
        shell.down()
        kill(processes_of(shell.data))


def kubectl(shell: Shell, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KUBECTL or "", "--kubeconfig", str(shell.data / "kubeconfig"), *arguments],
        env={"HOME": str(shell.root), "PATH": os.environ["PATH"]}, text=True, capture_output=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip


def test_kubectl_top_shows_pods_and_nodes_in_its_own_columns(shell: Shell) -> None:
    (shell.root / "busy.py").write_text(BUSY)
    (shell.root / "busy.sh").write_text(f"#!/bin/sh\nexec {sys.executable} -S busy.py\n")
    shell.run("submit", "--name", "busy", "busy.sh")
    eventually(lambda: shell.state("busy"), "Running")

    def used() -> tuple[str, int, int]:
        pods = kubectl(shell, "top", "pods", "--no-headers")
        if pods.returncode:  # nothing was measured yet
            return "", 0, 0
        name, cpu, memory = pods.stdout.split()
        return name, int(cpu.removesuffix("m")), int(memory.removesuffix("Mi"))

    def is_busy() -> bool:
        _, cpu, memory = used()  # it is measured before it holds all, too
        return cpu >= 1 and memory >= 100

    eventually(is_busy, True)
    name, cpu, memory = used()
    assert name == "busy-1-worker-0"
    assert 1 <= cpu <= 2_000
    assert 100 <= memory <= 200
    containers = kubectl(shell, "top", "pods", "--containers", "-l", "fairlead.dev/job-name=busy")
    assert containers.stdout.splitlines()[0].split()[:2] == ["POD", "NAME"]
    assert len(containers.stdout.splitlines()) == 2
    nodes = kubectl(shell, "top", "nodes")
    assert nodes.returncode == 0, nodes.stderr
    titles, *rows = (line.split() for line in nodes.stdout.splitlines())
    assert titles[0] == "NAME"
    assert any(row[1].endswith("m") and row[1] != "0m" for row in rows), nodes.stdout
    shell.run("cancel", "busy")


def test_what_is_not_measured_is_not_there_and_what_is_not_served_is_refused(shell: Shell) -> None:
    assert shell.get(f"{METRICS}/namespaces/default/pods/none")[0] == 404
    widgets = kubectl(shell, "get", "--raw", f"{METRICS}/widgets")
    assert "could not find the requested resource" in widgets.stderr
    assert shell.get(f"{METRICS}/pods?labelSelector=a=%3D%3D")[0] == 400
    assert shell.get(f"{METRICS}/pods?watch=true")[0] == 405
    resources = shell.get(METRICS)[1]["resources"]
    assert [(each["name"], each["kind"], each["verbs"]) for each in resources] == [
        ("nodes", "NodeMetrics", ["get", "list"]), ("pods", "PodMetrics", ["get", "list"]),
    ]  # fmt: skip


def test_fairlead_top_shows_what_a_job_uses_of_what_it_holds_and_what_is_idle(
    shell: Shell,
) -> None:
    (shell.root / "held.py").write_text(BUSY.replace("sum(range(20_000))", "True").replace(
        "sleep(0.001)", "sleep(60)"))  # fmt: skip
    (shell.root / "held.sh").write_text(f"#!/bin/sh\nexec {sys.executable} -S held.py\n")
    shell.run("submit", "--name", "held", "--cpus", "1", "--memory", "1Gi", "held.sh")
    eventually(lambda: shell.state("held"), "Running")

    def line() -> dict[str, Any]:
        found = json.loads(shell.run("top", "-o", "json").out)
        return next(each for each in found if each["job"] == "held")

    eventually(lambda: line()["measuredMembers"], 1)
    eventually(lambda: 100 << 20 <= line().get("memoryBytes", 0) <= 200 << 20, True)
    found = line()
    assert found["memoryPeakBytes"] >= found["memoryBytes"]
    assert (found["cpuAskedMilli"], found["memoryAskedBytes"]) == (1_000, 1 << 30)
    assert found["unknownJobs"] == 1, "it has not run for ten minutes"
    assert "no such jobs run" in shell.run("top", "--idle").err

    def is_idle() -> bool:
        return "held" in shell.run("top", "-A", "--idle", "5s").out

    eventually(is_idle, True)
    csv = shell.run("top", "-A", "--by", "user", "--idle", "5s", "-o", "csv").out
    assert csv.splitlines()[0].startswith("user,jobs,members,measuredMembers,gpus,")
    assert len(csv.splitlines()) == 2
    assert "no such jobs run" in shell.run("top", "--user", "nobody-else").err
    assert "--by team" in shell.run("top", "--by", "teem", code=2).err
    shell.run("cancel", "held")


def test_fairlead_top_calls_unknown_what_virtual_nodes_without_a_profile_of_use_do(
    shell: Shell,
) -> None:
    (shell.root / "none.sh").write_text("#!/bin/sh\n")
    shell.run("submit", "--name", "virtual", "--simulate", "600s", "--gpus", "1", "none.sh")
    eventually(lambda: shell.state("virtual"), "Running")
    row = next(each for each in shell.run("top").out.splitlines() if each.startswith("virtual "))
    assert "unknown of" in row
    assert row.endswith("unknown")
    assert "0/1" in row.split()
    shell.run("cancel", "virtual")


def test_fairlead_top_watches_until_it_is_interrupted(shell: Shell) -> None:
    (shell.root / "none.sh").write_text("#!/bin/sh\n")
    shell.run("submit", "--name", "seen", "--simulate", "600s", "none.sh")
    eventually(lambda: shell.state("seen"), "Running")
    process = shell.start("top", "--watch")
    assert process.stdout is not None
    titles = 0
    while titles < 2:
        titles += process.stdout.readline().startswith("NAME ")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_SECONDS) == 130
    shell.run("cancel", "seen")
