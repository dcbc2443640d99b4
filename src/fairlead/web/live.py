"""Pages that stay current: made again when something has changed, and sent where they differ.

All who look at one URL share what is made for it. A page is made at most so often that making it
takes a fifth of the time, so a costly one is a little older instead of slowing the others; one that
nobody looks at is not made at all.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from fairlead.web.pages import AskedPath, Site, make_page
from fairlead.web.render import Page, render_main

#: How many times as long as making a page took the processor it is left alone.
PAUSE_RATIO = 4.0
KEPT_MAX = 64


@dataclass(frozen=True, slots=True)
class Made:
    """A page as it was made: its HTML, of which version of the mirrors, when, and for how
    long it took the processor.
    """

    page: Page
    main: str
    digest: str
    version: int
    at: float
    seconds: float


class Pages:
    """Makes pages, and keeps the last ones for others who look at them."""

    def __init__(
        self, site: Site, *, stopwatch: Callable[[], float], cpu: Callable[[], float]
    ) -> None:
        """`stopwatch` returns instants, `cpu` what this thread has used of its processor; both in
        seconds.
        """
        self.site = site
        self._stopwatch, self._cpu = stopwatch, cpu
        self._kept: dict[AskedPath, Made] = {}

    async def make(self, asked: AskedPath) -> Made:
        """Return a page as things are now; NoSuchPage."""
        kept, version = self._kept.get(asked), self.site.cluster.version
        now = self._stopwatch()
        if kept is not None and kept.version == version and now - kept.at < kept.page.seconds:
            return kept
        began = self._cpu()
        page = await make_page(self.site, asked)
        main = render_main(page)
        digest = hashlib.sha256(main.encode()).hexdigest()[:16]
        made = Made(page, main, digest, version, now, self._cpu() - began)
        self._kept.pop(asked, None)
        while len(self._kept) >= KEPT_MAX:
            self._kept.pop(next(iter(self._kept)))
        self._kept[asked] = made
        return made

    async def changes(self, asked: AskedPath, seen: str) -> AsyncGenerator[Made | None]:
        """Yield a page whenever it differs from what was seen, None where it was looked at again
        and does not; NoSuchPage once it is gone.
        """
        while True:
            made = await self.make(asked)
            yield made if made.digest != seen else None
            seen = made.digest
            try:
                async with asyncio.timeout(made.page.seconds):
                    await self.site.cluster.changed(made.version)
            except TimeoutError:
                continue
            await asyncio.sleep(PAUSE_RATIO * made.seconds)


def event(name: str, data: str) -> bytes:
    """Return a server-sent event (HTML Living Standard, 9.2.5)."""
    lines = data.replace("\r", "").split("\n")
    return "".join((f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n")).encode()
