"""Changes that the page offers: what each shows before it is made, when it has no button, and that
what is confirmed is what was shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.web_objects import EVIL, SCRIPT
from tests.e2e.web_world import Browser, page_of

from fairlead.api.jobs.job_array import JobArray, JobArraySpec
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.meta import Condition, ObjectMeta
from fairlead.api.names import CORDONED_BY, DRAIN, FAILED
from fairlead.api.resources import JOB_ARRAYS, JOBS, NODES, Resource
from fairlead.model.health.windows import window_text
from fairlead.runtime.clock import SystemClock
from fairlead.testing.builders import make_job, make_node, make_placement
from fairlead.web.sources.rights import Rights

pytestmark = pytest.mark.e2e
BUTTON = '<button class="main">'
CLASSES = (
    PriorityClass(metadata=ObjectMeta("high"), value=1_000),
    PriorityClass(metadata=ObjectMeta("low"), value=-5),
)


def world(text: str = "fan") -> Iterator[tuple[Resource[Any], Any]]:
    """A job that runs on n1, one that waits, one that has ended, an array; n2 is cordoned, n3
    drained.
    """
    until = window_text(SystemClock().now(), SystemClock().now() + 3_600)
    for name, notes in (("n1", {}), ("n2", {CORDONED_BY: text}), ("n3", {DRAIN: until})):
        yield NODES, make_node(name, annotations=notes, unschedulable=bool(notes))
    yield JOBS, make_job("runs", placement=make_placement(["n1"]), status={"state": "Running"})
    yield JOBS, make_job("waits", status={"state": "Waiting"})
    failed = Condition(FAILED, "True", "NonZeroExitCode", text)
    yield JOBS, make_job("ended", conditions=(failed,), status={"state": "Failed"})
    template = make_job("sweep").spec
    array = JobArray(metadata=ObjectMeta("sweep", namespace="default"),
                     spec=JobArraySpec(template=template, indices="0-3"))  # fmt: skip
    yield JOB_ARRAYS, array


def hidden(page: str) -> dict[str, str]:
    """Return what a button of the page would send."""
    form = page.partition('<form method="post" action="/change')[2]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form))


async def confirm(browser: Browser, path: str, form: dict[str, str]) -> tuple[int, str]:
    """Send a form as a page of the site does; return the status, and where it leads or what it
    says.
    """
    async with browser.session.post(
        browser.url + path.partition("?")[0], data=form,
        headers=browser.headers(Origin=browser.url), allow_redirects=False,
    ) as answer:  # fmt: skip
        return answer.status, answer.headers.get("Location") or await answer.text()


@pytest.mark.parametrize(
    ("path", "shown", "command", "right"),
    [
        ("/change/rerun/default/ended", ("asks for 8 GPUs", "under a new name"),
         "fairlead resubmit ended", ("create", "jobs")),
        ("/change/cordon/n1?reason=noisy+fan", ("Job default/runs, 1 member: saves no checkpoints",
         "takes no new work"), "fairlead node cordon n1 --reason &#39;noisy fan&#39;",
         ("patch", "nodes")),
        ("/change/drain/n1?within=2h30m", ("in 2h", "/jobs/default/runs", "is empty by the"),
         "fairlead node drain n1 --within 2h30m", ("patch", "nodes")),
        ("/change/resume/n2", ("takes work again",), "fairlead node resume n2",
         ("patch", "nodes")),
        ("/change/test/n1?suite=full", ("At most", "job default/runs"),
         "fairlead node test n1 --suite full", ("create", "nodetests")),
        ("/change/priority/default/waits?class=high", ("default/waits with high: Job waits",),
         "fairlead priority waits high", ("patch", "jobs")),
        ("/change/priority/default/sweep?class=low", ("the default one",),
         "fairlead priority sweep low", ("patch", "jobarrays")),
    ],
)  # fmt: skip
async def test_a_change_shows_what_it_costs_and_the_equal_command_and_what_is_shown_is_made(
    path: str, shown: tuple[str, ...], command: str, right: tuple[str, str]
) -> None:
    async with page_of(world()) as browser:
        browser.questions.classes, browser.questions.made = CLASSES, "made-1"
        await browser.sign_in()
        page = await browser.page(path)
        for text in shown:
            assert text.lower() in page.lower(), text
        assert f'<code id="command">{command}</code>' in page
        asked = browser.questions.rights[-1]
        assert (asked.verb, asked.resource) == right
        form = hidden(page)
        status, place = await confirm(browser, path, form)
        assert status == 303, place
        (order,) = browser.questions.changes
        assert dict(order.fields) == {key: form[key] for key in form if key != "csrf"}
        assert order.user == "ada"
        name = path.partition("?")[0].rpartition("/")[2]
        made = "made-1" if order.namespace else name
        assert place.rpartition("/")[2] == made


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/change/cancel/default/ended", "It has ended."),
        ("/change/rerun/default/runs", "It has not ended, and would run twice at a time."),
        ("/change/rerun/default/sweep", "It has not ended"),
        ("/change/cordon/n2", "It is cordoned already, by fan."),
        ("/change/drain/n3", "It is being drained already"),
        ("/change/drain/n1?within=soon", "--within"),
        ("/change/drain/n1?within=-1h", "--within"),
        ("/change/resume/n1", "It is neither cordoned nor drained."),
        ("/change/test/n1?suite=slow", "There is no suite slow; there are quick"),
        ("/change/priority/default/ended?class=high", "It has ended."),
    ],
)  # fmt: skip
async def test_what_cannot_be_changed_has_a_reason_and_no_button(path: str, why: str) -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        page = await browser.page(path)
        assert why in page
        assert BUTTON not in page


async def test_a_user_without_the_right_sees_the_reason_and_no_button() -> None:
    refused = {("patch", "nodes"): "You may not patch nodes: RBAC says no",
               ("create", "jobs"): "You may not create jobs.fairlead.dev"}  # fmt: skip
    async with page_of(world()) as browser:
        browser.questions.refused = refused
        await browser.sign_in()
        for path in ("/change/cordon/n1", "/change/drain/n1", "/change/resume/n2"):
            page = await browser.page(path)
            assert "You may not patch nodes: RBAC says no" in page, path
            assert BUTTON not in page, path
        assert "You may not create jobs" in await browser.page("/change/rerun/default/ended")
        for path in ("/change/test/n1", "/change/cancel/default/runs"):
            assert BUTTON in await browser.page(path), path


async def test_a_priority_is_chosen_before_it_is_confirmed() -> None:
    async with page_of(world()) as browser:
        browser.questions.classes = CLASSES
        await browser.sign_in()
        page = await browser.page("/change/priority/default/runs")
        assert BUTTON not in page
        assert "high (1,000)" in page
        assert "low (-5)" in page
        chosen = await browser.page("/change/priority/default/runs?class=low")
        assert BUTTON in chosen
        assert "What it would come to" not in chosen, "it holds nodes: there is no what-if of it"
        browser.questions.classes = ()  # they may not be listed: a name is written
        assert '<input name="class"' in await browser.page("/change/priority/default/waits")


async def test_the_pages_offer_the_changes_that_make_sense_now() -> None:
    async with page_of(world()) as browser:
        await browser.sign_in()
        offered = {
            path: re.findall(r'href="/change/(\w+)/', await browser.page(path))
            for path in ("/jobs/default/runs", "/jobs/default/ended", "/arrays/default/sweep",
                         "/nodes/n1", "/nodes/n2", "/nodes/n3")
        }  # fmt: skip
    assert offered == {
        "/jobs/default/runs": ["cancel", "hold", "priority"],
        "/jobs/default/ended": ["rerun"],
        "/arrays/default/sweep": ["cancel", "hold", "priority"],
        "/nodes/n1": ["cordon", "drain", "test"],
        "/nodes/n2": ["drain", "resume", "test"],
        "/nodes/n3": ["resume", "test"],
    }


async def test_who_may_not_see_nodes_or_all_jobs_changes_no_node_and_sees_no_foreign_job() -> None:
    here = frozenset({"lab"})
    async with page_of(world(), rights=Rights(here, here, here)) as browser:
        await browser.sign_in()
        page = await browser.page("/change/drain/n1")
        main = page.partition("<main")[2]
        assert "runs" not in main.replace("What runs there", "").replace("Nothing runs", "")
        assert "you see the jobs of these namespaces: lab" in page
    async with page_of(world(), rights=Rights(here, here, here, nodes=False)) as browser:
        await browser.sign_in()
        answer, text = await browser.get("/change/drain/n1")
        assert answer.status == 404
        status, _ = await confirm(browser, "/change/drain/n1", {"csrf": csrf_of(browser)})
        assert status in (403, 404)
        assert browser.questions.changes == []
        assert "no change" in text


def csrf_of(browser: Browser) -> str:
    """Return a token that is not one of the session."""
    return "x" * len(browser.link())


async def test_texts_of_others_and_of_the_form_are_shown_as_text() -> None:
    async with page_of(world(EVIL)) as browser:
        browser.questions.refused = {("patch", "nodes"): EVIL}
        browser.questions.text = EVIL
        await browser.sign_in()
        for path in ("/change/cordon/n2", f"/change/cordon/n1?reason={SCRIPT}",
                     f"/change/drain/n1?within={SCRIPT}", f"/change/test/n1?suite={SCRIPT}",
                     f"/change/priority/default/waits?class={SCRIPT}",
                     f"/change/rerun/default/{SCRIPT}", f"/change/{SCRIPT}/n1"):  # fmt: skip
            _, text = await browser.get(path)
            assert SCRIPT not in text, path
            assert "<img" not in text, path
