"""Runs are compared by scenario: those that differ in their seed and name are one group."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.sim.scenarios.compare import compare
from fairlead.sim.scenarios.scenario import Scenario


def results(folder: Path, scenario: Scenario, wait: float) -> Path:
    folder.mkdir()
    facts = {"scenario": msgspec.to_builtins(scenario)}
    (folder / "scenario.json").write_bytes(msgspec.json.encode(facts))
    (folder / "summary.json").write_bytes(msgspec.json.encode({"wait_mean_seconds": wait}))
    return folder


def test_runs_of_one_scenario_are_a_group_with_the_spread_of_a_sample(tmp_path: Path) -> None:
    folders = [
        results(tmp_path / "a", Scenario(name="monday", seed=1), 1.0),
        results(tmp_path / "b", Scenario(name="tuesday", seed=2), 3.0),
        results(tmp_path / "c", Scenario(policy="fifo"), 9.0),
    ]
    group, other = compare(folders)
    assert (group.name, len(group.runs), len(other.runs)) == ("monday", 2, 1)
    assert group.mean == {"wait_mean_seconds": 2.0}
    assert group.spread["wait_mean_seconds"] == pytest.approx(2**0.5)
