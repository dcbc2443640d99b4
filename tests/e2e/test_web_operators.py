"""The pages for operators: teams, the fleet, findings and usage, over real sockets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from markupsafe import escape
from tests.e2e.web_objects import EVIL, SCRIPT, fleet_world, report_world, teams_world, usage_answer
from tests.e2e.web_world import page_of

from fairlead.api.cluster.node_report import (
    NodeReport,
    NodeReportStatus,
    ReportedFlow,
    ReportedPodEgress,
    ReportedShaping,
    ReportedTeamEgress,
    ReportedTraffic,
)
from fairlead.api.cluster.team import TeamUse
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import NODE_REPORTS, TEAMS, Resource
from fairlead.app.queries.messages import DecisionLine
from fairlead.doctor.registry import BY_ID
from fairlead.testing.builders import make_team
from fairlead.web.sources.history_reads import LatestDecisions, UsageQuestion, UsageSums
from fairlead.web.sources.rights import Rights, Scope

pytestmark = pytest.mark.e2e
M = 10**6


def only(namespace: str, **may: bool) -> Rights:
    """Return the rights of somebody who sees the jobs and pods of one namespace."""
    here: Scope = frozenset({namespace})
    return Rights(here, here, here, **may)


def cells(page: str, name: str) -> list[str]:
    """Return the cells of the row of a name as text."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    row = next(row for row in rows if f">{name}</a>" in row)
    found = re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)
    return [re.sub(r"<[^>]*>", "", each).strip() for each in found]


def order(page: str, *names: str) -> list[str]:
    """Return the names in the order in which the page links them first."""
    return sorted(names, key=lambda name: page.index(f">{name}</a>"))


async def test_teams_are_bars_of_their_own_lent_and_borrowed_nodes_on_one_scale() -> None:
    async with page_of(teams_world()) as browser:
        await browser.sign_in()
        page = await browser.page("/teams")
        assert cells(page, "vision")[1:-1] == ["4 nodes", "4", "3", "1", "2", "1", "3", "24", "3"]
        assert 'aria-label="3 in use, 1 lent, 0 idle, 2 borrowed"' in page
        own, lent, borrowed = 1_000 * 3 // 6, 1_000 // 6, 1_000 * 2 // 6
        assert f'<rect class="used" width="{own}"' in page
        assert f'<rect class="kept" x="{own}" width="{lent}"' in page
        assert f'<rect class="borrowed" x="{own + lent}" width="{borrowed}"' in page
        assert "as no controller answers" in page
        assert "workshop" in page
        assert '<code id="command">fairlead teams -o wide</code>' in page
        only = await browser.page("/teams?q=VIS")
        assert ">vision</a>" in only
        assert ">speech</a>" not in only
        assert "fairlead teams -o wide | grep -iF VIS" in only
        assert "No team matches" in await browser.page("/teams?q=none")


async def test_teams_show_what_the_process_that_decides_says_they_use_now() -> None:
    async with page_of(teams_world()) as browser:
        await browser.sign_in()
        browser.questions.uses = {"vision": TeamUse(nodes_used=4, jobs_placed=7)}
        page = await browser.page("/teams")
        assert 'aria-label="4 in use, 0 lent, 0 idle, 0 borrowed"' in page
        assert cells(page, "vision")[6] == "7"
        assert "as no controller answers" not in page


async def test_a_team_shows_its_queue_in_order_its_people_and_its_reservations() -> None:
    async with page_of(teams_world()) as browser:
        await browser.sign_in()
        page = await browser.page("/teams/vision")
        queue = page.partition('id="queue"')[2].partition('id="running"')[0]
        assert order(queue, "older", "younger", "urgent") == ["urgent", "older", "younger"]
        assert [cells(queue, name)[0] for name in ("urgent", "older", "younger")] == ["1", "2", "3"]
        assert "weight 3" in page
        assert "runs" in page.partition('id="running"')[2].partition('id="people"')[0]
        people = page.partition('id="people"')[2]
        assert cells(people, "ada") == ["3", "2", "24"]
        assert cells(people, "grace") == ["0", "0", "0"]
        assert 'href="/jobs?user=ada"' in people
        assert "workshop" in page.partition('id="reservations"')[2]
        assert '<code id="command">fairlead quota vision</code>' in page
        assert (await browser.get("/teams/none"))[0].status == 404


async def test_the_fleet_says_what_each_pool_wants_has_and_is_held_back_by() -> None:
    async with page_of(fleet_world()) as browser:
        await browser.sign_in()
        page = await browser.page("/fleet")
        assert "The fleet is frozen by move of rack 7: move of rack 7" in page
        found = cells(page, "h100")
        assert found[:1] + found[2:8] == ["Active", "12", "6", "5", "3", "2", "4"]
        assert found[-1] == "move of rack 7"
        assert ('aria-label="3 busy, 2 idle, 1 not ready, 3 launching; 12 wanted of at most 16"'
                in page)  # fmt: skip
        assert "avoided    zone-b" in page
        assert "launching  3 nodes for default/older" in page
        assert "fairlead fleet why h100" in page
        held = await browser.page("/fleet?held=1")
        assert ">h100</a>" in held
        assert ">a100</a>" not in held
        only = await browser.page("/fleet?pool=a100")
        assert ">h100</a>" not in only
        assert "fairlead fleet | grep -iF a100" in only


