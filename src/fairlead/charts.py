"""Small charts as inline SVG: lines, stacked areas, distributions, points and courses (pure).

A page with charts is one file that opens anywhere and loads nothing, or one whose policy forbids
inline styles, so they are drawn here: two hundred lines of SVG instead of megabytes of a script
library in each page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairlead.decide.words import duration
from fairlead.terminal import escaped

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 28
#: Okabe and Ito's palette and four of Tol's, which colour-blind readers can tell apart.
COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#777777",
    "#882255", "#44aa99", "#332288", "#ddcc77",
)  # fmt: skip
#: What pages with charts need.
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; }
figure { margin: 1.5em 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; }
.grid { stroke: var(--line); } .tick { font-size: 11px; fill: currentColor; opacity: .75; }
.limit { stroke-width: 1.2; stroke-dasharray: 5 4; }
.legend { font-size: .85em; } .key { margin-right: 1.2em; white-space: nowrap; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
.soft { color: var(--soft); }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of y values, one for each x of its chart; None is a gap."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps data to pixels."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; values outside are clamped."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        share = (value - low) / (high - low) if high > low else 0.0
        return self.start + share * (self.end - self.start)


def markup(text: str) -> str:
    """Return a text as the content of an element or attribute of a page."""
    return html.escape(escaped(text))


def number(value: float) -> str:
    """Return a number for an axis: `1.2k`, `35`."""
    for limit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1000 if name == 'k' else limit):.3g}{name}"
    return f"{value:.4g}"


def percent(value: float) -> str:
    """Return a share from 0 to 1 in percent."""
    return f"{value * 100:.3g} %"


def sixths(low: float, high: float) -> list[tuple[float, str]]:
    """Return the marks of an axis of durations."""
    at = [low + (high - low) * i / 6 for i in range(7)]
    return [(each, duration(each)) for each in at]


@dataclass(frozen=True, slots=True)
class ChartLook:
    """Size and axes of a chart, in pixels of its own.

    `high` is the least top of the y axis, `form` writes its values, and `marks` gives the labels
    of the x axis from its ends. `limits` are (value, colour) of lines across the chart.
    """

    width: int = 720
    height: int = 220
    high: float | None = None
    form: Callable[[float], str] = number
    marks: Callable[[float, float], list[tuple[float, str]]] = sixths
    limits: Sequence[tuple[float, str]] = ()
    is_stacked: bool = False

    def across(self, low: float, high: float, *, is_log: bool = False) -> Scale:
        """Return the x axis."""
        return Scale(low, high, _LEFT, self.width - _RIGHT, is_log)

    def upward(self, low: float, high: float) -> Scale:
        """Return the y axis."""
        return Scale(low, high, self.height - _BOTTOM, _TOP)


_LOOK = ChartLook()


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round values from `low` to `high`, 0 among them."""
    raw = (high - low) / 4
    if not raw > 0:
        return [0.0]
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw)
    first, last = math.floor(low / step + 1e-9), int(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _frame(title: str, body: list[str], names: Sequence[str], look: ChartLook = _LOOK) -> str:
    legend = "".join(
        f'<span class="key"><svg class="swatch" viewBox="0 0 1 1" aria-hidden="true">'
        f'<rect width="1" height="1" fill="{COLORS[i % len(COLORS)]}"/></svg>'
        f"{markup(name)}</span>"
        for i, name in enumerate(names)
    )
    size = f"0 0 {look.width} {look.height}"
    svg = f'<svg viewBox="{size}" role="img" aria-label="{markup(title)}">'
    return (
        f'<figure tabindex="0"><figcaption>{markup(title)}</figcaption>{svg}{"".join(body)}</svg>'
        f'<div class="legend">{legend}</div></figure>'
    )


def no_data(title: str, text: str = "no data", look: ChartLook = _LOOK) -> str:
    """Return an empty chart that says why."""
    return _frame(title, [_tick(60, 60, "start", text)], (), look)


def _axes(
    x: Scale, y: Scale, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]]
) -> list[str]:
    out: list[str] = []
    for value, text in ys:
        out.append(_across(x, y(value), 'class="grid"'))
        out.append(_tick(_LEFT - 6, y(value) + 4, "end", text))
    for value, text in xs:
        at = x(value)
        anchor = "end" if at > x.end - 20 else "middle"
        out.append(_tick(at, y.start + _BOTTOM - 8, anchor, text))
    return out


def _across(x: Scale, at: float, look: str) -> str:
    return f'<line {look} x1="{x.start:g}" x2="{x.end:g}" y1="{at:.1f}" y2="{at:.1f}"/>'


