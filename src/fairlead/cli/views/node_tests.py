"""The tables of tests of machines (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.api.machine_result import Figure, Measured
from fairlead.api.node_suites import machine_tests
from fairlead.cli.table import Align, Column, Row

MEASURED_COLUMNS = (
    Column("TEST"),
    Column("OUTCOME"),
    Column("SECONDS", Align.RIGHT),
    Column("FIGURE"),
    Column("BEST", Align.RIGHT),
    Column("WORST", Align.RIGHT),
    Column("LIMIT", Align.RIGHT),
    Column("MESSAGE", may_cut=True),
)
_PREFIXES = ("", "k", "M", "G", "T", "P")
_THOUSAND = 1000.0


def measured_rows(measured: Sequence[Measured]) -> list[Row]:
    """Return a row per figure, and one for a test without any."""
    rows: list[Row] = []
    for each in measured:
        head = (each.test, each.outcome.value, f"{each.seconds:.1f}")
        figures = [_figure_cells(each.test, figure) for figure in each.figures]
        first = figures[0] if figures else ("-", "-", "-", "-")
        rows.append((*head, *first, each.message))
        rows += [("", "", "", *cells, "") for cells in figures[1:]]
    return rows


def _figure_cells(test: str, figure: Figure) -> tuple[str, str, str, str]:
    unit = _unit(test, figure.name)
    worst = "-" if figure.worst is None else figure_text(figure.worst, unit)
    limit = "-" if figure.limit is None else figure_text(figure.limit, unit)
    return (figure.name, figure_text(figure.value, unit), worst, limit)


def _unit(test: str, figure: str) -> str:
    kind = machine_tests().get(test)
    return "" if kind is None else kind.kind_of(figure).unit


def figure_text(value: float, unit: str) -> str:
    """Return a number with three digits and its unit: 12.3 GB/s, 178 µs, 2."""
    if unit == "1":
        return f"{value:,.0f}"
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
            if abs(value) * factor >= 1.0 or name == "µs":
                return f"{value * factor:.3g} {name}"
    if not unit.startswith("B") and unit != "1/s":
        return f"{value:.3g} {unit}".rstrip()
    for prefix in _PREFIXES:
        if abs(value) < _THOUSAND or prefix == _PREFIXES[-1]:
            break
        value /= _THOUSAND
    return f"{value:.3g} {prefix}{unit}" if unit.startswith("B") else f"{value:.3g}{prefix}/s"
