"""Runs: what jobs recorded of themselves, as a table with columns to choose, and a scatter plot.

Jobs that the mirrors have are current; those that are gone come from the history, which is read
with the viewer's rights in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from fairlead.api.jobs.run_facts import TAG
from fairlead.app.queries.messages import RunLine
from fairlead.charts import COLORS, PointGroup, point_chart
from fairlead.cli.views.runs import (
    ACCOUNTS,
    FIXED,
    default_columns,
    keys_of,
    known_columns,
    number_of,
    run_columns,
    run_rows,
    sorted_runs,
    value_of,
)
from fairlead.web.pages.site import AskedPath, Site, SiteTable, table_of
from fairlead.web.render import Page, link
from fairlead.web.sources.history_reads import RUNS_MAX, PastRuns, RunsQuestion

ROWS_MAX = 100
#: Columns of a table, names of columns that are offered, and points of the plot.
COLUMNS_MAX, OFFERED_MAX, POINTS_MAX = 20, 60, 500
#: Runs beside each other: each has a colour.
COMPARED_MAX = len(COLORS)
PATIENCE_SECONDS = 0.4
_LENGTH_MAX = 1_500
_DAY = 86_400
SINCE = {"1d": _DAY, "7d": 7 * _DAY, "30d": 30 * _DAY, "90d": 90 * _DAY, "365d": 365 * _DAY}
#: Fixed columns that are numbers, which a plot may have.
_PLOTTED = ("time", *ACCOUNTS)


class RunsChoice(NamedTuple):
    """What was asked for; "" is what is not. `columns` are names that commas separate."""

    tag: str
    since: str
    namespace: str
    q: str
    columns: str
    sort: str
    x: str
    y: str

    def to(self, **changes: object) -> str:
        """Return the address of the page with other values."""
        return link("runs", **(self._asdict() | changes))


class ShownRunRow(NamedTuple):
    """A row: its job, the value of its box ("" for an earlier run of the name), its other cells."""

    namespace: str
    name: str
    href: str
    box: str
    cells: Sequence[str]


class Heading(NamedTuple):
    """A column: where it is sorted by, and which way it is now ("", "ascending", "descending")."""

    title: str
    href: str
    sorted: str
    is_number: bool
    is_state: bool


class Offered(NamedTuple):
    """A column that may be added or removed."""

    name: str
    href: str
    is_shown: bool


async def runs_page(site: Site, asked: AskedPath) -> Page:
    """Return one page of the runs that match; what the history has follows."""
    choice = _choice(site, asked)
    question = RunsQuestion(choice.namespace, choice.tag, float(SINCE.get(choice.since, 0)))
    past = await site.questions.runs(question, patience_seconds=PATIENCE_SECONDS)
    now = site.cluster.clock.now()
    lines = _lines(site, choice, past or PastRuns(), now)
    params, metrics = keys_of(lines)
    choice = _sound(choice, known_columns(params, metrics))
    if choice.sort:
        lines = sorted_runs(lines, choice.sort, now)
    keys = _keys(choice, lines)
    if choice.q:
        lines = _matching(lines, keys, choice.q, now)
    number = min(asked.number("page", RUNS_MAX), max(0, (len(lines) - 1) // ROWS_MAX))
    shown = lines[number * ROWS_MAX : (number + 1) * ROWS_MAX]
    plotted = [*_numeric(params, lines), *metrics[:OFFERED_MAX], *_PLOTTED]
    x, y = _axes(choice, plotted, metrics)
    values = {
        "choice": choice, "rows": _rows(site, shown, keys, now), "total": len(lines),
        "headings": _headings(choice, keys), "offered": _offered(choice, keys, params, metrics),
        "first": number * ROWS_MAX + 1, "last": number * ROWS_MAX + len(shown),
        "earlier": choice.to(page=number - 1 or None) if number else "",
        "later": choice.to(page=number + 1) if (number + 1) * ROWS_MAX < len(lines) else "",
        "spans": tuple(SINCE), "spaces": sorted(site.cluster.rights.jobs or ()),
        "is_read": past is not None, "problem": past.problem if past else "",
        "cut": RUNS_MAX if past and past.is_cut else 0, "compared_max": COMPARED_MAX,
        "plotted": plotted, "x": x, "y": y, "points_max": POINTS_MAX,
        "chart": _chart(lines, x, y, now) if y else "",
        "is_filtered": any((choice.tag, choice.since, choice.q)),
    }  # fmt: skip
    return Page("runs.html", "Runs", values, _command(site, choice, keys, number), "runs")


def _choice(site: Site, asked: AskedPath) -> RunsChoice:
    """Return what a query asks for; what it says wrongly is as if it were not said."""
    given = {name: asked.text(name, _LENGTH_MAX) for name in RunsChoice._fields}
    if given["since"] not in SINCE:
        given["since"] = ""
    if not TAG.fullmatch(given["tag"]):
        given["tag"] = ""
    seen = site.cluster.rights.jobs
    if seen is not None and given["namespace"] not in seen:  # the runs of all are not theirs
        given["namespace"] = min(seen, default="")
    return RunsChoice(**given)


def _sound(choice: RunsChoice, known: frozenset[str]) -> RunsChoice:
    """Return the choice with columns that there are."""
    columns = [key for key in dict.fromkeys(choice.columns.split(",")) if key in known]
    sort = choice.sort if choice.sort.removeprefix("-") in known else ""
    return choice._replace(columns=",".join(columns[:COLUMNS_MAX]), sort=sort)


def _lines(site: Site, choice: RunsChoice, past: PastRuns, now: float) -> list[RunLine]:
    """Return the runs that match but for the text: those that have not ended, then the others, the
    latest first.
    """
    since_ms = (now - SINCE[choice.since]) * 1_000 if choice.since else 0
    own = site.cluster.facts().runs
    chosen = [
        line for line in own
        if choice.namespace in ("", line.namespace)
        and (not choice.tag or choice.tag in line.run.tags)
        and (line.finished_at_ms is None or line.finished_at_ms >= since_ms)
    ]  # fmt: skip
    known = {line.uid for line in own}
    ended = [line for line in chosen if line.finished_at_ms is not None]
    ended += [line for line in past.lines if line.uid not in known]
    ended.sort(key=lambda line: -(line.finished_at_ms or 0))
    return [*(line for line in chosen if line.finished_at_ms is None), *ended]


def _keys(choice: RunsChoice, lines: Sequence[RunLine]) -> list[str]:
    """Return the columns, the name first."""
    keys = choice.columns.split(",") if choice.columns else []
    keys = keys or default_columns(lines, with_namespace=False)
    return ["name", *(key for key in keys if key not in ("name", "namespace"))]


def _matching(
    lines: Sequence[RunLine], keys: Sequence[str], text: str, now: float
) -> list[RunLine]:
    """Return the runs whose row has the text."""
    rows, wanted = run_rows(lines, ("namespace", *keys), now), text.lower()
    return [
        line
        for line, row in zip(lines, rows, strict=True)
        if any(wanted in cell.lower() for cell in row)
    ]


def _rows(
    site: Site, lines: Sequence[RunLine], keys: Sequence[str], now: float
) -> list[ShownRunRow]:
    """Return the rows; of a name the first alone can be chosen, as commands take the latest."""
    rows: list[ShownRunRow] = []
    boxes = set[str]()
    for line, cells in zip(lines, run_rows(lines, keys, now), strict=True):
        box = f"{line.namespace}/{line.name}"
        href = link("runs", "show", run=box)
        if site.cluster.jobs.get(line.namespace, line.name) is not None:
            href = link("jobs", line.namespace, line.name)
        rows.append(
            ShownRunRow(line.namespace, line.name, href, "" if box in boxes else box, cells[1:])
        )
        boxes.add(box)
    return rows


def _headings(choice: RunsChoice, keys: Sequence[str]) -> list[Heading]:
    table: SiteTable = table_of(run_columns(keys), ())
    found: list[Heading] = []
    for position, key in enumerate(keys):
        way = {key: "ascending", f"-{key}": "descending"}.get(choice.sort, "")
        title = table.titles[position] if key in FIXED else key
        href = choice.to(sort=f"-{key}" if way != "descending" else key)
        found.append(Heading(title, href, way, position in table.numbers, key == "state"))
    return found


def _offered(
    choice: RunsChoice, keys: Sequence[str], params: Sequence[str], metrics: Sequence[str]
) -> list[Offered]:
    """Return the columns that may be added or removed."""
    names = [*FIXED[2:], *ACCOUNTS, *params, *metrics][:OFFERED_MAX]
    found: list[Offered] = []
    for name in dict.fromkeys((*names, *keys[1:])):
        is_shown = name in keys
        if "," in name or (not is_shown and len(keys) > COLUMNS_MAX):
            continue  # no list of names can have it
        others = [key for key in keys if key != name] if is_shown else [*keys, name]
        found.append(Offered(name, choice.to(columns=",".join(others)), is_shown))
    return found


def _numeric(params: Iterable[str], lines: Sequence[RunLine]) -> list[str]:
    """Return the parameters that are numbers somewhere, and not the same in all runs."""
    found: list[str] = []
    for name in params:
        values = {line.run.params[name] for line in lines if name in line.run.params}
        if len(values) > 1 and any(number_of(value) is not None for value in values):
            found.append(name)
    return found[:OFFERED_MAX]


def _axes(choice: RunsChoice, plotted: Sequence[str], metrics: Sequence[str]) -> tuple[str, str]:
    """Return what a plot shows: by default the first parameter that differs and the first metric;
    "" as the latter where there is none.
    """
    y = choice.y if choice.y in plotted else next(iter(metrics), "")
    x = choice.x if choice.x in plotted else next((key for key in plotted if key != y), "")
    return x, y if x else ""


def _chart(lines: Sequence[RunLine], x: str, y: str, now: float) -> Markup:
    """Return the plot of the first POINTS_MAX runs that have both; `charts` escapes its texts."""
    points: list[tuple[float, float, str]] = []
    for line in lines:
        across, up = (number_of(value_of(line, key, now)) for key in (x, y))
        if across is not None and up is not None and len(points) < POINTS_MAX:
            points.append((across, up, f"{line.name}: {x} {across:.6g}, {y} {up:.6g}"))
    return Markup(point_chart(f"{y} against {x}", [PointGroup("", points)]))  # noqa: S704


def _command(site: Site, choice: RunsChoice, keys: Sequence[str], number: int) -> str:
    """Return the command that lists the same runs up to the end of this page."""
    words = ["runs"]
    words += ["--tag", choice.tag] if choice.tag else []
    words += ["--since", choice.since] if choice.since else []
    words += ["--sort", choice.sort] if choice.sort else []
    if choice.columns:
        first = [] if choice.namespace else ["namespace"]
        words += ["--columns", ",".join((*first, *keys))]
    words += ["--limit", str(RUNS_MAX if choice.q else (number + 1) * ROWS_MAX)]
    return site.command(*words, namespace=choice.namespace, filters=(choice.q,))
