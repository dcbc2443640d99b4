"""Members' logs are kept before the members are gone, and never hold a gang back for long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from msgspec.structs import replace
from tests.unit.history.contract import logs_of

from fairlead.api import names
from fairlead.api.jobs.job import Adopts, Job
from fairlead.api.kubernetes.core import Lease, Pod
from fairlead.api.meta import to_wire
from fairlead.api.resources import JOBS, PODS
from fairlead.api.status import Forbidden, Unavailable
from fairlead.controllers.records.log_queue import LogQueue
from fairlead.controllers.records.logs import KeeperOptions, KeepingClient, LogKeeper
from fairlead.history.memory import MemoryLogs
from fairlead.model.pools.grouping import membership_of
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.kept.history import LogQuery, LogText
from fairlead.runtime.leading.leader import LeaderTerm
from fairlead.runtime.watching.mirror import Mirror
from fairlead.sim.loop import run
from fairlead.testing.builders import make_job, make_member_pod, make_placement, make_pod
from fairlead.testing.fake_client import FakeClient

QUERY = LogQuery("a", "train")


@dataclass
class Reader:
    """Answers with the pod's name, or as it is told."""

    seconds: float = 0.0
    failures: list[Exception] = field(default_factory=list[Exception])
    size: int = 0
    read_count: int = 0
    open_count: int = 0
    open_max: int = 0

    async def read(self, pod: Pod, *, bytes_max: int, seconds_max: float) -> LogText:
        self.read_count += 1
        self.open_count += 1
        self.open_max = max(self.open_max, self.open_count)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.open_count -= 1
        if self.failures:
            raise self.failures.pop(0)
        text = pod.metadata.name.encode() if not self.size else b"x" * min(self.size, bytes_max)
        return LogText(text, is_cut=self.size > bytes_max)


@dataclass
class World:
    client: FakeClient
    keeper: LogKeeper
    store: MemoryLogs
    mirror: Mirror[Pod]
    writer: KeepingClient

    async def tasks(self) -> list[str]:
        await asyncio.sleep(5)
        return [log.task for log in await logs_of(self.store, QUERY)]


@asynccontextmanager
async def world(
    reader: Reader, *, options: KeeperOptions | None = None, client: FakeClient | None = None,
    store: MemoryLogs | None = None,
) -> AsyncIterator[World]:  # fmt: skip
    client, store = client or FakeClient(), store or MemoryLogs()
    clock = LoopClock(0.0)
    mirror: Mirror[Pod] = Mirror(client, PODS, clock=clock, rng=random.Random(1))
    jobs: Mirror[Job] = Mirror(client, JOBS, clock=clock, rng=random.Random(2))
    if not client.stored(JOBS):
        await make(client, make_job("train", namespace="a", count=101))
    keeper = LogKeeper(reader, store, clock=clock, options=options)
    term = LeaderTerm(Lease(), asyncio.get_running_loop().time() + 1e6)
    async with asyncio.TaskGroup() as group:
        running = (mirror.run(), jobs.run(), keeper.run(mirror, jobs))
        tasks = [group.create_task(each) for each in running]
        await mirror.wait_synced()
        await asyncio.sleep(0.1)
        yield World(client, keeper, store, mirror, KeepingClient(client, term, keeper))
        for task in tasks:
            task.cancel()


async def make(client: FakeClient, obj: Job | Pod) -> None:
    wire = to_wire(obj)
    wire["metadata"].pop("resourceVersion", None)
    resource = JOBS if isinstance(obj, Job) else PODS
    await client.create(resource, wire, namespace=obj.metadata.namespace)


def job_of(client: FakeClient) -> Job:
    [job] = client.stored(JOBS)
    return job


async def member(client: FakeClient, index: int, *, phase: str = "Running") -> str:
    pod = make_member_pod(job_of(client), index, phase=phase, node="n")
    await make(client, pod)
    return pod.metadata.name


def forged(pod: Pod, **labels: str) -> Pod:
    """A pod without an owner that has the labels of a member."""
    meta = replace(pod.metadata, owner_references=(), labels={**pod.metadata.labels, **labels})
    return replace(pod, metadata=meta)


def test_a_pod_that_only_says_that_it_is_a_member_has_no_log_kept() -> None:
    """Its labels, or a reference to a job that has no such member, are its maker's words."""

    async def main() -> None:
        reader = Reader()
        async with world(reader) as w:
            job = job_of(w.client)
            pod = make_member_pod(job, 0, phase="Failed", node="n")
            unowned = forged(pod, **{names.GANG_NAME: "train"})
            elsewhere = replace(unowned, metadata=replace(pod.metadata, namespace="attacker"))
            ghost = make_job("ghost", namespace="a", uid="none")
            older = replace(job, metadata=replace(job.metadata, uid="of-an-earlier-job"))
            later = replace(job, status=replace(job.status, attempt=2))
            larger = make_job("train", namespace="a", count=200, uid=job.metadata.uid)
            for each in (
                unowned, elsewhere, make_member_pod(ghost, phase="Failed"),
                make_member_pod(older, 1, phase="Failed"), make_member_pod(later, phase="Failed"),
                make_member_pod(larger, 101, phase="Failed"),
            ):  # fmt: skip
                await make(w.client, each)
                await asyncio.sleep(1)
                await w.writer.delete(PODS, each.metadata.name, namespace=each.metadata.namespace)
            assert reader.read_count == 0
            await make(w.client, pod)
            assert await w.tasks() == ["worker-0"]

    run(main())


