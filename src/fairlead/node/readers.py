"""Runs the reads of sources, each in a thread of its own: one that hangs holds up no other.

A read cannot be stopped while the kernel holds it (state D). So it is left behind: its source hangs
until it returns, and no second thread is started for it. The threads are daemons, so they do not
hold up the end of the process either.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue

from fairlead.model.health.faults import Moment
from fairlead.node.reports.watch import MachineWatch
from fairlead.node.running.host import Absent, Host
from fairlead.node.source import AnySource

_BUSY_SECONDS = 0.05
Answer = tuple[object, Exception | None]


class Reader:
    """The thread of one source. Used by one event loop."""

    def __init__(self, source: AnySource) -> None:
        self.source = source
        self._requests: SimpleQueue[asyncio.Future[Answer]] = SimpleQueue()
        self._pending: asyncio.Future[Answer] | None = None
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None

    async def look(self, watch: MachineWatch, host: Host, seconds_max: float) -> None:
        """Read once and report to the watch. Returns after so many seconds at the latest."""
        loop = asyncio.get_running_loop()
        if self._pending is None:
            self._pending = self._request(loop)
            self._asked_at = loop.time()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                await asyncio.shield(self._pending)
        now = host.now()
        if not self._pending.done():
            watch.hung(self.source, round(loop.time() - self._asked_at), now)
            return
        facts, error = self._pending.result()
        self._pending = None
        report(self.source, watch, (facts, error), now)

    def _request(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Answer]:
        if self._thread is None:
            name = f"read-{self.source.name}"
            self._thread = threading.Thread(
                target=self._serve, args=(loop,), name=name, daemon=True
            )
            self._thread.start()
        request: asyncio.Future[Answer] = loop.create_future()
        self._requests.put(request)
        return request

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            request = self._requests.get()
            answer: Answer
            try:
                answer = (self.source.read(), None)
            except Exception as error:  # noqa: BLE001 # goes to the loop, which tells ours apart
                answer = (None, error)
            try:
                loop.call_soon_threadsafe(_set, request, answer)
            except RuntimeError:  # the loop has ended meanwhile
                return


def _set(request: asyncio.Future[Answer], answer: Answer) -> None:
    if not request.done():
        request.set_result(answer)


def report(source: AnySource, watch: MachineWatch, answer: Answer, now: Moment) -> None:
    """Give what a read brought to the watch. What is neither Absent nor OSError is our fault."""
    facts, error = answer
    if isinstance(error, Absent):
        watch.absent(source, str(error), now)
    elif isinstance(error, OSError):
        watch.blind(source, f"{error.filename or source.name}: {error.strerror or error}", now)
    elif error is not None:
        raise error
    else:
        watch.read(source, facts, now)


async def look_once(
    sources: Sequence[AnySource], watch: MachineWatch, host: Host, seconds_max: float
) -> None:
    """Read every source once, side by side, and again while it is busy."""

    async def look(source: AnySource) -> None:
        reader = Reader(source)
        await reader.look(watch, host, seconds_max)
        while source.is_busy():
            await asyncio.sleep(_BUSY_SECONDS)
            await reader.look(watch, host, seconds_max)

    await asyncio.gather(*map(look, sources))
