"""What pages show beside the mirrors: use, run records, tests, remedies, opened decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bench.web_world import RUNNING_JOB, SICK_NODE, FullAnswers, objects
from tests.e2e.test_web_operators import only
from tests.e2e.test_web_server import world
from tests.e2e.web_objects import EVIL, SCRIPT
from tests.e2e.web_world import Browser, page_of

from fairlead.app.queries.decision_file import DecisionHead, Write
from fairlead.cli.views.decisions import verdict_counts, write_rows
from fairlead.web.boards import board_links
from fairlead.web.sources.history_reads import ClusterUse, JobUseAnswer, NodePast, OpenedDecision

pytestmark = pytest.mark.e2e


async def command(browser: Browser, path: str) -> str:
    page = await browser.page(path)
    return page.partition('<code id="command">')[2].partition("</code>")[0]


async def test_pages_follow_answers_and_say_why_there_are_none() -> None:
    async with page_of(objects(every=200), user="user-7") as browser:
        await browser.sign_in()
        job = f"/jobs/team-07/{RUNNING_JOB}"
        for path in (job, f"/nodes/{SICK_NODE}", "/use", "/decisions/9"):
            assert "the page follows" in await browser.page(path), path
        answers = browser.questions
        answers.used_by_job = JobUseAnswer(problem="the cluster has no metrics-server")
        answers.nodes[SICK_NODE] = NodePast(problem="the history cannot be read")
        answers.used_now = ClusterUse(0.0, problem="its metrics-server does not answer")
        answers.opened = OpenedDecision(problem="decision 9 is not kept, or not any more")
        browser.cluster.touch()
        browser.cluster.version += 1
        assert "the cluster has no metrics-server" in await browser.page(job)
        assert "the history cannot be read" in await browser.page(f"/nodes/{SICK_NODE}")
        assert "metrics-server does not answer" in await browser.page("/use")
        assert "metrics-server does not answer" in await browser.page("/")
        assert "is not kept" in await browser.page("/decisions/9")
        assert (await browser.get("/decisions/x"))[0].status == 404


async def test_a_node_shows_its_tests_beside_the_fleet_its_remedies_and_who_ran_there() -> None:
    async with page_of(objects(every=200), user="user-7", answers=FullAnswers()) as browser:
        await browser.sign_in()
        page = await browser.page(f"/nodes/{SICK_NODE}")
        assert "node-0487-5 beside nodes of its shape" in page
        assert "gpu-memory" in page
        assert "reset by the agent, which ended it" in page
        assert "Ran here" in page
        assert "fairlead node show node-0487 --history" in page
        use = await browser.page("/use?idle=1")
        assert "train-00000" in use
        assert "train-00001" not in use
        assert await command(browser, "/use?idle=1&by=team") == "fairlead top --by team --idle -A"
        home = await browser.page("/")
        assert "GPUs held, hardly used" in home
        assert "Could start now" in home
        assert "NVIDIA-H100-80GB-HBM3" in home
        assert "Team <a" in home


async def test_an_ended_job_shows_its_run_record_and_how_to_run_it_again() -> None:
    async with page_of(objects(every=200), user="user-7", answers=FullAnswers()) as browser:
        await browser.sign_in()
        page = await browser.page("/jobs/team-07/train-08657")
        assert "params.optimizer" in page
        assert "/runs/show?run=team-07%2Ftrain-08657" in page
        assert "fairlead resubmit train-08657 -n team-07" in page
        assert "fairlead eff train-08657 -n team-07" in page


async def test_lists_are_filtered_by_team_and_reason_and_say_the_equal_command() -> None:
    async with page_of(objects(every=200), user="user-7", answers=FullAnswers()) as browser:
        await browser.sign_in()
        page = await browser.page("/jobs?reason=InsufficientCapacity&team=team-07")
        assert "No jobs match" in page, "jobs that wait have no place, and name no team"
        page = await browser.page("/jobs?team=team-07")
        assert RUNNING_JOB in page
        assert "train-00000" not in page
        page = await browser.page("/jobs?reason=InsufficientCapacity")
        assert RUNNING_JOB not in page
        assert "train-05007" in page
        assert (await command(browser, "/jobs?reason=NoNodes")).endswith("| grep -iF NoNodes")
        arrays = await browser.page("/arrays?q=sweep-003")
        assert "sweep-003" in arrays
        assert "sweep-000" not in arrays
        assert "--state Running" in await command(browser, "/arrays?state=Running")
        assert "No array matches" in await browser.page("/arrays?user=nobody-here")
        assert "an hour for the nodes" in await browser.page("/fleet")


async def test_a_decision_is_opened_with_its_verdicts_and_its_actions() -> None:
    def write(name: str, patch: dict[str, Any]) -> Write:
        return Write("SetVerdict", "default", name, "uid", "7", patch)

    writes = (write("one", {"verdict": {"reason": "InsufficientCapacity"}}),
              write(SCRIPT, {"verdict": {"reason": "InsufficientCapacity"}}),
              write("two", {"verdict": {"reason": "Held"}}))  # fmt: skip
    head = DecisionHead(9, EVIL, 0.0, 1_234, writes, "sha256:0")
    async with page_of(world()) as browser:
        await browser.sign_in()
        browser.questions.opened = OpenedDecision(head, verdict_counts(writes), write_rows(writes))
        page = await browser.page("/decisions/9")
        assert "1,234 objects" in page
        assert SCRIPT not in page
        assert 'href="/decisions/9/file"' in page
        assert "fairlead decisions replay decision-9.jsonl" in page
        verdicts = page.partition('aria-label="Verdicts"')[2].partition("</table>")[0]
        assert '<th scope="row">InsufficientCapacity</th><td class="n">2</td>' in verdicts
        assert "No action matches" in await browser.page("/decisions/9?q=none-of-these")


async def test_who_does_not_see_all_jobs_is_not_shown_what_all_use() -> None:
    async with page_of(world(), rights=only("default"), answers=FullAnswers()) as browser:
        await browser.sign_in()
        assert "train-00001" not in await browser.page("/use")
        assert "You may not list jobs" in await browser.page("/use")
        assert "hardly used" not in await browser.page("/")


async def test_pages_link_to_the_boards_of_a_grafana_that_was_named_and_to_nobody_else() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        assert "In Grafana" not in await browser.page("/")
        browser.server.boards = board_links("https://grafana.example.com/")
        page = await browser.page("/")
        assert 'href="https://grafana.example.com/d/fairlead-jobs"' in page
        assert len(browser.server.boards) == 5
        assert "grafana" not in (await Browser.get(replace(browser, cookie=""), "/"))[1]
    assert board_links("") == []
