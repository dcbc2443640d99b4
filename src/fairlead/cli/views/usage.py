"""GPU-hours, and their cost where prices are known, in tables and as CSV (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.app.queries.messages import HistoryLine
from fairlead.cli.formats.csv_table import as_csv
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.attempts.usage import Usage
from fairlead.decide.words import duration

#: What hours can be summed by.
KEYS = ("team", "user", "namespace", "job", "pool", "week")
_NONE = "-"
#: Columns of hours: the title in a table, and the field of `Usage`, which is the name in a file.
_HOURS = (
    ("GPU HOURS", "held"), ("BUSY", "busy"), ("BORROWED", "borrowed"),
    ("LOST", "lost_to_failures"), ("PREEMPTED", "lost_to_preemption"),
)  # fmt: skip

#: Hours by the values of the keys, in the order of `_HOURS`; then their cost, and the hours without
#: a known price.
Totals = Mapping[tuple[str, ...], tuple[float, ...]]


def totals(usages: Iterable[Usage], keys: Sequence[str]) -> Totals:
    """Return the hours, those that used most first."""
    sums: dict[tuple[str, ...], list[float]] = {}
    for usage in usages:
        cells = sums.setdefault(
            tuple(getattr(usage, key) for key in keys), [0.0] * (len(_HOURS) + 2)
        )
        for number, (_, field) in enumerate(_HOURS):
            cells[number] += getattr(usage, field) / 3600
        cells[-2] += usage.cost
        cells[-1] += usage.unpriced / 3600
    found = {key: tuple(cells) for key, cells in sums.items() if any(cells)}
    return dict(sorted(found.items(), key=lambda item: (-item[1][0], item[0])))


def columns(keys: Sequence[str], found: Totals) -> tuple[Column, ...]:
    """Return the columns of a table; that of the cost where a price is known."""
    return (
        *(Column(key.upper(), may_cut=key == "job") for key in keys),
        *(Column(title, Align.RIGHT) for title, _ in _HOURS),
        *([Column("COST", Align.RIGHT)] if _is_priced(found) else []),
    )


def _is_priced(found: Totals) -> bool:
    return any(cells[-2] for cells in found.values())


def cost_text(cost: float, unpriced: float) -> str:
    """Return a cost, with a plus where some of its hours have no known price."""
    return f"{cost:,.2f}{'+' if unpriced else ''}" if cost else _NONE


def usage_rows(found: Totals) -> list[Row]:
    """Return one row for each combination of keys."""
    return [
        (*(key or _NONE for key in keys), *(f"{hours:,.1f}" for hours in cells[:-2]),
         *([cost_text(*cells[-2:])] if _is_priced(found) else []))
        for keys, cells in found.items()
    ]  # fmt: skip


def csv_text(found: Totals, keys: Sequence[str]) -> str:
    """Return the table as CSV with a header; hours have three digits after the point. A cost is
    empty where no price is known.
    """
    rows = (
        [*values, *(f"{hours:.3f}" for hours in cells[:-2]),
         f"{cells[-2]:.2f}" if cells[-2] else "", f"{cells[-1]:.3f}"]
        for values, cells in found.items()
    )  # fmt: skip
    fields = (*(field for _, field in _HOURS), "unpriced")
    titles = [f"{field}_gpu_hours" for field in fields]
    return as_csv([*keys, *titles[:-1], "cost", titles[-1]], rows)


#: Seconds from submission to the first start of jobs that have started, sorted, by team.
Waits = Mapping[str, Sequence[float]]
WAIT_COLUMNS: tuple[Column, ...] = (
    Column("TEAM"), Column("STARTED", Align.RIGHT), Column("MEDIAN", Align.RIGHT),
    Column("90 %", Align.RIGHT), Column("LONGEST", Align.RIGHT),
)  # fmt: skip


def waits_of(lines: Iterable[HistoryLine]) -> Waits:
    """Return how long jobs that ended had waited, those of the team with most jobs first."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line.submitted_at_ms is not None and line.started_at_ms is not None:
            waited = max(0, line.started_at_ms - line.submitted_at_ms) / 1000
            found.setdefault(line.team, []).append(waited)
    teams = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return {team: sorted(waits) for team, waits in teams}


def wait_rows(found: Waits) -> list[Row]:
    """Return one row for each team; of n waits, the share q is the one of rank ceil(q n)."""
    return [
        (team or _NONE, f"{len(waits):,}",
         *(duration(waits[-(-len(waits) * tenths // 10) - 1]) for tenths in (5, 9, 10)))
        for team, waits in found.items()
    ]  # fmt: skip


def usage_facts(found: Totals, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the table as plain data."""
    names = ("held", "busy", "borrowed", "lostToFailures", "lostToPreemption")
    return [
        {**dict(zip(keys, values, strict=True)),
         "gpuHours": dict(zip(names, (round(hours, 3) for hours in cells[:-2]), strict=True)),
         **({"cost": {"amount": round(cells[-2], 2), "unpricedGpuHours": round(cells[-1], 3)}}
            if cells[-2] else {})}
        for values, cells in found.items()
    ]  # fmt: skip
