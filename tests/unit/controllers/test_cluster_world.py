"""One world for all controllers of a process: attached to, outlived, and rebuilt after a fault."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.controllers.test_uncertain_placements import Line

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, NodeCondition, PriorityClass
from fairlead.api.meta import Condition, ObjectMeta, to_wire
from fairlead.api.resources import JOBS, NODES, PRIORITY_CLASSES, Resource
from fairlead.controllers.cluster_world import ClusterMirrors, ClusterWorld
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.decide.health.conditions import ConditionRules
from fairlead.decide.placement.waiting import state as placement_state
from fairlead.model.cluster import ClusterState
from fairlead.runtime.client import Request, RequestVerb
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.loop import ControllerLoop, LoopOptions
from fairlead.runtime.watching.mirror import Change
from fairlead.runtime.watching.reader import MirrorReader
from fairlead.runtime.watching.set_aside import SetAside
from fairlead.sim.loop import run
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_nodes,
    make_placement,
    make_priority_class,
)
from fairlead.testing.fake_client import FakeClient

_RESOURCES: dict[type, Resource[Any]] = {Job: JOBS, Node: NODES, PriorityClass: PRIORITY_CLASSES}


class Events:
    def record(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        kind: EventKind,
        *,
        reason: str,
        message: str,
    ) -> None: ...


class Process:
    """The mirrors and the world of one process; schedulers come and go."""

    def __init__(self, client: FakeClient) -> None:
        self.client = client
        self.clock = LoopClock(EPOCH)
        self.mirrors = ClusterMirrors.make(client, clock=self.clock, rng=random.Random(1))
        self.world = ClusterWorld(
            self.mirrors, clock=self.clock, set_aside=SetAside("cluster", events=Events()),
            conditions=ConditionRules(),
        )  # fmt: skip

    @asynccontextmanager
    async def scheduler(self) -> AsyncIterator[SchedulerController]:
        """Run a new scheduler on the world as it is."""
        reader = MirrorReader(SetAside("scheduler", events=Events()))
        controller = SchedulerController(self.client, self.world, reader=reader)
        loop = ControllerLoop(
            controller, clock=self.clock, rng=random.Random(2),
            options=LoopOptions(runs_mirrors=False),
        )  # fmt: skip
        unregister = self.world.admissions.on_change(loop.check)
        task = asyncio.get_running_loop().create_task(loop.run())
        try:
            await asyncio.sleep(1)
            assert loop.ready
            yield controller
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            unregister()
            controller.close()
            reader.close()

    def placed(self, name: str) -> list[str] | None:
        job = next(j for j in self.client.stored(JOBS) if j.metadata.name == name)
        placement = job.status.placement
        return None if placement is None else [n for r in placement.roles for n in r.nodes]

    async def create(self, *objects: Any) -> None:
        for obj in objects:
            wire = to_wire(obj)
            wire["metadata"].pop("resourceVersion")
            await self.client.create(_RESOURCES[type(obj)], wire)


def play(main: Callable[[Process], Awaitable[None]], client: FakeClient | None = None) -> None:
    async def body() -> None:
        process = Process(client or FakeClient())
        async with asyncio.TaskGroup() as group:
            mirrors = (
                process.mirrors.jobs, process.mirrors.pods, process.mirrors.nodes,
                process.mirrors.priority_classes,
                process.mirrors.teams, process.mirrors.pools, process.mirrors.quotas,
                process.mirrors.devices.classes,
            )  # fmt: skip
            tasks = [group.create_task(mirror.run()) for mirror in mirrors]
            await main(process)
            for task in tasks:
                task.cancel()

    run(body())


def test_a_restarted_scheduler_goes_on_with_the_same_cluster_state() -> None:
    async def main(process: Process) -> None:
        await process.create(*make_nodes(2), make_job("a"))
        async with process.scheduler():
            assert process.placed("a") == ["node-0000"]
        await process.create(make_job("b"))
        await asyncio.sleep(1)
        assert process.placed("b") is None
        lists = process.client.count("list")
        async with process.scheduler() as second:
            assert process.placed("b") == ["node-0001"]
            assert second.state.cluster is process.world.state
        assert process.client.count("list") == lists

    play(main)


def test_a_closed_scheduler_is_not_fed_any_more() -> None:
    async def main(process: Process) -> None:
        async with process.scheduler() as first:
            await process.create(make_job("a"))
            await asyncio.sleep(1)
            assert len(first.state.queue) == 1
        await process.create(make_job("b"))
        await asyncio.sleep(1)
        assert len(process.world.state.jobs) == 2
        assert len(first.state.queue) == 1

    play(main)


def test_the_room_of_a_placement_without_an_answer_outlives_the_scheduler_that_sent_it() -> None:
    line = Line()

    async def main(process: Process) -> None:
        await process.create(*make_nodes(1), make_job("a"))
        line.swallows = "a"
        async with process.scheduler():
            await asyncio.sleep(10)
        assert line.late
        # Ahead of a, and asks for the same node.
        await process.create(make_priority_class("high", 10))
        await process.create(make_job("b", spec={"priority_class_name": "high"}))
        await asyncio.sleep(1)
        for rebuilt in (False, True):
            if rebuilt:
                process.world.rebuild()
            async with process.scheduler():
                await asyncio.sleep(10)
                assert process.placed("b") is None
        line.late = line.late[:1]
        assert await line.deliver() == [""]
        async with process.scheduler():
            await asyncio.sleep(10)
            assert (process.placed("a"), process.placed("b")) == (["node-0000"], None)

    play(main, line)


class Quick(FakeClient):
    """Answers a placement before any watch shows it; the watches stay behind."""

    def __init__(self) -> None:
        super().__init__()
        self.placements: list[str] = []

    async def call(self, request: Request[Any]) -> Any:
        if request.verb is RequestVerb.PATCH and request.body.get("status", {}).get("placement"):
            self.placements.append(request.name)
            self.hold_watches()
        return await super().call(request)


def test_the_room_of_a_placement_that_no_mirror_shows_outlives_the_scheduler_that_wrote_it() -> (
    None
):
    client = Quick()

    async def main(process: Process) -> None:
        await process.create(*make_nodes(1), make_job("a", created=EPOCH + 1))
        async with process.scheduler():
            assert process.placed("a") == ["node-0000"]
        assert process.world.state.ledger.claim(("default", "a")) is None
        process.world.state.job_changed(make_job("b", created=EPOCH))  # ahead of a
        async with process.scheduler():
            assert set(client.placements) == {"a"}
        client.release_watches()
        await asyncio.sleep(1)
        async with process.scheduler():
            assert not process.world.uncertain

    play(main, client)


def test_its_room_is_free_when_the_job_moved_on_while_no_scheduler_ran() -> None:
    line = Line()

    async def main(process: Process) -> None:
        await process.create(*make_nodes(1), make_job("a"))
        line.swallows = "a"
        async with process.scheduler():
            await asyncio.sleep(10)
        assert process.world.uncertain
        await process.client.delete(JOBS, "a", namespace="default")
        await process.create(make_job("b"))
        await asyncio.sleep(1)
        async with process.scheduler():
            assert process.placed("b") == ["node-0000"]
        assert not process.world.uncertain

    play(main, line)


def test_a_job_that_a_new_scheduler_cannot_take_in_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = placement_state.age_of

    def age_of(job: Any) -> Any:
        if job.metadata.name == "bad":
            raise RecursionError("planted")
        return inner(job)

    async def main(process: Process) -> None:
        await process.create(*make_nodes(2), make_job("bad"), make_job("good"))
        await asyncio.sleep(1)
        monkeypatch.setattr(placement_state, "age_of", age_of)
        async with process.scheduler():
            assert process.placed("good") is not None
            assert process.placed("bad") is None
            assert process.world.set_aside.find(JOBS, ("default", "bad")) is not None

    play(main)


def test_a_node_of_which_other_tools_state_a_fault_is_taken_last_by_a_gang() -> None:
    async def main(process: Process) -> None:
        sick, *others = make_nodes(3)
        stated = NodeCondition("KernelDeadlock", "True", "DockerHung")
        conditions = (*sick.status.conditions, stated)
        sick = replace(sick, status=replace(sick.status, conditions=conditions))
        await process.create(sick, *others, make_job("a", count=2))
        async with process.scheduler():
            suspects = process.world.state.suspects
            assert suspects.since(EPOCH) == ["node-0000"]
            assert process.placed("a") == ["node-0001", "node-0002"]
            await process.client.delete(NODES, "node-0000")
            await asyncio.sleep(1)
            assert suspects.since(EPOCH) == []

    play(main)


def test_a_node_that_the_planner_cannot_take_in_keeps_its_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the jobs controller would take its members for lost."""
    inner = ClusterState.node_changed

    def node_changed(self: ClusterState, node: Node) -> None:
        if node.metadata.name == "node-0000":
            raise RecursionError("planted")
        inner(self, node)

    async def main(process: Process) -> None:
        monkeypatch.setattr(ClusterState, "node_changed", node_changed)
        await process.create(*make_nodes(2), make_job("a"))
        async with process.scheduler():
            assert process.placed("a") == ["node-0001"]
            assert process.world.set_aside.find(NODES, ("", "node-0000")) is not None
            assert process.world.health.usable == {"node-0000": True, "node-0001": True}

    play(main)


