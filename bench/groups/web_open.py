"""What 200 open pages of a full cluster (`bench/web_world.py`) cost the page's process.

The pages are all different, so none is shared. Ten jobs change per second. `core_share` is the CPU
time of the process by the time that went by; readers are a process of their own. `memory` is what
the process has after its imports, and what decoding all objects and following 200 pages added.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import msgspec

from bench.harness import Report
from bench.processes import resident_bytes
from bench.web_world import RESEARCHER, FullAnswers, objects
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS
from fairlead.model.asks.topology import DEFAULT_LEVELS
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.logs import SILENT
from fairlead.runtime.supervisor import Supervisor
from fairlead.testing.fake_client import FakeClient
from fairlead.web.entrance import LinkEntrance
from fairlead.web.live import Made, Pages, Viewer
from fairlead.web.pages import AskedPath, Site
from fairlead.web.process import OnlyViewer
from fairlead.web.server import WebServer
from fairlead.web.sources.cluster import WebMirrors
from fairlead.web.sources.rights import Rights
from fairlead.web.sources.view import ClusterView

SECONDS, CHANGES_PER_SECOND = 15.0, 10
#: 200 pages, each of another address.
URLS = (
    *(f"/jobs?user=user-{n}" for n in range(50)), *(f"/teams/team-{n:02}" for n in range(50)),
    *(f"/jobs/team-{n:02}/train-{n:05}" for n in range(50)),
    *(f"/nodes/node-{50 * n:04}" for n in range(30)),
    *(f"/cluster?block=block-{n:02}" for n in range(10)),
    *(f"/?n={n}" for n in range(10)),
)  # fmt: skip


def run(report: Report) -> None:
    """Measure in a process of its own, whose memory is the page's."""
    command = (sys.executable, "-m", "bench.groups.web_open")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    share, updates, size = json.loads(done.stdout)
    report.add("web_open.core_share", share, "cores")
    report.add("web_open.updates_rate", updates, "1/s")
    report.add("web_open.memory", size / 1e6, "MB")


def measured() -> tuple[float, float, int]:
    """Return the share of a core, pages sent per second, and the bytes of memory."""
    own = resident_bytes(os.getpid())
    made = list(objects())
    wires = [(type(each), msgspec.json.encode(to_wire(each))) for _, each in made]
    gc.collect()
    before = resident_bytes(os.getpid())
    decoded = [msgspec.json.decode(wire, type=kind) for kind, wire in wires]
    grown = resident_bytes(os.getpid()) - before
    del decoded, wires
    share, updates, served = asyncio.run(_served(made))
    return share, updates, own + grown + served


class CountedPages(Pages):
    """Counts the pages that are open, and those that were sent."""

    open, sent = 0, 0

    async def changes(
        self, viewer: Viewer, asked: AskedPath, seen: str
    ) -> AsyncGenerator[Made | None]:
        """See `Pages`."""
        self.open += 1
        try:
            async with aclosing(super().changes(viewer, asked, seen)) as changes:
                async for made in changes:
                    self.sent += made is not None
                    yield made
        finally:
            self.open -= 1


async def _served(made: list[tuple[Any, Any]]) -> tuple[float, float, int]:
    """Return the share of a core, pages sent per second, and by how many bytes the process grew."""
    client, clock, rng = FakeClient(), SystemClock(), random.Random(1)
    for resource, each in made:
        await client.create(resource, to_wire(each), namespace=each.metadata.namespace)
    gc.collect()
    before = resident_bytes(os.getpid())
    cluster = WebMirrors(client, Rights(), clock=clock, rng=rng)
    site = Site(
        ClusterView(cluster, Rights()), cast("Any", FullAnswers()), RESEARCHER, "default", "",
        DEFAULT_LEVELS, is_up=True,
    )  # fmt: skip
    entrance = LinkEntrance(OnlyViewer(site), key="key", clock=clock)
    pages = CountedPages(stopwatch=asyncio.get_running_loop().time, cpu=time.thread_time)
    server = WebServer(pages, entrance, clock=clock, log=SILENT)
    supervisor = Supervisor(cluster.services(), clock=clock, rng=rng)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(supervisor.run())
        await cluster.ready()
        async with server.listening(0):
            share, updates = await _followed(client, pages, entrance.link(server.port))
            grown = resident_bytes(os.getpid()) - before
        supervisor.stop()
        await running
    return share, updates, grown


async def _followed(client: FakeClient, pages: CountedPages, link: str) -> tuple[float, float]:
    """Return the share of a core, and the pages sent per second, while all are followed."""
    command = (sys.executable, "-m", "bench.web_readers", link, *URLS)
    readers = await asyncio.create_subprocess_exec(*command)
    try:
        while pages.open < len(URLS):  # noqa: ASYNC110 # readers are another process
            await asyncio.sleep(0.1)
        began, busy, sent, number = time.monotonic(), time.process_time(), pages.sent, 0
        while time.monotonic() - began < SECONDS:
            number += 1
            name, space = f"train-{number % 3_400:05}", f"team-{number % 50:02}"
            patch = {"status": {"progress": {"step": number}}}
            await client.patch(JOBS, name, patch, namespace=space, subresource="status")
            await asyncio.sleep(1 / CHANGES_PER_SECOND)
        took, busy = time.monotonic() - began, time.process_time() - busy
        return busy / took, (pages.sent - sent) / took
    finally:
        readers.kill()
        await readers.wait()


if __name__ == "__main__":
    print(json.dumps(measured()))
