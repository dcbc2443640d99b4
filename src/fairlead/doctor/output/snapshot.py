"""The boards with their data as one HTML page, without scripts or outside resources (pure)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence

from fairlead.charts import (
    COLORS,
    STYLE,
    ChartLook,
    Series,
    line_chart,
    markup,
    no_data,
    number,
    percent,
)
from fairlead.decide.words import duration
from fairlead.doctor.check import Harm, Side
from fairlead.doctor.monitoring.boards import Board, Panel
from fairlead.doctor.prometheus.ranges import Answers, QueryWindow, RangeAnswer
from fairlead.terminal import printable

#: A panel shows so many series: as many as there are colours.
SERIES_MAX = len(COLORS)
_NAME_MAX = 60
_COLORS = {Harm.INFO: "#2266aa", Harm.WARNING: "#c77700", Harm.CRITICAL: "#b00020"}
_STYLE = (
    STYLE
    + """
body { font: 14px/1.4 system-ui, sans-serif; max-width: 1240px; margin: 1em auto; padding: 0 1em; }
h1 { font-size: 1.4em; margin: 0; } h2 { font-size: 1.25em; margin: 1em 0 0; }
h3 { font-size: 1em; margin: .8em 0 .3em; border-bottom: 1px solid var(--line); }
p { margin: .2em 0; } .panels { display: grid; gap: .7em; grid-template-columns: repeat(3, 1fr); }
.panels > div { border: 1px solid var(--line); border-radius: 4px; padding: .5em .6em;
  min-width: 0; } figure { margin: 0; }
.key { display: inline-block; white-space: normal; overflow-wrap: anywhere; }
summary, .soft { color: var(--soft); font-size: .85em; } pre { white-space: pre-wrap; margin: 0;
  font-size: .8em; overflow-wrap: anywhere; } .failed { color: #b00020; }
@media (max-width: 800px) { .panels { grid-template-columns: 1fr; } }
"""
)


def snapshot_page(
    boards: Sequence[Board], answers: Answers, window: QueryWindow, origin: str
) -> str:
    """Return the page. `origin` says where the data is from; `answers` has all queries."""
    times = f"{_time(window.start)} to {_time(window.end)} UTC, every {duration(window.step)}"
    parts = [
        "<h1>Boards</h1>",
        f'<p class="soft">{markup(f"{origin}, {times}")}</p>',
        *(_board(each, answers, window) for each in boards),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Boards</title>'
        f"<style>{_STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _board(board: Board, answers: Answers, window: QueryWindow) -> str:
    rows = "\n".join(
        f'<h3>{markup(title)}</h3><div class="panels">'
        + "".join(_panel(each, answers, window) for each in panels)
        + "</div>"
        for title, panels in board.rows
    )
    return f'<section id="{board.uid}"><h2>{markup(board.title)}</h2>\n{rows}</section>'


def _panel(panel: Panel, answers: Answers, window: QueryWindow) -> str:
    series, more = drawn(panel, answers, window)
    form = FORMS.get(panel.unit, number)
    look = ChartLook(
        420, 190, form=form, marks=_clock_marks, is_stacked=panel.is_stacked,
        limits=[(each.limit, _COLORS[each.severity]) for each in panel.levels],
    )  # fmt: skip
    failures = {each for query, _ in panel.lines if (each := answers[query].failure)}
    if series:
        named = [Series(_legend(each, form), each.values) for each in series]
        chart = line_chart(panel.title, window.instants, named, look)
    else:
        chart = no_data(panel.title, "not read" if failures else "no data", look)
    notes = [f"{more:,} more series are not drawn"] if more else []
    limits = " ".join(
        f'<span style="color:{_COLORS[each.severity]}">{each.severity.word} '
        f"{'above' if panel.side is Side.ABOVE else 'below'} {markup(form(each.limit))}"
        f"{f' from {each.nodes_from:,} nodes' if each.nodes_from else ''}</span>"
        for each in panel.levels
    )
    queries = "\n".join(query for query, _ in panel.lines)
    return (
        f"<div>{chart}"
        + "".join(f'<p class="failed">{markup(each)}</p>' for each in sorted(failures))
        + "".join(f'<p class="soft">{markup(each)}</p>' for each in notes)
        + (f'<p class="soft">{limits}</p>' if limits else "")
        + f"<details><summary>{markup(panel.text or 'Query')}</summary>"
        + f"<pre>{markup(queries)}</pre></details></div>"
    )


def drawn(panel: Panel, answers: Answers, window: QueryWindow) -> tuple[list[Series], int]:
    """Return the series that a panel shows, and how many more there are.

    Of more than SERIES_MAX those with the largest values are shown. A stack shows all: the last of
    its series is the sum of the smaller ones.
    """
    found = [each for query, legend in panel.lines for each in _named(legend, answers[query])]
    if len(found) <= SERIES_MAX:
        return found, 0
    found.sort(key=lambda each: max((v for v in each.values if v is not None), default=0.0))
    found.reverse()
    shown = found[: SERIES_MAX - 1] if panel.is_stacked else found[:SERIES_MAX]
    rest = found[len(shown) :]
    if not panel.is_stacked:
        return shown, len(rest)
    sums = tuple(sum(each.values[i] or 0.0 for each in rest) for i in range(len(window.instants)))
    return [*shown, Series(f"{len(rest):,} others", sums)], 0


def _named(legend: str, answer: RangeAnswer) -> list[Series]:
    """Return the series under their names, in the order of these; those without a value are not."""
    lines = [
        Series(_name(legend, each.labels), each.values)
        for each in answer.lines
        if any(value is not None for value in each.values)
    ]
    return sorted(lines, key=lambda each: each.name)


def _name(legend: str, labels: Mapping[str, str]) -> str:
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend)
    return printable(" ".join(text.split()), _NAME_MAX) or "value"


def _legend(series: Series, form: Callable[[float], str]) -> str:
    """Return the name with the latest value."""
    last = series.values[-1]
    return series.name if last is None else f"{series.name}: {form(last)}"


def _time(instant: float) -> str:
    return datetime.datetime.fromtimestamp(instant, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def _clock_marks(low: float, high: float) -> list[tuple[float, str]]:
    """Return about six times of day, or dates where days lie between them."""
    minutes = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440)
    steps = (*(60 * each for each in minutes), *(86_400 * each for each in (2, 5, 10, 30, 90, 365)))
    step = next((each for each in steps if (high - low) / each <= 6), steps[-1])
    first = -int(-low // step) * step
    form = "%H:%M" if step < 86_400 else "%d %b"
    return [
        (at, datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(form))
        for at in range(first, int(high) + 1, step)
    ]


def _seconds(value: float) -> str:
    size = abs(value)
    if size == 0 or 1 <= size < 120:
        return f"{value:.3g} s"
    if size < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if size < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{'-' if value < 0 else ''}{duration(size)}"


def _bytes(value: float) -> str:
    for limit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {name}"
    return f"{value:.3g} B"


#: By Grafana's unit.
FORMS: dict[str, Callable[[float], str]] = {
    "s": _seconds,
    "bytes": _bytes,
    "Bps": lambda value: f"{_bytes(value)}/s",
    "ops": lambda value: f"{value:.3g}/s",
    "h": lambda value: f"{value:.3g} h",
    "percentunit": percent,
}