def test_a_world_whose_handler_is_broken_reports_it_and_is_rebuilt_by_the_next_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: ClusterState, *_: object) -> None:
        raise RecursionError("planted")

    async def main(process: Process) -> None:
        await process.create(*make_nodes(1))
        await asyncio.sleep(1)
        before = process.world.state
        waiting = asyncio.get_running_loop().create_task(process.world.wait_fault())
        with monkeypatch.context() as patched:
            patched.setattr(ClusterState, "node_changed", broken)
            patched.setattr(ClusterState, "node_deleted", broken)
            await process.create(*make_nodes(2)[1:])
            with pytest.raises(RecursionError, match="planted"):
                await asyncio.wait_for(waiting, 10)
        process.world.ensure_sound()
        assert process.world.state is not before
        assert process.world.state.table.node_count == 2
        rebuilt = process.world.state
        process.world.ensure_sound()
        assert process.world.state is rebuilt

    play(main)


def test_a_change_counts_when_a_decision_could_see_it() -> None:
    async def main(process: Process) -> None:
        world = process.world

        def counts(old: Job | None, new: Job | None) -> bool:
            before = world.change_count
            world._job_changed(Change(old, new))
            return world.change_count == before  # `_follow` has counted it

        def job(version: int, *, attempt: int = 1, ends: bool = False, place: str = "") -> Job:
            conditions = (Condition("Succeeded", "True"),) if ends else ()
            placement = make_placement([place]) if place else None
            return make_job(
                "a", resource_version=version, attempt=attempt, conditions=conditions,
                placement=placement,
            )  # fmt: skip

        assert not counts(None, job(1, attempt=0))
        assert counts(job(1, attempt=0), job(2))
        assert counts(job(2), job(3, place="node-0000"))
        assert counts(job(3, place="node-0000"), job(4, place="node-0000", ends=True))
        assert counts(job(4, place="node-0000", ends=True), job(5, ends=True))
        assert not counts(job(5, ends=True), job(6, ends=True))
        assert not counts(job(6, ends=True), None)
        assert counts(job(7, place="node-0000"), None)

        held = partial(make_job, "a", suspend=True)
        world.note_decided(job(8), 9)
        assert counts(job(7), held(resource_version=8)), "another's write"
        world.note_decided(job(8), 9)
        assert not counts(job(8), held(resource_version=9)), "the decision's own"
        assert counts(held(resource_version=9), job(10))

    play(main)


@pytest.mark.parametrize(
    "change",
    [
        {"annotations": {"example.com/note": "new"}},
        {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/hold"]},
    ],
    ids=["annotation", "deletion"],
)
def test_an_annotation_or_the_deletion_of_a_waiting_job_is_a_reason_for_a_decision(
    change: dict[str, Any],
) -> None:
    async def main(process: Process) -> None:
        async with process.scheduler():
            await process.create(make_job("a"))
            await asyncio.sleep(1)
            before = process.world.change_count
            await process.client.patch(JOBS, "a", {"metadata": change}, namespace="default")
            await asyncio.sleep(1)
            assert process.world.change_count > before

    play(main)
