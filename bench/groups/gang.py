"""A gang of a thousand members on 7,500 virtual nodes, through the real process and HTTP.

Times are those of a person beside the cluster: from sending the job to reading, in a watch, that
it is placed, and that its last pod exists. The CPU time of the cluster's process up to that point
is a figure of its own.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass
from functools import partial

import msgspec

from bench.cluster import JOBS, PODS, Cluster, cluster, wait_until
from bench.harness import Report, slowness
from bench.objects import encoded, gang_body
from bench.processes import cpu_seconds

NODES, MEMBERS, GANGS = 7_500, 1_000, 5


class _Placement(msgspec.Struct):
    attempt: int


class _Status(msgspec.Struct):
    placement: _Placement | None = None


class _Job(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Job


@dataclass(frozen=True)
class Taken:
    """Seconds from sending the job, and CPU seconds of the cluster's process until the last pod."""

    placed: float
    pods: float
    cpu: float


def run(report: Report) -> None:
    """Submit gangs one after the other; the first one warms the process up."""
    with cluster() as made:
        made.up("--nodes", str(NODES))
        taken = []
        for turn in range(GANGS + 1):
            taken.append(_one(made, f"gang-{turn}"))
            # one gang's work is not in the next one's time
            wait_until(partial(_all_run, made, turn + 1), seconds=60)
    report.add("gang.placed_first", taken[0].placed * 1e3, "ms")
    report.add("gang.placed", statistics.median(t.placed for t in taken[1:]) * 1e3, "ms")
    report.add("gang.pods_created", statistics.median(t.pods for t in taken[1:]), "s")
    report.add("gang.pods_created_cpu", statistics.median(t.cpu for t in taken[1:]), "s CPU")


def _one(made: Cluster, name: str) -> Taken:
    body = encoded(gang_body(name, MEMBERS))
    slow = slowness()
    version = made.call("GET", f"{PODS}?limit=1")["metadata"]["resourceVersion"]
    jobs, pods = made.watch(JOBS, version), made.watch(PODS, version)
    moments: dict[str, float] = {}

    def see_placement() -> None:
        decoder = msgspec.json.Decoder(_Event)
        for line in jobs:
            if decoder.decode(line).object.status.placement is not None:
                moments["placed"] = time.perf_counter()
                return

    def see_pods() -> None:
        left = MEMBERS
        for line in pods:
            left -= line.startswith(b'{"type":"ADDED"')
            if not left:
                moments["pods"] = time.perf_counter()
                return

    threads = [threading.Thread(target=see) for see in (see_placement, see_pods)]
    for thread in threads:
        thread.start()
    cpu, start = cpu_seconds(made.pid), time.perf_counter()
    made.call("POST", JOBS, body)
    for thread in threads:
        thread.join(60)
    cpu = cpu_seconds(made.pid) - cpu
    jobs.close()
    pods.close()
    placed, created = moments["placed"] - start, moments["pods"] - start
    slow = (slow + slowness()) / 2
    return Taken(placed / slow, created / slow, cpu / slow)


def _all_run(made: Cluster, count: int) -> bool:
    return made.running_jobs() == count
