"""What a write costs in process: through the service, alone and with twenty watchers that read
everything, against a bare store that copies, encodes and keeps the same objects.

CPU time of the whole process, divided by writes: so the log's thread and the watchers' wake-ups
are in it, and the load of others on the machine is not. Each round times both in turn.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.bare import BareStore
from bench.harness import Report, cpu_slowness
from bench.objects import pod_body, status_patch
from fairlead.api.resources import PODS
from fairlead.app.local.embedded_process import settle_garbage_collector
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.embedded.verbs.uids import Uids
from fairlead.runtime.clock import SystemClock

WATCHERS = 20
WRITES = 500
ROUNDS = 11
WRITERS = 64


def run(report: Report) -> None:
    """Measure creates and status patches: alone, watched, and watched with the log on disk."""
    for name, watchers in (("", 0), ("watched_", WATCHERS), ("logged_", WATCHERS)):
        with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as directory:
            where = Path(directory) if name == "logged_" else None
            creates, patches = uvloop.run(_measure(where, watchers))
        for write, costs in (("create", creates), ("status_patch", patches)):
            report.add(f"store.{name}{write}_ratio", costs.ratio, "x bare")
            report.add(f"store.{name}{write}_us", statistics.median(costs.ours), "us CPU")


@dataclass
class _Costs:
    """CPU microseconds per write on the reference core, per round; the first one warms up."""

    ours: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Return the median of the rounds' ratios."""
        return statistics.median(o / b for o, b in zip(self.ours[1:], self.bare[1:], strict=True))


async def _measure(directory: Path | None, watchers: int) -> tuple[_Costs, _Costs]:
    """Return the costs of creates and of status patches."""
    store = Store.open(directory)
    service = ApiService(
        store, Registry.with_builtins(), SystemClock(),
        ids=Uids(), rng=random.Random(1),
    )  # fmt: skip
    await service.bootstrap()
    client = InProcessClient(service)
    settle_garbage_collector()  # as `fairlead up` does
    seen = [0] * watchers

    async def watch(index: int) -> None:
        async for _event in client.watch(PODS, resource_version=str(store.version)):
            seen[index] += 1

    creates, patches = _Costs(), _Costs()
    bare = BareStore()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch(i)) for i in range(watchers)]
        await asyncio.sleep(0.01)
        # The first round warms up: decoders, caches, the log's thread.
        for turn in range(ROUNDS + 1):
            bodies = [pod_body(f"p-{turn}-{i}") for i in range(WRITES)]

            async def create(i: int, bodies: list[dict[str, Any]] = bodies) -> None:
                await client.create(PODS, bodies[i], namespace="default")

            async def patch(i: int, turn: int = turn) -> None:
                await client.patch(
                    PODS, f"p-{turn}-{i}", status_patch(i),
                    namespace="default", subresource="status",
                )  # fmt: skip

            async def bare_create(i: int, bodies: list[dict[str, Any]] = bodies) -> None:
                bare.create(bodies[i])

            async def bare_patch(i: int, turn: int = turn) -> None:
                bare.patch(f"p-{turn}-{i}", status_patch(i))

            creates.ours.append(await _cpu_us(create))
            creates.bare.append(await _cpu_us(bare_create))
            patches.ours.append(await _cpu_us(patch))
            patches.bare.append(await _cpu_us(bare_patch))
        await _drained(lambda: set(seen) <= {2 * WRITES * (ROUNDS + 1)})
        for task in tasks:
            task.cancel()
    await store.close()
    return creates, patches


async def _drained(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline, "a watcher has not seen every write"
        await asyncio.sleep(0.01)


async def _cpu_us(write: Callable[[int], Awaitable[None]]) -> float:
    """Return the process's CPU time per write, from `WRITERS` tasks at once."""
    slow = cpu_slowness()
    gc.collect()

    async def writer(first: int) -> None:
        for i in range(first, WRITES, WRITERS):
            await write(i)

    start = time.process_time()
    async with asyncio.TaskGroup() as group:
        for first in range(WRITERS):
            group.create_task(writer(first))
    taken = time.process_time() - start
    return taken / WRITES * 1e6 / ((slow + cpu_slowness()) / 2)
