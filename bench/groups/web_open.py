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
from fairlead.web.cluster import WebMirrors
from fairlead.web.entrance import LinkEntrance
from fairlead.web.live import Pages
from fairlead.web.pages import Site
from fairlead.web.process import OnlyViewer
from fairlead.web.rights import Rights
from fairlead.web.server import WebServer
from fairlead.web.view import ClusterView

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
    """Decode, serve, and follow."""
    own = resident_bytes(os.getpid())
    made = list(objects())
    wires = [(type(each), msgspec.json.encode(to_wire(each))) for _, each in made]
    gc.collect()
    before = resident_bytes(os.getpid())
    decoded = [msgspec.json.decode(wire, type=kind) for kind, wire in wires]
    grown = resident_bytes(os.getpid()) - before
    del decoded, wires
    share, updates, served = asyncio.run(_served(made))
    report.add("web_open.core_share", share, "cores")
    report.add("web_open.updates_rate", updates, "1/s")
    report.add("web_open.memory", (own + grown + served) / 1e6, "MB")


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
    loop = asyncio.get_running_loop()
    server = WebServer(
        Pages(stopwatch=loop.time, cpu=time.thread_time), entrance, clock=clock, log=SILENT
    )
    supervisor = Supervisor(cluster.services(), clock=clock, rng=rng)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(supervisor.run())
        await cluster.ready()
        async with server.listening(0):
            share, updates = await _followed(client, entrance.link(server.port))
            grown = resident_bytes(os.getpid()) - before
        supervisor.stop()
        await running
    return share, updates, grown


async def _followed(client: FakeClient, link: str) -> tuple[float, float]:
    readers = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.web_readers", link, *URLS,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert readers.stdout is not None
    try:
        assert await readers.stdout.readline() == b"following\n"
        began, busy, number = time.monotonic(), time.process_time(), 0
        while time.monotonic() - began < SECONDS:
            number += 1
            name, space = f"train-{number % 3_400:05}", f"team-{number % 50:02}"
            patch = {"status": {"progress": {"step": number}}}
            await client.patch(JOBS, name, patch, namespace=space, subresource="status")
            await asyncio.sleep(1 / CHANGES_PER_SECOND)
        took, busy = time.monotonic() - began, time.process_time() - busy
        counts = json.loads((await readers.communicate())[0])
        return busy / took, counts["pages"] / took
    finally:
        if readers.returncode is None:
            readers.kill()
            await readers.wait()
