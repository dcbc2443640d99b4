"""The tables of tests of machines (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from fairlead.api.machine_result import Figure, MachineFinding
from fairlead.api.node_suites import machine_tests
from fairlead.api.node_test import NodeTest
from fairlead.api.times import parse_time
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.health.judgement import values_of
from fairlead.decide.words import duration

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


def measured_rows(measured: Sequence[MachineFinding]) -> list[Row]:
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
    power = 0
    while abs(value) >= _THOUSAND and power < len(_PREFIXES) - 1:
        value, power = value / _THOUSAND, power + 1
    prefix = _PREFIXES[power]
    return f"{value:.3g} {prefix}{unit}" if unit.startswith("B") else f"{value:.3g}{prefix}/s"


COMPARED_COLUMNS = (
    Column("TEST"),
    Column("OUTCOME"),
    Column("FIGURE"),
    Column("VALUE", Align.RIGHT),
    Column("MEDIAN", Align.RIGHT),
    Column("NODES", Align.RIGHT),
    Column("LIMIT", Align.RIGHT),
    Column("WORST", Align.RIGHT, wide_only=True),
    Column("MESSAGE", may_cut=True),
)
TEST_COLUMNS = (
    Column("TEST OF NODE"),
    Column("SUITE"),
    Column("CAUSE"),
    Column("OUTCOME"),
    Column("ENDED"),
    Column("ATTEMPTS", Align.RIGHT),
    Column("MESSAGE", may_cut=True),
)


def compared_rows(test: NodeTest, others: Iterable[NodeTest]) -> list[Row]:
    """Return a row per figure, with the median of other nodes of the shape by the same suite."""
    peers = _peers(test, others)
    rows: list[Row] = []
    for each in test.status.measured:
        head = (each.test, each.outcome.value)
        cells = [_compared_cells(each.test, figure, peers) for figure in each.figures]
        first = cells[0] if cells else ("-",) * 6
        rows.append((*head, *first, each.message))
        rows += [("", "", *more, "") for more in cells[1:]]
    return rows


def _peers(test: NodeTest, others: Iterable[NodeTest]) -> dict[str, Sequence[MachineFinding]]:
    """Return what other nodes of the shape measured last."""
    alike = sorted(
        (
            each for each in others
            if each.status.shape == test.status.shape and each.spec.suite == test.spec.suite
            and each.spec.node != test.spec.node and each.status.measured
        ),
        key=lambda each: each.spec.number,
    )  # fmt: skip
    return {each.spec.node: each.status.measured for each in alike}


def _compared_cells(
    test: str, figure: Figure, peers: Mapping[str, Sequence[MachineFinding]]
) -> tuple[str, str, str, str, str, str]:
    name, value, worst, limit = _figure_cells(test, figure)
    found = values_of(peers, test, figure.name)
    middle = figure_text(median(found), _unit(test, figure.name)) if found else "-"
    return (name, value, middle, f"{len(found):,}", limit, worst)


def rows_of_tests(tests: Sequence[NodeTest], now: float) -> list[Row]:
    """Return a row per test of a node, the newest first."""
    return [_test_row(each, now) for each in tests]


def _test_row(test: NodeTest, now: float) -> Row:
    status = test.status
    outcome = status.phase.value if status.outcome is None else status.outcome.value
    ended = f"{duration(now - parse_time(status.ended_at))} ago" if status.ended_at else "-"
    return (
        test.metadata.name, test.spec.suite, test.spec.cause.value, outcome, ended,
        f"{status.attempts:,}", status.message,
    )  # fmt: skip
