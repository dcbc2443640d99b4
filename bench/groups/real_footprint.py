"""What one replica of the controllers needs: 7,500 nodes and 20,000 pods of 20 gangs, real server.

Resident memory of the process that saw it come about, and of one that was started on it; and how
long such a start takes, from the start of the process until it leads and both controllers have
decided for the first time. Nobody else holds the lease, so no waiting for it is in that time.
"""

from __future__ import annotations

import asyncio
import statistics

from bench.harness import Report, slowness
from bench.objects import gang_body
from bench.real.ground import NODE_COUNT, SECONDS_MAX, Ground, on_ground, time_bound
from bench.real.operator import operator
from fairlead.api.resources import JOBS

GANGS = 20
MEMBERS = 1_000
STARTS = 3
REST_SECONDS = 5.0


def run(report: Report) -> None:
    """Fill the cluster once, start three times; one line where there is no server."""
    filled: list[float] = []
    empty: list[float] = []
    restarted: list[float] = []
    starts: list[float] = []

    async def measure(ground: Ground) -> None:
        await ground.add_nodes(NODE_COUNT)
        async with operator(ground.plane.kubeconfig()) as ours:
            empty.append(ours.resident_bytes() / 1e6)
            await _fill(ground)
            await asyncio.sleep(REST_SECONDS)
            filled.append(ours.resident_bytes() / 1e6)
            print(f"    filled with {ours.cpu_seconds():.1f} CPU seconds", flush=True)
        for _ in range(STARTS):
            slow = slowness()
            async with operator(ground.plane.kubeconfig()) as ours:
                print(
                    f"    start to ready: {ours.start_seconds:.2f} s, "
                    f"{ours.cpu_seconds():.2f} CPU seconds; core {slow:.2f} x as slow",
                    flush=True,
                )
                starts.append(ours.start_seconds / slow)
                await asyncio.sleep(REST_SECONDS)
                restarted.append(ours.resident_bytes() / 1e6)

    on_ground(report, "real_footprint", measure)
    if not filled:
        return
    report.add("real_footprint.nodes_only", empty[0], "MB")
    report.add("real_footprint.filled", filled[0], "MB")
    report.add("real_footprint.restarted", statistics.median(restarted), "MB")
    report.add("real_footprint.start", statistics.median(starts), "s")


async def _fill(ground: Ground) -> None:
    async def start() -> None:
        for number in range(GANGS):
            await ground.client.create(
                JOBS, gang_body(f"gang-{number}", MEMBERS), namespace="default"
            )

    async with asyncio.timeout(SECONDS_MAX):
        taken = await time_bound(ground, GANGS * MEMBERS, start)
    print(f"    {GANGS * MEMBERS} pods in {taken:.1f} s", flush=True)
