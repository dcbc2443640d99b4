"""Compares runs: groups that differ in more than the seed, each with its spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fairlead.charts import percent
from fairlead.decide.words import duration
from fairlead.sim.scenarios.run import read_results
from fairlead.sim.scenarios.scenario import Scenario

#: Figure, title, and whether it is a share (else a duration).
FIGURES: tuple[tuple[str, str, bool], ...] = (
    ("wait_mean_seconds", "wait, mean", False),
    ("wait_p95_seconds", "wait, p95", False),
    ("jct_mean_seconds", "completion, mean", False),
    ("utilization", "utilization", True),
    ("packing", "packing", True),
    ("lost_gpu_seconds", "lost GPU time", False),
    ("machine_seconds", "machine time", False),
    ("idle_machine_seconds", "machine time, idle", False),
)
#: Figures that runs without node pools lack.
_OF_POOLS = frozenset(("machine_seconds", "idle_machine_seconds"))


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of one scenario with different seeds. `mean` and `spread` (standard deviation of the
    sample, 0 for one run) are by figure; a figure that a run lacks is left out.
    """

    name: str
    runs: tuple[str, ...]
    mean: dict[str, float]
    spread: dict[str, float]


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


def cells(groups: Sequence[RunGroup]) -> list[tuple[str, ...]]:
    """Return the table: a row per figure, a column per group; later ones relative to the first."""
    rows: list[tuple[str, ...]] = []
    for figure, title, is_share in FIGURES:
        if figure in _OF_POOLS and not any(figure in group.mean for group in groups):
            continue
        form = percent if is_share else duration
        row = [title]
        base = groups[0].mean.get(figure)
        for index, group in enumerate(groups):
            value = group.mean.get(figure)
            if value is None:
                row.append("-")
                continue
            text = form(value)
            if len(group.runs) > 1:
                text += f" ± {form(group.spread[figure])}"
            if index and base:
                text += f" ({(value - base) / base:+.1%})"
            row.append(text)
        rows.append(tuple(row))
    return rows
