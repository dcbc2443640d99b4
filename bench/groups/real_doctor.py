"""A full run of `fairlead doctor` on a real server: 7,500 nodes and 100,000 pods, and a small one.

Counted are its requests and the bytes of their answers, by a proxy between the two. What it asks of
the large cluster over what it asks of one of 50 nodes says whether it grows with the nodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

from bench.harness import Report
from bench.objects import small_pod_body
from bench.real.counting import Counting, counting
from bench.real.ground import NODE_COUNT, Ground, each, on_ground
from fairlead.api.resources import PODS

NODES_FEW, PODS_FEW, PODS_MANY = 50, 500, 100_000
#: Between two reads of the metrics; the default of the command is 10.
INTERVAL_SECONDS = 10


@dataclass(frozen=True)
class _Run:
    seconds: float
    requests: int
    received_bytes: int
    objects_bytes: int


def run(report: Report) -> None:
    """Run it on both sizes; one line where there is no server."""
    found: list[_Run] = []

    async def measure(ground: Ground) -> None:
        await _grow(ground, 0, NODES_FEW, 0, PODS_FEW)
        async with counting(ground.plane) as count:
            found.append(await _doctor(ground, count))
            await _grow(ground, NODES_FEW, NODE_COUNT, PODS_FEW, PODS_MANY)
            found.append(await _doctor(ground, count))

    on_ground(report, "real_doctor", measure)
    if not found:
        return
    few, many = found
    report.add("real_doctor.seconds", many.seconds, "s")
    report.add("real_doctor.requests", many.requests, "requests")
    report.add("real_doctor.requests_ratio", many.requests / few.requests, "x")
    report.add("real_doctor.bytes_ratio", many.objects_bytes / few.objects_bytes, "x")


async def _grow(ground: Ground, nodes: int, to_nodes: int, pods: int, to_pods: int) -> None:
    start = time.monotonic()
    await ground.add_nodes(to_nodes - nodes, first=nodes)
    bodies = (
        {**(body := small_pod_body(f"p{number:06d}")),
         "spec": {**body["spec"], "nodeName": f"n{number % to_nodes:05d}"}}
        for number in range(pods, to_pods)
    )  # fmt: skip
    await each(bodies, lambda body: ground.client.create(PODS, body, namespace="default"))
    print(f"    filled to {to_pods:,} pods in {time.monotonic() - start:.0f} s", flush=True)


async def _doctor(ground: Ground, count: Counting) -> _Run:
    before = count.snapshot()
    start = time.monotonic()
    command = [
        sys.executable, "-m", "fairlead", "doctor", "-o", "json", "--metrics",
        f"etcd={ground.plane.etcd_url}/metrics", "--interval", str(INTERVAL_SECONDS),
    ]  # fmt: skip
    environment = {**os.environ, "FAIRLEAD_KUBECONFIG": str(count.kubeconfig)}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - start
    assert done.stdout, done.stderr  # the exit code says what was found
    values = json.loads(done.stdout)
    asked = count.since(before)
    requests = sum(each.requests for each in asked.values())
    received = sum(each.received_bytes for each in asked.values())
    pages = sum(each.received_bytes for key, each in asked.items() if key.kind == "discovery")
    assert requests == values["requests"]
    print(
        f"    {values['nodes']:,} nodes: {seconds:.1f} s, {requests} requests, {received:,} bytes "
        f"({pages:,} of metrics), {len(values['passed'])} checks passed, "
        f"{len(values['findings'])} findings, {len(values['unknown'])} unknown",
        flush=True,
    )
    return _Run(seconds, requests, received, received - pages)
