"""What the controllers ask of a real server: requests and bytes, by who asks and for what.

At 750 nodes and again at 7,500, on one server: the start, a window in which nothing happens, a gang
of 500, and 200 jobs of one member; the last two from submit until the pods are bound and what is
reported of it is written. A proxy counts (`bench.real.counting`). The table goes to
`bench/out/real_cost.md`. While nothing happens there is the lease, and the server's bookmarks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from bench.harness import OUT, Report
from bench.objects import gang_body
from bench.real.counting import Asked, Counting, Tally, counting
from bench.real.ground import NODE_COUNT, Ground, each, on_ground, time_bound
from bench.real.operator import operator
from fairlead.api.resources import JOBS

FEW_NODES = 750
MEMBERS = 500
SMALL_JOBS = 200
IDLE_SECONDS = 60.0
SETTLE_SECONDS = 5.0
Counts = dict[Asked, Tally]


@dataclass
class _Phase:
    """What was asked for in one phase at one size."""

    nodes: int
    name: str
    per: str
    divisor: float
    counts: Counts


def run(report: Report) -> None:
    """Count at both sizes; one line where there is no server."""
    phases: list[_Phase] = []

    async def measure(ground: Ground) -> None:
        first = 0
        for nodes in (FEW_NODES, NODE_COUNT):
            await ground.add_nodes(nodes - first, first=first)
            first = nodes
            async with counting(ground.plane) as counted, operator(counted.kubeconfig):
                phases.extend(await _phases(ground, counted, nodes))
            await ground.clear()

    on_ground(report, "real_cost", measure)
    if not phases:
        return
    text = _table(phases)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    (OUT.parent / "real_cost.md").write_text(text)
    print(text)
    _report(report, phases)


def _report(report: Report, phases: list[_Phase]) -> None:
    found = {(phase.nodes, phase.name): phase for phase in phases}
    few, many = found[FEW_NODES, "idle"], found[NODE_COUNT, "idle"]
    lists = [each.requests for asked, each in found[NODE_COUNT, "start"].counts.items()
             if asked.verb == "list" and asked.actor == "mirrors"]  # fmt: skip
    report.add("real_cost.lists_per_kind", max(lists), "LISTs")
    for phase in (few, many):
        requests = _sum(phase, lambda each: each.requests) / phase.divisor
        report.add(f"real_cost.idle_requests_{phase.nodes}", requests, "1/min")
        size = _sum(phase, lambda each: each.bytes) / phase.divisor
        report.add(f"real_cost.idle_bytes_{phase.nodes}", size, "B/min")
    ratio = _sum(many, lambda each: each.requests) / _sum(few, lambda each: each.requests)
    report.add("real_cost.idle_ratio", ratio, "x")
    for name in ("gang", "jobs"):
        phase = found[NODE_COUNT, name]
        writes = sum(t.requests for a, t in phase.counts.items() if a.verb in ("post", "patch"))
        report.add(f"real_cost.writes_per_{phase.per}", writes / phase.divisor, "writes")


def _sum(phase: _Phase, of: Callable[[Tally], int]) -> int:
    return sum(map(of, phase.counts.values()))


async def _phases(ground: Ground, counted: Counting, nodes: int) -> list[_Phase]:
    async def gang() -> None:
        body = gang_body("gang", MEMBERS, gpus=8)
        await ground.client.create(JOBS, body, namespace="default")

    async def jobs() -> None:
        bodies = [gang_body(f"small-{number}", 1) for number in range(SMALL_JOBS)]
        await each(bodies, lambda body: ground.client.create(JOBS, body, namespace="default"))

    async def window() -> None:
        await asyncio.sleep(IDLE_SECONDS)

    async def count(
        name: str, per: str, divisor: float, work: Callable[[], Awaitable[object]]
    ) -> _Phase:
        before = counted.snapshot()
        await work()
        return _Phase(nodes, name, per, divisor, counted.since(before))

    async def settled(members: int, start: Callable[[], Awaitable[None]]) -> None:
        await time_bound(ground, members, start)
        await asyncio.sleep(SETTLE_SECONDS)

    await asyncio.sleep(SETTLE_SECONDS)
    start = _Phase(nodes, "start", "start", 1, counted.since({}))
    return [
        start,
        await count("idle", "minute", IDLE_SECONDS / 60, window),
        await count("gang", "member", MEMBERS, lambda: settled(MEMBERS, gang)),
        await count("jobs", "job", SMALL_JOBS, lambda: settled(SMALL_JOBS, jobs)),
    ]


def _table(phases: list[_Phase]) -> str:
    """Return one Markdown table of all phases; numbers per start, minute, member or job."""
    lines = [
        "| Nodes | When | Who | Asks | Requests | Sent bytes | Received bytes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for phase in phases:
        when = f"{phase.name}, per {phase.per}"
        for asked, tally in phase.counts.items():
            numbers = (tally.requests, tally.sent_bytes, tally.received_bytes)
            cells = " | ".join(f"{number / phase.divisor:,.4g}" for number in numbers)
            what = f"{asked.verb.upper()} {asked.kind}"
            lines.append(f"| {phase.nodes:,} | {when} | {asked.actor} | {what} | {cells} |")
    return "\n".join(lines) + "\n"
