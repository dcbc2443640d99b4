"""Usage: GPU-hours that were allocated, by week and by what is asked for; lost work; waits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup

from fairlead.charts import ChartLook, Series, distribution_chart, line_chart
from fairlead.cli.commands.usage import CUT_NOTE
from fairlead.cli.views.usage import (
    KEYS,
    WAIT_COLUMNS,
    Totals,
    columns,
    csv_text,
    usage_rows,
    wait_rows,
)
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site, table_of
from fairlead.web.render import Page, link
from fairlead.web.sources.history_reads import UsageQuestion, UsageSums

ROWS_MAX = 200
#: Teams with a colour of their own in the charts; the others are one.
TEAMS_MAX = 8
PATIENCE_SECONDS = 0.4
_DAY = 86_400
_WEEK = 7 * _DAY
#: The teams beyond TEAMS_MAX.
_OTHERS = ("others",)
SINCE = {"7d": 7 * _DAY, "30d": 30 * _DAY, "90d": 90 * _DAY, "365d": 365 * _DAY}
_SINCE_DEFAULT = "30d"
#: What the form offers; the address takes any keys of `fairlead usage --by`.
BY = ("team", "user", "team,user", "team,week", "user,week", "namespace", "pool", "job")


class UsageChoice(NamedTuple):
    """What was asked for: keys to sum by, since when, and of which namespace ("": all)."""

    by: str
    since: str
    namespace: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys one by one."""
        return tuple(self.by.split(","))

    @property
    def question(self) -> UsageQuestion:
        """What to read."""
        return UsageQuestion(self.namespace, self.keys, float(SINCE[self.since]))


async def usage_page(site: Site, asked: AskedPath) -> Page:
    """Return the page; what takes longer to read than PATIENCE_SECONDS follows."""
    choice = _choice(site, asked)
    sums = await site.questions.usage(choice.question, patience_seconds=PATIENCE_SECONDS)
    found = sums or UsageSums(site.cluster.clock.now())
    rows = usage_rows(found.found)
    values = {
        "choice": choice, "spaces": sorted(site.cluster.rights.jobs or ()),
        "choices": dict.fromkeys((*BY, choice.by)), "spans": tuple(SINCE),
        "is_read": sums is not None, "problem": found.problem, "at": found.at,
        "cut_note": CUT_NOTE if found.is_cut else "", "total": len(rows),
        "table": table_of(columns(choice.keys, found.found), rows[:ROWS_MAX]),
        "waits": table_of(WAIT_COLUMNS, wait_rows(found.waits)[:ROWS_MAX]),
        "charts": [] if sums is None or found.problem else _charts(found),
        "csv": link(
            "usage.csv", by=choice.by, since=choice.since, namespace=choice.namespace
        ),
        "waits_command": site.command(
            "history", "--since", choice.since, namespace=choice.namespace
        ),
    }  # fmt: skip
    words = ("usage", "--by", choice.by, "--since", choice.since)
    return Page(
        "usage.html", "Usage", values, site.command(*words, namespace=choice.namespace), "usage"
    )


async def usage_csv(site: Site, asked: AskedPath) -> str:
    """Return the whole table as a file; NoSuchPage where the history cannot be read."""
    choice = _choice(site, asked)
    sums = await site.questions.usage(choice.question)
    if sums is None or sums.problem:
        raise NoSuchPage(sums.problem if sums is not None else "the history is being read")
    return csv_text(sums.found, choice.keys)


def _choice(site: Site, asked: AskedPath) -> UsageChoice:
    """Return what a query asks for; what it says wrongly is as if it were not said."""
    keys = tuple(dict.fromkeys(asked.text("by").split(",")))
    since = asked.text("since")
    by = ",".join(keys) if all(key in KEYS for key in keys) else "team"
    seen, space = site.cluster.rights.jobs, asked.text("namespace")
    if seen is not None and space not in seen:  # the history of all is not theirs to read
        space = min(seen, default="")
    return UsageChoice(by, since if since in SINCE else _SINCE_DEFAULT, space)


def _charts(sums: UsageSums) -> list[Markup]:
    """Return the charts, whose texts `charts` has escaped."""
    waits = [(team or "no team", values) for team, values in sums.waits.items()]
    drawn = (
        _weeks_chart(sums.weeks),
        distribution_chart("Jobs that had started after so long", waits[:TEAMS_MAX]),
    )
    return [Markup(each) for each in drawn]  # noqa: S704


def _weeks_chart(weeks: Totals) -> str:
    """Return the GPU-hours of each week as a step, stacked by team, those of most hours first."""
    sums: dict[str, float] = {}
    for (_, team), cells in weeks.items():
        sums[team] = sums.get(team, 0.0) + cells[0]
    ranked = sorted(sums, key=lambda team: (-sums[team], team))
    names = {team: team or "no team" for team in ranked[:TEAMS_MAX]}
    labels = (*names.values(), *_OTHERS) if len(ranked) > TEAMS_MAX else (*names.values(),)
    begins = _mondays(week for week, _ in weeks)
    rows = {name: [0.0] * len(begins) for name in labels}
    for (week, team), cells in weeks.items():
        rows[names.get(team, _OTHERS[0])][begins.index(_instant(week))] += cells[0]
    at = [edge for begin in begins for edge in (begin, begin + _WEEK)]
    series = [
        Series(name, [v for value in row for v in (value, value)]) for name, row in rows.items()
    ]
    look = ChartLook(is_stacked=True, marks=_week_marks)
    return line_chart("GPU-hours held in each week", at, series, look)


def _mondays(weeks: Iterable[str]) -> list[float]:
    """Return the instant of each Monday from the first to the last of these."""
    found = sorted(map(_instant, weeks))
    if not found:
        return []
    return [
        found[0] + number * _WEEK for number in range(round((found[-1] - found[0]) / _WEEK) + 1)
    ]


def _instant(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def _week_marks(low: float, high: float) -> list[tuple[float, str]]:
    """Return at most seven Mondays."""
    step = _WEEK * max(1, -(-round((high - low) / _WEEK) // 6))
    return [
        (at, datetime.fromtimestamp(at, UTC).strftime("%d %b"))
        for at in range(round(low), round(high) + 1, step)
    ]
