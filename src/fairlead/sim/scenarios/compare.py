"""Compares runs: groups that differ in more than the seed, each with its spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlead.sim.scenarios.figures import FIGURES, RunGroup
from fairlead.sim.scenarios.run import read_results
from fairlead.sim.scenarios.scenario import Scenario


def compare(folders: Sequence[Path]) -> list[RunGroup]:
    """Return the groups in the order in which their first run was named."""
    found: dict[bytes, list[tuple[Path, Scenario, dict[str, Any]]]] = {}
    for folder in folders:
        scenario, summary = read_results(folder)
        key = msgspec.json.encode(
            msgspec.structs.replace(scenario, seed=0, name="", description="")
        )
        found.setdefault(key, []).append((folder, scenario, summary))
    groups: list[RunGroup] = []
    for runs in found.values():
        mean: dict[str, float] = {}
        spread: dict[str, float] = {}
        for figure, _, _ in FIGURES:
            values = [
                float(s[figure]) for _, _, s in runs if isinstance(s.get(figure), int | float)
            ]
            if values:
                mean[figure] = statistics.fmean(values)
                spread[figure] = statistics.stdev(values) if len(values) > 1 else 0.0
        folder, scenario, _ = runs[0]
        name = scenario.name or folder.name
        groups.append(RunGroup(name, tuple(str(path) for path, _, _ in runs), mean, spread))
    return [*_recorded(list(found.values())), *groups]


def _recorded(groups: Sequence[Sequence[tuple[Path, Scenario, dict[str, Any]]]]) -> list[RunGroup]:
    """Return what was done where the trace was recorded, if all runs have the same of it."""
    every = [summary.get("recorded") for runs in groups for _, _, summary in runs]
    if not every or not isinstance(every[0], dict) or any(each != every[0] for each in every):
        return []
    known: dict[str, Any] = every[0]
    figures = {name: float(known[name]) for name, _, _ in FIGURES
               if isinstance(known.get(name), int | float)}  # fmt: skip
    return [RunGroup("as recorded", (), figures, dict.fromkeys(figures, 0.0))]
