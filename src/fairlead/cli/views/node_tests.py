"""The tables of tests of machines (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from fairlead.api.cluster.machine_result import Figure, MachineFinding, MachineOutcome
from fairlead.api.cluster.node_suites import Better, FigureKind, machine_tests
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.values.times import parse_time
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.decide.words import duration, plural
from fairlead.model.health.judgement import PeerFigures, comparable, fleet_limit, is_beyond

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


def _peers(test: NodeTest, others: Iterable[NodeTest]) -> PeerFigures:
    """Return what other nodes of the shape measured last."""
    alike = sorted(
        (
            each for each in others
            if each.status.shape == test.status.shape and each.spec.suite == test.spec.suite
            and each.spec.node != test.spec.node and each.status.measured
        ),
        key=lambda each: each.spec.number,
    )  # fmt: skip
    return PeerFigures({each.spec.node: comparable(each) for each in alike})


def _compared_cells(
    test: str, figure: Figure, peers: PeerFigures
) -> tuple[str, str, str, str, str, str]:
    name, value, worst, limit = _figure_cells(test, figure)
    found = peers.values(test, figure.name)
    middle = figure_text(median(found), _unit(test, figure.name)) if found else "-"
    return (name, value, middle, f"{len(found):,}", limit, worst)


def rows_of_tests(tests: Sequence[NodeTest], now: float) -> list[Row]:
    """Return a row per test of a node, the newest first."""
    return [_test_row(each, now) for each in tests]


def _test_row(test: NodeTest, now: float) -> Row:
    status = test.status
    outcome = status.phase.value if status.outcome is None else status.outcome.value
    ended = f"{duration(now - parse_time(status.ended_at))} ago" if status.ended_at else "-"
    peer = f" with {test.spec.peer.node}" if test.spec.peer is not None else ""
    return (
        test.metadata.name, f"{test.spec.suite}{peer}", test.spec.cause.value, outcome, ended,
        f"{status.attempts:,}", status.message,
    )  # fmt: skip


FLEET_COLUMNS = (
    Column("SHAPE"),
    Column("SUITE"),
    Column("TEST"),
    Column("FIGURE"),
    Column("NODES", Align.RIGHT),
    Column("WORST", Align.RIGHT),
    Column("MEDIAN", Align.RIGHT),
    Column("BEST", Align.RIGHT),
    Column("LIMIT", Align.RIGHT),
    Column("BEYOND", may_cut=True),
)
_BEYOND_MAX = 3
_DAY_SECONDS = 86_400.0


def fleet_rows(tests: Iterable[NodeTest]) -> list[Row]:
    """Return a row per judged figure of each shape and suite, of the latest test of each node.

    LIMIT is what the fleet sets now; none where too few nodes have the figure. Nodes beyond it are
    named, the worst first.
    """
    latest: dict[tuple[str, str], dict[str, Sequence[MachineFinding]]] = {}
    for each in sorted(tests, key=lambda each: each.spec.number):
        if each.status.measured:
            alike = latest.setdefault((each.status.shape, each.spec.suite), {})
            alike[each.spec.node] = comparable(each)
    rows: list[Row] = []
    for (shape, suite), nodes in sorted(latest.items()):
        for test in machine_tests().values():
            for kind in test.figure:
                found = figures_of(nodes, test.name, kind.name)
                if found and kind.better is not Better.NEITHER:
                    cells = spread_cells(found, kind)
                    rows.append((shape, suite, test.name, kind.name, *cells))
    return rows


def figures_of(
    nodes: Mapping[str, Sequence[MachineFinding]], test: str, figure: str
) -> dict[str, float]:
    """Return one figure of the nodes that have it."""
    return {
        node: found.value
        for node, measured in nodes.items()
        for each in measured
        if each.test == test
        for found in each.figures
        if found.name == figure
    }


def spread_cells(found: Mapping[str, float], kind: FigureKind) -> tuple[str, ...]:
    """Return how many nodes there are, the worst figure, the median, the best, the limit that they
    set together, and who is beyond it. At least one node.
    """
    is_higher = kind.better is Better.HIGHER
    worst_first = sorted(found, key=lambda node: (found[node] if is_higher else -found[node], node))
    values = sorted(found.values())
    limit = fleet_limit(kind, values)
    beyond = [
        node for node in worst_first
        if limit is not None and is_beyond(kind.better, found[node], limit)
    ]  # fmt: skip
    more = f" and {len(beyond) - _BEYOND_MAX:,} more" if len(beyond) > _BEYOND_MAX else ""
    spread = (found[worst_first[0]], median(values), found[worst_first[-1]])
    return (
        f"{len(found):,}", *(figure_text(value, kind.unit) for value in spread),
        "-" if limit is None else figure_text(limit, kind.unit),
        f"{', '.join(beyond[:_BEYOND_MAX])}{more}",
    )  # fmt: skip


def coverage_lines(tests: Iterable[NodeTest], nodes: Mapping[str, str], now: float) -> list[str]:
    """Return how many nodes were tested, by the outcome of their latest test, and how many in
    pairs.

    `nodes`: uids by name. Tests of nodes that are gone count for nothing.
    """
    ended = [
        each for each in sorted(tests, key=lambda each: each.spec.number)
        if not each.is_open and nodes.get(each.spec.node) == each.spec.node_uid
    ]  # fmt: skip
    lines = _coverage([each for each in ended if each.spec.peer is None], len(nodes), now)
    pairs = [each for each in ended if each.spec.peer is not None]
    if pairs:
        lines += [f"in pairs: {line}" for line in _coverage(pairs, len(nodes), now)]
    return lines


def _coverage(ended: Iterable[NodeTest], count: int, now: float) -> list[str]:
    latest = {each.spec.node: each for each in ended}
    counts = Counter(each.status.outcome for each in latest.values())
    outcomes = ", ".join(
        f"{counts[outcome]:,} {outcome.value}" for outcome in MachineOutcome if counts[outcome]
    )
    recent = sum(
        each.status.ended_at is not None and now - parse_time(each.status.ended_at) <= _DAY_SECONDS
        for each in latest.values()
    )
    untested = count - len(latest)
    lines = [f"{plural(count, 'node')}: {recent:,} tested in the last day, "
             f"{len(latest) - recent:,} before, {untested:,} never"]  # fmt: skip
    return [*lines, f"latest tests: {outcomes}"] if outcomes else lines
