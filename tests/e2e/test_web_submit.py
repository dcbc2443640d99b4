"""A job that is written on the page: nothing is stored that was not previewed and confirmed there,
and nothing of the page's own process goes into it.
"""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest
from tests.e2e.web_world import Browser, page_of

from fairlead.api.resources import JOBS
from fairlead.cli.job_request.flag_groups.flags import Flag
from fairlead.testing.builders import make_job
from fairlead.web.forms import FormLimits, asked_path
from fairlead.web.pages.submit import answered, draft_of
from fairlead.web.server import WebLimits
from fairlead.web.sources.drafts import MANIFEST, TEXT_MAX, DraftAnswer, JobDraft

pytestmark = pytest.mark.e2e
#: What a browser, a template or a filter for terminals could change.
TEXT = "\n\n#!/bin/sh\n\techo '</textarea><script>\x1b[2J&amp;' \"$RANK\" é\u202e \n\n"
#: What to say of a draft that is right.
FITS = DraftAnswer(("Place    fits now, on 1 node",), "kind: Job\n")


def _field(page: str, name: str) -> str:
    """Return the value that a hidden field would send."""
    form = page.rpartition('<form method="post" action="/submit" class="act">')[2]
    found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)">', form)
    return html.unescape(found[1]) if found else ""


async def _send(browser: Browser, form: dict[str, str], **headers: str) -> tuple[int, str]:
    """Send a form as a page of the site does; return the status, and where it leads or what it
    says.
    """
    own = {"Origin": browser.url, **headers}
    async with browser.session.post(
        f"{browser.url}/submit", data=form, headers=browser.headers(**own), allow_redirects=False
    ) as answer:
        return answer.status, answer.headers.get("Location") or await answer.text()


async def _token(browser: Browser) -> str:
    found = re.search('name="csrf" value="([^"]+)"', await browser.page("/submit"))
    assert found is not None
    return found[1]


async def test_what_is_confirmed_is_what_was_previewed_to_the_letter() -> None:
    async with page_of(((JOBS, make_job("made-1")),)) as browser:
        browser.questions.drafted = FITS
        await browser.sign_in()
        fields = {"form": "script", "namespace": "lab", "nodes": "4", "time": "12h", "name": ""}
        form = {"csrf": await _token(browser), "act": "preview", "text": TEXT, **fields}
        status, page = await _send(browser, form)
        assert status == 200, page
        assert "fits now, on 1 node" in page
        assert "fairlead submit FILE --nodes 4 --time 12h -n lab" in page
        wanted = JobDraft(TEXT, "script", "lab", {Flag.NODES: "4", Flag.TIME: "12h"})
        assert browser.questions.drafts == [(wanted, False)]
        # The text to go on with is the same, too: a browser drops one line feed at its beginning.
        area = re.search(r"<textarea [^>]*>\n(.*)</textarea>", page, re.DOTALL)
        assert area is not None
        assert html.unescape(area[1]) == TEXT
        kept = ("csrf", "act", "text", "form", "namespace", "nodes", "time")
        browser.questions.drafted = replace(FITS, made=("jobs", "default", "made-1"))
        status, place = await _send(browser, {name: _field(page, name) for name in kept})
        assert (status, place) == (303, "/jobs/default/made-1")
        assert browser.questions.drafts[1:] == [(wanted, True)]


async def test_browsers_lines_are_scripts_lines() -> None:
    async with page_of() as browser:
        site = browser.site
        form = asked_path("", "text=%23!/bin/sh%0D%0Aecho+1%0D%0A&form=script&array=0-3")
        assert draft_of(site, form).text == "#!/bin/sh\necho 1\n"
        manifest = draft_of(site, asked_path("", "text=a&form=manifest&array=0-3"))
        assert (manifest.form, dict(manifest.givens)) == (MANIFEST, {})


async def test_a_refused_draft_has_no_button_and_keeps_its_text() -> None:
    async with page_of() as browser:
        browser.questions.drafted = DraftAnswer(problem="error[E004]: --gpus: <b>many</b>")
        await browser.sign_in()
        form = {"csrf": await _token(browser), "act": "submit", "text": TEXT, "gpus": "many"}
        status, page = await _send(browser, form)
        assert status == 409
        assert "--gpus: &lt;b&gt;many&lt;/b&gt;" in page
        assert 'class="act"' not in page
        assert 'name="gpus" value="many"' in page
        assert "<script>" not in page.partition("<main")[2]


async def test_who_may_create_no_jobs_is_answered_without_a_dry_run() -> None:
    async with page_of() as browser:
        browser.questions.refused = {("create", "jobs"): "You may not create jobs"}
        await browser.sign_in()
        form = {"csrf": await _token(browser), "act": "submit", "text": TEXT, "namespace": "theirs"}
        status, page = await _send(browser, form)
        assert (status, browser.questions.drafts) == (409, [])
        assert "You may not create jobs" in page
        assert browser.questions.rights[-1].namespace == "theirs"


async def test_other_sites_guessed_tokens_and_large_or_slow_forms_store_nothing() -> None:
    limits = WebLimits(draft=FormLimits(bytes_max=4 * TEXT_MAX, seconds_max=0.5))
    async with page_of(limits=limits) as browser:
        await browser.sign_in()
        form = {"csrf": await _token(browser), "act": "submit", "text": TEXT}
        evil = "https://evil.example"
        for wrong, headers in (
            ({**form, "csrf": "guessed"}, {}),
            ({**form, "csrf": ""}, {}),
            (form, {"Origin": evil}),
            (form, {"Origin": "null"}),
            (form, {"Sec-Fetch-Site": "cross-site"}),
        ):
            status, said = await _send(browser, wrong, **headers)
            assert status == 403, said
        status, _ = await _send(browser, {**form, "text": "x" * (4 * TEXT_MAX)})
        assert status == 413
        browser.cookie = ""
        assert (await _send(browser, form))[0] == 401
        assert browser.questions.drafts == []


async def test_nothing_of_a_page_of_many_users_goes_into_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIRLEAD_HISTORY_URL", "postgres://planted@db")
    async with page_of() as browser:
        site, asked = browser.site, browser.questions
        await answered(site, JobDraft(TEXT), stores=False)
        assert "planted" not in str(asked.origins[-1].environment)
        await answered(replace(site, viewer="bob"), JobDraft(TEXT), stores=False)
        shared = asked.origins[-1]
        assert (shared.environment, shared.host, shared.has_source) == ({}, "", False)
        assert (shared.directory, shared.user) == ("/", "ada")
