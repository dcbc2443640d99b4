"""What the page costs its server: the pages of a full cluster, after a change of anything.

10,000 jobs on 2,048 nodes. The unit is what decoding the list of these jobs takes, which a start of
the page does once: a page that costs a fraction of that can be made again while somebody looks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from bench.harness import Report, best_of
from fairlead.api.jobs.job import Job, VerdictStatus
from fairlead.api.meta import to_wire
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.resources import JOBS, NODES, Resource
from fairlead.model.asks.topology import DEFAULT_LEVELS
from fairlead.runtime.clock import SystemClock
from fairlead.runtime.supervisor import Supervisor
from fairlead.testing.builders import make_job, make_node, make_placement
from fairlead.testing.fake_client import FakeClient
from fairlead.web.cluster import WebMirrors
from fairlead.web.pages import AskedPath, Site, make_page
from fairlead.web.render import render_main
from fairlead.web.rights import Rights
from fairlead.web.view import ClusterView

COUNT, NODE_COUNT, PLACED, ROUNDS = 10_000, 2_048, 2_000, 5
PAGES = {"home": "/", "jobs": "/jobs", "search": "/jobs?q=train-09", "cluster": "/cluster"}


def run(report: Report) -> None:
    """Make each page again and again, from mirrors that have just changed."""
    jobs = list(_jobs())
    wires = [msgspec.json.encode(to_wire(job)) for job in jobs]
    decoder = msgspec.json.Decoder(Job)
    decoding = best_of(lambda: [decoder.decode(each) for each in wires])
    for name, (seconds, size) in asyncio.run(_measured(jobs)).items():
        report.add(f"web.{name}_ratio", seconds / decoding, "x decode")
        report.add(f"web.{name}_size", size / 1e3, "kB")


async def _measured(jobs: Sequence[Job]) -> dict[str, tuple[float, int]]:
    """Return the least seconds of a page, and its bytes, by name."""
    client, clock, rng = FakeClient(), SystemClock(), random.Random(1)
    for node in _nodes():
        await _create(client, NODES, node)
    for job in jobs:
        await _create(client, JOBS, job)
    cluster = WebMirrors(client, Rights(), clock=clock, rng=rng)
    view = ClusterView(cluster, Rights())
    site = Site(view, cast("Any", None), "user-7", "default", "", DEFAULT_LEVELS, is_up=True)
    supervisor = Supervisor(cluster.services(), clock=clock, rng=rng)
    found = dict[str, tuple[float, int]]()
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await cluster.ready()
        for name, url in PAGES.items():
            path, _, query = url.partition("?")
            asked = AskedPath.of(path, query)
            times, size = list[float](), 0
            for _ in range(ROUNDS):
                cluster.version += 1
                began = time.perf_counter()
                size = len(render_main(await make_page(site, asked)).encode())
                times.append(time.perf_counter() - began)
            found[name] = min(times), size
        supervisor.stop()
    return found


def _nodes() -> Iterator[Any]:
    for number in range(NODE_COUNT):
        labels = {"fairlead.dev/block": f"block-{number // 128}",
                  "fairlead.dev/rack": f"rack-{number // 8}"}  # fmt: skip
        yield make_node(f"node-{number:04d}", gpus=8, labels=labels)


def _jobs() -> Iterator[Job]:
    facts = {"resource": "nvidia.com/gpu", "asked": 32, "free": 8, "total": 16, "short": 24}
    verdict = VerdictStatus("Waiting", "InsufficientCapacity", facts)
    for number in range(COUNT):
        name = f"train-{number:05d}"
        if number < PLACED:
            placed = make_placement([f"node-{number:04d}"])
            job = make_job(name, placement=placed, status={"state": "Running"})
        else:
            job = make_job(name, count=4, verdict=verdict, status={"state": "Waiting"})
        notes = {SUBMITTED_BY: f"user-{number % 50}"}
        yield replace(job, metadata=replace(job.metadata, annotations=notes))


async def _create(client: FakeClient, resource: Resource[Any], each: Any) -> None:
    meta = each.metadata
    await client.create(resource, to_wire(each), namespace=meta.namespace)
    status = {"status": to_wire(each)["status"]}
    await client.patch(resource, meta.name, status, namespace=meta.namespace, subresource="status")
