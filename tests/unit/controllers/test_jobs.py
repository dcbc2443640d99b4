"""The jobs controller against an API: real loop, real mirrors, virtual time."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.history.contract import records_of

from fairlead.api import names
from fairlead.api.jobs.after import After, AfterFailed
from fairlead.api.jobs.attempt import Attempt
from fairlead.api.jobs.job import Job, Restart, RestartPolicy
from fairlead.api.kubernetes.core import ConfigMap, Pod
from fairlead.api.meta import ObjectMeta, find_condition, to_wire
from fairlead.api.resources import CONFIG_MAPS, JOBS, NODES, PODS, SERVICES, Resource
from fairlead.api.status import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Timeout,
    Unauthorized,
    Unavailable,
)
from fairlead.api.values.times import format_time
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.gangs.finished_jobs import FinishedJobs
from fairlead.controllers.gangs.job_index import JobIndex, JobsMirrors, subject
from fairlead.controllers.gangs.jobs import JobsController
from fairlead.decide.jobs.policy import JobsPolicy, PeerNaming
from fairlead.decide.jobs.view import JobView
from fairlead.decide.verdict import ObjectKey
from fairlead.history.memory import MemoryHistory
from fairlead.model.inventory.spares import with_taint
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.kept.history import HistoryQuery
from fairlead.runtime.loop import ControllerLoop
from fairlead.runtime.watching.mirror import Change
from fairlead.sim.loop import run
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_placement,
)
from fairlead.testing.fake_client import FakeClient


class Events:
    """Keeps what was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def record(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        kind: EventKind,
        *,
        reason: str,
        message: str,
    ) -> None:
        self.told.append((metadata.name, reason))


