"""A job over which a controller raises harms only itself: in handlers, decisions and writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.jobs.job import Cause, Job, Restart, RestartPolicy
from fairlead.api.meta import Condition, ObjectMeta, find_condition, is_true, to_wire
from fairlead.api.resources import JOBS, NODES, PODS, Resource
from fairlead.api.status import ApiError, Invalid, StatusCause, StatusDetails, Unavailable
from fairlead.api.values.times import format_time
from fairlead.controllers.cluster_world import ClusterMirrors, ClusterWorld
from fairlead.controllers.gangs import jobs as jobs_module
from fairlead.controllers.gangs.job_index import JobsMirrors
from fairlead.controllers.gangs.jobs import JobsController
from fairlead.controllers.placing import scheduler as scheduler_module
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.controllers.pods import pod_renderer
from fairlead.controllers.pods.job_writer import JobWriter
from fairlead.decide.attempts.record import new_record
from fairlead.decide.job_actions import WriteJobStatus
from fairlead.decide.jobs.policy import JobsPolicy
from fairlead.decide.placement import outcome
from fairlead.decide.placement.desk import context
from fairlead.decide.placement.waiting import state as placement_state
from fairlead.decide.reasons import Reason
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.kept.numbers import Numbers
from fairlead.runtime.loop import Controller, ControllerLoop, LoopOptions
from fairlead.runtime.object_writer import ObjectWriter
from fairlead.runtime.watching.mirror import Mirror
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import EPOCH, make_job, make_node, make_placement, make_role
from fairlead.testing.fake_client import FakeClient

#: A job with this label is bad while the label says so.
BAD = "test/bad"


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def record(
        self, resource: Resource[Any], metadata: ObjectMeta, kind: EventKind, *, reason: str,
        message: str,
    ) -> None:  # fmt: skip
        self.told.append((metadata.name, reason))


def now() -> float:
    return asyncio.get_running_loop().time()


class PolicedClient(FakeClient):
    """Refuses the writes of the status of one job for which `denies` is true."""

    policed = "bad"
    error: ApiError = Invalid("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")
    denies: Callable[[dict[str, Any]], bool] = staticmethod(lambda _status: False)
    keeps_pods = False
    denied = 0
    #: Creations of pods get no answer, and are carried out late, if at all; the last was at.
    loses_pods = False
    lost_at: float | None = None

    async def create(self, resource: Any, body: Any, **how: Any) -> Any:
        if self.loses_pods and resource.name == PODS.name:
            self.lost_at = now()
            raise Unavailable("no answer")
        return await super().create(resource, body, **how)

    async def patch(self, resource: Any, name: str, patch: Any, **how: Any) -> Any:
        is_policed = resource.name == JOBS.name and name == self.policed
        if is_policed and self.denies(patch.get("status", {})):
            self.denied += 1
            raise self.error
        return await super().patch(resource, name, patch, **how)

    async def delete(self, resource: Any, name: str, **how: Any) -> Any:
        if resource.name == PODS.name and name.startswith("bad-") and self.keeps_pods:
            self.denied += 1
            raise self.error
        return await super().delete(resource, name, **how)


class World:
    """Scheduler and jobs controller on one API; faults are contained as in production."""

    def __init__(self, client: PolicedClient | None = None) -> None:
        self.client = client or PolicedClient()
        self.events = Events()
        self.clock = LoopClock(EPOCH)
        self.rng = random.Random(1)
        self.registries = {name: SetAside(name, events=self.events) for name in ("w", "s", "j")}
        mirrors = ClusterMirrors.make(self.client, clock=self.clock, rng=self.rng)
        self.world = ClusterWorld(mirrors, clock=self.clock, set_aside=self.registries["w"])
        self.controllers: list[Controller[Any]] = [self._scheduler(), self._jobs()]

    def _scheduler(self) -> SchedulerController:
        self.scheduler_reader = MirrorReader(self.registries["s"])
        return SchedulerController(
            self.client, self.world, events=self.events, reader=self.scheduler_reader
        )

    def _jobs(self) -> JobsController:
        policy = JobsPolicy()
        own = JobsMirrors.make(self.client, policy, clock=self.clock, rng=self.rng)
        self.jobs_reader = MirrorReader(self.registries["j"])
        return JobsController(
            self.client, self.world, own, history=MemoryHistory(), events=self.events,
            policy=policy, clock=self.clock, keys=random.Random(5), reader=self.jobs_reader,
        )  # fmt: skip

    def mirrors(self) -> list[Mirror[Any]]:
        """All mirrors, each once."""
        found = [mirror for controller in self.controllers for mirror in controller.mirrors]
        return list({id(mirror): mirror for mirror in found}.values())

    async def submit(self, name: str, *, bad: bool = False, **spec: Any) -> None:
        job = make_job(name, gpus=8, labels={BAD: "yes"} if bad else None, **spec)
        wire = to_wire(job)
        wire["metadata"].pop("resourceVersion")
        wire.pop("status")
        await self.client.create(JOBS, wire, namespace="default")

    async def mend(self, name: str) -> None:
        patch = {"metadata": {"labels": {BAD: None}}}
        await self.client.patch(JOBS, name, patch, namespace="default")

    def job(self, name: str) -> Job:
        return next(j for j in self.client.stored(JOBS) if j.metadata.name == name)

    def is_placed(self, name: str) -> bool:
        return self.job(name).status.placement is not None

    def has_pod(self, name: str) -> bool:
        return any(p.metadata.labels[names.JOB_NAME] == name for p in self.client.stored(PODS))

    def reason(self, name: str) -> str:
        verdict = self.job(name).status.verdict
        return verdict.reason if verdict is not None else ""

    def set_aside(self, name: str) -> int:
        return sum(r.find(JOBS, ("default", name)) is not None for r in self.registries.values())


@asynccontextmanager
async def running(client: PolicedClient | None = None) -> AsyncIterator[World]:
    """Run the controllers on two nodes, or, as after a restart, on what an API holds."""
    world = World(client)
    for i in range(2) if client is None else ():
        wire = to_wire(make_node(f"n{i}"))
        wire["metadata"].pop("resourceVersion")
        await world.client.create(NODES, wire)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(mirror.run()) for mirror in world.mirrors()]
        tasks.append(group.create_task(world.world.wait_fault()))
        tasks.append(group.create_task(world.scheduler_reader.wait_fault()))
        tasks.append(group.create_task(world.jobs_reader.wait_fault()))
        for controller in world.controllers:
            loop = ControllerLoop(
                controller, clock=world.clock, rng=world.rng,
                options=LoopOptions(runs_mirrors=False),
            )  # fmt: skip
            world.world.on_own_change(loop.wake)
            tasks.append(group.create_task(loop.run()))
        await asyncio.sleep(1)
        yield world
        for task in tasks:
            assert not task.done()
            task.cancel()


def is_bad(job: Job, *_: Any) -> bool:
    return BAD in job.metadata.labels


@contextmanager
def broken(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, is_hit: Callable[..., bool]
) -> Iterator[list[int]]:
    """Let a function of ours raise where `is_hit`; yields a list that grows with each time."""
    inner, hits = getattr(module, name), list[int]()

    def outer(*args: Any, **options: Any) -> Any:
        if is_hit(*args):
            hits.append(1)
            raise RecursionError("planted")
        return inner(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, outer)
        yield hits


def test_a_job_that_the_scheduler_cannot_take_in_is_told_so_and_placed_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        with broken(monkeypatch, placement_state, "age_of", is_bad) as hits:
            async with running() as world:
                await world.submit("bad", bad=True)
                await world.submit("good")
                await asyncio.sleep(5)
                assert hits
                assert world.is_placed("good")
                assert not world.is_placed("bad")
                assert world.reason("bad") == Reason.SET_ASIDE.value
                assert ("bad", "SetAside") in world.events.told
                assert world.set_aside("bad")
                await world.mend("bad")
                await asyncio.sleep(5)
                assert world.is_placed("bad")
                assert not world.set_aside("bad")

    run(main())


def test_a_job_that_cannot_be_taken_in_is_told_so_where_no_other_job_is_to_be_decided_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        with broken(monkeypatch, placement_state, "age_of", is_bad):
            async with running() as world:
                await world.submit("bad", bad=True)
                await asyncio.sleep(5)
                assert world.reason("bad") == Reason.SET_ASIDE.value

    run(main())


def test_a_placed_job_that_turns_bad_keeps_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with broken(monkeypatch, placement_state, "age_of", is_bad):
            async with running() as world:
                await world.submit("first", count=2)
                await asyncio.sleep(5)
                assert world.is_placed("first")
                patch = {"metadata": {"labels": {BAD: "yes"}}}
                await world.client.patch(JOBS, "first", patch, namespace="default")
                await asyncio.sleep(1)
                assert world.set_aside("first")
                for pod in world.client.stored(PODS):  # its claim alone holds the nodes now
                    await world.client.delete(PODS, pod.metadata.name, namespace="default")
                await world.submit("second")
                await asyncio.sleep(0.5)
                assert not world.is_placed("second")

    run(main())


@pytest.mark.parametrize(("function", "gpus"), [("plan_gang", 8), ("judge_empty", 99)])
def test_a_job_that_cannot_be_planned_harms_only_itself(
    monkeypatch: pytest.MonkeyPatch, function: str, gpus: int
) -> None:
    """Found in the middle of a decision: what was taken before it is given back."""

    async def main() -> None:
        def is_hit(*args: Any) -> bool:
            gang = args[2] if function == "plan_gang" else args[1]
            return gang.roles[0].name == "bad"

        with broken(monkeypatch, context, function, is_hit) as hits:
            async with running() as world:
                await world.submit("holder", count=2)
                await asyncio.sleep(3)
                await world.submit("good")
                for i in range(3):
                    await world.submit(f"bad{i}", roles=[make_role("bad", count=2, gpus=gpus)])
                await world.submit("other")
                await asyncio.sleep(3)
                cancel = {"spec": {"cancel": True}}
                await world.client.patch(JOBS, "holder", cancel, namespace="default")
                for pod in world.client.stored(PODS):
                    await world.client.delete(PODS, pod.metadata.name, namespace="default")
                await asyncio.sleep(30)
                assert world.is_placed("good")
                assert world.is_placed("other")
                assert hits
                assert {("bad0", "SetAside"), ("bad2", "SetAside")} <= set(world.events.told)
                before = len(hits)
                await asyncio.sleep(3600)
                assert len(hits) - before < 1000

    run(main())


def test_a_job_whose_placement_cannot_be_written_leaves_its_room_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        def is_hit(action: Any, *_: Any) -> bool:
            return is_bad(action.job)

        with broken(monkeypatch, scheduler_module, "status_patch", is_hit) as hits:
            async with running() as world:
                await world.submit("bad", bad=True, count=2)
                await asyncio.sleep(0.1)
                await world.submit("good", count=2)
                await asyncio.sleep(0.1)
                assert hits
                assert world.is_placed("good")

    run(main())


def test_a_job_whose_planning_raises_half_way_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        def is_hit(job: Job, *_: Any) -> bool:
            return is_bad(job)

        with broken(monkeypatch, outcome, "place_job", is_hit) as hits:
            async with running() as world:
                for i in range(3):
                    await world.submit(f"bad{i}", bad=True, count=2)
                await world.submit("good", count=2)
                await asyncio.sleep(5)
                assert hits
                assert world.is_placed("good")
                assert [world.reason(f"bad{i}") for i in range(3)] == ["SetAside"] * 3
                assert [world.set_aside(f"bad{i}") for i in range(3)] == [1] * 3

    run(main())


def test_a_job_that_cannot_be_decided_on_harms_only_itself_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        def is_hit(view: Any, *_: Any) -> bool:
            return is_bad(view.job)

        with broken(monkeypatch, jobs_module, "decide_job", is_hit) as hits:
            async with running() as world:
                await world.submit("bad", bad=True)
                await world.submit("good")
                await asyncio.sleep(5)
                assert world.has_pod("good")
                told = find_condition(world.job("bad").status.conditions, names.SET_ASIDE)
                assert told is not None
                assert told.status == "True"
                assert told.message == "cannot be decided on: RecursionError: planted"
                assert ("bad", "SetAside") in world.events.told
                before = len(hits)
                await asyncio.sleep(3600)
                assert 0 < len(hits) - before < 30
                await world.mend("bad")
                await asyncio.sleep(5)
                assert world.has_pod("bad")
                assert not is_true(world.job("bad").status.conditions, names.SET_ASIDE)
                assert not world.set_aside("bad")

    run(main())


def test_a_gang_whose_pods_cannot_be_made_gives_its_nodes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        def is_hit(bodies: Any, job: Job, *_: Any) -> bool:
            return is_bad(job)

        with broken(monkeypatch, pod_renderer.PodRenderer, "body", is_hit) as hits:
            async with running() as world:
                await world.submit("bad", bad=True, count=2)
                await world.submit("good", count=2)
                await asyncio.sleep(60)
                assert hits
                assert world.job("bad").is_finished
                assert world.has_pod("good")

    run(main())


# A policy that refuses what is to be written on a job


async def _fail_one_pod(world: World, code: int) -> None:
    name = world.client.stored(PODS)[0].metadata.name
    failed = {"phase": "Failed", "containerStatuses": [
        {"name": "main", "state": {"terminated": {"exitCode": code}}}]}  # fmt: skip
    await world.client.patch(
        PODS, name, {"status": failed}, namespace="default", subresource="status"
    )


async def _set_pods(world: World, job: str, status: dict[str, Any]) -> None:
    for pod in world.client.stored(PODS):
        if pod.metadata.labels[names.JOB_NAME] == job:
            await world.client.patch(
                PODS, pod.metadata.name, {"status": status}, namespace="default",
                subresource="status",
            )  # fmt: skip


@pytest.mark.parametrize("is_mended", [False, True])
def test_a_job_of_which_every_status_is_refused_gives_its_nodes_back_when_its_gang_ends(
    *, is_mended: bool
) -> None:
    async def main() -> None:
        async with running() as world:
            await world.submit("bad", count=2)
            await asyncio.sleep(5)
            await _set_pods(world, "bad", {"phase": "Running", "podIP": "10.0.0.1"})
            await asyncio.sleep(5)
            await world.submit("next", count=2)
            world.client.denies = lambda status: bool(status)
            await asyncio.sleep(60)
            assert (world.has_pod("bad"), world.is_placed("next")) == (True, False)
            await _fail_one_pod(world, 7)
            await asyncio.sleep(60)
            assert world.client.denied > 4
            assert ("bad", "NodesReleased") in world.events.told
            assert world.is_placed("next")
            assert all(
                pod.is_terminal or pod.metadata.labels[names.JOB_NAME] == "next"
                for pod in world.client.stored(PODS)
            )
            if is_mended:
                world.client.denies = lambda _status: False
                await asyncio.sleep(60)
                failure = find_condition(world.job("bad").status.conditions, "Failed")
                assert failure is not None
                assert failure.reason == "StatusRefused"
                assert not world.is_placed("bad")
            assert not world.job("bad").status.attempts[1:]

    run(main())


def test_a_job_whose_status_is_invalid_does_not_end_while_a_pod_of_it_may_come_late() -> None:
    async def main() -> None:
        async with running() as world:
            details = StatusDetails(causes=(StatusCause(field="status.conditions"),))
            world.client.error = Invalid("wrong", details=details)
            world.client.denies = lambda status: bool(status) and "finishedAt" not in status
            world.client.loses_pods = True
            job = make_job("bad", count=2, placement=make_placement(["n0", "n1"]))
            wire = to_wire(job)
            wire["metadata"].pop("resourceVersion")
            wire["status"]["attempts"] = [to_wire(new_record(job, EPOCH))]
            await world.client.create(JOBS, wire, namespace="default")
            await asyncio.sleep(10)
            assert world.client.lost_at is not None
            assert world.client.denied >= 3
            while not world.job("bad").is_finished:
                assert now() < 300, "never given up"
                await asyncio.sleep(0.1)
            assert now() - world.client.lost_at >= JobsPolicy().late_pod_seconds
            failure = find_condition(world.job("bad").status.conditions, "Failed")
            assert failure is not None
            assert failure.reason == "StatusRefused"

    run(main())


def test_a_new_controller_frees_no_node_of_a_refused_job_for_which_a_pod_may_come_late() -> None:
    """The one before it may have asked for a member's replacement, without an answer."""

    async def main() -> None:
        client = PolicedClient()
        client.denies = lambda status: bool(status)
        for i in range(2):
            wire = to_wire(make_node(f"n{i}"))
            wire["metadata"].pop("resourceVersion")
            await client.create(NODES, wire)
        place = make_placement(["n0", "n1"])
        job = make_job(
            "bad", count=2, placement=place, spec={"restart": Restart(RestartPolicy.MEMBER)}
        )
        record = replace(
            new_record(job, EPOCH),
            started_at=format_time(EPOCH),
            finished_at=format_time(EPOCH),
            cause=Cause.NODE,
            reason="NodeLost",
        )
        queues = (Condition(names.ADMITTED, "True", names.ADMITTED),)
        status = replace(job.status, attempts=(record,), conditions=queues)
        wire = to_wire(replace(job, status=status))
        wire["metadata"].pop("resourceVersion")
        await client.create(JOBS, wire, namespace="default")
        began_at = now()
        async with running(client) as world:
            while not world.world.state.is_forfeited(("default", "bad")):
                assert now() < 300, "its nodes are never given back"
                await asyncio.sleep(0.1)
            assert now() - began_at >= JobsPolicy().late_pod_seconds

    run(main())


