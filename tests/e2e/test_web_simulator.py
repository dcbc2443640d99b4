"""The simulator of the page: what it runs is what it prints, within limits that hold, one at a
time, and only for the person who started the page.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.e2e.test_web_changes import confirm
from tests.e2e.test_web_server import csrf_of
from tests.e2e.users_world import page_for_users
from tests.e2e.web_objects import SCRIPT
from tests.e2e.web_world import Browser, page_of
from tests.patience import PATIENCE_SECONDS

from fairlead.runtime.clock import SystemClock
from fairlead.runtime.logs import SILENT
from fairlead.web.simulator import (
    DRAWN,
    SimulationLimits,
    SimulationQuestion,
    Simulations,
    SimulationState,
)

pytestmark = pytest.mark.e2e
RUN = "/simulator/run?load=drawn&a=default&b=fifo&nodes=4&days=1&jobs=12&seed=5"
_RUNNING = SimulationState.RUNNING
QUESTION = SimulationQuestion(DRAWN, ("default", "fifo"), 4, 1, 12, 5)


async def ended(simulations: Simulations) -> SimulationState:
    """Return how the latest simulation has ended."""
    async with asyncio.timeout(PATIENCE_SECONDS * 4):
        while (latest := simulations.latest) is None or latest.state is _RUNNING:  # noqa: ASYNC110 # a process
            await asyncio.sleep(0.05)
    return latest.state


async def start(browser: Browser, path: str = RUN) -> tuple[int, str]:
    """Confirm a simulation as its preview has it."""
    fields = dict(part.split("=") for part in path.partition("?")[2].split("&"))
    return await confirm(browser, path, {**fields, "csrf": csrf_of(await browser.page(path))})


async def test_a_simulation_runs_the_commands_that_it_prints_and_shows_both_side_by_side() -> None:
    async with page_of() as browser:
        await browser.sign_in()
        preview = await browser.page(RUN)
        for command in QUESTION.commands():
            assert " ".join(("fairlead", *command)) in preview
        assert (await start(browser))[0] == 303
        assert "Running for" in await browser.page("/simulator")
        status, text = await start(browser)
        assert status == 409
        assert "one runs at a time" in text
        async with browser.events("/live?of=/simulator") as stream:  # it follows by itself
            assert await ended(browser.simulations) is SimulationState.DONE
            while "Figures side by side" not in (await stream.next("main"))[1]:
                pass
        page = await browser.page("/simulator")
        assert '<th scope="col" class="n">default</th><th scope="col" class="n">fifo</th>' in page
        for figure in ("wait, mean", "wait, p95", "utilization", "useful GPU time"):
            assert f'<th scope="row">{figure}</th>' in page
        for chart in ("GPUs that run jobs", "Jobs that had started after so long"):
            assert f"<figcaption>{chart}</figcaption>" in page
        latest = browser.simulations.latest
        assert latest is not None
        assert latest.result is not None
        for run in latest.result.runs:
            assert run.is_complete
            assert 0 < len(run.waits) <= 12
            assert max(share for _, share in run.busy) > 0
            assert run.teams[""].gpu_seconds > 0


async def test_a_simulation_is_confirmed_on_a_page_of_the_session_and_nowhere_else() -> None:
    async with page_of() as browser:
        await browser.sign_in()
        token = csrf_of(await browser.page(RUN))
        for headers in ({}, {"Origin": "http://evil.example"}):
            url, own = browser.url + "/simulator/run", browser.headers(**headers)
            async with browser.session.post(url, data={"csrf": token}, headers=own) as answer:
                assert answer.status == 403
        assert (await confirm(browser, "/simulator/run", {"csrf": "x"}))[0] == 403
        assert (await confirm(browser, "/simulator", {"csrf": token}))[0] == 405
        same = {"csrf": token, "a": "fifo", "b": "fifo"}
        status, text = await confirm(browser, "/simulator/run", same)
        assert status == 409
        assert "Two different policies" in text
        assert browser.simulations.latest is None
        strange = f"/simulator/run?load=../../etc&a={SCRIPT}&b=--help&nodes=-1&days=99&seed=x"
        page = await browser.page(strange)
        assert "fairlead sim run --nodes 50 --days 7 --jobs 500 --policy default" in page
        assert "etc" not in page
        assert SCRIPT not in page


async def test_the_page_for_users_runs_no_simulation_and_says_where_one_runs() -> None:
    async with page_for_users({"root": {("*", "")}}) as page:
        root = await page.signed_in("root")
        assert "Simulations run on a machine of your own" in await root.page("/simulator")
        assert (await root.get(RUN))[0].status == 404
        answer, _ = await root.post("/simulator/run", {"csrf": await root.csrf("/simulator")})
        assert answer.status == 404


@asynccontextmanager
async def simulations(
    tmp_path: Path, script: str, limits: SimulationLimits | None = None
) -> AsyncIterator[Simulations]:
    """Yield what runs a program in the place of each command; its pid is in the file `pid`."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import os, pathlib, signal, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n{script}\n"
    )
    made = Simulations(
        (), SystemClock(), SILENT, limits or SimulationLimits(),
        program=(sys.executable, str(program)),
    )  # fmt: skip
    running = asyncio.ensure_future(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def begun(tmp_path: Path) -> int:
    """Return the process of the program that runs."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (pid := said_pid(tmp_path)):  # noqa: ASYNC110 # a process
            await asyncio.sleep(0.02)
    return pid


def said_pid(tmp_path: Path) -> int:
    """Return what the program has written; 0 before."""
    path = tmp_path / "pid"
    return int((path.read_text() if path.exists() else "") or 0)


def is_folder(path: Path) -> bool:
    """Tell whether a folder is there."""
    return path.is_dir()


def folder_of(pid: int) -> Path:
    """Return where a program runs."""
    return Path(f"/proc/{pid}/cwd").readlink()


def is_there(pid: int) -> bool:
    """Tell whether a process runs."""
    return Path(f"/proc/{pid}").exists()


SLEEPS = "time.sleep(600)"
#: Takes more than it may once its limit is there, which follows its start.
GREEDY = """
import resource
while resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY: time.sleep(0.01)
bytearray(256 << 20)
"""


@pytest.fixture
def deaf() -> Iterator[None]:
    """What this process starts meanwhile ignores SIGINT from its first instruction on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("deaf")
async def test_a_program_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    limits = SimulationLimits(seconds_max=0.2, grace_seconds=0.2)
    async with simulations(tmp_path, SLEEPS, limits) as made:
        assert made.start(QUESTION) == ""
        assert await ended(made) is SimulationState.FAILED
        assert made.latest is not None
        assert made.latest.problem == "it ended: -9"
        assert made.start(QUESTION) == "", "the next one may run"


async def test_a_program_that_takes_too_much_memory_ends_and_says_so(tmp_path: Path) -> None:
    limits = SimulationLimits(memory_bytes_max=128 << 20)
    async with simulations(tmp_path, GREEDY, limits) as made:
        made.start(QUESTION)
        assert await ended(made) is SimulationState.FAILED
        assert made.latest is not None
        assert "MemoryError" in made.latest.problem


async def test_what_is_stopped_and_what_its_page_leaves_behind_is_gone(tmp_path: Path) -> None:
    async with simulations(tmp_path, SLEEPS) as made:
        made.start(QUESTION)
        pid = await begun(tmp_path)
        folder = folder_of(pid)
        made.stop()
        assert await ended(made) is SimulationState.STOPPED
        assert not is_there(pid)
        (tmp_path / "pid").unlink()
        assert made.start(QUESTION) == ""
        second = await begun(tmp_path)
        assert not is_folder(folder)
        folder = folder_of(second)
    assert not is_there(second), "the page has ended"
    assert not folder.exists()