def test_a_pod_of_another_tool_has_its_log_kept_in_the_place_of_its_job() -> None:
    async def main() -> None:
        reader, client = Reader(), FakeClient()
        pods = [
            make_pod(f"pod-{i}", namespace="a", labels={names.GANG_NAME: "train"}) for i in range(6)
        ]
        key = membership_of(pods[0]).group.key
        adopts = Adopts(kind="Gang", name="train")
        job = make_job(key[1], namespace="a", count=3, spec={"adopts": adopts})
        placement = make_placement({"worker": ["n0", "n1", "n2"]})
        await make(client, replace(job, status=replace(job.status, placement=placement)))
        async with world(reader, client=client) as w:
            member = make_member_pod(job_of(client), 1, phase="Failed", node="n1")
            for pod, node, labels in zip(pods, ("n0", *["n1"] * 5), (
                {}, {names.JOB_UID: "another"}, {names.GANG_NAME: "another"}, {names.ATTEMPT: "2"},
                {names.INDEX: "3"}, {},
            ), strict=True):  # fmt: skip
                assert reader.read_count == 0
                labels = {**pod.metadata.labels, **member.metadata.labels, **labels}
                spec = replace(member.spec, node_name=node)
                meta = replace(pod.metadata, labels=labels)
                await make(client, replace(member, metadata=meta, spec=spec))
                await asyncio.sleep(5)
            assert [log.task for log in await logs_of(w.store, LogQuery(*key))] == ["worker-1"]

    run(main())


def test_namespaces_take_turns_and_the_one_that_has_most_waiting_loses_its_oldest() -> None:
    queue = LogQueue(count_max=4)
    pods = [make_pod(f"loud-{i}", namespace="loud") for i in range(4)]
    quiet = make_pod("quiet", namespace="quiet")
    assert [queue.add(pod) for pod in (*pods[:3], quiet)] == [None] * 4
    assert queue.add(pods[3]) == pods[0]
    assert pods[0] not in queue
    assert pods[1] in queue
    queue.discard(pods[1])
    queue.discard(pods[0])
    assert [queue.pop() for _ in range(len(queue))] == [pods[2], quiet, pods[3]]
    assert not queue


def test_a_pod_under_a_name_that_is_not_a_members_has_no_log_kept() -> None:
    async def main() -> None:
        async with world(Reader()) as w:
            pod = make_member_pod(job_of(w.client), 0, phase="Failed")
            other = replace(pod, metadata=replace(pod.metadata, name="other"))
            for each in (pod, other):
                await make(w.client, each)
            await asyncio.sleep(5)
            assert [log.text for log in await logs_of(w.store, QUERY)] == [
                pod.metadata.name.encode()
            ]

    run(main())


async def end(client: FakeClient, name: str) -> None:
    patch = {"status": {"phase": "Failed"}}
    await client.patch(PODS, name, patch, namespace="a", subresource="status")


def test_a_member_that_ends_has_its_log_kept() -> None:
    async def main() -> None:
        async with world(Reader()) as w:
            names_ = [await member(w.client, index) for index in (10, 2, 3)]
            for name in names_[:2]:
                await end(w.client, name)
            assert await w.tasks() == ["worker-2", "worker-10"]

    run(main())


def test_a_running_member_has_its_log_kept_before_it_is_deleted() -> None:
    async def main() -> None:
        reader = Reader(seconds=2.0)
        async with world(reader) as w:
            name = await member(w.client, 0)
            await asyncio.sleep(1)
            await w.writer.delete(PODS, name, namespace="a")
            assert [log.text for log in await logs_of(w.store, QUERY)] == [name.encode()]
            assert not (await w.client.list(PODS)).items

    run(main())


def test_a_member_that_was_not_deleted_after_all_has_its_whole_log_kept_when_it_ends() -> None:
    async def main() -> None:
        reader = Reader(size=10)
        async with world(reader) as w:
            name = await member(w.client, 0)
            await asyncio.sleep(1)
            w.client.fail_next("delete", Unavailable("cut"))
            with suppress(Unavailable):
                await w.writer.delete(PODS, name, namespace="a")
            reader.size = 20
            await end(w.client, name)
            assert await w.tasks() == ["worker-0"]
            assert [len(log.text) for log in await logs_of(w.store, QUERY)] == [20]

    run(main())


def test_a_log_that_is_kept_is_not_fetched_again_also_by_the_next_leader() -> None:
    async def main() -> None:
        reader = Reader()
        async with world(reader) as w:
            name = await member(w.client, 0, phase="Succeeded")
            assert await w.tasks() == ["worker-0"]
        async with world(reader, client=w.client, store=w.store) as later:
            assert await later.tasks() == ["worker-0"]
            await later.writer.delete(PODS, name, namespace="a")
            await asyncio.sleep(1)
            assert not later.keeper._kept, "nothing is remembered of pods that are gone"
        assert reader.read_count == 1

    run(main())