def test_a_placed_job_whose_next_attempt_may_not_begin_gives_its_nodes_back() -> None:
    async def main() -> None:
        async with running() as world:

            async def hold(*, suspend: bool) -> None:
                patch = {"spec": {"suspend": suspend}}
                await world.client.patch(JOBS, "bad", patch, namespace="default")
                await asyncio.sleep(60)

            await world.submit("bad", count=2)
            await asyncio.sleep(5)
            await hold(suspend=True)
            assert not world.is_placed("bad")
            world.client.denies = lambda status: bool(status.get("attempts"))
            await hold(suspend=False)
            assert world.client.denied >= 3
            await world.submit("next", count=2)
            await asyncio.sleep(60)
            failure = find_condition(world.job("bad").status.conditions, "Failed")
            assert failure is not None
            assert failure.reason == "StatusRefused"
            assert world.is_placed("next")

    run(main())


def test_a_job_whose_ended_pods_may_not_be_deleted_gives_its_nodes_back() -> None:
    async def main() -> None:
        async with running() as world:
            await world.submit("bad", count=2)
            await asyncio.sleep(5)
            world.client.keeps_pods = True
            failed = {"phase": "Failed", "containerStatuses": [
                {"name": "main", "state": {"terminated": {"exitCode": 137}}}]}  # fmt: skip
            await _set_pods(world, "bad", failed)
            await asyncio.sleep(60)
            assert world.client.denied > 1
            assert world.job("bad").status.state == "Restarting"
            assert not world.is_placed("bad")
            world.client.keeps_pods = False
            await asyncio.sleep(120)
            assert world.job("bad").status.attempt == 2
            assert world.is_placed("bad")

    run(main())


