"""The pages of runs over real sockets: the table, its filters, the plot, and runs side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.e2e.test_web_operators import only
from tests.e2e.web_objects import EVIL, SCRIPT
from tests.e2e.web_world import Browser, page_of

from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.jobs.run_facts import ListedMetric, RunFacts, RunMetric, RunSummary
from fairlead.api.meta import Condition
from fairlead.api.names import RUN_NOTE, RUN_TAGS, SUBMITTED_BY, SUCCEEDED
from fairlead.api.resources import JOBS, Resource
from fairlead.api.values.times import format_time
from fairlead.app.queries.messages import RunLine
from fairlead.runtime.clock import SystemClock
from fairlead.testing.builders import make_job
from fairlead.web.sources.history_reads import RUNS_MAX, PastJob, PastRuns, RunsQuestion

pytestmark = pytest.mark.e2e
BYTES_MAX = 300_000
STEPS = tuple(range(0, 320, 10))


def run_job(
    name: str, lr: str, *, end: float | None = None, tags: str = "sweep1", text: str = "",
    namespace: str = "default",
) -> Job:  # fmt: skip
    """Return a job that reported a loss from 1 to `end`, and ended with it, or runs."""
    now = SystemClock().now()
    values = tuple(1 - (1 - (0.5 if end is None else end)) * step / 310 for step in STEPS)
    metric = RunMetric(values[-1], 310, len(STEPS), values[-1], 1.0, STEPS, values)
    facts = RunFacts({"lr": lr, "optimizer": text or "adam"}, {"loss": metric}, text)
    status = {"state": "Running" if end is None else "Succeeded", "run": facts,
              "started_at": format_time(now - 600)}  # fmt: skip
    if end is not None:
        status["finished_at"] = format_time(now - 60)
        held = (HeldNodes("h100", "", 8, gpu_hour_micros=2_000_000),)
        status["attempts"] = (Attempt(1, begun_at=format_time(now - 3_660), held=held,
                                      finished_at=status["finished_at"]),)  # fmt: skip
    over = [] if end is None else [Condition(SUCCEEDED, "True")]
    job = make_job(name, status=status, namespace=namespace, conditions=over)
    notes = {RUN_TAGS: tags, RUN_NOTE: text, SUBMITTED_BY: text or "ada"}
    return replace(job, metadata=replace(job.metadata, annotations=notes))


def world(text: str = "") -> Iterator[tuple[Resource[Any], Any]]:
    """Three runs, one of which goes on, and a job that is none."""
    yield JOBS, run_job("train-1", "0.001", end=0.3, text=text)
    yield JOBS, run_job("train-2", "0.1", end=0.1, tags="sweep1,best")
    yield JOBS, run_job("train-3", "0.01")
    yield JOBS, make_job("no-run", status={"state": "Running"})


def past(count: int = 1, text: str = "old") -> PastRuns:
    """Return runs that only the history has."""
    ended = round(SystemClock().now() * 1_000) - 3_600_000
    return PastRuns([
        RunLine(
            f"past-{n}", "default", f"old-{n:05d}", "Failed", text, ended - 60_000, ended - n,
            RunSummary(("sweep1",), {"lr": f"{(n + 1) / 1_000}", "optimizer": text},
                       {"loss": ListedMetric(0.5 + n / 100_000, 0.5, 1.0)}, text),
        )
        for n in range(count)
    ])  # fmt: skip


def names(page: str) -> list[str]:
    """Return the runs of the table in their order."""
    return re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a>', page)


def command(page: str) -> str:
    """Return the command that shows the same."""
    return page.partition('<code id="command">')[2].partition("</code>")[0]


async def signed_in(browser: Browser, found: PastRuns | None) -> Browser:
    browser.questions.past = found
    await browser.sign_in()
    return browser


async def test_runs_of_the_cluster_and_of_the_history_are_one_table_with_those_that_run_first() -> (
    None
):
    async with page_of(world()) as browser:
        await signed_in(browser, past(2))
        page = await browser.page("/runs")
        assert names(page)[0] == "train-3"
        assert set(names(page)[1:3]) == {"train-1", "train-2"}
        assert names(page)[3:] == ["old-00000", "old-00001"]
        assert "no-run" not in page
        assert browser.questions.runs_asked == [RunsQuestion("", "", 0.0)]
        assert command(page) == "fairlead runs --limit 100 -A"
        assert 'href="/jobs/default/train-1"' in page, "what is there has its page"
        assert 'href="/runs/show?run=default%2Fold-00000"' in page
        await browser.page("/runs?since=7d&tag=sweep1")
        assert browser.questions.runs_asked[-1] == RunsQuestion("", "sweep1", 7 * 86_400.0)


async def test_columns_order_and_filters_are_in_the_address_and_in_the_command() -> None:
    async with page_of(world()) as browser:
        await signed_in(browser, past(2))
        page = await browser.page("/runs?tag=sweep1&sort=-loss&columns=lr,loss.max,state&since=30d")
        assert names(page) == ["old-00001", "train-3", "old-00000", "train-1", "train-2"]
        titles = re.findall(r'<th scope="col"[^>]*><a [^>]*>(.*?)</a>', page)
        assert [re.sub("<.*", "", each).strip() for each in titles] == [
            "Name", "lr", "loss.max", "State",
        ]  # fmt: skip
        assert command(page) == (
            "fairlead runs --tag sweep1 --since 30d --sort -loss "
            "--columns namespace,name,lr,loss.max,state --limit 100 -A"
        )
        assert names(await browser.page("/runs?tag=best")) == ["train-2", "old-00000", "old-00001"]
        page = await browser.page("/runs?sort=loss&columns=loss")
        assert 'aria-sort="ascending"' in page
        assert names(page)[0] == "train-2"
        chosen = await browser.page("/runs?q=RUNNING&columns=state")
        assert names(chosen) == ["train-3"]
        assert command(chosen).endswith(f"--limit {RUNS_MAX} -A | grep -iF RUNNING")
        money = await browser.page("/runs?sort=-cost&columns=gpu-hours,cost")
        assert set(names(money)[:2]) == {"train-1", "train-2"}, "those of no known cost come last"
        row = money[money.index(">train-1</a>") :][:120]
        assert re.findall(r'<td class="n">([^<]*)</td>', row) == ["8", "16"]
        assert "train-3" in names(money), "it runs, so its cost is not known"
        wrong = await browser.page("/runs?sort=nothing&columns=nothing,lr&since=1&tag=%3C&x=no")
        assert command(wrong) == "fairlead runs --columns namespace,name,lr --limit 100 -A"


async def test_columns_are_added_and_removed_by_links() -> None:
    async with page_of(world()) as browser:
        await signed_in(browser, past())
        page = await browser.page("/runs?columns=lr")
        offered = {
            name.strip(): href.replace("&amp;", "&")
            for href, name in re.findall(r'<li><a href="([^"]*)".*?</span> ([^<]*)</a>', page)
        }
        assert {"state", "user", "commit", "lr", "optimizer", "loss"} <= set(offered)
        assert offered["loss"] == "/runs?columns=name%2Clr%2Closs"
        assert {"gpu-hours", "cost"} <= set(offered)
        assert offered["lr"] == "/runs?columns=name"


async def test_the_plot_has_a_point_for_each_run_with_both_values_on_a_logarithmic_axis() -> None:
    async with page_of(world()) as browser:
        await signed_in(browser, past())
        page = await browser.page("/runs")
        assert "<figcaption>loss against lr</figcaption>" in page
        assert page.count("<circle") == 4
        assert "<title>train-2: lr 0.1, loss 0.1</title>" in page
        marks = re.findall(r'text-anchor="(?:middle|end)">(0\.\d+)</text>', page)
        assert {"0.001", "0.01", "0.1"} <= set(marks)
        page = await browser.page("/runs?x=time&y=lr&tag=best")
        assert "<figcaption>lr against time</figcaption>" in page
        assert page.count("<circle") == 2


async def test_runs_side_by_side_show_what_differs_and_a_line_for_each() -> None:
    async with page_of(world()) as browser:
        await signed_in(browser, past())
        page = await browser.page("/runs/show?run=default/train-1&run=default/train-2")
        assert command(page) == "fairlead runs compare train-1 train-2"
        row = page[page.index(">params.lr</th>") :][:200]
        assert re.findall(r"<td>([^<]*)</td>", row)[:2] == ["0.001", "0.1"]
        assert ">params.optimizer<" not in page
        assert page.count('stroke-linecap="round"') == 2
        assert "<figcaption>loss</figcaption>" in page
        more = await browser.page("/runs/show?run=default/train-1&run=default/train-2&all=1")
        assert ">params.optimizer<" in more
        assert command(more) == "fairlead runs compare train-1 train-2 --all"
        one = await browser.page("/runs/show?run=default/train-1")
        assert command(one) == "fairlead runs show train-1"
        assert ">params.optimizer<" in one


async def test_a_run_that_is_gone_is_read_from_the_history_or_said_not_to_be_there() -> None:
    async with page_of(world()) as browser:
        await signed_in(browser, past())
        path = "/runs/show?run=default/train-1&run=lab/gone"
        assert "The history is being read" in await browser.page(path)
        browser.questions.past_jobs["lab", "gone"] = PastJob(problem="no job 'gone' is there")
        page = await browser.page(f"{path}&all=1")
        assert "no job &#39;gone&#39; is there" in page
        browser.questions.past_jobs["lab", "late"] = PastJob(
            run_job("late", "9", end=0.4, namespace="lab")
        )
        page = await browser.page("/runs/show?run=default/train-1&run=lab/late")
        assert ">lab/late</a>" in page
        assert command(page) == "fairlead runs show train-1; fairlead runs show late -n lab"
        assert "No run was chosen" in await browser.page("/runs/show")
        many = "&".join(f"run=default/r{n}" for n in range(13))
        for wrong in (f"show?{many}", "show?run=x", "show?run=a/b/c", "other"):
            assert (await browser.get(f"/runs/{wrong}"))[0].status == 404, wrong


async def test_who_may_list_one_namespace_sees_its_runs_alone() -> None:
    objects = [*world(), (JOBS, run_job("secret", "7", end=0.2, namespace="other"))]
    async with page_of(objects, rights=only("default")) as browser:
        await signed_in(browser, PastRuns(problem="ada may not list jobs"))
        page = await browser.page("/runs?namespace=other")
        assert "secret" not in page
        assert browser.questions.runs_asked == [RunsQuestion("default")], "asked for what he may"
        assert "ada may not list jobs" in page
        hidden = await browser.page("/runs/show?run=other/secret")
        assert "The history is being read" in hidden, "not read from the mirror"
        assert "0.2" not in hidden


async def test_texts_of_others_are_text_on_the_pages_of_runs() -> None:
    async with page_of(world(EVIL), user=SCRIPT) as browser:
        await signed_in(browser, past(3, EVIL))
        browser.questions.past_jobs[SCRIPT, "x"] = PastJob(problem=EVIL)
        for path in (
            "/runs", "/runs?columns=optimizer,user,note,tags", f"/runs?q={SCRIPT}&sort={SCRIPT}",
            f"/runs?columns={SCRIPT}&tag={SCRIPT}&x={SCRIPT}&y={SCRIPT}&namespace={SCRIPT}",
            "/runs/show?run=default/train-1&run=default/train-2",
            f"/runs/show?run={SCRIPT}", f"/runs/{SCRIPT}",
        ):  # fmt: skip
            _, text = await browser.get(path)
            assert SCRIPT not in text, path
            assert "<img" not in text, path
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), path
            assert not re.search(r"<script(?! src=\"/static/)|\son\w+=\"|\sstyle=", text), path
            assert "fault of fairlead" not in text, path
        page = await browser.page("/runs?columns=optimizer,user,note")
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


async def test_ten_thousand_runs_are_pages_of_a_hundred_within_the_bounds() -> None:
    async with page_of(world()) as browser:
        await signed_in(browser, replace_cut(past(RUNS_MAX)))
        page = await browser.page("/runs?sort=loss")
        assert "10,003" in page
        assert len(names(page)) == 100
        assert names(page)[0] == "train-2"
        assert "the latest 10,000 are looked at" in page
        assert page.count("<circle") == 500
        last = await browser.page("/runs?page=100")
        assert len(names(last)) == 3
        assert len(page.encode()) < BYTES_MAX


def replace_cut(found: PastRuns) -> PastRuns:
    return PastRuns(found.lines, is_cut=True)
