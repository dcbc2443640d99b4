"""A gang that cannot be placed: 101 whole nodes asked for, 100 match, on 7,500 of a real server.

What it costs the controllers to wait is their CPU time in a window while it waits, beside windows
in which nothing is there to do (before, and after). Then the 101st node gets its label: the time
from the answer to that until the place is written, and until the last pod is bound.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from bench.harness import Report, slowness
from bench.objects import gang_body
from bench.real.ground import NODE_COUNT, SECONDS_MAX, Bound, Ground, on_ground, watching
from bench.real.operator import Operator, operator
from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS, NODES

MEMBERS = 101
WINDOW_SECONDS = 20.0
SETTLE_SECONDS = 5.0
ROUNDS = 3
LABEL = "bench.example/pool"


def run(report: Report) -> None:
    """Measure three rounds; one line where there is no server."""
    found: list[_Round] = []

    async def measure(ground: Ground) -> None:
        await ground.add_nodes(NODE_COUNT - MEMBERS)
        first = NODE_COUNT - MEMBERS
        await ground.add_nodes(MEMBERS - 1, first=first, labels={LABEL: "few"})
        await ground.add_nodes(1, first=NODE_COUNT - 1)
        async with operator(ground.plane.kubeconfig()) as ours:
            found.extend([await _round(ground, ours, f"waiting-{n}") for n in range(ROUNDS)])

    on_ground(report, "real_waiting", measure)
    if not found:
        return
    slow = slowness()
    idle = statistics.median(each.idle for each in found)
    waiting = statistics.median(each.waiting for each in found)
    report.add("real_waiting.idle", idle * 1e3, "ms CPU/s")
    report.add("real_waiting.waiting", waiting * 1e3, "ms CPU/s")
    report.add("real_waiting.waiting_ratio", waiting / idle, "x")
    for name in ("placed", "bound"):
        seconds = [getattr(each, name) / slow for each in found]
        report.add(f"real_waiting.{name}", statistics.median(seconds), "s")


class _Round:
    """CPU seconds per second, and seconds since the node came."""

    idle = waiting = placed = bound = 0.0

    def __str__(self) -> str:
        return (
            f"idle {self.idle * 1e3:.2f}, waiting {self.waiting * 1e3:.2f} ms CPU per second; "
            f"placed after {self.placed:.3f} s, bound after {self.bound:.3f} s"
        )


async def _round(ground: Ground, ours: Operator, name: str) -> _Round:
    client, out = ground.client, _Round()
    out.idle = await _cpu_per_second(ours)
    body = gang_body(name, MEMBERS, gpus=8)
    template = body["spec"]["roles"][0]["template"]
    template["spec"]["nodeSelector"] = {LABEL: "few"}
    async with watching(client) as bound:
        job = await client.create(JOBS, body, namespace="default")
        await asyncio.sleep(SETTLE_SECONDS)
        out.waiting = await _cpu_per_second(ours)
        job = await client.get(JOBS, name, namespace="default")
        assert job.status.placement is None, "100 nodes are not enough"
        assert not bound.seen, "no member may be there before all are"
        await _release(ground, job, bound, out)
    out.idle = (out.idle + await _after(ground, ours, name)) / 2
    print(f"    {name}: {out}", flush=True)
    return out


async def _release(ground: Ground, job: Job, bound: Bound, out: _Round) -> None:
    """Let the last node match, and time what follows."""
    version = job.metadata.resource_version
    async with asyncio.timeout(SECONDS_MAX), asyncio.TaskGroup() as group:
        placed = group.create_task(_placed(ground, job.metadata.name, version))
        await asyncio.sleep(0.5)
        await _label(ground, "few")
        begun = time.perf_counter()
        out.bound = await bound.reached(MEMBERS) - begun
        out.placed = await placed - begun


async def _placed(ground: Ground, name: str, version: str) -> float:
    async for event in ground.client.watch(JOBS, resource_version=version):
        job = event.object
        if job is not None and job.metadata.name == name and job.status.placement is not None:
            return time.perf_counter()
    raise AssertionError("the watch ended before the job was placed")


async def _after(ground: Ground, ours: Operator, name: str) -> float:
    """Clear away, and return the CPU per second of a second idle window."""
    await ground.remove_job(name)
    await _label(ground, None)
    await asyncio.sleep(SETTLE_SECONDS)
    return await _cpu_per_second(ours)


async def _label(ground: Ground, value: str | None) -> None:
    patch: dict[str, Any] = {"metadata": {"labels": {LABEL: value}}}
    await ground.client.patch(NODES, f"n{NODE_COUNT - 1:05d}", patch)


async def _cpu_per_second(ours: Operator) -> float:
    before, begun = running_seconds(ours.pid), time.perf_counter()
    await asyncio.sleep(WINDOW_SECONDS)
    return (running_seconds(ours.pid) - before) / (time.perf_counter() - begun)


def running_seconds(pid: int) -> float:
    """Return the CPU time of all threads to the nanosecond (/proc/PID/task/TID/schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
