"""Members whose nodes do not say what they used are sampled, and kept as the others are."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace
from tests.unit.controllers.test_logs import make
from tests.unit.history.contract import uses_of

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.use import MemberUse, decode_use, encode_use
from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.metrics import ContainerMetrics, PodMetrics
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import JOBS, POD_METRICS, PODS
from fairlead.api.status import ApiError, Forbidden, NotFound, Unavailable
from fairlead.api.values.times import format_time
from fairlead.controllers.records.use import UseKeeper
from fairlead.controllers.records.use_samples import UseSampler
from fairlead.decide.use.use_meter import GpuReading
from fairlead.decide.use.use_samples import UsePolicy
from fairlead.decide.verdict import ObjectKey
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.kept.history import UseQuery, UseRecord
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job, make_member_pod
from fairlead.testing.fake_client import FakeClient

QUERY = UseQuery("a", "train")
BEGAN = 1_000_000.0
GIB = 1 << 30


class Watched(MemoryHistory):
    """Counts what is written."""

    writes = 0

    async def record_use(self, records: Sequence[UseRecord]) -> None:
        self.writes += len(records)
        await super().record_use(records)


class World:
    """A job of three members, and metrics.k8s.io, which measures half a processor of each."""

    def __init__(self, history: MemoryHistory | None = None, *, gpus: bool = False) -> None:
        self.client, self.history = FakeClient(), history or Watched()
        self.clock = LoopClock(BEGAN)
        self.pods: Mirror[Pod] = Mirror(self.client, PODS, clock=self.clock, rng=random.Random(1))
        self.jobs: Mirror[Job] = Mirror(self.client, JOBS, clock=self.clock, rng=random.Random(2))
        self.gpus: dict[ObjectKey, GpuReading] | None = {} if gpus else None
        self.is_measured = True

    async def begin(self) -> asyncio.Task[None]:
        """Start the keeper of a leader."""
        if not self.client.stored(JOBS):
            await make(self.client, make_job("train", namespace="a", count=3))
        self.sampler = UseSampler(
            self.client, self.pods, self.jobs, self.history, clock=self.clock,
            policy=UsePolicy(60), gpus=self._gpus if self.gpus is not None else None,
        )  # fmt: skip
        keeper = UseKeeper(self.history, self.pods, self.jobs, clock=self.clock,
                           rng=random.Random(3), sampler=self.sampler)  # fmt: skip

        async def all_() -> None:
            async with asyncio.TaskGroup() as group:
                for each in (self.pods.run(), self.jobs.run(), keeper.run(), self._measure()):
                    group.create_task(each)

        task = asyncio.create_task(all_())
        await asyncio.sleep(0.1)
        return task

    async def _gpus(self) -> Mapping[ObjectKey, GpuReading]:
        if self.gpus is None or not self.gpus:
            raise OSError("no connection")
        return self.gpus

    async def _measure(self) -> None:
        """Write what a metrics-server would answer, each 15 s."""
        while True:
            for pod in self.client.stored(PODS):
                key = pod.metadata.key
                if any(each.metadata.key == key for each in self.client.stored(POD_METRICS)):
                    await self.client.delete(POD_METRICS, key[1], namespace=key[0])
                if self.is_measured and pod.status.phase == "Running":
                    used = ContainerMetrics("main", {"cpu": "500000000n", "memory": "1Gi"})
                    meta = ObjectMeta(name=key[1], namespace=key[0], labels=pod.metadata.labels)
                    said = PodMetrics(meta, format_time(self.clock.now()), "15s", (used,))
                    await self.client.create(POD_METRICS, said, namespace=key[0])
            await asyncio.sleep(15)

    async def member(self, index: int) -> str:
        """Start a member, whose name is returned."""
        [job] = self.client.stored(JOBS)
        pod = make_member_pod(job, index, node="n")
        status = replace(pod.status, start_time=format_time(self.clock.now()))
        await make(self.client, replace(pod, status=status))
        return pod.metadata.name

    async def end(self, name: str, use: MemberUse | None = None) -> None:
        noted = {names.USE: encode_use(use)} if use is not None else {}
        patch = {"metadata": {"annotations": noted}, "status": {"phase": "Succeeded"}}
        await self.client.patch(PODS, name, patch, namespace="a", subresource="status")

    async def kept(self) -> dict[str, MemberUse]:
        found = await uses_of(self.history, QUERY)
        return {each.task: use for each in found
                if (use := decode_use(each.document)) is not None}  # fmt: skip


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_a_member_is_sampled_while_it_runs_and_kept_at_its_end() -> None:
    async def main() -> None:
        world = World()
        task = await world.begin()
        first, second = await world.member(0), await world.member(1)
        await asyncio.sleep(610)
        assert await world.kept() == {}
        await world.end(first)
        await world.client.delete(PODS, second, namespace="a")  # gone without an end
        await asyncio.sleep(1)
        kept = await world.kept()
        assert kept.keys() == {"worker-0", "worker-1"}
        for use in kept.values():
            assert use.cpu_milliseconds is not None
            assert 500 * 525 <= use.cpu_milliseconds <= 500 * 610
            assert (use.memory_peak_bytes, use.is_partial) == (GIB, True)
        await stop(task)

    run(main())


def test_requests_are_one_for_each_namespace_and_round_while_members_run() -> None:
    async def main() -> None:
        world = World()
        task = await world.begin()
        await asyncio.sleep(600)
        assert world.client.count("list", "pods") == 1, "the mirror's own"
        name = await world.member(0)
        await asyncio.sleep(600)
        assert 9 <= world.sampler.request_count <= 11
        await world.end(name)
        await asyncio.sleep(600)
        assert world.sampler.request_count <= 12
        await stop(task)

    run(main())


def test_without_metrics_or_the_right_it_is_asked_seldom_and_nothing_is_kept() -> None:
    async def count(error: ApiError) -> int:
        world = World()
        task = await world.begin()
        world.client.fail_next("list", *[error] * 100)
        name = await world.member(0)
        await asyncio.sleep(3_600)
        await world.end(name)
        await asyncio.sleep(1)
        assert await world.kept() == {}
        await stop(task)
        return world.sampler.request_count

    for error in (NotFound("no such kind"), Forbidden("no right"), Unavailable("no endpoints")):
        assert 5 <= run(count(error)) <= 8


def test_the_next_leader_goes_on_from_what_was_written_meanwhile() -> None:
    async def main() -> None:
        history = Watched()
        world = World(history)
        task = await world.begin()
        name = await world.member(0)
        await asyncio.sleep(2_000)
        assert history.writes == 2, "every 15 minutes"
        await stop(task)
        task = await world.begin()
        await asyncio.sleep(400)
        await world.end(name)
        await asyncio.sleep(1)
        use = (await world.kept())["worker-0"]
        assert use.cpu_milliseconds is not None
        assert 500 * 2_000 <= use.cpu_milliseconds <= 500 * 2_400
        assert use.milliseconds == 2_400_000 or abs(use.milliseconds - 2_400_000) < 3_000
        await stop(task)

    run(main())


def test_gpus_are_kept_beside_what_the_node_says_and_without_it() -> None:
    async def main() -> None:
        world = World(gpus=True)
        assert world.gpus is not None
        world.is_measured = False
        task = await world.begin()
        first, second = await world.member(0), await world.member(1)
        await asyncio.sleep(130)  # meanwhile Prometheus does not answer
        reading = GpuReading(2, 100, 8 * GIB, 600_000, None)
        world.gpus |= {("a", first): reading, ("a", second): reading, ("b", "other"): reading}
        await asyncio.sleep(600)
        await world.end(first)
        await world.end(second, MemberUse(600_000, cpu_milliseconds=7, step_seconds=10, cpu=(1,)))
        await asyncio.sleep(1)
        kept = await world.kept()
        for use in kept.values():
            assert use.gpu_milliseconds is not None
            assert use.gpu_busy_milliseconds is not None
            assert use.gpu_busy_milliseconds * 2 == use.gpu_milliseconds
            assert use.gpu_milliseconds >= 2 * 500_000
            assert (use.gpu_memory_peak_bytes, use.gpu_power_milliwatts) == (8 * GIB, 300_000)
        cpu = {task: use.cpu_milliseconds for task, use in kept.items()}
        assert cpu == {"worker-0": None, "worker-1": 7}
        await stop(task)

    run(main())


def test_a_pod_that_is_no_member_is_not_sampled() -> None:
    async def main() -> None:
        world = World()
        task = await world.begin()
        pod = make_member_pod(world.client.stored(JOBS)[0], 0, node="n")
        wrong = {**pod.metadata.labels, names.INDEX: "7"}
        name = "forged-1-worker-7"
        metadata = replace(pod.metadata, labels=wrong, name=name)
        await make(world.client, replace(pod, metadata=metadata))
        await asyncio.sleep(200)
        assert world.sampler.request_count >= 3
        await world.end(name)
        await asyncio.sleep(1)
        assert await world.kept() == {}
        await stop(task)

    run(main())


def test_looks_end_at_the_latest_sample_and_stand_still_while_none_come() -> None:
    """An idle job is one that was measured to be idle: silence is no use of nothing."""

    async def main() -> None:
        world = World()
        task = await world.begin()
        await world.member(0)
        await asyncio.sleep(600)
        [look] = world.sampler.looks()
        assert look.use.is_partial, "samples end no job"
        assert world.clock.now() - look.at <= 80
        world.is_measured = False
        await asyncio.sleep(900)
        [later] = world.sampler.looks()
        assert world.clock.now() - later.at >= 900
        assert later.use.cpu_milliseconds == look.use.cpu_milliseconds or later.at > look.at
        await stop(task)

    run(main())


def test_looks_at_gpus_are_as_old_as_what_is_known_of_the_gpus() -> None:
    async def main() -> None:
        world = World(gpus=True)
        task = await world.begin()
        name = await world.member(0)
        world.gpus = {("a", name): GpuReading(2, 80)}
        await asyncio.sleep(600)
        [look] = world.sampler.looks()
        assert look.use.gpu_milliseconds is not None
        world.gpus = {}  # Prometheus does not answer
        await asyncio.sleep(600)
        [later] = world.sampler.looks()
        assert later.use.gpu_milliseconds is not None
        assert world.clock.now() - later.at >= 600
        await stop(task)

    run(main())
