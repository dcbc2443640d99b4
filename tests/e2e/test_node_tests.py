"""The gate before work on this machine: the quick suite runs for real, and lifts a taint.

The cluster of `fairlead up` has this machine as a node, and virtual nodes beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.patience import PATIENCE_SECONDS

from fairlead.api.names import TAINT_PREFLIGHT

pytestmark = pytest.mark.e2e
SETTINGS = """
health:
  enabled: true
  actOn: ["*"]
  validateSeconds: 2
  testSuite: quick
  testOptions: [cpu.seconds=1, memory.bytes=33554432, disk.bytes=8388608, clock.seconds=0.5,
    names.names=localhost]
"""
_TESTS = "/apis/fairlead.dev/v1alpha1/nodetests"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    try:
        shell.up("--nodes", "12", "--listen", "127.0.0.1:0", "--settings", "settings.yaml")
        yield shell
    finally:
        shell.down()


def _local(shell: Shell) -> str:
    nodes = shell.get("/api/v1/nodes")[1]["items"]
    (name,) = [
        each["metadata"]["name"] for each in nodes
        if each["metadata"]["labels"].get("fairlead.dev/node-type") == "local"
    ]  # fmt: skip
    return name


def _taints(shell: Shell, name: str) -> list[str]:
    node = shell.get(f"/api/v1/nodes/{name}")[1]
    return [each["key"] for each in node["spec"].get("taints", [])]


def _tests(shell: Shell, node: str) -> list[dict[str, Any]]:
    found = shell.get(_TESTS)[1]["items"]
    return [each for each in found if each["spec"]["node"] == node]


def test_this_machine_passes_the_gate_by_a_real_run_of_the_quick_suite(shell: Shell) -> None:
    local = _local(shell)
    before = _taints(shell, local)
    gate = {"key": TAINT_PREFLIGHT, "effect": "NoSchedule"}
    node = shell.get(f"/api/v1/nodes/{local}")[1]
    patch = {"spec": {"taints": [*node["spec"].get("taints", []), gate]}}
    shell.patch(f"/api/v1/nodes/{local}", patch)
    eventually(lambda: _taints(shell, local), before, seconds=2 * PATIENCE_SECONDS)
    (test,) = _tests(shell, local)
    status = test["status"]
    assert (test["spec"]["cause"], status["outcome"]) == ("Gate", "Passed"), status
    outcomes = {each["test"]: each["outcome"] for each in status["measured"]}
    for name in ("cpu", "memory", "disk", "clock", "names"):
        assert outcomes[name] == "Passed", status
    assert "kernel" in status["versions"]

    # A person tests it again, and a virtual node beside its fleet.
    again = shell.run("node", "test", local)
    assert "copyBytesPerSecond" in again.out
    assert "Passed: all is good" in again.err
    others = [f"v{index:05}" for index in range(1, 10)]
    with ThreadPoolExecutor(len(others)) as threads:
        done = list(threads.map(lambda name: shell.run("node", "test", name, "-q"), others))
    assert {other.err for other in done} == {""}
    shown = shell.run("node", "test", "v00000").out
    row = next(line for line in shown.splitlines() if line.startswith("memory"))
    assert row.split()[:3] == ["memory", "Passed", "copyBytesPerSecond"]
    assert row.split()[7] == "9", "so many nodes make the median"
    assert row.split()[9] == "GB/s", "and a limit"
    fleet = shell.run("node", "tests")
    rows = [line.split() for line in fleet.out.splitlines() if "copyBytesPerSecond" in line]
    assert {(row[0].partition("/")[0], row[2], row[4]) for row in rows} >= {
        ("virtual-8gpu", "memory", "10"), ("", "memory", "1"),
    }, "nodes of one shape are beside each other"  # fmt: skip
    assert "11 tested in the last day" in fleet.err
    rows = [line.split()[:4] for line in shell.run("node", local).out.splitlines()]
    assert [f"{local}-2", "quick", "Person", "Passed"] in rows
    assert [f"{local}-1", "quick", "Gate", "Passed"] in rows