class Cluster:
    """An API with nodes n0..n3, and a jobs controller that can be killed and started anew."""

    def __init__(self, policy: JobsPolicy | None = None) -> None:
        self.clock = LoopClock(EPOCH)
        self.client = FakeClient(now=self.clock.now)
        self.history = MemoryHistory()
        self.events = Events()
        self.policy = policy or JobsPolicy(keep_finished_pods_seconds=100)
        self.controller: JobsController | None = None
        self._loop: ControllerLoop[Any] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        rng = random.Random(1)
        self.controller = JobsController(
            self.client,
            ClusterWorld.make(self.client, clock=self.clock, rng=rng),
            JobsMirrors.make(self.client, self.policy, clock=self.clock, rng=rng),
            history=self.history,
            events=self.events,
            policy=self.policy,
            clock=self.clock,
            keys=rng,
        )
        self._loop = ControllerLoop(self.controller, clock=self.clock, rng=rng)
        self._task = asyncio.get_running_loop().create_task(self._loop.run())

    def cycle_count(self) -> int:
        assert self._loop is not None
        return self._loop.cycle_count

    async def kill(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def job(self, name: str = "train") -> Job:
        return await self.client.get(JOBS, name, namespace="default")

    async def place(self, *nodes: str, name: str = "train") -> None:
        job = await self.job(name)
        placement = make_placement(nodes, attempt=job.status.attempt)
        patch = {"status": {"placement": to_wire(placement)}}
        await self.client.patch(JOBS, name, patch, namespace="default", subresource="status")

    def config_maps(self) -> list[ConfigMap]:
        """Return those of jobs, without the cluster's own."""
        maps = self.client.stored(CONFIG_MAPS)
        return [each for each in maps if each.metadata.namespace == "default"]

    def pods(self) -> dict[str, Pod]:
        return {p.metadata.name: p for p in self.client.stored(PODS)}

    async def set_pods(self, phase: str, *only: str, **status: object) -> None:
        for number, name in enumerate(sorted(self.pods())):
            if not only or name in only:
                patch = {"status": {"phase": phase, "podIP": f"10.0.0.{number}", **status}}
                await self.client.patch(
                    PODS, name, patch, namespace="default", subresource="status"
                )


def _play(
    play: Callable[[Cluster], Awaitable[None]], *, policy: JobsPolicy | None = None
) -> Cluster:
    cluster = Cluster(policy)

    async def main() -> None:
        for i in range(4):
            await cluster.client.create(NODES, make_node(f"n{i}"))
        cluster.start()
        await play(cluster)
        await cluster.kill()

    run(main())
    return cluster


async def _submit(cluster: Cluster, name: str = "train", count: int = 2, **kwargs: Any) -> None:
    job = make_job(name, count=count, gpus=0, attempt=0, **kwargs)
    await cluster.client.create(JOBS, job, namespace="default")
    await asyncio.sleep(1)


def _swallow_creations(cluster: Cluster) -> list[Callable[[], Awaitable[Any]]]:
    """Let no creation get an answer; return what sends each after all."""
    late: list[Callable[[], Awaitable[Any]]] = []
    create = cluster.client.create

    async def swallow(*args: Any, **kwargs: Any) -> Any:
        late.append(lambda: create(*args, **kwargs))
        raise Timeout("no answer in time")

    cluster.client.create = swallow
    return late


async def _started(cluster: Cluster) -> None:
    await _submit(cluster)
    await cluster.place("n0", "n1")
    await asyncio.sleep(1)
    await cluster.set_pods("Pending")
    await asyncio.sleep(1)
    await cluster.set_pods("Running")
    await asyncio.sleep(1)


def test_a_job_runs_from_submit_to_its_record() -> None:
    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        job = await cluster.job()
        assert job.status.state == "Running"
        assert job.metadata.finalizers == (names.JOB_FINALIZER,)
        [peers] = cluster.config_maps()
        hostfile = b64decode(peers.binary_data["hostfile"]).decode()
        assert hostfile == "10.0.0.0 slots=1\n10.0.0.1 slots=1\n"
        await cluster.set_pods("Succeeded")
        await asyncio.sleep(1)
        assert (await cluster.job()).status.state == "Succeeded"
        assert not cluster.config_maps()
        assert len(cluster.pods()) == 2
        await asyncio.sleep(100)
        assert not cluster.pods()
        [record] = await records_of(cluster.history, HistoryQuery(name="train"))
        assert record.state == "Succeeded"

    cluster = _play(play)
    assert [reason for _, reason in cluster.events.told] == ["Started", "Succeeded"]


def test_the_schedulers_part_of_the_status_is_left_alone_until_the_write_that_ends_the_job() -> (
    None
):
    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        verdict = {"status": {"verdict": {"outcome": "Placed", "reason": "Placed"}}}
        await cluster.client.patch(
            JOBS, "train", verdict, namespace="default", subresource="status"
        )
        await cluster.set_pods("Succeeded", "train-1-worker-0")
        await asyncio.sleep(1)
        status = (await cluster.job()).status
        assert status.members.succeeded == 1
        assert status.placement is not None
        assert status.verdict is not None
        await cluster.set_pods("Succeeded", "train-1-worker-1")
        await asyncio.sleep(1)
        job = await cluster.job()
        assert job.status.state == "Succeeded"
        assert (job.status.placement, job.status.verdict) == (None, None)
        [record] = await records_of(cluster.history, HistoryQuery(name="train"))
        assert '"placement"' in record.document, "the record says where it ran"

    _play(play)


def test_a_controller_that_dies_after_any_write_is_replaced_without_loss() -> None:
    for writes in range(1, 12):

        async def play(cluster: Cluster, writes: int = writes) -> None:
            await _submit(cluster)
            await cluster.place("n0", "n1")
            cluster.client.fail_next("create", *(None,) * (writes % 3), Unavailable("cut"))
            await asyncio.sleep(0.004 * writes)
            await cluster.kill()
            cluster.start()
            await asyncio.sleep(1)
            await cluster.set_pods("Pending")
            await asyncio.sleep(1)
            await cluster.set_pods("Running")
            await asyncio.sleep(1)
            job = await cluster.job()
            assert (job.status.state, job.status.attempt) == ("Running", 1)
            assert sorted(cluster.pods()) == ["train-1-worker-0", "train-1-worker-1"]

        _play(play)


def test_a_lost_compare_and_swap_is_decided_anew() -> None:
    async def play(cluster: Cluster) -> None:
        cluster.client.fail_next("patch", Conflict("modified"), None, Conflict("modified"))
        await _submit(cluster)
        assert (await cluster.job()).status.state == "Waiting"

    _play(play)


@pytest.mark.parametrize(
    ("resource", "name", "owner"),
    [(PODS, "train-1-worker-1", ""), (SERVICES, "train-peers", ""), (SERVICES, "train-peers", "x")],
)
def test_a_name_that_somebody_else_has_ends_the_attempt_with_a_clear_reason(
    resource: Resource[Any], name: str, owner: str
) -> None:
    async def play(cluster: Cluster) -> None:
        await _submit(cluster)
        theirs: dict[str, Any] = {"metadata": {"name": name}, "spec": {}}
        if owner:
            theirs["metadata"]["ownerReferences"] = [_owner(owner)]
        await cluster.client.create(resource, theirs, namespace="default")
        await cluster.place("n0", "n1")
        await asyncio.sleep(5)
        [attempt] = (await cluster.job()).status.attempts
        assert attempt.reason == "NameTaken"
        assert attempt.message == (
            f"{resource.kind} {name} exists already and does not belong to this job"
        )
        assert (await cluster.job()).status.attempt == 2
        assert [each.metadata.name for each in cluster.client.stored(resource)] == [name]

    _play(play, policy=JobsPolicy(peer_naming=PeerNaming.DNS))


def _owner(name: str) -> dict[str, Any]:
    """Return the reference to a job that is not there."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "Job", "name": name, "uid": "earlier",
        "controller": True,
    }  # fmt: skip


def test_what_is_left_of_an_earlier_job_of_the_name_is_awaited() -> None:
    """The cluster collects it; until then no attempt is spent."""

    async def play(cluster: Cluster) -> None:
        await _submit(cluster)
        name = "train-peers"
        left = {"metadata": {"name": name, "ownerReferences": [_owner("train")]}}
        await cluster.client.create(SERVICES, left, namespace="default")
        await cluster.place("n0", "n1")
        await asyncio.sleep(20)
        assert (await cluster.job()).status.attempt == 1
        await cluster.client.delete(SERVICES, name, namespace="default")
        await asyncio.sleep(60)
        made = await cluster.client.get(SERVICES, name, namespace="default")
        job = await cluster.job()
        assert made.metadata.owner_references[0].uid == job.metadata.uid
        assert job.status.attempt == 1

    _play(play, policy=JobsPolicy(peer_naming=PeerNaming.DNS))


def _forged(pod: Pod, **metadata: object) -> dict[str, Any]:
    """Return a pod that looks like `pod`, owner and labels included."""
    wire = to_wire(pod)
    wire["metadata"] = {k: v for k, v in wire["metadata"].items() if k != "resourceVersion"}
    wire["metadata"] |= {"uid": "forged", **metadata}
    return wire


def test_what_another_namespace_says_of_a_job_changes_nothing_of_it() -> None:
    """A pod there names the job as its controller, with a member's name, labels and a failure."""

    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        members = cluster.pods()
        name = next(iter(members))
        held = {"namespace": "attacker", "finalizers": ["example.com/stays"]}
        forged = _forged(members[name], **held)
        await cluster.client.create(PODS, forged, namespace="attacker")
        failed = {"status": {"phase": "Failed"}}
        await cluster.client.patch(PODS, name, failed, namespace="attacker", subresource="status")
        await asyncio.sleep(3)
        cycles = cluster.cycle_count()
        touched = {"metadata": {"annotations": {"any": "event"}}}
        await cluster.client.patch(PODS, name, touched, namespace="default")
        await asyncio.sleep(3)
        assert cluster.cycle_count() > cycles
        job = await cluster.job()
        assert (job.status.state, job.status.attempt) == ("Running", 1)
        stored = cluster.client.stored(PODS)
        own = [p.metadata.uid for p in stored if p.metadata.namespace == "default"]
        assert sorted(own) == sorted(p.metadata.uid for p in members.values())

    _play(play)


def test_a_pod_under_another_name_is_no_member_and_goes() -> None:
    """Somebody in the job's own namespace makes a second pod for one member."""

    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        members = cluster.pods()
        forged = _forged(next(iter(members.values())), name="a-second-one")
        await cluster.client.create(PODS, forged, namespace="default")
        await asyncio.sleep(3)
        assert cluster.client.count("delete", "pods") == 1
        assert sorted(cluster.pods()) == sorted(members)
        job = await cluster.job()
        assert (job.status.state, job.status.attempt) == ("Running", 1)
        assert job.status.members.running == 2

    _play(play)


def test_pods_that_the_api_refuses_fail_the_attempt_with_its_words() -> None:
    async def play(cluster: Cluster) -> None:
        await _submit(cluster)
        cluster.client.fail_next("create", Invalid("spec.containers[0].image: Required value"))
        await cluster.place("n0", "n1")
        await asyncio.sleep(5)
        [attempt] = (await cluster.job()).status.attempts
        assert (attempt.reason, attempt.message) == (
            "PodRejected", "spec.containers[0].image: Required value",
        )  # fmt: skip

    _play(play)


_NO_RIGHTS = (
    'pods is forbidden: User "fairlead" cannot {} resource "pods" in API group "" in the namespace '
    '"default"'
)


@pytest.mark.parametrize(
    "error", [Forbidden(_NO_RIGHTS.format("create")), Unauthorized("Unauthorized")]
)
def test_a_server_that_does_not_know_our_rights_yet_costs_no_attempt_and_few_requests(
    error: ApiError,
) -> None:
    async def play(cluster: Cluster) -> None:
        await _submit(cluster, count=50)
        counts: list[int] = []
        create = cluster.client.create

        async def refuse(*args: Any, **kwargs: Any) -> Any:
            counts.append(1)
            raise error

        cluster.client.create = refuse
        await cluster.place(*["n0", "n1"] * 25)
        await asyncio.sleep(20)
        job = await cluster.job()
        assert job.status.state == "Starting"
        running = find_condition(job.status.conditions, names.RUNNING)
        assert running is not None
        is_held = isinstance(error, Forbidden)
        expected = ("PodHeldBack", error.message) if is_held else ("Starting", "")
        assert (running.reason, running.message) == expected
        if is_held:
            assert len(counts) < 50 + 20
        cluster.client.create = create
        await asyncio.sleep(30)
        job = await cluster.job()
        assert [(a.number, a.reason) for a in job.status.attempts] == [(1, "")]
        assert len(cluster.pods()) == 50

    _play(play)


def test_a_pod_that_comes_late_finds_its_place_kept_though_the_job_was_held_meanwhile() -> None:
    async def play(cluster: Cluster) -> None:
        await _submit(cluster)
        create = cluster.client.create
        late = _swallow_creations(cluster)
        await cluster.place("n0", "n1")
        await asyncio.sleep(0.2)
        suspend = {"spec": {"suspend": True}}
        await cluster.client.patch(JOBS, "train", suspend, namespace="default")
        await asyncio.sleep(10)
        cluster.client.create = create
        job = await cluster.job()
        assert (job.status.attempts[-1].reason, job.status.placement is not None) == ("", True)
        await late[0]()
        await asyncio.sleep(25)
        assert (await cluster.job()).status.attempts[-1].reason == "Suspended"
        assert not cluster.pods()

    _play(play)


@pytest.mark.parametrize("off", [0.0, 200.0, -200.0])
def test_the_next_controller_keeps_the_place_of_a_pod_that_an_earlier_one_asked_for(
    off: float,
) -> None:
    """`off`: seconds by which the clock of the next controller differs."""

    async def play(cluster: Cluster) -> None:
        await _submit(cluster)
        create = cluster.client.create
        late = _swallow_creations(cluster)
        await cluster.place("n0", "n1")
        await asyncio.sleep(0.2)
        assert late, "the earlier controller asked for pods"
        await cluster.kill()
        cluster.client.create = create
        cluster.clock = LoopClock(EPOCH + off)
        cluster.start()
        await asyncio.sleep(1)
        suspend = {"spec": {"suspend": True}}
        await cluster.client.patch(JOBS, "train", suspend, namespace="default")
        await asyncio.sleep(10)
        assert (await cluster.job()).status.attempts[-1].reason == ""
        await asyncio.sleep(35)
        assert (await cluster.job()).status.attempts[-1].reason == "Suspended"

    _play(play)


def test_an_attempt_all_of_whose_creations_had_an_answer_ends_while_controllers_restart() -> None:
    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        assert not (await cluster.job()).status.attempts[-1].may_have_late_pods
        await cluster.client.delete(PODS, next(iter(cluster.pods())), namespace="default")
        for _ in range(4):
            await cluster.kill()
            cluster.start()
            await asyncio.sleep(1.5)
        assert (await cluster.job()).status.attempts[-1].finished_at is not None
        assert not cluster.pods()

    _play(play)


def test_a_pod_asked_for_before_two_restarts_keeps_its_place_though_all_members_ran() -> None:
    async def play(cluster: Cluster) -> None:
        await _submit(cluster)
        create = cluster.client.create
        late = _swallow_creations(cluster)
        await cluster.place("n0", "n1")
        await asyncio.sleep(0.2)
        assert late, "the first controller asked for pods"
        await cluster.kill()
        cluster.client.create = create
        cluster.start()
        await asyncio.sleep(5)
        await cluster.set_pods("Running")
        await asyncio.sleep(1)
        record = (await cluster.job()).status.attempts[-1]
        assert record.started_at is not None
        assert record.may_have_late_pods
        await cluster.kill()
        cluster.start()
        await asyncio.sleep(1)
        await cluster.client.delete(PODS, next(iter(cluster.pods())), namespace="default")
        await asyncio.sleep(25)
        assert (await cluster.job()).status.attempts[-1].finished_at is None
        await asyncio.sleep(6)
        assert (await cluster.job()).status.attempts[-1].finished_at is not None

    _play(play)


def test_a_refusal_that_outlasts_the_patience_ends_the_attempt_in_the_servers_words() -> None:
    async def play(cluster: Cluster) -> None:
        await _submit(cluster)
        words = "error looking up service account default/x"
        cluster.client.fail_next("create", *[Forbidden(words)] * 200)
        await cluster.place("n0", "n1")
        await asyncio.sleep(32)
        attempt = (await cluster.job()).status.attempts[0]
        assert attempt.reason == "PodHeldBack"
        assert attempt.message.startswith(f"{words} (refused for 3")

    _play(play)


def test_jobs_that_wait_for_one_another_in_a_ring_say_along_which_names_until_it_is_broken() -> (
    None
):
    async def play(cluster: Cluster) -> None:
        async def said(name: str) -> str:
            return (await cluster.job(name)).status.conditions[0].message

        async def changed(name: str, *after: str) -> None:
            patch = {"spec": {"after": [{"job": each} for each in after]}}
            await cluster.client.patch(JOBS, name, patch, namespace="default")
            await asyncio.sleep(1)

        for name, after in (("a", "b"), ("b", "c"), ("c", "gone")):
            await _submit(cluster, name, spec={"after": (After(job=after),)})
        assert (await cluster.job("a")).status.conditions[0].reason == "Dependency"
        await changed("c", "gone", "a")
        for name, path in (("a", "a -> b -> c -> a"), ("b", "b -> c -> a -> b"),
                           ("c", "c -> a -> b -> c")):  # fmt: skip
            assert (await cluster.job(name)).status.conditions[0].reason == "DependencyCycle"
            assert await said(name) == (
                f"waits for itself: {path}; cancel one of these jobs, or change its spec.after"
            )
        await changed("c", "gone")
        assert (await cluster.job("a")).status.conditions[0].reason == "Dependency"
        await changed("c", "b")
        assert "b -> c -> b" in await said("b")
        assert (await cluster.job("a")).status.conditions[0].reason == "Dependency"

    _play(play)


def test_a_job_waits_for_another_of_the_name_and_goes_on_when_that_one_has_succeeded() -> None:
    async def play(cluster: Cluster) -> None:
        hold = After(job="train", on_unmet=AfterFailed.HOLD)
        await _submit(cluster, "later", spec={"after": (hold,)})
        job = await cluster.job("later")
        assert job.status.conditions[0].reason == "DependencyMissing"
        await _submit(cluster)
        cancel = {"spec": {"cancel": True}}
        await cluster.client.patch(JOBS, "train", cancel, namespace="default")
        await asyncio.sleep(1)
        job = await cluster.job("later")
        assert job.status.conditions[0].reason == "DependencyFailed"
        await cluster.client.delete(JOBS, "train", namespace="default")
        await asyncio.sleep(1)
        job = await cluster.job("later")
        assert job.status.conditions[0].reason == "DependencyMissing"
        await _started(cluster)
        job = await cluster.job("later")
        assert job.status.conditions[0].reason == "Dependency"
        assert job.status.attempt == 0
        await cluster.set_pods("Succeeded")
        await asyncio.sleep(1)
        assert (await cluster.job("later")).status.attempt == 1

    _play(play)


def test_a_node_that_is_not_ready_or_gone_loses_its_member() -> None:
    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        silent = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
        await cluster.client.patch(NODES, "n1", {"status": silent}, subresource="status")
        await asyncio.sleep(39)
        assert (await cluster.job()).status.attempt == 1
        await asyncio.sleep(3)
        job = await cluster.job()
        assert (job.status.attempt, job.status.attempts[0].reason) == (2, "NodeLost")
        await cluster.place("n0", "n2")
        await asyncio.sleep(1)
        await cluster.set_pods("Running")
        await asyncio.sleep(1)
        await cluster.client.delete(NODES, "n2")
        await asyncio.sleep(8)
        job = await cluster.job()
        assert (job.status.attempt, job.status.attempts[1].reason) == (3, "NodeLost")
        assert "no longer exists" in job.status.attempts[1].message

    _play(play)


def test_a_deleted_job_goes_once_its_pods_are_gone() -> None:
    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        await cluster.client.delete(JOBS, "train", namespace="default")
        await asyncio.sleep(1)
        assert not cluster.client.stored(JOBS)
        assert not cluster.pods()
        [record] = await records_of(cluster.history, HistoryQuery())
        assert record.state == "Cancelled"

    _play(play)


def test_waiting_jobs_are_not_looked_at_when_another_changes() -> None:
    async def play(cluster: Cluster) -> None:
        for i in range(200):
            job = make_job(f"wait-{i:03d}", count=2, gpus=0, attempt=0)
            await cluster.client.create(JOBS, job, namespace="default")
        await asyncio.sleep(2)
        marked: list[ObjectKey] = []
        async with _index_of(cluster, marked):
            assert len(set(marked)) == 200
            marked.clear()
            await _started(cluster)
            assert set(marked) == {("default", "train")}

    _play(play)


def test_the_parts_of_a_job_are_kept_until_it_has_ended_and_has_none() -> None:
    async def play(cluster: Cluster) -> None:
        async with _index_of(cluster, []) as index:
            await _started(cluster)
            assert [key for key, _ in index._parts] == [("default", "train")]
            await cluster.set_pods("Succeeded")
            await asyncio.sleep(1)
            assert (await cluster.job()).is_finished
            assert [key for key, _ in index._parts] == [("default", "train")]
            await asyncio.sleep(100)
            assert not cluster.pods()
            assert not index._parts

    _play(play)


@asynccontextmanager
async def _index_of(cluster: Cluster, marked: list[ObjectKey]) -> AsyncIterator[JobIndex]:
    """Follow the API beside the controller of a cluster; the jobs to look at go to `marked`."""
    clock, rng = cluster.clock, random.Random(2)
    world = ClusterWorld.make(cluster.client, clock=clock, rng=rng)
    own = JobsMirrors.make(cluster.client, cluster.policy, clock=clock, rng=rng)
    index = JobIndex(
        world, own, mark=marked.append, on_finished=lambda _: None, on_gone=lambda _: None,
        clock=clock, reader=None, finished=FinishedJobs(None),
    )  # fmt: skip
    async with asyncio.TaskGroup() as group:
        followed = (world.mirrors.jobs, world.mirrors.pods, world.mirrors.nodes, *own.all)
        tasks = [group.create_task(mirror.run()) for mirror in followed]
        await asyncio.sleep(1)
        yield index
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def _indexed(client: FakeClient) -> AsyncIterator[Callable[[], JobView]]:
    """Follow the API; yields what returns the view of its only job."""
    clock, policy = LoopClock(EPOCH), JobsPolicy()
    world = ClusterWorld.make(client, clock=clock, rng=random.Random(1))
    own = JobsMirrors.make(client, policy, clock=clock, rng=random.Random(2))
    index = JobIndex(
        world, own, mark=lambda _: None, on_finished=lambda _: None, on_gone=lambda _: None,
        clock=clock, reader=None, finished=FinishedJobs(None),
    )  # fmt: skip

    def view() -> JobView:
        (stored,) = world.mirrors.jobs.items()
        return index.view(
            stored, policy, clock.now(), pod_refusal=None, probe=None, counts_written_at=0.0,
            late_until=0.0,
        )  # fmt: skip

    async with asyncio.TaskGroup() as group:
        followed = (world.mirrors.jobs, world.mirrors.pods, world.mirrors.nodes, *own.all)
        tasks = [group.create_task(mirror.run()) for mirror in followed]
        await asyncio.sleep(1)
        yield view
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize(
    ("policy", "age", "may_have_late_pods", "is_awaited"),
    [
        (RestartPolicy.GANG, 86400, True, False),
        (RestartPolicy.GANG, 60, True, True),
        (RestartPolicy.GANG, 0, False, False),
        (RestartPolicy.GANG, None, False, True),
        (RestartPolicy.MEMBER, 86400, False, True),
    ],
)
def test_a_new_controller_awaits_late_pods_where_a_creation_of_an_earlier_one_may_be_unanswered(
    policy: RestartPolicy, age: int | None, *, may_have_late_pods: bool, is_awaited: bool
) -> None:
    async def main() -> None:
        client = FakeClient()
        started_at = None if age is None else format_time(EPOCH - age)
        record = Attempt(1, started_at=started_at, may_have_late_pods=may_have_late_pods)
        job = make_job("a", spec={"restart": Restart(policy)}, status={"attempts": (record,)})
        await client.create(JOBS, job, namespace="default")
        async with _indexed(client) as view:
            assert (view().late_until > 0.0) is is_awaited
            await asyncio.sleep(30)
            assert view().late_until == 0.0

    run(main())


def test_a_node_is_gone_until_it_is_back_however_the_placement_changes_elsewhere() -> None:
    async def main() -> None:
        client = FakeClient()
        job = make_job("a", count=2, placement=make_placement(["gone", "n0"]))
        await client.create(JOBS, job, namespace="default")
        async with _indexed(client) as view:
            first = view().node_troubles["gone"].since
            status = {"placement": to_wire(make_placement(["gone", "n1"]))}
            await client.patch(
                JOBS, "a", {"status": status}, namespace="default", subresource="status"
            )
            await asyncio.sleep(10)
            assert view().node_troubles["gone"].since == first
            await client.create(NODES, make_node("gone"))
            await asyncio.sleep(1)
            assert "gone" not in view().node_troubles

    run(main())


def test_a_node_is_a_spare_as_long_as_its_taint_says_so() -> None:
    async def main() -> None:
        client = FakeClient()
        await client.create(JOBS, make_job("a"), namespace="default")
        await client.create(NODES, make_node("n0", taints=with_taint((), is_spare=True)))
        async with _indexed(client) as view:
            assert list(view().spares) == ["n0"]
            await client.patch(NODES, "n0", {"spec": {"taints": None}})
            await asyncio.sleep(1)
            assert not view().spares

    run(main())


def test_an_idle_controller_does_nothing() -> None:
    async def play(cluster: Cluster) -> None:
        await _started(cluster)
        await asyncio.sleep(5)
        calls = len(cluster.client.calls)
        await asyncio.sleep(250)
        assert len(cluster.client.calls) == calls

    _play(play)


def test_a_pod_that_another_owner_took_is_gone_to_the_job_that_had_it() -> None:
    before, after = make_member_pod(make_job("a"), 0), make_member_pod(make_job("b"), 0)
    taken = replace(
        before, metadata=replace(before.metadata, owner_references=after.metadata.owner_references)
    )
    assert subject(Change(before, taken)) == (before, False)