def test_a_job_keeps_its_nodes_while_a_pod_that_may_not_be_deleted_runs_there() -> None:
    async def main() -> None:
        async with running() as world:
            await world.submit("bad", count=2)
            await asyncio.sleep(5)
            await _set_pods(world, "bad", {"phase": "Running", "podIP": "10.0.0.1"})
            world.client.keeps_pods = True
            await _fail_one_pod(world, 137)
            await asyncio.sleep(60)
            assert world.client.denied > 1
            assert world.job("bad").status.attempts[0].finished_at is not None
            assert world.is_placed("bad")

    run(main())


def test_a_held_job_whose_release_is_refused_keeps_its_nodes_from_no_other_and_says_so() -> None:
    async def main() -> None:
        async with running() as world:
            await world.submit("bad", count=2)
            await asyncio.sleep(5)
            world.client.denies = lambda status: status.get("placement", "") is None
            hold = {"spec": {"suspend": True}}
            await world.client.patch(JOBS, "bad", hold, namespace="default")
            for _ in range(20):  # as the kubelets
                for pod in world.client.stored(PODS):
                    if pod.metadata.deletion_timestamp:
                        await world.client.delete(PODS, pod.metadata.name, namespace="default")
                await asyncio.sleep(0.5)
            assert (world.job("bad").status.state, world.is_placed("bad")) == ("Held", True)
            assert ("bad", "SetAside") in world.events.told
            await world.submit("next", count=2)
            await asyncio.sleep(5)
            assert world.is_placed("next")
            assert world.has_pod("next")
            await world.client.patch(JOBS, "bad", {"spec": {"suspend": False}}, namespace="default")
            await asyncio.sleep(60)
            assert world.is_placed("bad"), "the API refuses to take it away"
            assert not world.has_pod("bad"), "its nodes are another job's"
            world.client.denies = lambda _status: False
            await asyncio.sleep(60)
            assert not world.is_placed("bad")
            assert world.reason("bad") == Reason.INSUFFICIENT_CAPACITY.value

    run(main())


