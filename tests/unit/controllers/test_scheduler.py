"""The scheduler on an API: what it writes, and what happens when somebody else writes too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod, PriorityClass
from fairlead.api.meta import Condition, ObjectMeta, find_condition, to_wire
from fairlead.api.resources import JOBS, NODES, PODS, PRIORITY_CLASSES, Resource
from fairlead.api.status import Conflict, Invalid, Unavailable
from fairlead.api.values.times import format_time
from fairlead.controllers.cluster_world import ClusterWorld
from fairlead.controllers.placing.scheduler import SchedulerController
from fairlead.runtime.client import WatchEvent, WatchRequest
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.events import EventKind
from fairlead.runtime.loop import ControllerLoop
from fairlead.sim.loop import run
from fairlead.testing.builders import (
    EPOCH,
    make_job,
    make_member_pod,
    make_node,
    make_nodes,
    make_pod,
    make_priority_class,
)
from fairlead.testing.fake_client import FakeClient

_RESOURCES = {Job: JOBS, Node: NODES, Pod: PODS, PriorityClass: PRIORITY_CLASSES}


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def record(
        self,
        resource: Resource[Any],
        metadata: ObjectMeta,
        kind: EventKind,
        *,
        reason: str,
        message: str,
    ) -> None:
        assert resource is JOBS
        assert message
        self.seen.append((metadata.name, kind.value, reason))


class World:
    def __init__(self, client: FakeClient | None = None) -> None:
        self.client = client or FakeClient()
        self.events = Events()
        clock = LoopClock(EPOCH)
        mirrors = ClusterWorld.make(self.client, clock=clock, rng=random.Random(1))
        self.scheduler = SchedulerController(self.client, mirrors, events=self.events)
        self.loop = ControllerLoop(self.scheduler, clock=clock, rng=random.Random(2))

    async def create(self, *objects: Any) -> None:
        for obj in objects:
            resource: Any = _RESOURCES[type(obj)]
            wire = to_wire(obj)
            wire["metadata"].pop("resourceVersion")
            await self.client.create(resource, wire)

    async def set(self, name: str, status: dict[str, Any]) -> None:
        await self.client.patch(
            JOBS, name, {"status": status}, namespace="default", subresource="status"
        )

    def job(self, name: str) -> Job:
        return next(j for j in self.client.stored(JOBS) if j.metadata.name == name)

    def placed(self, name: str) -> list[str] | None:
        placement = self.job(name).status.placement
        return None if placement is None else [n for r in placement.roles for n in r.nodes]


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    """Run the loop; a fault of the controller fails the test, whatever the test expects."""
    task = asyncio.get_running_loop().create_task(world.loop.run())
    try:
        yield world
        if task.done():
            await task
        assert world.loop.ready, "the controller has never decided"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def check(main: Callable[[Any], Any], make: Callable[[], World] = World) -> None:
    async def body() -> None:
        async with running(make()) as world:
            await main(world)

    run(body())


class SlowPods(FakeClient):
    """A server whose watch of pods is a second behind all others."""

    async def open_watch(self, request: WatchRequest[Any]) -> AsyncIterator[WatchEvent[Any]]:
        async for event in super().open_watch(request):
            if request.resource.name == PODS.name:
                await asyncio.sleep(1.0)
            yield event


def test_room_is_not_given_away_before_the_pods_are_seen_that_may_be_in_it() -> None:
    """A job is cancelled just as its pod is made, and the pods' watch is behind the jobs'."""

    async def main(world: World) -> None:
        admitted = (Condition(type="Admitted", status="True"),)
        first = make_job("first", gpus=8, conditions=admitted)
        await world.create(make_node("n1", gpus=8), first)
        await asyncio.sleep(3)
        assert world.placed("first") == ["n1"]
        owner = world.job("first")
        await world.create(make_job("second", gpus=8), make_member_pod(owner))
        pod = world.client.stored(PODS)[0]
        record = to_wire(owner.status.attempts[0])
        record |= {"finishedAt": format_time(EPOCH), "podsVersion": pod.metadata.resource_version}
        await world.client.patch(JOBS, "first", {"spec": {"cancel": True}}, namespace="default")
        await world.set("first", {"attempts": [record]})
        await asyncio.sleep(0.9)
        assert (world.placed("first"), world.placed("second")) == (["n1"], None)
        await asyncio.sleep(10)
        assert (world.placed("first"), world.placed("second")) == (None, None)
        await world.client.delete(PODS, pod.metadata.name, namespace="default")
        await asyncio.sleep(3)
        assert world.placed("second") == ["n1"]

    check(main, lambda: World(SlowPods()))


def test_a_gang_is_placed_by_one_write_that_keeps_what_others_wrote() -> None:
    async def main(world: World) -> None:
        conditions = [{"type": "Admitted", "status": "True", "reason": "Ready"}]
        await world.create(*make_nodes(3), make_job("a", count=3, attempt=0))
        await asyncio.sleep(1)
        assert world.placed("a") is None
        await world.set("a", {"attempt": 1, "conditions": conditions, "state": "Waiting"})
        patches = world.client.count("patch")
        await asyncio.sleep(1)
        assert world.placed("a") == ["node-0000", "node-0001", "node-0002"]
        assert world.client.count("patch") == patches + 1
        status = world.job("a").status
        assert (status.state, status.attempt) == ("Starting", 1)
        assert status.placement is not None
        assert status.placement.attempt == 1
        assert [a.number for a in status.attempts] == [1]
        assert (status.members.total, status.members.pending) == (3, 3)
        assert [c.type for c in status.conditions] == ["Admitted", "Running", "Placed"]
        assert status.verdict is not None
        assert status.verdict.reason == "Placed"
        assert world.events.seen == [("a", "Normal", "Placed")]
        await asyncio.sleep(3600)
        assert world.client.count("patch") == patches + 1

    check(main)


def test_the_place_of_a_lone_member_is_an_event_only_if_it_has_waited() -> None:
    async def main(world: World) -> None:
        admitted = (Condition(type="Admitted", status="True"),)
        first, second = [make_job(name, gpus=8, conditions=admitted) for name in "ab"]
        await world.create(make_node("n1", gpus=8), first)
        await asyncio.sleep(1)
        await world.create(second)
        await asyncio.sleep(1)
        assert (world.placed("a"), world.placed("b")) == (["n1"], None)
        await world.create(make_node("n2", gpus=8))
        await asyncio.sleep(1)
        assert world.placed("b") == ["n2"]
        assert [event[0] for event in world.events.seen if event[2] == "Placed"] == ["b"]

    check(main)


def test_two_jobs_that_want_everything_take_turns() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(4), make_job("a", count=4), make_job("b", count=4))
        await asyncio.sleep(1)
        assert world.placed("a") is not None
        assert world.placed("b") is None
        waiting = world.job("b").status
        placed = find_condition(waiting.conditions, "Placed")
        assert placed is not None
        assert (placed.status, placed.reason) == ("False", "InsufficientCapacity")
        assert placed.message == "needs 32 GPUs, 0 of 32 are free: 32 short"
        await world.set("a", {"conditions": [{"type": "Succeeded", "status": "True"}]})
        await asyncio.sleep(1)
        assert world.placed("a") is None
        assert world.placed("b") is not None
        assert world.events.seen == [
            ("a", "Normal", "Placed"),
            ("b", "Normal", "InsufficientCapacity"),
            ("b", "Normal", "Placed"),
        ]

    check(main)


def test_of_many_jobs_that_begin_to_wait_some_get_an_event_and_all_a_verdict() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(1), make_job("first"))
        await asyncio.sleep(1)
        for i in range(200):
            await world.create(make_job(f"j{i:03}"))
        await asyncio.sleep(20)
        waiting = [j for j in world.client.stored(JOBS) if j.status.verdict is not None]
        assert len(waiting) == 201
        told = [e for e in world.events.seen if e[2] == "InsufficientCapacity"]
        assert 50 <= len(told) <= 100
        before, writes = len(world.events.seen), world.client.count("patch")
        await world.create(make_node("small", gpus=4))
        await asyncio.sleep(600)  # the numbers in a verdict change, its reason does not
        assert world.client.count("patch") > writes
        assert len(world.events.seen) == before

    check(main)


def test_a_job_that_ends_without_ever_having_had_a_place_has_no_reason_to_wait_any_more() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(1), make_job("big", count=2))
        await asyncio.sleep(1)
        assert world.job("big").status.verdict is not None
        await world.set("big", {"conditions": [{"type": "Failed", "status": "True"}]})
        await asyncio.sleep(1)
        status = world.job("big").status
        assert status.verdict is None
        placed = find_condition(status.conditions, "Placed")
        assert placed is not None
        assert (placed.status, placed.reason, placed.message) == ("False", "Finished", "")

    check(main)


def test_a_conflict_leads_to_a_new_decision_on_what_is_there_now() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(1))
        await asyncio.sleep(1)
        world.client.fail_next("patch", Conflict("changed"), Unavailable("gone"))
        await world.create(make_job("a"), make_job("b"))
        await asyncio.sleep(60)
        assert [world.placed("a"), world.placed("b")] == [["node-0000"], None]

    check(main)


def test_a_stale_decision_never_overwrites_a_newer_job() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(2), make_job("a"))
        await asyncio.sleep(0)
        world.client.hold_watches()
        await asyncio.sleep(0.1)
        await world.client.patch(JOBS, "a", {"spec": {"suspend": True}}, namespace="default")
        await asyncio.sleep(1)
        world.client.release_watches()
        await asyncio.sleep(10)
        assert world.placed("a") is None
        await world.create(make_job("b"))  # and others are placed: it decides
        await asyncio.sleep(1)
        assert world.placed("b") is not None

    check(main)


def test_a_job_whose_write_is_refused_holds_up_nobody() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(1))
        await asyncio.sleep(1)
        world.client.fail_next("patch", *[Invalid("no")] * 3)
        await world.create(make_job("a"))
        await asyncio.sleep(0.05)
        assert world.placed("a") is None
        await asyncio.sleep(120)
        assert world.placed("a") == ["node-0000"]

    check(main)


def test_foreign_pods_and_nodes_that_come_and_go_are_followed() -> None:
    async def main(world: World) -> None:
        foreign = make_pod("x", node="n1", gpus=4)
        await world.create(make_node("n1"), foreign, make_job("a"))
        await asyncio.sleep(1)
        assert world.placed("a") is None
        await world.client.delete(PODS, "x", namespace="default")
        await asyncio.sleep(1)
        assert world.placed("a") == ["n1"]
        await world.create(make_job("b"))
        await asyncio.sleep(1)
        verdict = world.job("b").status.verdict
        assert verdict is not None
        assert verdict.reason == "InsufficientCapacity"
        await world.client.delete(NODES, "n1")
        await world.create(make_node("n2"))
        await asyncio.sleep(1)
        assert world.placed("b") == ["n2"]

    check(main)


def test_an_impossible_job_is_told_once_with_a_warning() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(1), make_job("a", gpus=16))
        await asyncio.sleep(3600)
        status = world.job("a").status
        assert status.verdict is not None
        assert status.verdict.outcome == "Impossible"
        assert status.verdict.facts["largest"] == 8
        assert world.events.seen == [("a", "Warning", "NoNodeShapeFits")]
        assert world.client.count("patch") == 1

    check(main)


def test_a_new_scheduler_takes_over_without_writing_anything() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(2), make_job("a", count=2), make_job("b", count=2))
        await asyncio.sleep(1)
        patches = world.client.count("patch")
        after = World()
        after.client = world.client
        mirrors = ClusterWorld.make(world.client, clock=LoopClock(EPOCH), rng=random.Random(3))
        controller = SchedulerController(world.client, mirrors)
        after.loop = ControllerLoop(controller, clock=LoopClock(EPOCH), rng=random.Random(4))
        async with running(after):
            await asyncio.sleep(600)
            assert after.loop.ready
            assert len(controller.state.queue) == 1
            assert world.client.count("patch") == patches

    check(main)


def of_class(name: str) -> dict[str, Any]:
    return {"priority_class_name": name}


def test_the_class_of_a_job_decides_its_place_and_its_own_number_does_not() -> None:
    async def main(world: World) -> None:
        await world.create(make_priority_class("high", 1000), make_node("n"))
        await asyncio.sleep(1)
        await world.create(make_job("running"))
        await asyncio.sleep(1)
        await world.create(
            make_job("greedy", priority=2**31 - 1),
            make_job("first", created=EPOCH + 5),
            make_job("urgent", created=EPOCH + 9, spec=of_class("high")),
        )
        await world.set("running", {"conditions": [{"type": "Succeeded", "status": "True"}]})
        await asyncio.sleep(1)
        assert world.placed("urgent") == ["n"]
        await world.set("urgent", {"conditions": [{"type": "Succeeded", "status": "True"}]})
        await asyncio.sleep(1)
        assert (world.placed("greedy"), world.placed("first")) == (["n"], None)

    check(main)


def test_a_job_of_a_class_that_is_missing_or_reserved_waits_and_says_so() -> None:
    async def main(world: World) -> None:
        await world.create(*make_nodes(2), make_priority_class("system-node-critical", 2 * 10**9))
        await world.create(
            make_job("a", spec=of_class("none")),
            make_job("b", spec=of_class("system-node-critical")),
        )
        await asyncio.sleep(1)
        verdicts = [world.job(name).status.verdict for name in "ab"]
        assert [v and (v.outcome, v.reason) for v in verdicts] == [
            ("Blocked", "PriorityClassMissing"), ("Blocked", "PriorityClassReserved"),
        ]  # fmt: skip
        assert (world.placed("a"), world.placed("b")) == (None, None)
        await world.create(make_priority_class("none", 5))
        await asyncio.sleep(1)
        assert world.placed("a") is not None
        assert world.placed("b") is None

    check(main)


def test_a_class_that_changes_reorders_those_who_wait() -> None:
    async def main(world: World) -> None:
        await world.create(make_node("n"), make_priority_class("low", 0), make_job("running"))
        await asyncio.sleep(1)
        await world.create(make_job("a"), make_job("b", created=EPOCH + 1, spec=of_class("low")))
        await asyncio.sleep(1)
        await world.client.delete(PRIORITY_CLASSES, "low")
        await world.create(make_priority_class("low", 7))
        await asyncio.sleep(1)
        await world.set("running", {"conditions": [{"type": "Succeeded", "status": "True"}]})
        await asyncio.sleep(1)
        assert (world.placed("a"), world.placed("b")) == (None, ["n"])

    check(main)
