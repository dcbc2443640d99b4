"""One run, or several side by side: what is known of them, what differs, and their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from fairlead.api.jobs.job import Job
from fairlead.charts import PointGroup, point_chart
from fairlead.cli.views.runs import difference_rows, differences
from fairlead.decide.verdict import ObjectKey
from fairlead.decide.words import plural
from fairlead.web.pages.runs import COMPARED_MAX, PATIENCE_SECONDS
from fairlead.web.pages.site import AskedPath, NoSuchPage, Site
from fairlead.web.render import Page, link
from fairlead.web.sources.history_reads import PastJob

#: Of facts, of metrics as charts, and of the characters of a fact.
ROWS_MAX, CHARTS_MAX, CELL_LENGTH_MAX = 250, 12, 100
_KEY_LENGTH_MAX = 400


class ShownRun(NamedTuple):
    """The head of a column."""

    name: str
    href: str


async def run_page(site: Site, asked: AskedPath) -> Page:
    """Return the page of the runs in the query, each as `run=NAMESPACE/NAME`; NoSuchPage."""
    if asked.path[1] != "show":
        raise NoSuchPage(f"there is no page /{'/'.join(asked.path)}")
    keys = _chosen(asked)
    found = await asyncio.gather(*(_job(site, key) for key in keys))
    jobs = [each.job for each in found if each is not None and each.job is not None]
    is_all = len(keys) < 2 or asked.text("all") == "1"
    rows = difference_rows(differences(jobs, everything=is_all)) if jobs else []
    charts = _charts(jobs)
    boxes = ["/".join(key) for key in keys]
    titles = {0: "Runs", 1: f"Run {keys[0][1] if keys else ''}"}
    title = titles.get(len(keys), f"{plural(len(keys), 'run')} side by side")
    command = _command(site, keys, is_all=is_all)
    values = {
        "title": title, "problems": [each.problem for each in found if each and each.problem],
        "waits": None in found, "compared_max": COMPARED_MAX, "is_all": is_all,
        "runs": [_head(site, job, keys) for job in jobs], "charts": charts[:CHARTS_MAX],
        "charts_left": max(0, len(charts) - CHARTS_MAX), "rows": _short(rows[:ROWS_MAX]),
        "rows_left": max(0, len(rows) - ROWS_MAX), "command": command,
        "partial": [each.metadata.name for each in jobs if _is_partial(each)],
        "other": link("runs", "show", run=boxes, all="" if is_all else "1")
        if len(keys) > 1 else "",
    }  # fmt: skip
    return Page("run.html", title, values, command, "runs")


def _chosen(asked: AskedPath) -> list[ObjectKey]:
    """Return the runs that are asked for, each once; NoSuchPage where they are too many."""
    keys: list[ObjectKey] = []
    for text in dict.fromkeys(asked.texts("run", _KEY_LENGTH_MAX)):
        namespace, _, name = text.partition("/")
        if not namespace or not name or "/" in name:
            raise NoSuchPage("a run is asked for as run=NAMESPACE/NAME")
        keys.append((namespace, name))
    if len(keys) > COMPARED_MAX:
        raise NoSuchPage(f"{len(keys)} runs were chosen; {COMPARED_MAX} are shown side by side")
    return keys


async def _job(site: Site, key: ObjectKey) -> PastJob | None:
    """Return a job of the mirrors, else of the history; None where that is still being read."""
    job = site.cluster.jobs.get(*key)
    if job is not None:
        return PastJob(job)
    return await site.questions.past_job(key, patience_seconds=PATIENCE_SECONDS)


def _head(site: Site, job: Job, keys: Sequence[ObjectKey]) -> ShownRun:
    namespace, name = job.metadata.key
    several = len({space for space, _ in keys}) > 1
    href = link("runs", "show", run=f"{namespace}/{name}")
    if site.cluster.jobs.get(namespace, name) is not None:
        href = link("jobs", namespace, name)
    return ShownRun(f"{namespace}/{name}" if several else name, href)


def _is_partial(job: Job) -> bool:
    return job.status.run is not None and job.status.run.is_partial


def _charts(jobs: Sequence[Job]) -> list[Markup]:
    """Return a chart of each metric that has a course, those of most runs first; `charts` escapes
    its texts.
    """
    courses: dict[str, list[PointGroup]] = {}
    for job in jobs:
        metrics = job.status.run.metrics if job.status.run else {}
        for name, metric in metrics.items():
            points = [(float(s), v, "") for s, v in zip(metric.steps, metric.values, strict=False)]
            if len(points) > 1:
                courses.setdefault(name, []).append(PointGroup(job.metadata.name, points))
    ranked = sorted(courses.items(), key=lambda each: (-len(each[1]), each[0]))
    return [
        Markup(point_chart(name, groups, is_joined=True))  # noqa: S704
        for name, groups in ranked
    ]


def _short(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [
        [c if len(c) <= CELL_LENGTH_MAX else f"{c[:CELL_LENGTH_MAX]}..." for c in row]
        for row in rows
    ]


def _command(site: Site, keys: Sequence[ObjectKey], *, is_all: bool) -> str:
    """Return the commands that show the same."""
    names, spaces = [name for _, name in keys], {space for space, _ in keys}
    if len(names) > 1 and len(spaces) == 1:
        words = ("runs", "compare", *names, *(("--all",) if is_all else ()))
        return site.command(*words, namespace=keys[0][0])
    if not keys:
        return site.command("runs")
    return "; ".join(site.command("runs", "show", name, namespace=space) for space, name in keys)