@pytest.mark.parametrize("is_mended", [False, True])
def test_after_a_restart_a_refused_release_keeps_no_node_longer_and_books_none_twice(
    *, is_mended: bool
) -> None:
    async def main() -> None:
        async with running() as world:
            client = world.client
            await world.submit("bad", count=2)
            await asyncio.sleep(5)
            client.denies = lambda status: status.get("placement", "") is None
            hold = {"spec": {"suspend": True}}
            await client.patch(JOBS, "bad", hold, namespace="default")
            for _ in range(20):  # as the kubelets
                for pod in client.stored(PODS):
                    if pod.metadata.deletion_timestamp:
                        await client.delete(PODS, pod.metadata.name, namespace="default")
                await asyncio.sleep(0.5)
            await world.submit("next", count=2)
            await asyncio.sleep(5)
            assert world.has_pod("next")
            await client.patch(JOBS, "bad", {"spec": {"suspend": False}}, namespace="default")
            await asyncio.sleep(60)
            assert not world.has_pod("bad")
        if is_mended:
            client.denies = lambda _status: False
        async with running(client) as world:
            await asyncio.sleep(5)
            assert world.world.state.is_forfeited(("default", "bad")) is not is_mended
            await asyncio.sleep(60)
            assert world.has_pod("next")
            assert not world.has_pod("bad"), "its nodes are another job's"

    run(main())