async def test_a_finding_comes_with_its_evidence_its_fix_and_its_value_at_more_nodes() -> None:
    async with page_of(report_world()) as browser:
        await browser.sign_in()
        page = await browser.page("/doctor")
        assert "etcd-0: db is 5.6 GB of 8 GB (85 %; limit: above 80 %)" in page
        assert str(escape(BY_ID["ETCD-04"].fix)) in page
        assert str(escape(BY_ID["ETCD-04"].why)) in page
        assert "at scale" not in page
        assert BY_ID["API-16"].title in page
        assert "This release does not know the check" in page
        assert '<code id="command">fairlead doctor</code>' in page
        scaled = await browser.page("/doctor?nodes=2000")
        assert "<b>170 %</b> at 2,000 nodes" in scaled
        assert scaled.count("at scale") == 1
        assert '<code id="command">fairlead doctor --at-nodes 2000</code>' in scaled
        critical = await browser.page("/doctor?severity=Critical")
        assert "ETCD-04" in critical
        assert "NEWER-01" not in critical
        assert "No finding matches" in await browser.page("/doctor?q=nothing")


async def test_a_cluster_without_a_report_has_no_findings_that_have_passed() -> None:
    async with page_of() as browser:
        await browser.sign_in()
        page = await browser.page("/doctor")
        assert "The doctor has written no report here" in page
        assert "Passed" not in page


async def test_usage_is_a_table_charts_and_a_file_of_the_same_hours() -> None:
    async with page_of() as browser:
        await browser.sign_in()
        browser.questions.used = usage_answer()
        page = await browser.page("/usage?by=user&since=90d")
        assert browser.questions.usages == [UsageQuestion("", ("user",), 90 * 86_400)]
        assert "2,500.0" in page
        assert "96.5" in page
        assert "8,000.00+" in page, "a part has no price"
        assert page.count("<figure") == 2
        assert '<path d="M' in page
        row = page[page.index(">vision</td>") :][:300]
        assert re.findall(r'<td class="n">([^<]*)</td>', row)[:4] == ["4", "1m", "2h", "2h"]
        assert "fairlead usage --by user --since 90d -A</code>" in page
        answer, text = await browser.get("/usage.csv?by=user&since=90d")
        assert answer.status == 200
        assert answer.content_type == "text/csv"
        assert answer.headers["Content-Disposition"] == 'attachment; filename="usage.csv"'
        assert text.splitlines()[1] == "ada,2500.000,2400.000,10.000,96.500,3.250,8000.00,40.000"


async def test_usage_of_a_history_that_is_read_slowly_or_not_at_all_says_so() -> None:
    async with page_of(rights=only("lab")) as browser:
        await browser.sign_in()
        assert "The history is being read" in await browser.page("/usage?by=nothing&since=1")
        assert browser.questions.usages == [UsageQuestion("lab", ("team",), 30 * 86_400)]
        browser.questions.used = UsageSums(0.0, problem="you may not read the history")
        page = await browser.page("/usage")
        assert "you may not read the history" in page
        assert "<figure" not in page
        assert (await browser.get("/usage.csv"))[0].status == 404


async def test_names_that_a_spreadsheet_would_compute_are_text_in_the_file() -> None:
    async with page_of() as browser:
        await browser.sign_in()
        browser.questions.used = usage_answer('=HYPERLINK("http://evil.example")')
        _, text = await browser.get("/usage.csv?by=user")
        assert text.splitlines()[1].startswith('"\'=HYPERLINK(""http://evil.example"")"')


OPERATORS = (
    "/teams", "/teams/vision", "/fleet", f"/teams?q={SCRIPT}", f"/teams/{SCRIPT}",
    "/usage", f"/usage?by={SCRIPT}&since={SCRIPT}", "/doctor",
    f"/doctor?q={SCRIPT}&severity={SCRIPT}&nodes={SCRIPT}",
    f"/fleet?q=%22%3E{SCRIPT}&pool={SCRIPT}&held={SCRIPT}",
)  # fmt: skip


async def test_texts_of_others_are_text_on_the_pages_of_operators() -> None:
    async with page_of(
        chain(teams_world(EVIL), fleet_world(EVIL), report_world(EVIL)), user=SCRIPT
    ) as browser:
        browser.questions.used = usage_answer(EVIL)
        await browser.sign_in()
        for path in OPERATORS:
            _, text = await browser.get(path)
            assert SCRIPT not in text, path
            assert "<img" not in text, path
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), path
            assert not re.search(r"<script(?! src=\"/static/)|\son\w+=\"|\sstyle=", text), path
            assert "fault of fairlead" not in text, path
        for path in ("/teams", "/teams/vision", "/fleet", "/doctor", "/usage"):
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in await browser.page(path), path


