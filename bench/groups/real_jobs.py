"""Many small jobs on a real server: 5,000 jobs of one GPU beside as many batch/v1 Jobs, and pods.

From the first request until the last pod is bound, as one watch tells it; pods per second. All
sides are fed by the same client over the same number of connections, and take turns on one server
of 7,500 nodes. Pods of batch/v1 Jobs (`batch`) are made by kube-controller-manager and bound by
kube-scheduler, which binds those that are created alone (`plain`), too. A job costs more requests
than a pod (it has a status), and what they are is printed by `real_cost`. `bare` is the least that
any controller of a custom resource has to write: the job, its status once, and its pod; by a client
that decides nothing and watches nothing.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench.harness import Report
from bench.objects import gang_body, pod_body
from bench.processes import cpu_seconds
from bench.real.ground import NODE_COUNT, BoundPod, Ground, each, on_ground, time_bound
from bench.real.operator import operator
from fairlead.api.resources import JOBS, PODS, Resource

BATCH_JOBS = Resource("batch", "v1", "jobs", "Job", BoundPod)
COUNT = 5_000
ROUNDS = 3


def run(report: Report) -> None:
    """Measure three rounds; one line where there is no server."""
    times: dict[str, list[float]] = {
        "plain": [], "batch": [], "direct": [], "bare": [],
    }  # fmt: skip

    async def measure(ground: Ground) -> None:
        await ground.add_nodes(NODE_COUNT)
        for turn in range(ROUNDS):
            times["plain"].append(await _plain(ground, turn))
            await ground.remove_pods()
            times["batch"].append(await _batch(ground, turn))
            times["direct"].append(await _jobs(ground, turn))
            times["bare"].append(await _bare(ground, turn))

    on_ground(report, "real_jobs", measure, scheduler=True, controllers=["job-controller"])
    if not times["plain"]:
        return
    medians = {way: statistics.median(taken) for way, taken in times.items()}
    for way, taken in times.items():
        report.add(f"real_jobs.{way}", COUNT / medians[way], "pods/s")
        text = ", ".join(f"{seconds:.2f}" for seconds in taken)
        print(f"    {way}: {text} s for {COUNT}, spread {statistics.stdev(taken):.2f}")
    report.add("real_jobs.direct_ratio", medians["plain"] / medians["direct"], "x")
    report.add("real_jobs.batch_ratio", medians["batch"] / medians["direct"], "x batch/v1")
    report.add("real_jobs.bare_ratio", medians["plain"] / medians["bare"], "x")


def _pod(name: str, node: str = "") -> dict[str, Any]:
    body = pod_body(name, members=1, node=node)
    del body["metadata"]["ownerReferences"]
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    return body


async def _plain(ground: Ground, turn: int) -> float:
    async def start() -> None:
        bodies = [_pod(f"plain-{turn}-{number}") for number in range(COUNT)]
        await each(bodies, lambda body: ground.client.create(PODS, body, namespace="default"))

    return await _timed(ground, f"plain-{turn}", start, {})


async def _batch(ground: Ground, turn: int) -> float:
    async def start() -> None:
        await each(
            [_batch_job(f"batch-{turn}-{number}") for number in range(COUNT)],
            lambda body: ground.client.create(BATCH_JOBS, body, namespace="default"),
        )

    taken = await _timed(ground, f"batch-{turn}", start, {})
    await ground.remove_all(BATCH_JOBS)
    await ground.remove_pods()
    return taken


def _batch_job(name: str) -> dict[str, Any]:
    spec = _pod(name)["spec"] | {"restartPolicy": "Never"}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}


async def _jobs(ground: Ground, turn: int) -> float:
    async def start() -> None:
        bodies = [gang_body(f"direct-{turn}-{number}", 1) for number in range(COUNT)]
        await each(bodies, lambda body: ground.client.create(JOBS, body, namespace="default"))

    async with operator(ground.plane.kubeconfig(), tag="direct") as ours:
        taken = await _timed(ground, f"direct-{turn}", start, {"fairlead": ours.pid})
    await ground.clear()
    return taken


async def _bare(ground: Ground, turn: int) -> float:
    client = ground.client

    async def write(number: int) -> None:
        name = f"bare-{turn}-{number}"
        await client.create(JOBS, gang_body(name, 1), namespace="default")
        status = {"status": {"attempt": 1, "state": "Starting"}}
        await client.patch(JOBS, name, status, namespace="default", subresource="status")
        pod = _pod(name, f"n{number % NODE_COUNT:05d}")
        await client.create(PODS, pod, namespace="default")

    async def start() -> None:
        await each(range(COUNT), write)

    taken = await _timed(ground, f"bare-{turn}", start, {})
    await ground.clear()
    return taken


async def _timed(ground: Ground, name: str, start: Any, more: dict[str, int]) -> float:
    pids = {**ground.pids, **more}
    before = {who: cpu_seconds(pid) for who, pid in pids.items()}
    taken = await time_bound(ground, COUNT, start)
    used = {who: cpu_seconds(pid) - before[who] for who, pid in pids.items()}
    text = ", ".join(f"{who} {seconds:.2f}" for who, seconds in used.items())
    print(f"    {name}: {taken:.2f} s; CPU seconds: {text}", flush=True)
    return taken