def test_refusals_of_a_release_count_only_in_a_row() -> None:
    """Three in a row free the nodes all the same; an accepted one begins the count again."""
    answers = iter((True, True, False) * 2)
    forfeits: list[bool] = []

    async def main() -> None:
        async with running() as world:
            client = world.client
            world.world.on_own_change(lambda: forfeits.append(True))
            await world.submit("bad", count=2)
            await asyncio.sleep(5)
            client.denies = lambda status: status.get("placement", "") is None and next(answers)
            for _ in range(2):
                assert world.is_placed("bad")
                await client.patch(JOBS, "bad", {"spec": {"suspend": True}}, namespace="default")
                for _ in range(20):  # as the kubelets
                    for pod in client.stored(PODS):
                        if pod.metadata.deletion_timestamp:
                            await client.delete(PODS, pod.metadata.name, namespace="default")
                    await asyncio.sleep(0.5)
                assert not world.is_placed("bad")
                await client.patch(JOBS, "bad", {"spec": {"suspend": False}}, namespace="default")
                await asyncio.sleep(60)

    run(main())
    assert next(answers, None) is None
    assert forfeits == []


@pytest.mark.parametrize("fields", [(), ("status.conditions",)], ids=["policy", "field"])
def test_refusals_of_a_status_count_only_in_a_row(fields: tuple[str, ...]) -> None:
    async def main() -> None:
        client, job = PolicedClient(), make_job("bad")
        if fields:
            details = StatusDetails(causes=tuple(StatusCause(field=each) for each in fields))
            client.error = Invalid("wrong", details=details)
        wire = to_wire(job)
        wire["metadata"].pop("resourceVersion")
        await client.create(JOBS, wire, namespace="default")
        writer = JobWriter(
            ObjectWriter(client), history=MemoryHistory(), numbers=Numbers(client), events=Events(),
            set_aside=SetAside(), clock=LoopClock(EPOCH),
        )  # fmt: skip
        answers = iter((True, True, False, True))
        client.denies = lambda status: status.get("conditions") is not None and next(answers)
        for i in range(4):
            (stored,) = client.stored(JOBS)
            status = replace(stored.status, conditions=(Condition("Running", "True", f"r{i}"),))
            with suppress(Invalid):
                await writer.perform(WriteJobStatus(stored, status))
        assert client.denied == 3
        assert not writer.is_status_denied(stored)
        assert not writer.is_status_refused(stored)

    run(main())
