"""Figures of runs beside each other, as rows (pure); `compare.py` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.charts import percent
from fairlead.decide.words import duration

#: Figure, title, and whether it is a share (else a duration).
FIGURES: tuple[tuple[str, str, bool], ...] = (
    ("wait_mean_seconds", "wait, mean", False),
    ("wait_p95_seconds", "wait, p95", False),
    ("jct_mean_seconds", "completion, mean", False),
    ("utilization", "utilization", True),
    ("packing", "packing", True),
    ("useful_gpu_seconds", "useful GPU time", False),
    ("lost_gpu_seconds", "lost GPU time", False),
    ("spoiled_gpu_seconds", "spoiled GPU time", False),
    ("node_test_share", "node time of tests", True),
    ("machine_seconds", "machine time", False),
    ("idle_machine_seconds", "machine time, idle", False),
)
#: Figures that runs without node pools, silent faults and tests of nodes lack.
_OF_SOME = frozenset(
    ("machine_seconds", "idle_machine_seconds", "spoiled_gpu_seconds", "node_test_share")
)


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs of one scenario with different seeds. `mean` and `spread` (standard deviation of the
    sample, 0 for one run) are by figure; a figure that a run lacks is left out.
    """

    name: str
    runs: tuple[str, ...]
    mean: dict[str, float]
    spread: dict[str, float]


def cells(groups: Sequence[RunGroup]) -> list[tuple[str, ...]]:
    """Return the table: a row per figure, a column per group; later ones relative to the first."""
    rows: list[tuple[str, ...]] = []
    for figure, title, is_share in FIGURES:
        if figure in _OF_SOME and not any(figure in group.mean for group in groups):
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
