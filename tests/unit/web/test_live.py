"""Open pages: made one in a turn of the loop, and kept within their part of the time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from fairlead.web import live
from fairlead.web.live import Made, Pages
from fairlead.web.pages import AskedPath, Site
from fairlead.web.render import Page
from fairlead.web.rights import Rights


class Cluster:
    rights = Rights()
    version = 1

    async def changed(self, since: int) -> None:
        await asyncio.Event().wait()


class OneViewer:
    name = "ada"

    async def site(self) -> Site:
        return Site(cast("Any", Cluster()), cast("Any", None), "ada", "", "", (), is_up=True)


class Recording(Pages):
    """Notes in which turn of the loop each page is made; making takes `seconds`, by its word."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(stopwatch=lambda: 0.0, cpu=lambda: 0.0)
        self.turn, self.made, self.seconds = 0, list[int](), seconds

    async def make(self, site: Site, asked: AskedPath) -> Made:
        self.made.append(self.turn)
        page = Page("x.html", "x", {}, "fairlead", seconds=0.01)
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


async def test_a_page_that_nothing_changes_is_made_again_no_sooner_than_its_cost_allows() -> None:
    loop, cost = asyncio.get_running_loop(), 0.05
    pages = Recording(cost)
    async with aclosing(pages.changes(OneViewer(), AskedPath(("x",)), "")) as changes:
        await anext(changes)
        began = loop.time()
        await anext(changes)
    assert len(pages.made) == 2
    assert loop.time() - began >= live.PAUSE_RATIO * cost * 0.9
