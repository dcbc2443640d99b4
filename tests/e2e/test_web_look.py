"""Every page in a real browser, as a researcher and as an operator see it: what axe-core finds, how
wide a phone is, the viewer's zone, and the keys. It needs Chromium, and axe-core for some.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from bench.web_world import PAGES, RESEARCHER, SICK_NODE, FullAnswers, objects
from tests.e2e.chromium import CHROMIUM, Tab, chromium
from tests.e2e.web_world import page_of

from fairlead.web.sources.rights import NOWHERE, Rights

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")]
_AXE = importlib.util.find_spec("axe_core_python")
needs_axe = pytest.mark.skipif(_AXE is None, reason="axe-core is not installed")
#: One object of a hundred: every page has rows, and the whole takes seconds.
EVERY = 100
PHONE, DESK = 390, 1280
OWN = frozenset({"team-07"})
#: Sees the jobs of one namespace, and no node.
RESEARCHER_RIGHTS = Rights(OWN, OWN, NOWHERE, nodes=False, reports=False, pools=False,
                           fleets=False, findings=False)  # fmt: skip
_VIOLATIONS = """
axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
                   resultTypes: ["violations"]})
   .then((found) => JSON.stringify(found.violations.map((each) =>
       [each.id, each.nodes.slice(0, 2).map((node) => node.html.slice(0, 160))])))
"""
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def violations(tab: Tab) -> list[object]:
    """Return what axe-core finds on the page that is shown."""
    assert _AXE is not None
    assert _AXE.origin is not None
    source = (Path(_AXE.origin).parent / "axe.min.js").read_text()
    await tab.evaluate(f"{source};0")
    return list(json.loads(await tab.evaluate(_VIOLATIONS)))


@needs_axe
async def test_axe_core_finds_no_violation_of_wcag_on_any_page() -> None:
    async with (
        page_of(objects(every=EVERY), user=RESEARCHER, answers=FullAnswers()) as browser,
        chromium() as tab,
    ):
        await tab.look(width=DESK)
        await tab.open(browser.link())
        await tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x>'); 0")
        assert await violations(tab), "a planted image without a text is found"
        found: dict[str, list[object]] = {}
        for name, path in PAGES.items():
            await tab.open(browser.url + path)
            assert await tab.evaluate("document.querySelectorAll('h1').length") == 1, name
            if problems := await violations(tab):
                found[name] = problems
        assert found == {}


async def test_every_page_fits_a_phone_and_shows_the_viewers_zone() -> None:
    async with (
        page_of(objects(every=EVERY), user=RESEARCHER, answers=FullAnswers()) as browser,
        chromium() as tab,
    ):
        await tab.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
        await tab.look(width=PHONE, scheme="dark")
        await tab.open(browser.link())
        wide: dict[str, int] = {}
        for name, path in PAGES.items():
            await tab.open(browser.url + path)
            if (over := await tab.evaluate(_OVERFLOW)) > 0:
                wide[name] = over
        assert wide == {}
        await tab.open(browser.url + PAGES["node"])
        shown = "document.querySelector('main time[datetime]')"
        utc = await tab.evaluate(f"{shown}.getAttribute('title')")
        assert utc.endswith("Z")
        half_hour = (int(utc[14:16]) + 30) % 60  # India is five and a half hours ahead
        assert f":{half_hour:02}" in await tab.evaluate(f"{shown}.textContent")


async def test_a_researcher_sees_his_jobs_and_no_nodes_and_goes_everywhere_by_keys() -> None:
    async with (
        page_of(objects(every=EVERY), user=RESEARCHER, answers=FullAnswers(),
                rights=RESEARCHER_RIGHTS) as browser,
        chromium() as tab,
    ):  # fmt: skip
        await tab.look(width=DESK)
        await tab.open(browser.link())
        await tab.open(f"{browser.url}/jobs")
        assert "GPUs free" not in await tab.text()
        assert "team-03" not in await tab.text()
        for key in ("j", "j", "k"):
            await tab.press(key)
        chosen = await tab.evaluate("document.querySelector('tr.at a').getAttribute('href')")
        await tab.press("/")
        assert await tab.evaluate("document.activeElement.name") == "q"
        await tab.press("Escape")
        await tab.press("?")
        assert await tab.evaluate("document.getElementById('help').open")
        await tab.evaluate("document.getElementById('help').close(); 0")
        await tab.evaluate("document.querySelector('tr.at a').click(); 0")
        await tab.until(f"location.pathname === '{chosen}'")
        await tab.until("document.readyState === 'complete'")
        await tab.press("g")
        await tab.press("c")
        await tab.until("location.pathname === '/cluster'")
        await tab.until("document.readyState === 'complete'")
        assert "You may not list nodes" in await tab.text()


async def test_from_a_sick_gpu_to_who_is_hit_and_what_happens_next_takes_four_clicks() -> None:
    """As a newcomer goes: what each page shows leads on, and nothing is typed but the node."""
    async with (
        page_of(objects(every=EVERY), user="night", answers=FullAnswers()) as browser,
        chromium() as tab,
    ):
        await tab.look(width=DESK)
        await tab.open(browser.link())
        await tab.until("location.pathname === '/'")
        await click(tab, SICK_NODE)  # the first of those that are not simply ready
        await tab.until(f"document.querySelector('h1').innerText.startsWith('{SICK_NODE}')")
        page = await tab.text()
        assert "gangs leave after their next checkpoint; at" in page, "what happens next, and when"
        assert "Xid 79: GPU has fallen off the bus" in page
        assert "user-43" in page, "who is hit"
        await click(tab, "Drain …")
        await tab.until("document.querySelector('h1').innerText.startsWith('Drain')")
        assert "train-00243" in await tab.text(), "what it costs"
        await click(tab, "Cluster")
        await tab.until("location.pathname === '/cluster'")
        await click(tab, "unhealthy", within="li a")
        await tab.until("location.search === '?state=unhealthy'")
        assert SICK_NODE in await tab.text()


async def click(tab: Tab, text: str, *, within: str = "a") -> None:
    """Click the first link that begins with a text."""
    link = f"[...document.querySelectorAll({within!r})].find((e) => e.innerText.includes({text!r}))"
    await tab.until(link)
    await tab.evaluate(f"{link}.click(); 0")
