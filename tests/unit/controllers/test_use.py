"""What members used is kept in the history as their pods end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace
from tests.unit.controllers.test_logs import make
from tests.unit.history.contract import uses_of

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import AttemptUse, MemberUse, encode_use
from fairlead.api.kubernetes.core import Pod
from fairlead.api.resources import JOBS, PODS
from fairlead.controllers.records.use import UseKeeper, UseKeeperOptions
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.kept.history import HistoryError, UseQuery, UseRecord
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job, make_member_pod
from fairlead.testing.fake_client import FakeClient

QUERY = UseQuery("a", "train")
USE = encode_use(MemberUse(4_000, cpu_milliseconds=3_000, memory_peak_bytes=1 << 20))


class Failing(MemoryHistory):
    """Fails so many times first."""

    failures = 0

    async def record_use(self, records: Sequence[UseRecord]) -> None:
        if self.failures:
            self.failures -= 1
            raise HistoryError("no connection")
        await super().record_use(records)


class World:
    def __init__(self, options: UseKeeperOptions | None = None) -> None:
        self.client, self.history = FakeClient(), Failing()
        clock = LoopClock(0.0)
        self.pods: Mirror[Pod] = Mirror(self.client, PODS, clock=clock, rng=random.Random(1))
        self.jobs: Mirror[Job] = Mirror(self.client, JOBS, clock=clock, rng=random.Random(2))
        self.keeper = UseKeeper(
            self.history, self.pods, self.jobs, clock=clock, rng=random.Random(3), options=options
        )

    async def member(self, index: int, use: str = USE, phase: str = "Succeeded") -> str:
        [job] = self.client.stored(JOBS)
        pod = make_member_pod(job, index, phase=phase, node="n")
        noted = {**pod.metadata.annotations, names.USE: use}
        await make(self.client, replace(pod, metadata=replace(pod.metadata, annotations=noted)))
        return pod.metadata.name

    async def begin(self) -> asyncio.Task[None]:
        await make(self.client, make_job("train", namespace="a", count=101))

        async def all_() -> None:
            async with asyncio.TaskGroup() as group:
                for each in (self.pods.run(), self.jobs.run(), self.keeper.run()):
                    group.create_task(each)

        task = asyncio.create_task(all_())
        await asyncio.sleep(0.1)
        return task

    async def kept(self) -> list[str]:
        return [each.task for each in await uses_of(self.history, QUERY)]


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_members_that_ended_are_kept_also_when_their_pods_are_gone_at_once() -> None:
    async def main() -> None:
        world = World()
        task = await world.begin()
        name = await world.member(0)
        await world.client.delete(PODS, name, namespace="a")
        await world.member(1, phase="Failed")
        await world.member(2, phase="Running")
        await asyncio.sleep(1)
        assert await world.kept() == ["worker-0", "worker-1"]
        [job] = world.client.stored(JOBS)
        summed = (await world.history.use_of([job.metadata.uid]))[job.metadata.uid]
        peak = 1 << 20
        assert summed == (AttemptUse(1, 2, 8_000, 2, 6_000, 2, peak, 2 * peak, None),)
        await end(task)

    run(main())


def test_a_history_that_fails_delays_records_and_loses_none() -> None:
    async def main() -> None:
        world = World()
        world.history.failures = 5
        task = await world.begin()
        for index in range(3):
            await world.member(index)
        await asyncio.sleep(1)
        assert await world.kept() == []
        await asyncio.sleep(300)
        assert await world.kept() == ["worker-0", "worker-1", "worker-2"]
        await end(task)

    run(main())


def test_pods_that_are_no_members_and_texts_that_are_no_use_are_not_kept() -> None:
    async def main() -> None:
        world = World()
        task = await world.begin()
        await world.member(200)  # the job has 101
        await world.member(1, use='{"milliseconds":-1}')
        await world.member(2)
        await asyncio.sleep(1)
        assert await world.kept() == ["worker-2"]
        await end(task)

    run(main())


def test_only_so_many_wait_for_a_history_that_fails() -> None:
    async def main() -> None:
        world = World(UseKeeperOptions(waiting_max=10, batch_max=1))
        world.history.failures = 3
        task = await world.begin()
        for index in range(30):
            await world.member(index)
        await asyncio.sleep(300)
        kept = await world.kept()
        assert 10 <= len(kept) <= 12
        assert world.keeper.missed_count == 30 - len(kept)
        await end(task)

    run(main())
