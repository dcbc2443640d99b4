"""What tests of nodes measured under each version of a driver or kernel: tables and a page (pure).

Under each version the latest test of a node counts, so a node that was upgraded is in two of them.
Drift compares each node with itself: the median change of those that have the figure under the
version before, too. What a new driver makes slower on all nodes is a drift, and no outlier.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from fairlead.api.cluster.machine_result import MachineFinding
from fairlead.api.cluster.node_suites import Better, FigureKind, machine_tests
from fairlead.api.cluster.node_test import NodeTest
from fairlead.charts import STYLE, ChartLook, PointGroup, markup, percent, point_chart
from fairlead.cli.formats.table import Align, Column, Row
from fairlead.cli.views.node_tests import figures_of, spread_cells
from fairlead.model.health.judgement import comparable

#: What nodes are grouped by.
BY = ("driver", "kernel")
DRIFT_COLUMNS = (
    Column("SHAPE"),
    Column("SUITE"),
    Column("TEST"),
    Column("FIGURE"),
    Column("VERSION"),
    Column("NODES", Align.RIGHT),
    Column("WORST", Align.RIGHT),
    Column("MEDIAN", Align.RIGHT),
    Column("BEST", Align.RIGHT),
    Column("LIMIT", Align.RIGHT, wide_only=True),
    Column("DRIFT", Align.RIGHT),
    Column("SPREAD"),
    Column("BEYOND", may_cut=True),
)
_BARS = " ▁▂▃▄▅▆▇█"
_BINS = 10
#: Points of one line of a chart: the nodes with the worst figures, and so many of the others.
_WORST_MAX, _POINTS_MAX = 50, 400
_NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class FigureByVersion:
    """One figure of nodes of a shape: values by node, under each version in their order."""

    shape: str
    suite: str
    test: str
    kind: FigureKind
    values: Mapping[str, Mapping[str, float]]


def by_version(tests: Iterable[NodeTest], by: str) -> Iterator[FigureByVersion]:
    """Yield each judged figure that has been measured; a test that names no version has none."""
    latest: dict[tuple[str, str], dict[str, dict[str, Sequence[MachineFinding]]]] = {}
    for each in sorted(tests, key=lambda each: each.spec.number):
        version = each.status.versions.get(by) or each.status.hardware.get(by, "")
        if each.status.measured and version:
            alike = latest.setdefault((each.status.shape, each.spec.suite), {})
            alike.setdefault(version, {})[each.spec.node] = comparable(each)
    for (shape, suite), versions in sorted(latest.items()):
        for test in machine_tests().values():
            for kind in test.figure:
                found = {
                    version: values
                    for version, nodes in sorted(versions.items(), key=lambda e: _natural(e[0]))
                    if (values := figures_of(nodes, test.name, kind.name))
                }
                if found and kind.better is not Better.NEITHER:
                    yield FigureByVersion(shape, suite, test.name, kind, found)


def _natural(version: str) -> list[tuple[int, str]]:
    """Return what sorts 550.54.15 before 550.127.5."""
    parts = filter(None, _NUMBERS.split(version))
    return [(int(each), "") if each.isdecimal() else (-1, each) for each in parts]


def drift_rows(tests: Iterable[NodeTest], by: str) -> list[Row]:
    """Return a row per figure and version, with the drift since the version before."""
    rows: list[Row] = []
    for figure in by_version(tests, by):
        head = (figure.shape, figure.suite, figure.test, figure.kind.name)
        everything = [value for nodes in figure.values.values() for value in nodes.values()]
        before: Mapping[str, float] = {}
        for version, nodes in figure.values.items():
            *cells, beyond = spread_cells(nodes, figure.kind)
            drift = _drift_text(before, nodes)
            bars = histogram(list(nodes.values()), min(everything), max(everything))
            rows.append((*head, version, *cells, drift, bars, beyond))
            before = nodes
    return rows


def drift(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, int] | None:
    """Return the median change as a share, and of how many nodes; None: no node has both."""
    changes = [after[node] / before[node] - 1.0 for node in after if before.get(node)]
    return (median(changes), len(changes)) if changes else None


def _drift_text(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    found = drift(before, after)
    return "-" if found is None else f"{found[0] * 100:+.1f} % of {found[1]:,}"


def histogram(values: Sequence[float], low: float, high: float) -> str:
    """Return how many values are in each tenth of a range, as bars; a value has a bar at least."""
    counts, width = [0] * _BINS, (high - low) / _BINS
    for value in values:
        counts[min(_BINS - 1, int((value - low) / width)) if width > 0 else 0] += 1
    most, steps = max(counts, default=0) or 1, len(_BARS) - 1
    return "".join(_BARS[-(-count * steps // most)] for count in counts)


def drift_page(tests: Sequence[NodeTest], by: str) -> str:
    """Return a page of HTML with a chart per figure: the share of nodes up to each value.

    Each point is a node, whose name is its title.
    """
    charts = list[str]()
    for each in by_version(tests, by):
        title = f"{each.test} {each.kind.name} [{each.kind.unit}], {each.shape}, {each.suite}"
        groups = [PointGroup(version, _points(nodes, each.kind)) for version, nodes
                  in each.values.items()]  # fmt: skip
        charts.append(point_chart(title, groups, ChartLook(form=percent)))
    body = "\n".join(charts) or "<p>No test has measured anything under a version.</p>"
    head = markup(f"Tests of nodes by {by}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{head}</title><style>body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;"
        f"margin:2rem auto;padding:0 1rem}}{STYLE}</style></head>\n<body><h1>{head}</h1>\n{body}"
        "</body></html>\n"
    )


def _points(nodes: Mapping[str, float], kind: FigureKind) -> list[tuple[float, float, str]]:
    ordered = sorted(nodes, key=lambda node: (nodes[node], node))
    points = [(nodes[node], (i + 1) / len(ordered), node) for i, node in enumerate(ordered)]
    if len(points) <= _POINTS_MAX:
        return points
    if kind.better is Better.HIGHER:
        return points[:_WORST_MAX] + points[_WORST_MAX :: len(points) // _POINTS_MAX + 1]
    return points[: -_WORST_MAX : len(points) // _POINTS_MAX + 1] + points[-_WORST_MAX:]
