"""The page in a real browser: what a person sees while its server is silent, killed and back, and
once the session has ended. It needs Chromium.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.e2e.chromium import CHROMIUM, Tab, chromium
from tests.e2e.cli_world import Shell
from tests.e2e.test_web import serving, submit
from tests.e2e.test_web_server import SteppedClock, world
from tests.e2e.web_world import create, page_of
from tests.patience import PATIENCE_SECONDS

from fairlead.api.resources import JOBS, NODES
from fairlead.testing.builders import make_job
from fairlead.web.session import SESSION_SECONDS_MAX

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium")]
LIVE = "document.getElementById('live')?.textContent === 'live'"
LOST = r"/^lost; as of \d+[sm] ago$/.test(document.getElementById('live').textContent)"
DIMMED = "document.getElementById('main').classList.contains('old')"


async def test_a_session_that_has_ended_leads_an_open_page_to_signing_in() -> None:
    clock = SteppedClock()
    async with page_of(world(), clock=clock) as browser, chromium() as tab:
        await tab.open(browser.link())
        await tab.open(f"{browser.url}/jobs")
        await tab.until(LIVE)
        await create(browser.client, JOBS, make_job("arrives"))
        await tab.until("document.querySelector('main').innerText.includes('arrives')")
        clock.ahead += SESSION_SECONDS_MAX + 1
        await browser.client.patch(NODES, "n1", {"spec": {"unschedulable": True}})
        await tab.until("document.querySelector('h1').innerText === 'Not signed in'")
        assert "arrives" not in await tab.text("body")


async def test_an_open_page_says_how_old_it_is_while_its_server_is_silent_or_gone_and_goes_on(
    tmp_path: Path,
) -> None:
    shell = Shell(tmp_path)
    shell.environment["XDG_RUNTIME_DIR"] = str(tmp_path / "run")
    shell.up("--nodes", "2", "--listen", "127.0.0.1:0")
    try:
        async with chromium() as tab:
            port = await _silent_and_killed(shell, tab)
            with serving(shell, "--port", port) as (_, link):  # its sessions were in its memory
                await tab.until("document.querySelector('h1').innerText === 'Not signed in'")
                await tab.open(link)
                await tab.open(f"http://127.0.0.1:{port}/jobs")
                await tab.until(LIVE)
                assert "during" in await tab.text()
    finally:
        shell.down()


async def _silent_and_killed(shell: Shell, tab: Tab) -> str:
    """Look at a page whose server is stopped, goes on, and is killed; return its port."""
    with serving(shell) as (process, link):
        port = link.partition("127.0.0.1:")[2].partition("/")[0]
        await tab.open(link)
        await tab.open(f"http://127.0.0.1:{port}/jobs")
        await tab.until(LIVE)
        process.send_signal(signal.SIGSTOP)
        submit(shell, "during", "--nodes", "1", "--simulate", "1h")
        await tab.until(LOST)
        assert await tab.evaluate(DIMMED)
        assert "during" not in await tab.text()
        process.send_signal(signal.SIGCONT)
        await tab.until("document.querySelector('main').innerText.includes('during')")
        await tab.until(LIVE)
        assert not await tab.evaluate(DIMMED)
        process.kill()
        process.wait(PATIENCE_SECONDS)
        await tab.until(LOST)
        assert "during" in await tab.text(), "what was seen stays"
    return port
