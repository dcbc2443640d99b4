"""Whole-node gangs on 7,500 nodes of a real control plane: Fairlead beside the stock scheduler.

From the request that starts it until the last pod is bound, as a watch tells it: one Job for us
(the controllers are a process of their own), as many pods for kube-scheduler, whose client's limits
are raised. `raw` is the server's own limit: the pods of such a gang, with their nodes, created by a
client that does nothing else. All take turns on one server; nodes are API objects, and nobody runs
the pods. Larger gangs are compared with gangs of 1,000 by the time per member. Direct gangs and raw
creates, whose times are nearest to each other, have more turns than the rest, and are compared turn
by turn: within a turn the server's garbage and history are most alike.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.harness import Report, cpu_slowness
from bench.objects import gang_body, pod_body
from bench.processes import cpu_seconds
from bench.real.ground import NODE_COUNT, REST_SECONDS, Ground, each, on_ground, time_bound
from bench.real.operator import Operator, operator
from bench.real.raw import as_sent, ready_to_create
from fairlead.api.resources import JOBS, PODS

MEMBERS = 1_000
LARGER = (2_000, 4_000)
WAYS = (
    ("direct", "direct", MEMBERS),
    ("pinned", "pinned", MEMBERS),
    *((f"direct-{count}", "direct", count) for count in LARGER),
)
ROUNDS = 3
PAIRS = 7
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class _Cost:
    """Seconds of the wall; CPU seconds of ours and of everybody (calibrated)."""

    seconds: float
    ours: float
    everybody: float


def run(report: Report) -> None:
    """Measure raw creates, kube-scheduler, direct and pinned; one line where there is no server."""
    times: dict[str, list[_Cost]] = {}

    async def measure(ground: Ground) -> None:
        await ground.add_nodes(NODE_COUNT)
        await _measure(ground, times)

    on_ground(report, "gangs", measure, scheduler=True)
    if not times:
        return
    medians = {way: statistics.median(each.seconds for each in some) for way, some in times.items()}
    for way, some in times.items():
        report.add(f"gangs.{way.replace('-', '_')}", medians[way], "s")
        text = ", ".join(f"{each.seconds:.2f}" for each in some)
        print(f"    {way}: {text} s, spread {statistics.stdev(e.seconds for e in some):.2f}")
    report.add("gangs.direct_ratio", medians["direct"] / medians["plain"], "x")
    report.add("gangs.pinned_ratio", medians["pinned"] / medians["plain"], "x")
    report.add("gangs.raw_ratio", medians["raw"] / medians["plain"], "x")
    pairs = zip(times["raw"], times["direct"], strict=True)
    of_raw = statistics.median(raw.seconds / ours.seconds for raw, ours in pairs)
    report.add("gangs.direct_of_raw", of_raw, "x")
    ours = statistics.median(each.ours for each in times["direct"])
    report.add("gangs.cpu_per_member", ours / MEMBERS * 1e6, "us CPU")
    for way in ("raw", "plain", "direct", "pinned"):
        cpu = statistics.median(each.everybody for each in times[way])
        report.add(f"gangs.{way}_cpu", cpu / MEMBERS * 1e6, "us CPU")
    for members in LARGER:
        per_member = medians[f"direct-{members}"] / members
        report.add(f"gangs.per_member_{members}", per_member / (medians["direct"] / MEMBERS), "x")
        cpu = statistics.median(each.ours for each in times[f"direct-{members}"]) / members
        report.add(f"gangs.cpu_per_member_{members}", cpu / (ours / MEMBERS), "x")


async def _measure(ground: Ground, times: dict[str, list[_Cost]]) -> None:
    for way in ("raw", "plain", *(way for way, _, _ in WAYS)):
        times[way] = []
    async with operator(ground.plane.kubeconfig(), tag="first") as ours:
        await _gang(ground, ours, "first", MEMBERS)
        members = await as_sent(ground, "first")
    await ground.clear()
    for turn in range(PAIRS):
        create = await ready_to_create(ground.plane, members)
        times["raw"].append(await _cost(ground, f"raw-{turn}", MEMBERS, create))
        await ground.remove_pods()
        if turn < ROUNDS:
            name = f"plain-{turn}"
            times["plain"].append(await _cost(ground, name, MEMBERS, _plain(ground, name)))
            await ground.remove_pods()
        for way, binding, count in WAYS[: None if turn < ROUNDS else 1]:
            async with operator(ground.plane.kubeconfig(), binding=binding, tag=way) as ours:
                times[way].append(await _gang(ground, ours, f"{way}-{turn}", count))
            await ground.clear()


async def _gang(ground: Ground, ours: Operator, name: str, members: int) -> _Cost:
    async def start() -> None:
        await ground.client.create(JOBS, gang_body(name, members, gpus=8), namespace="default")

    await asyncio.sleep(REST_SECONDS)  # our start has made the server list everything
    return await _cost(ground, name, members, start, ours=ours)


async def _cost(
    ground: Ground,
    name: str,
    members: int,
    start: Callable[[], Awaitable[None]],
    *,
    ours: Operator | None = None,
) -> _Cost:
    """Return what one gang takes; print it, with who used how much CPU."""
    pids = ground.pids | ({"fairlead": ours.pid} if ours else {})
    slow = cpu_slowness()
    before = {who: cpu_seconds(pid) for who, pid in pids.items()}
    taken = await time_bound(ground, members, start)
    used = {who: cpu_seconds(pid) - before[who] for who, pid in pids.items()}
    text = ", ".join(f"{who} {seconds:.2f}" for who, seconds in used.items())
    print(f"    {name}: {taken:.2f} s; CPU seconds: {text}", flush=True)
    calibrated = (slow + cpu_slowness()) / 2
    mine = used.get("fairlead", 0.0) / calibrated
    return _Cost(taken, mine, sum(used.values()) / calibrated)


def _plain(ground: Ground, prefix: str) -> Callable[[], Awaitable[None]]:
    """Start by creating pods of the size of a gang's members, but with no owner to be collected."""

    def pod(number: int) -> dict[str, Any]:
        body = pod_body(f"{prefix}-{number}")
        del body["metadata"]["ownerReferences"]
        body["spec"]["containers"][0]["resources"] = {"limits": {GPU: "8"}}
        return body

    async def start() -> None:
        bodies = [pod(number) for number in range(MEMBERS)]
        await each(bodies, lambda body: ground.client.create(PODS, body, namespace="default"))

    return start