def _tick(x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="tick" {place}>{markup(text)}</text>'


def _points(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(pieces: Sequence[Sequence[tuple[float, float]]], color: str) -> str:
    """Return a line with gaps; a single point is a dot."""
    path = "".join(_points(piece if len(piece) > 1 else [*piece, *piece]) for piece in pieces)
    style = 'fill="none" stroke-width="1.6" stroke-linecap="round"'
    return f'<path d="{path}" {style} stroke="{color}"/>'


def _pieces(
    xs: Sequence[float], values: Sequence[float | None], y: Scale
) -> Iterator[list[tuple[float, float]]]:
    """Yield the points of each run of values without a gap."""
    run: list[tuple[float, float]] = []
    for x, value in zip(xs, values, strict=True):
        if value is not None:
            run.append((x, y(value)))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _stacks(series: Sequence[Series], count: int) -> list[list[float]]:
    """Return the upper edge of each series, with the line at 0 first; a gap adds nothing."""
    edges = [[0.0] * count]
    for row in series:
        edges.append([b + (v or 0.0) for b, v in zip(edges[-1], row.values, strict=True)])
    return edges


def line_chart(
    title: str, at: Sequence[float], series: Sequence[Series], look: ChartLook = _LOOK
) -> str:
    """Return a chart over time (`at` in seconds): lines, or areas stacked on each other.

    The y axis begins at 0, or below it where there are negative values.
    """
    if not at or not series:
        return no_data(title, look=look)
    edges = _stacks(series, len(at)) if look.is_stacked else []
    rows: Sequence[Sequence[float | None]] = edges or [row.values for row in series]
    values = [value for row in rows for value in row if value is not None]
    low, peak = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    ticks = _ticks(low, look.high if look.high is not None else peak or 1.0)
    x = look.across(at[0], max(at[-1], at[0] + 1))
    y = look.upward(ticks[0], max(look.high or 0.0, peak, ticks[-1], 1e-9))
    xs = [x(each) for each in at]
    marks = look.marks(at[0], at[-1])
    body = _axes(x, y, marks, [(t, look.form(t)) for t in ticks])
    for i, row in enumerate(series):
        color = COLORS[i % len(COLORS)]
        if look.is_stacked:
            upper = [(a, y(v)) for a, v in zip(xs, edges[i + 1], strict=True)]
            lower = [(a, y(v)) for a, v in zip(xs, edges[i], strict=True)]
            path = _points([*upper, *reversed(lower)])
            body.append(f'<path d="{path}Z" fill="{color}" fill-opacity=".75"/>')
        else:
            body.append(_line(list(_pieces(xs, row.values, y)), color))
    for limit, color in look.limits:
        if y.low <= limit <= y.high:
            body.append(_across(x, y(limit), f'class="limit" stroke="{color}"'))
    return _frame(title, body, [row.name for row in series], look)


def distribution_chart(title: str, groups: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Return cumulative distributions of durations in seconds, on a logarithmic axis."""
    groups = [(name, sorted(values)) for name, values in groups if values]
    if not groups:
        return no_data(title)
    high = max(10.0, *(values[-1] for _, values in groups))
    x, y = _LOOK.across(1.0, high, is_log=True), _LOOK.upward(0.0, 1.0)
    marks = [m for m in (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400) if m <= high]
    body = _axes(
        x, y, [(m, duration(m)) for m in marks], [(q, percent(q)) for q in (0, 0.25, 0.5, 0.75, 1)]
    )
    for i, (_, values) in enumerate(groups):
        count = len(values)
        step = max(1, count // 400)
        points = [(x(max(values[k], 1.0)), y((k + 1) / count)) for k in range(0, count, step)]
        points.append((x(max(values[-1], 1.0)), y(1.0)))
        body.append(_line([points], COLORS[i % len(COLORS)]))
    return _frame(title, body, [name for name, _ in groups])


class PointGroup(NamedTuple):
    """A named row of points, each as (x, y, what it is)."""

    name: str
    points: Sequence[tuple[float, float, str]]


#: Larger values are no part of a chart of points, and a smaller spread is none.
_VALUE_MAX, _SPREAD_MIN = 1e100, 1e-9
#: Positive values that differ by so much have a logarithmic axis.
_LOG_RATIO = 100.0


def point_chart(
    title: str, groups: Sequence[PointGroup], look: ChartLook = _LOOK, *, is_joined: bool = False
) -> str:
    """Return a chart of points, or with `is_joined` of a line through each group's points.

    Both axes show the range of the values. That of x is logarithmic where all are positive and
    differ by a factor of 100. What is no finite number, or above 1e100, is left out. Groups have
    names in the legend where they are several.
    """
    drawn = [PointGroup(name, [p for p in own if _is_shown(p)]) for name, own in groups]
    points = [point for group in drawn for point in group.points]
    if not points:
        return no_data(title, look=look)
    low, high = _range([x for x, _, _ in points])
    is_log = not is_joined and low > 1 / _VALUE_MAX and high / low >= _LOG_RATIO
    x = look.across(low, high, is_log=is_log)
    least, most = _range([y for _, y, _ in points])
    ticks = _ticks(least, most)
    if ticks[-1] < most:
        ticks.append(2 * ticks[-1] - ticks[-2])
    y = look.upward(ticks[0], ticks[-1])
    marks = _decades(low, high) if is_log else [(each, number(each)) for each in _steps(low, high)]
    body = _axes(x, y, marks, [(t, look.form(t)) for t in ticks])
    for i, (_, own) in enumerate(drawn):
        color = COLORS[i % len(COLORS)]
        if is_joined and own:
            body.append(_line([[(x(a), y(b)) for a, b, _ in own]], color))
        elif own:
            body.append(f'<g fill="{color}" fill-opacity=".7">')
            body += [
                f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="4"><title>{markup(what)}</title>'
                "</circle>"
                for a, b, what in own
            ]
            body.append("</g>")
    return _frame(title, body, [group.name for group in drawn] if len(drawn) > 1 else (), look)


def _is_shown(point: tuple[float, float, str]) -> bool:
    return all(abs(value) <= _VALUE_MAX for value in point[:2])  # not for what is no number


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest value, or two around them where they are the same."""
    low, high = min(values), max(values)
    size = max(abs(low), abs(high), 1 / _VALUE_MAX)
    if high - low > _SPREAD_MIN * size:
        return low, high
    return low - size / 2, high + size / 2


def _steps(low: float, high: float) -> list[float]:
    """Return the round values of an axis that are within its ends."""
    return [each for each in _ticks(low, high) if low <= each <= high]


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    """Return at most seven powers of ten within the ends of a logarithmic axis."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, -(-(last - first) // 6))
    return [(10.0**power, f"{10.0**power:g}") for power in range(first, last + 1, step)]
