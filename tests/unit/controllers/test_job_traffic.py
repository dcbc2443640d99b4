"""What members had sent is kept in the history as their nodes report it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

from tests.unit.controllers.test_logs import make

from fairlead.api.cluster.node_report import (
    NodeReport,
    NodeReportStatus,
    ReportedFlow,
    ReportedTraffic,
)
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, NODE_REPORTS, PODS
from fairlead.controllers.records.job_traffic import TrafficKeeper, TrafficKeeperOptions
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.kept.history import HistoryError, TrafficRecord
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job, make_member_pod
from fairlead.testing.fake_client import FakeClient


class Failing(MemoryHistory):
    """Fails so many times first."""

    failures = 0

    async def record_traffic(self, records: Sequence[TrafficRecord]) -> None:
        if self.failures:
            self.failures -= 1
            raise HistoryError("no connection")
        await super().record_traffic(records)


class World:
    def __init__(self, options: TrafficKeeperOptions | None = None) -> None:
        self.client, self.history = FakeClient(), Failing()
        clock = LoopClock(0.0)
        self.pods: Mirror[Pod] = Mirror(self.client, PODS, clock=clock, rng=random.Random(1))
        self.jobs: Mirror[Job] = Mirror(self.client, JOBS, clock=clock, rng=random.Random(2))
        self.reports: Mirror[NodeReport] = Mirror(
            self.client, NODE_REPORTS, clock=clock, rng=random.Random(4)
        )
        self.keeper = TrafficKeeper(
            self.history, self.pods, self.jobs, self.reports, clock=clock,
            rng=random.Random(3), options=options,
        )  # fmt: skip

    async def begin(self) -> asyncio.Task[None]:
        await make(self.client, make_job("train", namespace="a", count=101))

        async def all_() -> None:
            async with asyncio.TaskGroup() as group:
                for each in (self.pods, self.jobs, self.reports, self.keeper):
                    group.create_task(each.run())

        task = asyncio.create_task(all_())
        await asyncio.sleep(0.1)
        return task

    async def member(self, index: int, phase: str = "Succeeded") -> Pod:
        [job] = self.client.stored(JOBS)
        made = make_member_pod(job, index, phase=phase, node="n")
        await make(self.client, made)
        return await self.client.get(PODS, made.metadata.name, namespace="a")

    async def report(self, node: str, *flows: ReportedFlow) -> None:
        with suppress(Exception):
            await self.client.delete(NODE_REPORTS, node)
        status = NodeReportStatus(traffic=ReportedTraffic(ended=flows))
        body = {"metadata": {"name": node}, "status": to_wire(status)}
        await self.client.create(NODE_REPORTS, body)
        await asyncio.sleep(1)

    async def sent(self) -> dict[str, tuple[int, int]]:
        """Return members and bytes sent by class, of the job."""
        [job] = self.client.stored(JOBS)
        found = (await self.history.traffic_of([job.metadata.uid])).get(job.metadata.uid)
        return {e.traffic_class: (e.members, e.sent) for e in found.classes} if found else {}


def of(pod: Pod, sent: int, name: str = "internet", namespace: str = "a") -> ReportedFlow:
    return ReportedFlow(name, namespace, sent=sent, pod=pod.metadata.uid)


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_report_counts_whether_it_comes_before_or_after_the_end_of_its_pod() -> None:
    async def main() -> None:
        world = World()
        task = await world.begin()
        early = await world.member(0, phase="Running")
        late = await world.member(1)
        await world.client.delete(PODS, late.metadata.name, namespace="a")
        await world.report("n", of(early, 5), of(late, 7))
        assert await world.sent() == {"internet": (1, 7)}, "one still runs"
        await world.client.delete(PODS, early.metadata.name, namespace="a")
        await asyncio.sleep(1)
        assert await world.sent() == {"internet": (2, 12)}
        await world.report("n", of(early, 6), of(late, 7))
        assert await world.sent() == {"internet": (2, 13)}
        await end(task)

    run(main())


def test_a_node_speaks_for_its_own_members_alone_and_in_so_many_classes() -> None:
    async def main() -> None:
        world = World()
        task = await world.begin()
        pod = await world.member(0)
        await world.report("other", of(pod, 5))
        await world.report("n", of(pod, 5, namespace="b"), ReportedFlow("internet", "a", sent=9))
        assert await world.sent() == {}
        await world.report("n", *(of(pod, n, name=f"c{n}") for n in range(1, 101)))
        assert len(await world.sent()) == 8
        await world.report("n", of(pod, 1 << 63, name="c1"))
        assert (await world.sent())["c1"] == (1, (1 << 63) - 1)
        await end(task)

    run(main())


def test_a_history_that_fails_delays_records_and_only_so_many_wait() -> None:
    async def main() -> None:
        world = World(TrafficKeeperOptions(waiting_max=10, batch_max=1))
        world.history.failures = 5
        task = await world.begin()
        pods = [await world.member(n) for n in range(20)]
        await world.report("n", *(of(each, 1) for each in pods))
        assert await world.sent() == {}
        await asyncio.sleep(300)
        kept = (await world.sent())["internet"][0]
        assert kept + world.keeper.missed_count == 20
        assert kept in (10, 11)
        await end(task)

    run(main())
