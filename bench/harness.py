"""What all benchmarks share: repeats, calibration, bounds, and the report.

Machines differ and are shared, so no bare time is judged. A figure is either a ratio of two
measurements of one run, or a time that is divided by the speed of a calibration loop timed right
beside it: `REFERENCE_SECONDS` is what that loop takes on one quiet core of the class that the
bounds are meant for. A bound stands in `bounds.toml` with the mean and the spread that it was set
from.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE / "out" / "latest.json"
#: The calibration loop on one quiet core (CPython 3.11, AMD EPYC, November 2026): the median CPU
#: time of twenty runs, which lay between 28.4 and 30.8 ms but for one.
REFERENCE_SECONDS = 0.029
_LOOP = 200_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One result. `ok` is None while no bound is recorded."""

    name: str
    value: float
    unit: str
    bound: float | None
    ok: bool | None


def calibration_loop() -> float:
    """Time a fixed piece of interpreter work: dictionaries, integers, attribute-free calls."""
    start = time.perf_counter()
    table: dict[int, int] = {}
    for i in range(_LOOP):
        table[i & 1023] = table.get(i & 1023, 0) + (i ^ 0x55)
    return time.perf_counter() - start


def slowness(repeats: int = 5) -> float:
    """Return how much slower than the reference core this one is right now (1.0 = equal)."""
    return statistics.median(calibration_loop() for _ in range(repeats)) / REFERENCE_SECONDS


def cpu_slowness(repeats: int = 3) -> float:
    """Return the same from CPU time, for figures in CPU time: others' load is left out of both."""
    taken: list[float] = []
    for _ in range(repeats):
        start = time.thread_time()
        calibration_loop()
        taken.append(time.thread_time() - start)
    return statistics.median(taken) / REFERENCE_SECONDS


def best_of(action: Callable[[], object], *, repeats: int = 5) -> float:
    """Return the median seconds of `action` over `repeats`, garbage collected before each."""
    taken: list[float] = []
    for _ in range(repeats):
        gc.collect()
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several runs; `spread` is the standard deviation, in the figure's unit."""

    name: str
    mean: float
    spread: float


def spread_of(runs: Sequence[Sequence[Figure]]) -> list[Spread]:
    """Return mean and spread of each figure that any of the runs has, in order of appearance."""
    values: dict[str, list[float]] = {}
    for figures in runs:
        for figure in figures:
            values.setdefault(figure.name, []).append(figure.value)
    return [
        Spread(name, statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0)
        for name, found in values.items()
    ]


def compare(
    earlier: Sequence[Mapping[str, Any]], figures: Sequence[Figure]
) -> list[tuple[str, float, float]]:
    """Return (name, before, now) of the figures that both have and that were not zero before."""
    before = {str(entry["name"]): float(entry["value"]) for entry in earlier}
    return [(f.name, before[f.name], f.value) for f in figures if before.get(f.name)]


class BoundsError(ValueError):
    """`bounds.toml` says something that cannot be judged by."""


def judge(value: float, entry: Mapping[str, Any]) -> tuple[float | None, bool | None]:
    """Return (bound, kept) by one table of `bounds.toml`; an empty table judges nothing.

    BoundsError when it has both bounds, or neither.
    """
    if not entry:
        return None, None
    low, high = entry.get("at_least"), entry.get("at_most")
    if (low is None) == (high is None):
        raise BoundsError("a bound has either at_least or at_most")
    return (low, value >= low) if low is not None else (high, value <= high)


class Report:
    """Collects figures, judges them by `bounds.toml`, prints and writes them."""

    def __init__(self, bounds: Mapping[str, Any] | None = None) -> None:
        """Judge by `bounds`, or by the file."""
        if bounds is None:
            bounds = tomllib.loads((HERE / "bounds.toml").read_text())
        self.bounds = bounds
        self.figures: list[Figure] = []

    def add(self, name: str, value: float, unit: str) -> None:
        """Judge one figure. A time must be divided by `slowness()` before, a rate multiplied."""
        entry = self.bounds.get(name, {})
        bound, ok = judge(value, entry)
        self.figures.append(Figure(name, value, unit, bound, ok))
        sign = "" if bound is None else (">=" if "at_least" in entry else "<=")
        mark = "  no bound" if ok is None else "  ok" if ok else "  MISSED"
        limit = "" if bound is None else f"   {sign} {bound:g} {unit}"
        print(f"{name:44} {value:>14,.4g} {unit:<12}{limit:<26}{mark}", flush=True)

    def skip(self, name: str, why: str) -> None:
        """Say in one line that a group was not measured here; it is judged nowhere."""
        print(f"{name:44} skipped: {why}", flush=True)

    def write(self) -> bool:
        """Write `bench/out/latest.json`; True when no bound was missed."""
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps([asdict(figure) for figure in self.figures], indent=1) + "\n")
        return all(figure.ok is not False for figure in self.figures)
