"""Pages that stay current: made again when something has changed, and sent where they differ.

All who look at one URL with the same name and rights share what is made for it. A page is made at
most so often that making all that are looked at takes a fifth of the time, so that they are a
little older instead of slowing what is asked for; one without viewers is not made at all. After a
change that follows a quiet time one page is made at once, and many within half of the time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from fairlead.web.pages import AskedPath, Site, make_page
from fairlead.web.render import Page, render_main
from fairlead.web.sources.rights import Rights

#: For how many times as long as making a page took the processor it is not made again, for each
#: page that is looked at.
PAUSE_RATIO = 4.0
#: The same from a change on, for each further page that is looked at.
CHANGE_RATIO = 2.0
KEPT_MAX = 64

#: Whose page it is, with which rights, and what was asked for.
_PageKey: TypeAlias = tuple[str, str, Rights, AskedPath]


class SessionEnded(Exception):
    """The person has to sign in again; the message says why."""


class Viewer(Protocol):
    """Somebody who looks."""

    @property
    def name(self) -> str:
        """Under which name he signed in; "" where there is only one."""
        ...

    async def site(self) -> Site:
        """Return what he may see now; SessionEnded, Unavailable."""
        ...


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
        self, *, stopwatch: Callable[[], float], cpu: Callable[[], float], kept_max: int = KEPT_MAX
    ) -> None:
        """`stopwatch` returns instants, `cpu` what this thread has used of its processor; both in
        seconds.
        """
        self._stopwatch, self._cpu, self._kept_max = stopwatch, cpu, kept_max
        self._kept: dict[_PageKey, Made] = {}
        self._watched: Counter[_PageKey] = Counter()
        self._turns = asyncio.Lock()

    async def make(self, site: Site, asked: AskedPath) -> Made:
        """Return a page as things are now; NoSuchPage."""
        key = _key(site, asked)
        kept, version = self._kept.get(key), site.cluster.version
        now = self._stopwatch()
        if kept is not None and kept.version == version and now - kept.at < kept.page.seconds:
            return kept
        began = self._cpu()
        page = await make_page(site, asked)
        main = render_main(page)
        digest = hashlib.sha256(main.encode()).hexdigest()[:16]
        made = Made(page, main, digest, version, now, self._cpu() - began)
        self._kept.pop(key, None)
        while len(self._kept) >= self._kept_max:
            self._kept.pop(next(iter(self._kept)))
        self._kept[key] = made
        return made

    async def _turn(self) -> None:
        """Return in a turn of the loop in which no other open page is made: what is asked for comes
        between them, however many are due.
        """
        async with self._turns:
            await asyncio.sleep(0)

    async def changes(
        self, viewer: Viewer, asked: AskedPath, seen: str
    ) -> AsyncGenerator[Made | None]:
        """Yield a page whenever it differs from what was seen, None where it was looked at again
        and does not; NoSuchPage once it is gone, SessionEnded once the person is.
        """
        while True:
            await self._turn()
            site = await viewer.site()
            made, key = await self.make(site, asked), _key(site, asked)
            made_at = self._stopwatch()
            self._watched[key] += 1
            try:
                yield made if made.digest != seen else None
                seen = made.digest
                with suppress(TimeoutError):
                    async with asyncio.timeout(made.page.seconds):
                        await site.cluster.changed(made.version)
                watched = len(self._watched)
                left = made_at + PAUSE_RATIO * made.seconds * watched - self._stopwatch()
                await asyncio.sleep(max(left, CHANGE_RATIO * made.seconds * (watched - 1)))
            finally:
                self._watched[key] -= 1
                if not self._watched[key]:
                    del self._watched[key]


def _key(site: Site, asked: AskedPath) -> _PageKey:
    return site.viewer, site.user, site.cluster.rights, asked


def event(name: str, data: str) -> bytes:
    """Return a server-sent event (HTML Living Standard, 9.2.5)."""
    lines = data.replace("\r", "").split("\n")
    return "".join((f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n")).encode()
