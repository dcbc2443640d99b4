"""From a message of the kernel to the taint of its node, while 7,500 collectors report.

100 nodes have the agent itself, on files; of the others the collectors alone are there, and say as
usual that all is well (`bench/real/agents.py`). A line with an Xid is appended to the kernel's log
of one node after another, at random times, and a watch says when the node has the taint. What each
collector uses in a window in which nothing is wrong is compared with what each of some beside them
uses that only read, decode and write what these do. Then a node of a gang is drained by now, and a
watch says when the server has the end of all of its pods: their kubelets are notified then.

The controllers run while collectors start, and both sorts of collectors are measured at the same
time.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.groups.real_waiting import running_seconds
from bench.harness import Report, cpu_slowness
from bench.objects import gang_body
from bench.processes import Child, child, resident_bytes
from bench.real.agents import LOG
from bench.real.ground import (
    BOUND_PODS,
    NODE_COUNT,
    SECONDS_MAX,
    Ground,
    WatchedMeta,
    node_name,
    on_ground,
    watching,
)
from bench.real.operator import Operator, operator
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.names import DRAIN, TAINT_UNHEALTHY
from fairlead.api.resources import JOBS, NODE_REPORTS, NODES, Resource
from fairlead.kube.client import HttpClient
from fairlead.model.health.windows import window_text

AGENTS = 100
#: Collectors of further nodes, which do the least that a collector does.
BARE = 750
#: Between two faults, on average; the fleet lets 2 % of its nodes go in five minutes.
FAULT_SECONDS = 0.25
WINDOW_SECONDS = 20.0
#: Collectors wait for up to 10 s before their first report.
SETTLE_SECONDS = 12.0
SETTINGS = "health:\n  enabled: true\n  actOn: [gpu-xid]\n"
MESSAGE = "3,{},{},-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n"


class _Taint(msgspec.Struct, gc=False, frozen=True):
    key: str


class _Spec(msgspec.Struct, gc=False, frozen=True):
    taints: tuple[_Taint, ...] = ()


class TaintedNode(msgspec.Struct, gc=False, frozen=True):
    """What there is to see of a node for a watch of taints."""

    metadata: WatchedMeta
    spec: _Spec = _Spec()


GANG_MEMBERS, GANGS = 64, 3
TAINTED_NODES = Resource(NODES.group, NODES.version, NODES.plural, NODES.kind, TaintedNode)


@dataclass
class _Taints:
    """When the watch of a client has first seen the taint of each node (perf_counter)."""

    client: HttpClient
    seen: dict[str, float] = field(default_factory=dict[str, float])
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, version: str) -> None:
        """Watch until cancelled."""
        while True:
            async for event in self.client.watch(TAINTED_NODES, resource_version=version):
                version, node = event.resource_version, event.object
                if node is not None and any(t.key == TAINT_UNHEALTHY for t in node.spec.taints):
                    self.seen.setdefault(node.metadata.name, time.perf_counter())
                    self._news.set()

    async def reached(self, count: int) -> None:
        """Wait until so many have it."""
        while len(self.seen) < count:
            self._news.clear()
            await self._news.wait()


@dataclass
class _Found:
    """Seconds from message to taint; CPU seconds per second, and resident bytes."""

    latencies: list[float] = field(default_factory=list[float])
    shares: dict[str, float] = field(default_factory=dict[str, float])
    told: list[float] = field(default_factory=list[float])
    resident: int = 0


def run(report: Report) -> None:
    """Measure once; one line where there is no server."""
    found: list[_Found] = []

    async def measure(ground: Ground) -> None:
        await ground.add_nodes(NODE_COUNT + BARE)
        found.append(await _measured(ground))

    on_ground(report, "real_health", measure)
    if not found:
        return
    (one,) = found
    slow = cpu_slowness()
    cuts = statistics.quantiles(one.latencies, n=100)
    report.add("real_health.taint_p50", cuts[49], "s")
    report.add("real_health.taint_p99", cuts[98], "s")
    report.add("real_health.gang_told", max(one.told), "s")
    report.add("real_health.collectors", one.shares["ours"] / slow * 100, "% of a core")
    each, bare = one.shares["ours"] / NODE_COUNT, one.shares["bare"] / BARE
    report.add("real_health.collectors_ratio", each / bare, "x bare")
    report.add("real_health.collectors_memory", one.resident / 1e6, "MB")
    report.add("real_health.controllers", one.shares["idle"] / slow * 100, "% of a core")
    report.add("real_health.controllers_faults", one.shares["faults"] / slow * 100, "% of a core")


async def _measured(ground: Ground) -> _Found:
    found = _Found()
    kubeconfig = ground.plane.kubeconfig()
    with tempfile.TemporaryDirectory(prefix="fairlead-agents-") as name:
        folder = Path(name)
        (folder / "settings.yaml").write_text(SETTINGS)
        settings, start = folder / "settings.yaml", "bench.real.agents"
        where = (str(kubeconfig), str(folder))
        async with operator(kubeconfig, settings=settings) as ours:
            with child(start, *where, "0", str(NODE_COUNT), str(AGENTS)) as agents:
                with child(start, *where, str(NODE_COUNT), str(BARE), "0", "bare") as bare:
                    await _started(bare, BARE)
                    await _started(agents, NODE_COUNT)
                    async with asyncio.timeout(SECONDS_MAX):
                        await _all_reported(ground.client)
                    shares = await _shares(agents.pid, ours.pid, bare.pid)
                    found.shares |= dict(zip(("ours", "idle", "bare"), shares, strict=True))
                await _faults(ground, folder, ours, found)
                found.resident = resident_bytes(agents.pid)
                found.told = [await _told(ground, f"gang-{n}") for n in range(GANGS)]
    return found


async def _started(collectors: Child, count: int) -> None:
    assert await asyncio.to_thread(collectors.read) == count


async def _all_reported(client: HttpClient) -> None:
    """Wait until each node has a report: a busy server makes collectors try again."""
    while True:
        await asyncio.sleep(SETTLE_SECONDS)
        reports = (await client.list(NODE_REPORTS)).items
        if sum(each.status.observed_at is not None for each in reports) == NODE_COUNT + BARE:
            return


async def _shares(*pids: int) -> list[float]:
    """Return the CPU seconds per second of processes in a window."""
    before, begun = [running_seconds(pid) for pid in pids], time.perf_counter()
    await asyncio.sleep(WINDOW_SECONDS)
    passed = time.perf_counter() - begun
    return [(running_seconds(pid) - at) / passed for pid, at in zip(pids, before, strict=True)]


async def _told(ground: Ground, name: str) -> float:
    """Return the seconds from the cordon of a node of a gang, whose drain ends then, until the last
    of its pods is being ended.
    """
    client = ground.client
    async with watching(client) as bound:
        await client.create(JOBS, gang_body(name, GANG_MEMBERS, gpus=8), namespace="default")
        await bound.reached(GANG_MEMBERS)
    job = await client.get(JOBS, name, namespace="default")
    node = nodes_of(job.status.placement)[0]
    version, ending = (await client.list(BOUND_PODS)).resource_version, set[str]()
    drain = {"metadata": {"annotations": {DRAIN: window_text(time.time(), time.time())}}}
    async with asyncio.timeout(SECONDS_MAX):
        begun = time.perf_counter()
        await client.patch(NODES, node, drain)
        while len(ending) < GANG_MEMBERS:
            async for event in client.watch(BOUND_PODS, resource_version=version):
                version, pod = event.resource_version, event.object
                if pod is not None and pod.metadata.deletion_timestamp is not None:
                    ending.add(pod.metadata.uid)
                if len(ending) == GANG_MEMBERS:
                    break
        seconds = time.perf_counter() - begun
    await client.patch(NODES, node, {"metadata": {"annotations": {DRAIN: None}}})
    await ground.remove_job(name)
    return seconds


async def _faults(ground: Ground, folder: Path, ours: Operator, found: _Found) -> None:
    """Have the kernels of all nodes with an agent say something, one after another."""
    client, rng, at = ground.client, random.Random(40), dict[str, float]()
    taints = _Taints(client)
    version = (await client.list(TAINTED_NODES)).resource_version
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as group:
        watch = group.create_task(taints.follow(version))
        cpu, begun = running_seconds(ours.pid), time.perf_counter()
        for number in range(AGENTS):
            await asyncio.sleep(rng.expovariate(1 / FAULT_SECONDS))
            name = node_name(number)
            with (folder / name / LOG).open("a") as log:
                log.write(MESSAGE.format(0, 90_000_000_000))
            at[name] = time.perf_counter()
        passed = time.perf_counter() - begun
        found.shares["faults"] = (running_seconds(ours.pid) - cpu) / passed
        await taints.reached(AGENTS)
        watch.cancel()
    found.latencies = [taints.seen[name] - at[name] for name in at]
