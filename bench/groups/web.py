"""What the page costs its server on a full cluster (`bench/web_world.py`), after any change.

The unit is the CPU time that decoding the list of the jobs takes, which a start of the page does
once: a page that costs a fraction of that can be made again while somebody looks. `again` is the
home page of a second user after the same change; `unseen` is what a change costs while nobody looks
at anything.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable
from typing import Any, cast

import msgspec

from bench.harness import Report
from bench.web_world import PAGES, RESEARCHER, FullAnswers, objects
from fairlead.api.jobs.job import Job
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, NODES, Resource
from fairlead.model.asks.topology import DEFAULT_LEVELS
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.supervisor import Supervisor
from fairlead.testing.fake_client import FakeClient
from fairlead.web.pages import AskedPath, Site, make_page
from fairlead.web.render import render_main
from fairlead.web.sources.cluster import STEP_SECONDS, WebMirrors
from fairlead.web.sources.rights import Rights
from fairlead.web.sources.view import ClusterView

ROUNDS, UNSEEN = 3, 200
#: These are answers of the server to a POST, or to what only a browser's form asks for.
_NOT_MADE = ("submit", "cancel", "drain")


def run(report: Report) -> None:
    """Make each page again and again, from mirrors that have just changed."""
    made = list(objects())
    wires = [msgspec.json.encode(to_wire(each)) for kind, each in made if kind is JOBS]
    decoder = msgspec.json.Decoder(Job)
    decoding = _least(lambda: [decoder.decode(each) for each in wires])
    found, again, unseen = asyncio.run(_measured(made))
    for name, (seconds, size) in found.items():
        report.add(f"web.{name}_ratio", seconds / decoding, "x decode")
        report.add(f"web.{name}_size", size / 1e3, "kB")
    report.add("web.again_ratio", again / decoding, "x decode")
    report.add("web.unseen_ratio", unseen / decoding, "x decode")


def _least(action: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(ROUNDS):
        gc.collect()
        began = time.thread_time()
        action()
        taken.append(time.thread_time() - began)
    return min(taken)


async def _measured(
    made: list[tuple[Resource[Any], Any]],
) -> tuple[dict[str, tuple[float, int]], float, float]:
    """Return the least CPU seconds of a page, and its bytes, by name; those of the home page of a
    second user; and those of a change of a node while nobody looks.
    """
    client, clock, rng = FakeClient(), SystemClock(), random.Random(1)
    for resource, each in made:
        await client.create(resource, to_wire(each), namespace=each.metadata.namespace)
    cluster = WebMirrors(client, Rights(), clock=clock, rng=rng)
    site = _site(ClusterView(cluster, Rights()), RESEARCHER)
    supervisor = Supervisor(cluster.services(), clock=clock, rng=rng)
    found = dict[str, tuple[float, int]]()
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await cluster.ready()
        for name, url in PAGES.items():
            if name not in _NOT_MADE:
                found[name] = await _page(site, url)
        other = _site(site.cluster, "user-8")
        again = (await _page(other, PAGES["home"], changes=False))[0]
        unseen = await _unseen(client)
        supervisor.stop()
    return found, again, unseen


def _site(view: ClusterView, user: str) -> Site:
    answers = cast("Any", FullAnswers())
    return Site(view, answers, user, "default", "", DEFAULT_LEVELS, is_up=True)


async def _page(site: Site, url: str, *, changes: bool = True) -> tuple[float, int]:
    path, _, query = url.partition("?")
    asked = AskedPath.of(path, query)
    times, size = list[float](), 0
    for _ in range(ROUNDS):
        if changes:
            site.cluster.mirrors.version += 1
        began = time.thread_time()
        size = len(render_main(await make_page(site, asked)).encode())
        times.append(time.thread_time() - began)
    return min(times), size


async def _unseen(client: FakeClient) -> float:
    """Return the CPU seconds of this thread for one of UNSEEN changes, until each was taken up."""
    await asyncio.sleep(2 * STEP_SECONDS)
    began = time.thread_time()
    for number in range(UNSEEN):
        patch = {"metadata": {"labels": {"round": str(number)}}}
        await client.patch(NODES, f"node-{number:04}", patch)
    await asyncio.sleep(2 * STEP_SECONDS)
    return (time.thread_time() - began) / UNSEEN
