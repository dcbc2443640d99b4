"""Open pages: made one in a turn of the loop, and kept within their part of the time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest

from fairlead.sim.loop import run
from fairlead.web import live
from fairlead.web.live import Made, Pages
from fairlead.web.pages import AskedPath, Site
from fairlead.web.render import Page
from fairlead.web.sources.rights import Rights


class Cluster:
    rights = Rights()
    version = 1

    def __init__(self) -> None:
        self.change = asyncio.Event()

    async def changed(self, since: int) -> None:
        await self.change.wait()


class OneViewer:
    name = "ada"

    def __init__(self) -> None:
        self.cluster = Cluster()

    async def site(self) -> Site:
        return Site(cast("Any", self.cluster), cast("Any", None), "ada", "", "", (), is_up=True)


class Recording(Pages):
    """Notes in which turn of the loop each page is made; making takes `seconds`, by its word."""

    def __init__(self, seconds: float = 0.0, *, page_seconds: float = 0.01) -> None:
        super().__init__(stopwatch=asyncio.get_running_loop().time, cpu=lambda: 0.0)
        self.turn, self.made, self.seconds = 0, list[int](), seconds
        self.page_seconds = page_seconds

    async def make(self, site: Site, asked: AskedPath) -> Made:
        self.made.append(self.turn)
        page = Page("x.html", "x", {}, "fairlead", seconds=self.page_seconds)
        return Made(page, "", f"{len(self.made)}", 1, 0.0, self.seconds)


async def test_at_most_one_open_page_is_made_in_a_turn_of_the_loop() -> None:
    pages = Recording()

    async def count() -> None:
        while True:
            pages.turn += 1
            await asyncio.sleep(0)

    async def look(number: int) -> None:
        async with aclosing(pages.changes(OneViewer(), AskedPath((str(number),)), "")) as changes:
            await anext(changes)

    counting = asyncio.ensure_future(count())
    await asyncio.gather(*(look(number) for number in range(20)))
    counting.cancel()
    assert len(pages.made) == 20
    assert len(set(pages.made)) == 20


async def second_page(pages: Recording, viewer: OneViewer, name: str = "x") -> float:
    """Return the seconds from the first page of an open one to the second."""
    async with aclosing(pages.changes(viewer, AskedPath((name,)), "")) as changes:
        await anext(changes)
        began = asyncio.get_running_loop().time()
        await anext(changes)
        return asyncio.get_running_loop().time() - began


def test_a_page_that_nothing_changes_is_made_again_no_sooner_than_its_cost_allows() -> None:
    async def look() -> float:
        return await second_page(Recording(0.05), OneViewer())

    assert run(look()) == pytest.approx(live.PAUSE_RATIO * 0.05)


def test_a_change_after_a_quiet_time_is_shown_at_once_whatever_the_page_costs() -> None:
    async def look() -> float:
        viewer = OneViewer()
        asyncio.get_running_loop().call_later(10.0, viewer.cluster.change.set)
        return await second_page(Recording(0.5, page_seconds=60.0), viewer)

    assert run(look()) == pytest.approx(10.0)


def test_after_a_quiet_time_each_of_many_pages_is_made_by_its_cost_and_their_number() -> None:
    async def look() -> list[float]:
        viewer, pages = OneViewer(), Recording(0.5, page_seconds=60.0)
        asyncio.get_running_loop().call_later(50.0, viewer.cluster.change.set)
        return await asyncio.gather(*(second_page(pages, viewer, f"{n}") for n in range(3)))

    assert run(look()) == pytest.approx([50.0 + live.CHANGE_RATIO * 0.5 * 2] * 3)
