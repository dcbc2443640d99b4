"""A cluster of `fairlead up` in real time is recorded; the simulator places its jobs as it did."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.cli_world import Shell, eventually

from fairlead.api.jobs.job import Job
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.observer import Observer
from fairlead.sim.scenarios.run import ScenarioRun
from fairlead.sim.scenarios.scenario import load_scenario

pytestmark = pytest.mark.e2e

#: Name, nodes, GPUs of each member. One after another they pack five nodes of 8 GPUs.
JOBS = (
    ("a-pair", 2, 8), ("b-half", 1, 4), ("c-one", 1, 1), ("d-two", 1, 2), ("e-half", 1, 4),
    ("f-halves", 2, 4), ("g-one", 1, 1),
)  # fmt: skip


class Placements(Observer):
    """Notes the first place of each job."""

    def __init__(self) -> None:
        self.nodes: dict[str, list[str]] = {}

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        if new is not None and new.status.placement is not None:
            name = key[1].rpartition("-")[0]
            found = [node for role in new.status.placement.roles for node in role.nodes]
            self.nodes.setdefault(name, found)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    (tmp_path / "job.sh").write_text("true\n")
    yield made
    made.down()


def test_what_ran_in_real_time_is_placed_alike_when_its_recording_is_simulated(
    shell: Shell,
) -> None:
    shell.up("--nodes", "5", "--profile", "instant", "--listen", "127.0.0.1:0")

    def submit(name: str, nodes: int, gpus: int, seconds: str) -> None:
        shell.run("submit", "job.sh", "--name", name, "--nodes", str(nodes), "--gpus", str(gpus),
                  "--simulate", seconds)  # fmt: skip

    submit("0-short", 1, 8, "1s")  # its node is free again when the others come
    eventually(lambda: shell.state("0-short"), "Succeeded")
    time.sleep(1.1)  # recordings have whole seconds; the others are to come after its end there
    for name, nodes, gpus in JOBS:
        submit(name, nodes, gpus, "1h")
        eventually(lambda name=name: shell.state(name), "Running")
    submit("h-waits", 5, 8, "1s")
    items = json.loads(shell.run("ps", "-a", "-o", "json").out)["items"]
    real = {
        item["metadata"]["name"]: item["status"]["placement"]["roles"][0]["nodes"]
        for item in items
        if "placement" in item["status"]
    }
    noted = shell.run("sim", "record", "recording").err
    assert "8 jobs" in noted
    assert "1 jobs that have not run were left out" in noted
    assert "nodes without GPUs are left out" in noted  # this machine

    found = Placements()
    scenario = load_scenario(shell.root / "recording" / "scenario.yaml")
    result = ScenarioRun(scenario, observers=[found]).run()
    assert (result.summary.violations, result.summary.finished) == ((), 8)
    assert len(real) >= len(JOBS)
    assert {name: found.nodes[name] for name in real} == real
