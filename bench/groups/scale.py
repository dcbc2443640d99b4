"""Ten times the fleet: 100,000 nodes, 300,000 pods, 10,000 waiting jobs, 50,000 gangs.

`make scale` runs it with the groups whose figures at 7,500 nodes belong to it. Costs of the planner
are CPU time on the reference core, beside a plain loop that finds a place on the last of as many
nodes. The start is that of the real controllers, in a process of their own, on an API server in
another one that hands out its lists in pages; beside it, a client that lists the same objects and
decodes them without types.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import msgspec

from bench.fleet import FleetSize
from bench.groups.planner import GPUS
from bench.groups.planner_scale import (
    GANG_MEMBERS,
    GANGS_TIMED,
    place_gang,
    report_cost,
    timed,
    waiting_jobs,
)
from bench.harness import Report, cpu_slowness
from bench.processes import child, cpu_seconds, peak_bytes, resident_bytes
from bench.real.operator import operator
from bench.server import TOKEN
from fairlead.api.resources import NODES, PODS
from fairlead.decide.placement.cycle import decide
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.kube.client import HttpClient
from fairlead.kube.kubeconfig import Connection
from fairlead.testing.builders import EPOCH, make_job, make_nodes, make_placement

NODES_MAX, WAITING, CHANGES = 100_000, 10_000, 20
#: Gangs of three that run, on nodes that they nearly fill.
GANGS, GANG_NODES = 50_000, 20_000
#: Three members on each node.
FLEET = FleetSize(nodes=100_000, gangs=300, members=1_000)


def run(report: Report) -> None:
    """Measure, the planner without pauses of the garbage collector."""
    for measure in (_cycle, _many_gangs):
        gc.collect()
        gc.disable()
        try:
            measure(report)
        finally:
            gc.enable()
    asyncio.run(_start(report, FLEET))


def _cycle(report: Report) -> None:
    """Report the first decision over a full queue, and the one after one more job."""
    rng = random.Random(1)  # a benchmark
    nodes = make_nodes(NODES_MAX, gpus=GPUS)
    full = make_job("full", count=NODES_MAX, gpus=GPUS,
                    placement=make_placement([node.metadata.name for node in nodes]))  # fmt: skip
    state = PlacementState.of(nodes, [full, *waiting_jobs(rng, WAITING)])
    first = timed(lambda: decide(state, PlacementPolicy(), EPOCH + WAITING))
    changes = list[float]()
    for job in waiting_jobs(rng, CHANGES, first=WAITING):
        state.cluster.job_changed(job)
        changes.append(timed(lambda: decide(state, PlacementPolicy(), EPOCH + 2 * WAITING)))
    report_cost(report, "scale.cycle_of_10000", first, nodes=NODES_MAX)
    report_cost(report, "scale.change_of_10000", statistics.median(changes), nodes=NODES_MAX)


def _many_gangs(report: Report) -> None:
    """Report what one more gang of three costs beside 50,000 others."""
    nodes = make_nodes(GANG_NODES, gpus=GPUS)
    names = [node.metadata.name for node in nodes]
    gangs = [
        make_job(f"gang-{number:05}", count=GANG_MEMBERS, gpus=1, placement=make_placement(
            [names[(GANG_MEMBERS * number + i) // GPUS] for i in range(GANG_MEMBERS)]
        ))
        for number in range(GANGS)
    ]  # fmt: skip
    state = PlacementState.of(nodes, gangs)
    decide(state, PlacementPolicy(), EPOCH)
    costs = [
        place_gang(state, make_job(f"more-{number}", count=GANG_MEMBERS, gpus=1))
        for number in range(GANGS_TIMED)
    ]
    report_cost(report, "scale.gang_of_3", statistics.median(costs[1:]), nodes=GANG_NODES)


async def _start(report: Report, size: FleetSize) -> None:
    """Report a start of the controllers on a full cluster, and the memory that they have then."""
    arguments = map(str, (size.nodes, size.gangs, size.members))
    with child("bench.server", "--fleet", *arguments) as server, _directory() as directory:
        url = f"http://127.0.0.1:{server.read()}"
        kubeconfig = _kubeconfig(directory, url)
        bare = await _bare_start(url, size)
        slow = cpu_slowness()
        before = cpu_seconds(server.pid)
        async with operator(kubeconfig) as ours:
            taken = ours.cpu_seconds()
            served = cpu_seconds(server.pid) - before
            print(f"    ready after {ours.start_seconds:.1f} s, {taken:.1f} CPU seconds, and "
                  f"{served:.1f} of the server", flush=True)  # fmt: skip
            held, peak = resident_bytes(ours.pid), peak_bytes(ours.pid)
    report.add("scale.start_ratio", taken / bare, "x bare")
    report.add("scale.start", taken / slow, "s CPU")
    report.add("scale.memory", held / 1e6, "MB")
    report.add("scale.memory_peak_ratio", peak / held, "x held")


async def _bare_start(url: str, size: FleetSize) -> float:
    """Return the CPU seconds of reading the lists of nodes and pods and decoding them untyped."""
    client = HttpClient(Connection(server=url, token=TOKEN, source="the benchmark"))
    begun = time.process_time()
    for resource, count in ((NODES, size.nodes), (PODS, size.pods)):
        seen, token = 0, ""
        while True:
            params = {"limit": "500"} | ({"continue": token} if token else {})
            page = msgspec.json.decode(
                await client.request("GET", resource.path("", ""), params=params)
            )
            seen += len(page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                break
        assert seen == count, f"{seen} of {count} {resource.plural}"
    taken = time.process_time() - begun
    await client.close()
    return taken


def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fairlead-bench-")


def _kubeconfig(directory: str, url: str) -> Path:
    """Write and return the kubeconfig of the server at an address."""
    config = {
        "clusters": [{"name": "bench", "cluster": {"server": url}}],
        "users": [{"name": "bench", "user": {"token": TOKEN}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
    path = Path(directory, "kubeconfig")
    path.write_text(json.dumps(config))
    return path