def test_kubelets_that_hang_delay_the_deletion_of_a_gang_by_a_bound_for_all_together() -> None:
    async def main() -> None:
        reader = Reader(seconds=3600.0)
        options = KeeperOptions(attempt_seconds_max=10.0, fetches_max=4)
        async with world(reader, options=options) as w:
            gang = [await member(w.client, index) for index in range(100)]
            await asyncio.sleep(1)
            started_at = asyncio.get_running_loop().time()
            async with asyncio.TaskGroup() as group:
                for name in gang:
                    group.create_task(w.writer.delete(PODS, name, namespace="a"))
            assert asyncio.get_running_loop().time() - started_at < 11
            assert not (await w.client.list(PODS)).items
            assert w.keeper.missed_count == 100
            assert reader.open_max == 4

    run(main())


def test_the_bound_is_one_for_members_that_are_deleted_one_after_another() -> None:
    async def main() -> None:
        options = KeeperOptions(attempt_seconds_max=10.0)
        async with world(Reader(seconds=3600.0), options=options) as w:
            gang = [await member(w.client, index) for index in range(5)]
            await asyncio.sleep(1)
            started_at = asyncio.get_running_loop().time()
            for name in gang:
                await w.writer.delete(PODS, name, namespace="a")
            assert asyncio.get_running_loop().time() - started_at < 11
            assert w.keeper.missed_count == 5

    run(main())


def test_a_kubelet_that_fails_for_a_moment_is_asked_again_and_one_that_refuses_is_not() -> None:
    async def main() -> None:
        reader = Reader(failures=[Unavailable("x"), Unavailable("x")])
        async with world(reader) as w:
            await end(w.client, await member(w.client, 0))
            assert await w.tasks() == ["worker-0"]
            reader.failures = [Forbidden("pods/log is not allowed")]
            await end(w.client, await member(w.client, 1))
            assert await w.tasks() == ["worker-0"]
            assert (reader.read_count, w.keeper.missed_count) == (4, 1)
            reader.failures = [Unavailable("x")] * KeeperOptions().tries_max
            await end(w.client, await member(w.client, 2))
            assert await w.tasks() == ["worker-0"]
            assert (reader.read_count, w.keeper.missed_count) == (7, 2)

    run(main())


def test_a_log_that_could_not_be_read_uses_up_nothing_of_its_jobs_part() -> None:
    async def main() -> None:
        options = KeeperOptions(member_bytes_max=100, attempt_bytes_max=100)
        async with world(Reader(size=80, failures=[Unavailable("x")]), options=options) as w:
            await end(w.client, await member(w.client, 0))
            assert await w.tasks() == ["worker-0"]
            assert w.keeper.missed_count == 0

    run(main())


def test_a_job_that_writes_without_end_has_a_bounded_part_kept() -> None:
    async def main() -> None:
        options = KeeperOptions(member_bytes_max=100, attempt_bytes_max=250, fetches_max=1)
        async with world(Reader(size=1000), options=options) as w:
            for index in range(5):
                await end(w.client, await member(w.client, index))
            await w.tasks()
            found = await logs_of(w.store, QUERY)
            assert [(len(log.text), log.is_cut) for log in found] == [
                (100, True), (100, True), (50, True),
            ]  # fmt: skip

    run(main())


def test_pods_of_others_and_members_that_never_started_are_left_alone() -> None:
    async def main() -> None:
        reader = Reader()
        async with world(reader) as w:
            name = await member(w.client, 0, phase="Pending")
            stranger = {"metadata": {"name": "web"}, "status": {"phase": "Failed"},
                        "spec": {"containers": [{"name": "main", "image": "i"}]}}  # fmt: skip
            await w.client.create(PODS, stranger, namespace="a")
            await asyncio.sleep(1)
            for each in (name, "web"):
                await w.writer.delete(PODS, each, namespace="a")
            assert reader.read_count == 0

    run(main())


def test_a_pod_that_claims_an_absurd_attempt_is_no_member() -> None:
    async def main() -> None:
        reader = Reader()
        async with world(reader) as w:
            bad = await member(w.client, 0)
            labels = {"metadata": {"labels": {names.ATTEMPT: "9" * 20}}}
            await w.client.patch(PODS, bad, labels, namespace="a")
            await end(w.client, bad)
            await end(w.client, await member(w.client, 1))
            assert await w.tasks() == ["worker-1"]
        assert reader.read_count == 1

    run(main())


def test_a_log_whose_keeping_fails_in_an_unforeseen_way_is_missed_and_others_are_kept() -> None:
    async def main() -> None:
        async with world(Reader(failures=[OverflowError("too large")])) as w:
            await end(w.client, await member(w.client, 0))
            await asyncio.sleep(1)
            await end(w.client, await member(w.client, 1))
            assert await w.tasks() == ["worker-1"]
            assert w.keeper.missed_count == 1

    run(main())
