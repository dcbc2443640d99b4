"""What a job that has ended costs in the memory of `fairlead up` while it is kept.

Jobs of one member run for a second on virtual nodes. So many come first that the windows of fixed
size are full (the log of changes, decisions, Events that are counted); the figure is what each
further one adds, with the record of it in the history and without its pods, which are gone by then.

And what a pod that has come and gone leaves in the store, until the log of changes is full. It is
written four times, a reader in the process watches pods, and past versions are packed as they are
by `fairlead up`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import tracemalloc
from pathlib import Path

from bench.cluster import JOBS, PODS, Cluster, cluster, wait_until
from bench.harness import Report
from bench.objects import encoded, gang_body, pod_body
from bench.processes import resident_bytes
from fairlead.api import resources
from fairlead.embedded.client import InProcessClient
from fairlead.embedded.registry import Registry
from fairlead.embedded.storage.store import PACK_PAUSE_SECONDS, PACKED_TOGETHER, Store
from fairlead.embedded.verbs.service import ApiService
from fairlead.runtime.client import WatchRequest
from fairlead.runtime.clock import SystemClock

NODES, FIRST, MORE = 200, 2_500, 1_500
FIRST_PODS, MORE_PODS = 400, 600
WAIT_SECONDS_MAX = 900
#: Until the versions of so many pods are packed (`PACK_PAUSE_SECONDS` of the store).
PACKED_SECONDS = 2 * MORE_PODS * 4 / PACKED_TOGETHER * PACK_PAUSE_SECONDS


def run(report: Report) -> None:
    """Let jobs come and go, and read the memory before and after."""
    with cluster() as made:
        settings = Path(made.root, "settings.yaml")
        kept = {"keepFinishedPodsSeconds": 0, "keepFinishedJobsMax": FIRST + MORE}
        settings.write_text(json.dumps({"jobs": kept}))
        made.up("--nodes", str(NODES), "--settings", str(settings))
        _run_to_the_end(made, range(FIRST))
        before = resident_bytes(made.pid)
        _run_to_the_end(made, range(FIRST, FIRST + MORE))
        report.add("ended.job", (resident_bytes(made.pid) - before) / MORE / 1e3, "kB")
        assert made.count(JOBS) == FIRST + MORE, "none is removed meanwhile"
    report.add("ended.pod_in_store", asyncio.run(_bytes_of_a_pod()) / 1e3, "kB")


async def _bytes_of_a_pod() -> float:
    """Return what each of some pods leaves that come and go after others; they are as alike as the
    members of jobs of one script.
    """
    uids = map("{:032}".format, itertools.count())
    store = Store.open(None)
    service = ApiService(
        store, Registry.with_builtins(), SystemClock(), ids=uids.__next__, rng=random.Random(1)
    )
    await service.bootstrap()
    client = InProcessClient(service)

    async def read() -> None:
        async for _ in client.open_watch(WatchRequest(resources.PODS, resource_version="0")):
            pass

    reader, packing = asyncio.create_task(read()), asyncio.create_task(store.pack_past())
    tracemalloc.start()
    await _come_and_go(client, range(FIRST_PODS))
    await asyncio.sleep(PACKED_SECONDS)
    before, _ = tracemalloc.get_traced_memory()
    await _come_and_go(client, range(FIRST_PODS, FIRST_PODS + MORE_PODS))
    await asyncio.sleep(PACKED_SECONDS)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    for task in (reader, packing):
        task.cancel()
    assert store.count(resources.PODS.plural) == 0
    return (after - before) / MORE_PODS


async def _come_and_go(client: InProcessClient, numbers: range) -> None:
    kinds = ("PodScheduled", "Initialized", "Ready", "ContainersReady")
    for number in numbers:
        name = f"job-{number}-1-worker-0"
        body = pod_body(name, node="n1")
        own = {"FAIRLEAD_JOB": f"job-{number}", "FAIRLEAD_JOB_UID": f"{number:032}"}
        body["spec"]["containers"][0]["env"] += [{"name": k, "value": v} for k, v in own.items()]
        await client.create(resources.PODS, body, namespace="default")
        for phase in ("Running", "Succeeded"):
            at = f"2026-01-01T00:{number // 60 % 60:02}:{number % 60:02}Z"
            conditions = [
                {"type": kind, "status": "True", "lastTransitionTime": at} for kind in kinds
            ]
            patch = {"status": {"phase": phase, "conditions": conditions}}
            await client.patch(
                resources.PODS, name, patch, namespace="default", subresource="status"
            )
            await asyncio.sleep(0)
        await client.delete(resources.PODS, name, namespace="default", grace_period_seconds=0)
        await asyncio.sleep(0)


def _run_to_the_end(made: Cluster, numbers: range) -> None:
    """Submit jobs and wait until all have ended and have no pods."""
    for number in numbers:
        body = gang_body(f"job-{number}", 1, run_seconds=1)
        made.call("POST", JOBS, encoded(body))
    wait_until(lambda: _ended(made) == numbers.stop, seconds=WAIT_SECONDS_MAX, look_seconds=2)
    wait_until(lambda: made.count(PODS) == 0, seconds=WAIT_SECONDS_MAX, look_seconds=2)


def _ended(made: Cluster) -> int:
    items = made.call("GET", JOBS)["items"]
    return sum(item.get("status", {}).get("state") == "Succeeded" for item in items)
