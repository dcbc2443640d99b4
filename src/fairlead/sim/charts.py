"""Small charts as inline SVG: lines, stacked areas and cumulative distributions.

The report is one file that opens anywhere and loads nothing, so the charts are drawn here: about a
hundred lines of SVG instead of megabytes of a script library in each report.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.decide.words import duration

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 10, 28
#: Okabe and Ito's palette, which colour-blind readers can tell apart.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#777777")


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of y values, one for each x of its chart."""

    name: str
    values: Sequence[float]


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


def number(value: float) -> str:
    """Return a number for an axis: `1.2k`, `35`."""
    for limit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1000 if name == 'k' else limit):.3g}{name}"
    return f"{value:.4g}"


def percent(value: float) -> str:
    """Return a share from 0 to 1 in percent."""
    return f"{value * 100:.3g} %"


def _ticks(high: float) -> list[float]:
    """Return about five round values from 0 to `high`."""
    if high <= 0:
        return [0.0]
    raw = high / 4
    unit = 10 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw)
    return [i * step for i in range(int(high / step + 1e-9) + 1)]


def _frame(title: str, body: list[str], names: Sequence[str]) -> str:
    legend = "".join(
        f'<span class="key"><i style="background:{COLORS[i % len(COLORS)]}"></i>'
        f"{html.escape(name)}</span>"
        for i, name in enumerate(names)
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">'
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>{svg}{''.join(body)}</svg>"
        f'<div class="legend">{legend}</div></figure>'
    )


def _axes(
    x: Scale, y: Scale, xs: Sequence[tuple[float, str]], ys: Sequence[tuple[float, str]]
) -> list[str]:
    out: list[str] = []
    for value, text in ys:
        at = y(value)
        out.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        out.append(_tick(_LEFT - 6, at + 4, "end", text))
    for value, text in xs:
        at = x(value)
        anchor = "end" if at > WIDTH - _RIGHT - 20 else "middle"
        out.append(_tick(at, HEIGHT - 8, anchor, text))
    return out


def _tick(x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="tick" {place}>{html.escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def line_chart(
    title: str,
    at: Sequence[float],
    series: Sequence[Series],
    *,
    high: float | None = None,
    form: Callable[[float], str] = number,
    is_stacked: bool = False,
) -> str:
    """Return a chart over time (`at` in seconds): lines, or areas stacked on each other."""
    if not at or not series:
        return _frame(title, ['<text class="tick" x="60" y="60">no data</text>'], ())
    tops = [0.0] * len(at)
    if is_stacked:
        for row in series:
            tops = [top + value for top, value in zip(tops, row.values, strict=True)]
    peak = max(tops) if is_stacked else max(max(row.values) for row in series)
    ticks = _ticks(high if high is not None else peak or 1.0)
    x = Scale(at[0], max(at[-1], at[0] + 1), _LEFT, WIDTH - _RIGHT)
    y = Scale(0.0, max(high or 0.0, peak, ticks[-1], 1e-9), HEIGHT - _BOTTOM, _TOP)
    marks = [at[0] + (at[-1] - at[0]) * i / 6 for i in range(7)]
    body = _axes(x, y, [(m, duration(m)) for m in marks], [(t, form(t)) for t in ticks])
    below = [0.0] * len(at)
    for i, row in enumerate(series):
        color = COLORS[i % len(COLORS)]
        values = (
            [b + v for b, v in zip(below, row.values, strict=True)] if is_stacked else row.values
        )
        points = [(x(t), y(v)) for t, v in zip(at, values, strict=True)]
        if is_stacked:
            points += [(x(t), y(v)) for t, v in zip(reversed(at), reversed(below), strict=True)]
            body.append(f'<path d="{_path(points)}Z" fill="{color}" fill-opacity=".75"/>')
            below = list(values)
        else:
            body.append(
                f'<path d="{_path(points)}" fill="none" stroke="{color}" stroke-width="1.6"/>'
            )
    return _frame(title, body, [row.name for row in series])


def distribution_chart(title: str, groups: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Return cumulative distributions of durations in seconds, on a logarithmic axis."""
    groups = [(name, sorted(values)) for name, values in groups if values]
    if not groups:
        return _frame(title, ['<text class="tick" x="60" y="60">no data</text>'], ())
    high = max(10.0, *(values[-1] for _, values in groups))
    x = Scale(1.0, high, _LEFT, WIDTH - _RIGHT, is_log=True)
    y = Scale(0.0, 1.0, HEIGHT - _BOTTOM, _TOP)
    marks = [m for m in (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400) if m <= high]
    body = _axes(
        x, y, [(m, duration(m)) for m in marks], [(q, percent(q)) for q in (0, 0.25, 0.5, 0.75, 1)]
    )
    for i, (_, values) in enumerate(groups):
        count = len(values)
        step = max(1, count // 400)
        points = [(x(max(values[k], 1.0)), y((k + 1) / count)) for k in range(0, count, step)]
        points.append((x(max(values[-1], 1.0)), y(1.0)))
        color = COLORS[i % len(COLORS)]
        body.append(f'<path d="{_path(points)}" fill="none" stroke="{color}" stroke-width="1.6"/>')
    return _frame(title, body, [name for name, _ in groups])