async def test_who_may_not_list_teams_or_pools_sees_none_and_is_told() -> None:
    rights = only("default", nodes=False, teams=False, pools=False, findings=False)
    worlds = chain(teams_world(), fleet_world(), report_world())
    async with page_of(worlds, rights=rights) as browser:
        await browser.sign_in()
        teams = await browser.page("/teams")
        assert "You may not list teams" in teams
        assert "vision" not in teams
        answer, text = await browser.get("/teams/vision")
        assert answer.status == 404
        assert "you may not list teams" in text
        fleet = await browser.page("/fleet")
        assert "You may not list node pools" in fleet
        assert "h100" not in fleet
        doctor = await browser.page("/doctor")
        assert "You may not list reports of the control plane" in doctor
        assert "ETCD-04" not in doctor


async def test_a_team_names_no_node_and_no_job_that_its_viewer_may_not_list() -> None:
    async with page_of(teams_world(), rights=only("speech", nodes=False)) as browser:
        await browser.sign_in()
        page = await browser.page("/teams/vision")
        assert "You may not list nodes" in page
        assert "Jobs of other namespaces than speech are not shown" in page
        assert ">urgent</a>" not in page
        assert "n0" not in page


async def test_decisions_are_listed_the_latest_first_and_each_has_its_file() -> None:
    async with page_of() as browser:
        await browser.sign_in()
        assert "The scheduler is being asked" in await browser.page("/decisions")
    async with page_of() as browser:
        await browser.sign_in()
        lines = [DecisionLine(n, 60.0 * n, 0.0125, 3, {kind: n}, f"sha256:{n:064x}")
                 for n, kind in ((7, "place"), (8, "<script>"), (9, "evict"))]  # fmt: skip
        browser.questions.decided = LatestDecisions(lines)
        page = await browser.page("/decisions")
        assert re.findall(r'href="/decisions/(\d+)/file"', page) == ["9", "8", "7"]
        assert "12.5" in page
        assert "8 &lt;script&gt;" in page
        assert re.findall(r'"/decisions/(\d+)/', await browser.page("/decisions?q=PLACE")) == ["7"]
        assert "No decision has such" in await browser.page("/decisions?q=nothing")
        answer, text = await browser.get("/decisions/7/file")
        assert (answer.status, text) == (200, '{"cycle": 7}\n')
        assert 'filename="decision-7.jsonl"' in answer.headers["Content-Disposition"]
        for name in ("6", "0", "-1", "x", "9" * 12, "%D9%A3", ".."):
            assert (await browser.get(f"/decisions/{name}/file"))[0].status == 404, name


async def test_who_may_not_see_decisions_is_shown_why() -> None:
    async with page_of() as browser:
        await browser.sign_in()
        browser.questions.decided = LatestDecisions(problem="ada may not list jobs.fairlead.dev")
        assert "ada may not list jobs" in await browser.page("/decisions")


def network_world() -> Iterator[tuple[Resource[Any], Any]]:
    """A team with a budget, and what two agents report; one pod has a name of HTML."""
    yield TEAMS, make_team("vision", namespaces=["a"], network={"internetEgress": "1G"})
    yield TEAMS, make_team("audio")
    for node, pod, sent in (("n1", "loader", 190 * M), ("n2", SCRIPT, 400 * M)):
        team = ReportedTeamEgress("vision", 600 * M, sent, 2 * sent, dropped=7, pods=1)
        own = ReportedPodEgress("a", pod, "vision", 200 * M, sent, 7)
        shaping = ReportedShaping("limit", "", teams=(team,), pods=(own,))
        flow = ReportedFlow("internet", "a", job=SCRIPT, sent_rate=sent)
        status = NodeReportStatus(shaping=shaping, traffic=ReportedTraffic(flows=(flow,)))
        yield NODE_REPORTS, NodeReport(metadata=ObjectMeta(node), status=status)


async def test_the_network_page_shows_budgets_and_the_pods_that_send_most_first() -> None:
    async with page_of(network_world()) as browser:
        await browser.sign_in()
        page = await browser.page("/network")
        assert page.count("590M") == 2, "both nodes together: the budget, and the traffic"
        assert "audio" not in page
        senders = page[page.index("Pods that send most") :]
        assert senders.index("400M") < senders.index("loader") < senders.index("190M")
        assert SCRIPT not in page
        one = await browser.page("/network?q=n1")
        assert "loader" in one
        assert "400M" not in one
    rights = Rights(teams=False, reports=False)
    async with page_of(network_world(), rights=rights) as browser:
        await browser.sign_in()
        page = await browser.page("/network")
        assert "You may not list reports of nodes" in page
        assert "loader" not in page
