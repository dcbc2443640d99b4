"""The shared loop, driven by a small controller that keeps the pods a ConfigMap asks for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import ConfigMap, Pod
from fairlead.api.meta import ObjectMeta
from fairlead.api.resources import CONFIG_MAPS, PODS
from fairlead.api.status import (
    ApiError,
    Conflict,
    InternalError,
    Invalid,
    StatusDetails,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from fairlead.decide.jobs.actions import CreatePod, DeletePod
from fairlead.decide.verdict import Decision, ObjectKey
from fairlead.runtime.clock import Clock, LoopClock
from fairlead.runtime.loop import ActionResult, ControllerLoop, LoopOptions, Written
from fairlead.runtime.queue import KeyQueue
from fairlead.runtime.watching.mirror import Mirror, MirrorOptions
from fairlead.sim.loop import run
from fairlead.testing.fake_client import FakeClient

EPOCH = 1_767_225_600.0

Action: TypeAlias = CreatePod | DeletePod


class Replicas:
    """Keeps `count` pods per ConfigMap; everything it does is noted for the tests."""

    name = "replicas"

    def __init__(self, client: FakeClient) -> None:
        options = MirrorOptions(watch_seconds=3600)
        clock = LoopClock(EPOCH)
        self.client = client
        self.wanted: Mirror[ConfigMap] = Mirror(
            client, CONFIG_MAPS, clock=clock, rng=random.Random(1), options=options
        )
        self.pods: Mirror[Pod] = Mirror(
            client, PODS, clock=clock, rng=random.Random(2), options=options
        )
        self.mirrors = (self.wanted, self.pods)
        self.dirty = KeyQueue[ObjectKey]()
        self.wanted.on_change(lambda change: self.dirty.add(change.key))
        self.pods.on_change(lambda change: self.dirty.add(owner(change.key)))
        self.decided_at: list[float] = []
        self.wake_at: float | None = None
        self.failures: list[tuple[Action, ApiError]] = []
        self.changes: list[tuple[ObjectKey, float]] = []
        self.decisions: list[Decision[Action]] = []
        self.performing = 0
        self.performing_max = 0
        self.performed: list[str] = []
        self.errors: dict[str, list[Exception]] = {}
        self.faults: list[tuple[float, Exception]] = []

    def decide(self, now: float) -> Decision[Action]:
        self.decided_at.append(now)
        actions: list[Action] = []
        for key in self.dirty.pop(now):
            wanted = self.wanted.get(*key)
            count = 0 if wanted is None else int(wanted.data["count"])
            held = [pod for pod in self.pods.items() if owner(pod.metadata.key) == key]
            names = [pod.metadata.name for pod in held]
            for i in range(count):
                name = f"{key[1]}-{i:03}"
                if name not in names:
                    metadata = ObjectMeta(namespace=key[0], name=name)
                    actions.append(CreatePod(Job(), Pod(metadata=metadata)))
            for pod in held[count:]:
                actions.append(DeletePod(*pod.metadata.key, pod.metadata.uid))  # noqa: PERF401
        decision = Decision(actions=tuple(actions), wake_at=self.wake_at)
        self.decisions.append(decision)
        return decision

    def key_of(self, action: Action) -> ObjectKey:
        if isinstance(action, CreatePod):
            return owner(action.pod.metadata.key)
        assert isinstance(action, DeletePod)
        return owner((action.namespace, action.name))

    async def perform(self, action: Action) -> Written | None:
        self.performing += 1
        self.performing_max = max(self.performing, self.performing_max)
        try:
            if isinstance(action, CreatePod):
                name = action.pod.metadata.name
                if self.errors.get(name):
                    await asyncio.sleep(0)
                    raise self.errors[name].pop(0)
                pod = await self.client.create(PODS, action.pod)
                self.performed.append(name)
                return Written.of(PODS, pod)
            assert isinstance(action, DeletePod)
            key = (action.namespace, action.name)
            await self.client.delete(PODS, key[1], namespace=key[0], uid=action.uid)
            return Written.deletion(PODS, key, action.uid)
        finally:
            self.performing -= 1

    def changed(self, key: ObjectKey) -> None:
        self.changes.append((key, asyncio.get_running_loop().time()))
        self.dirty.add(key)

    def failed(self, action: Action, error: ApiError) -> None:
        self.failures.append((action, error))

    def faulted(self, action: Action, error: Exception) -> None:
        self.faults.append((asyncio.get_running_loop().time(), error))


def owner(key: ObjectKey) -> ObjectKey:
    return (key[0], key[1].rpartition("-")[0])


class Tally:
    """Counts what the loop reports."""

    def __init__(self) -> None:
        self.results: list[str] = []

    def stopwatch(self) -> float:
        return asyncio.get_running_loop().time()

    def decided(self, controller: str, seconds: float) -> None:
        assert seconds >= 0

    def acted(self, controller: str, action: str, result: ActionResult) -> None:
        self.results.append(result.value)


@asynccontextmanager
async def running(
    controller: Replicas,
    tally: Tally | None = None,
    *,
    clock: Clock | None = None,
    **options: object,
):
    loop = ControllerLoop(
        controller,
        clock=clock or LoopClock(EPOCH),
        rng=random.Random(3),
        options=LoopOptions(**options),
        observer=tally,
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(loop.run())
        while not loop.ready:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
        yield loop
        task.cancel()


async def want(client: FakeClient, name: str, count: int) -> None:
    stored = [obj.metadata.name for obj in client.stored(CONFIG_MAPS)]
    data = {"data": {"count": str(count)}}
    if name in stored:
        await client.patch(CONFIG_MAPS, name, data, namespace="a")
    else:
        await client.create(CONFIG_MAPS, {"metadata": {"name": name}, **data}, namespace="a")


def pods(client: FakeClient) -> list[str]:
    return [pod.metadata.name for pod in client.stored(PODS)]


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def wrapper() -> None:
        run(test())

    wrapper.__name__ = test.__name__
    return wrapper


@simulated
async def test_the_world_follows_the_wish_and_is_then_left_alone() -> None:
    client = FakeClient(latency_seconds=0.001)
    controller = Replicas(client)
    async with running(controller):
        await want(client, "x", 3)
        await asyncio.sleep(10)
        assert pods(client) == ["x-000", "x-001", "x-002"]
        await want(client, "x", 1)
        await asyncio.sleep(10)
        assert pods(client) == ["x-000"]
        calls, cycles = len(client.calls), len(controller.decided_at)
        await asyncio.sleep(3000)
        assert (len(client.calls), len(controller.decided_at)) == (calls, cycles)
    assert client.count("create", "pods") == 3
    assert client.count("delete", "pods") == 2


@simulated
async def test_no_decision_is_made_before_own_writes_are_seen() -> None:
    client = FakeClient()
    controller = Replicas(client)
    async with running(controller, barrier_seconds=60.0) as loop:
        await want(client, "x", 3)
        await asyncio.sleep(0.001)
        client.hold_watches()
        await asyncio.sleep(1)
        assert len(pods(client)) == 3
        cycles = len(controller.decided_at)
        controller.changed(("a", "x"))
        loop.wake()
        await asyncio.sleep(30)
        assert len(controller.decided_at) == cycles
        client.release_watches()
        await asyncio.sleep(1)
        assert len(controller.decided_at) > cycles
    assert client.count("create", "pods") == 3
    assert client.count("list", "pods") == 1


@simulated
async def test_a_mirror_that_never_shows_our_writes_is_listed_again() -> None:
    client = FakeClient()
    controller = Replicas(client)
    async with running(controller, barrier_seconds=5.0) as loop:
        await want(client, "x", 3)
        await asyncio.sleep(0.001)
        client.hold_watches()
        await asyncio.sleep(1)
        controller.changed(("a", "x"))
        loop.wake()
        await asyncio.sleep(10)
        assert len(controller.pods) == 3
        await want(client, "x", 1)
        controller.wanted.relist()
        await asyncio.sleep(1)
        assert pods(client) == ["x-000"]
        controller.changed(("a", "x"))
        loop.wake()
        await asyncio.sleep(10)
    assert client.count("create", "pods") == 3
    assert client.count("delete", "pods") == 2
    assert client.count("list", "pods") == 3


@simulated
async def test_a_conflict_drops_that_objects_actions_and_no_others() -> None:
    client = FakeClient()
    controller = Replicas(client)
    controller.errors["x-001"] = [Conflict("changed meanwhile")]
    tally = Tally()
    await want(client, "x", 3)
    await want(client, "y", 2)
    async with running(controller, tally):
        await asyncio.sleep(10)
    first = [action.pod.metadata.name for action in controller.decisions[0].actions]
    second = [action.pod.metadata.name for action in controller.decisions[1].actions]
    assert first == ["x-000", "x-001", "x-002", "y-000", "y-001"]
    assert second == ["x-001", "x-002"]
    assert controller.changes[0][0] == ("a", "x")
    assert pods(client) == ["x-000", "x-001", "x-002", "y-000", "y-001"]
    assert sorted(tally.results) == ["done"] * 5 + ["outdated"]


@simulated
async def test_what_can_pass_by_itself_is_retried_within_the_cycle() -> None:
    client = FakeClient()
    controller = Replicas(client)
    throttled = TooManyRequests("wait", details=StatusDetails(retry_after_seconds=2))
    controller.errors["x-000"] = [Unavailable("refused"), throttled]
    await want(client, "x", 2)
    tally = Tally()
    async with running(controller, tally):
        await asyncio.sleep(5)
    assert pods(client) == ["x-000", "x-001"]
    assert tally.results == ["retried", "retried", "done", "done"]
    assert controller.changes == []


@simulated
async def test_who_is_asked_to_wait_long_waits_that_long_while_others_go_on() -> None:
    client = FakeClient()
    controller = Replicas(client)
    throttled = TooManyRequests("wait", details=StatusDetails(retry_after_seconds=30))
    controller.errors["x-000"] = [throttled]
    await want(client, "x", 1)
    tally = Tally()
    async with running(controller, tally):
        await want(client, "y", 1)
        await asyncio.sleep(28)
        assert pods(client) == ["y-000"]
        await asyncio.sleep(5)
        assert pods(client) == ["x-000", "y-000"]
    assert tally.results == ["postponed", "done", "done"]


class Skewed(LoopClock):
    """A wall clock that is set."""

    def __init__(self) -> None:
        super().__init__(EPOCH)
        self.error = 0.0

    def now(self) -> float:
        return super().now() + self.error


@pytest.mark.parametrize(
    "error",
    [
        TooManyRequests("wait", details=StatusDetails(retry_after_seconds=30)),
        ValueError("planted"),
    ],
)
def test_a_wall_clock_that_is_set_back_makes_no_object_wait_longer(error: Exception) -> None:
    async def main() -> None:
        client, clock = FakeClient(), Skewed()
        controller = Replicas(client)
        controller.errors["x-000"] = [error]
        await want(client, "x", 1)
        async with running(controller, clock=clock) as loop:
            clock.error = -86_400.0
            loop.wake()  # for another reason
            await asyncio.sleep(40)
            assert pods(client) == ["x-000"]

    run(main())


class Single(Replicas):
    """Each pod is an object of its own, and all missing ones are decided on together."""

    def key_of(self, action: Action) -> ObjectKey:
        assert isinstance(action, CreatePod)
        return action.pod.metadata.key

    def changed(self, key: ObjectKey) -> None:
        super().changed(owner(key))


@simulated
async def test_who_is_asked_to_wait_is_not_brought_along_by_others_of_the_same_decision() -> None:
    client = FakeClient()
    controller = Single(client)
    for i in range(20):
        wait = StatusDetails(retry_after_seconds=5 + i)
        controller.errors[f"x-{i:03}"] = [TooManyRequests("wait", details=wait)]
    tried: dict[str, list[float]] = {}
    perform = controller.perform

    async def noting(action: Action) -> Written | None:
        assert isinstance(action, CreatePod)
        at = asyncio.get_running_loop().time()
        tried.setdefault(action.pod.metadata.name, []).append(at)
        return await perform(action)

    controller.perform = noting  # type: ignore[method-assign] # the test looks at what is tried
    async with running(controller):
        await want(client, "x", 20)
        await asyncio.sleep(60)
    assert len(pods(client)) == 20
    for i in range(20):
        first, *rest = tried[f"x-{i:03}"]
        assert len(rest) == 1
        assert 5 + i <= rest[0] - first <= 5 + i + 1


@simulated
async def test_an_object_that_is_to_wait_longer_than_it_was_to_wait_before_is_looked_at_then() -> (
    None
):
    client = FakeClient()
    controller = Replicas(client)
    outage: list[Exception] = [Unavailable("down") for _ in range(LoopOptions().retries_max + 1)]
    controller.errors["x-000"] = [Conflict("changed"), Conflict("changed"), *outage]
    async with running(controller):
        await want(client, "x", 1)
        await asyncio.sleep(0.03)
        assert controller.errors["x-000"] == outage, "it is to be looked at again in a moment"
        await want(client, "x", 2)  # and is acted on sooner
        await asyncio.sleep(60)
        assert pods(client) == ["x-000", "x-001"]


@simulated
async def test_credentials_that_are_refused_are_tried_ever_more_rarely_however_many_wait() -> None:
    controller, tally = Single(FakeClient()), Tally()
    for i in range(20):
        controller.errors[f"x-{i:03}"] = [Unauthorized("expired")] * 1000
    async with running(controller, tally):
        await want(controller.client, "x", 20)
        await asyncio.sleep(60)
    assert 20 * 8 <= len(tally.results) <= 20 * 15


@simulated
async def test_less_is_done_side_by_side_while_the_server_turns_us_away_and_more_again_later() -> (
    None
):
    client = FakeClient(latency_seconds=0.1)
    controller = Single(client)
    wait = StatusDetails(retry_after_seconds=4)
    for i in range(40):
        controller.errors[f"x-{i:03}"] = [TooManyRequests("wait", details=wait)]
    async with running(controller, concurrency_max=16, concurrency_start=16):
        await want(client, "x", 40)
        await asyncio.sleep(3)
        assert controller.performing_max == 16
        controller.performing_max = 0
        await asyncio.sleep(30)
        assert len(pods(client)) == 40
        assert controller.performing_max < 16
        await want(client, "y", 100)
        await asyncio.sleep(20)
        await want(client, "z", 100)
        await asyncio.sleep(20)
    assert controller.performing_max == 16


@simulated
async def test_an_object_that_keeps_failing_is_tried_ever_more_rarely_and_holds_up_no_other() -> (
    None
):
    client = FakeClient()
    controller = Replicas(client)
    controller.errors["x-000"] = [InternalError("webhook is broken") for _ in range(10_000)]
    await want(client, "x", 1)
    tally = Tally()
    async with running(controller, tally):
        await asyncio.sleep(600)
        early = tally.results.count("postponed")
        await want(client, "y", 1)
        await asyncio.sleep(10)
        assert pods(client) == ["y-000"]
        await asyncio.sleep(1200)
        late = tally.results.count("postponed") - early
        assert 20 < late < 80
        controller.errors.clear()
        await asyncio.sleep(60)
        assert pods(client) == ["x-000", "y-000"]
        client.cut_watches()
        controller.errors["x-001"] = [Conflict("once")]
        await want(client, "x", 2)
        await asyncio.sleep(1)  # success has wiped the slate: the next conflict is retried at once
        assert pods(client) == ["x-000", "x-001", "y-000"]


@simulated
async def test_what_no_retry_can_mend_is_given_to_the_controller() -> None:
    client = FakeClient()
    controller = Replicas(client)
    error = Invalid("spec.containers: required")
    controller.errors["x-000"] = [error]
    await want(client, "x", 2)
    await want(client, "y", 1)
    async with running(controller):
        await asyncio.sleep(60)
    assert [e for _, e in controller.failures] == [error]
    assert controller.performed.index("y-000") < controller.performed.index("x-000")
    assert pods(client) == ["x-000", "x-001", "y-000"]


@simulated
async def test_a_decision_is_made_at_wake_at_and_never_before() -> None:
    client = FakeClient()
    controller = Replicas(client)
    controller.wake_at = EPOCH + 1000 / 3
    async with running(controller):
        await asyncio.sleep(300)
        assert len(controller.decided_at) == 1
        await asyncio.sleep(33.4)
        assert controller.decided_at[1] >= controller.wake_at
        assert controller.decided_at[1] == pytest.approx(controller.wake_at, abs=0.001)


@simulated
async def test_a_timer_that_fires_a_hair_early_never_shows_in_the_decisions_instant() -> None:
    class Timed(Replicas):
        def decide(self, now: float) -> Decision[Action]:
            self.decided_at.append(now)
            delay = 0.1 / (len(self.decided_at) % 7 + 3)
            self.wake_at = now + delay
            loop = asyncio.get_running_loop()  # what is due within its resolution fires at once
            loop.call_later(delay - 5e-7, self.decided_at.__len__)
            decision: Decision[Action] = Decision(wake_at=self.wake_at)
            self.decisions.append(decision)
            return decision

    controller = Timed(FakeClient())
    async with running(controller):
        await asyncio.sleep(60)
    due = [decision.wake_at for decision in controller.decisions]
    assert len(due) > 1000
    for wake_at, decided_at in zip(due, controller.decided_at[1:], strict=False):
        assert wake_at <= decided_at < wake_at + 0.001


@simulated
async def test_a_controller_that_wants_to_wake_in_the_past_cannot_stop_time() -> None:
    client = FakeClient()
    controller = Replicas(client)
    controller.wake_at = EPOCH - 100
    async with running(controller):
        await asyncio.sleep(1)
    assert 100 < len(controller.decided_at) <= 1100


@simulated
async def test_without_changes_it_decides_at_the_resync_period() -> None:
    client = FakeClient()
    controller = Replicas(client)
    async with running(controller, resync_seconds=60.0):
        await asyncio.sleep(601)
    assert len(controller.decided_at) == 11


@simulated
async def test_a_burst_of_changes_is_decided_on_together() -> None:
    client = FakeClient()
    controller = Replicas(client)
    async with running(controller, batch_window_seconds=0.5):
        for i in range(100):
            await want(client, f"w{i:02}", 0)
            await asyncio.sleep(0.001)
        await asyncio.sleep(10)
    assert len(controller.decided_at) == 2


@simulated
async def test_objects_are_acted_on_side_by_side_within_the_limit_and_each_in_order() -> None:
    client = FakeClient(latency_seconds=0.1)
    controller = Replicas(client)
    for name in "abcdefghijkl":
        await want(client, name, 4)
    async with running(controller, concurrency_max=5):
        await asyncio.sleep(60)
    assert controller.performing_max == 5
    for name in "abcdefghijkl":
        own = [p for p in controller.performed if p.startswith(f"{name}-")]
        assert own == [f"{name}-{i:03}" for i in range(4)]


@simulated
async def test_few_begin_and_more_join_as_answers_come() -> None:
    client = FakeClient(latency_seconds=1.0)
    controller = Single(client)
    await want(client, "x", 100)
    async with running(controller, concurrency_max=16, concurrency_start=4):
        seen: list[int] = []
        await asyncio.sleep(0.5)
        for _ in range(4):
            seen.append(controller.performing_max)
            await asyncio.sleep(1)
    assert seen == [4, 8, 16, 16]


@simulated
async def test_a_fault_over_one_object_is_that_objects_and_tried_ever_more_rarely() -> None:
    client = FakeClient()
    controller = Replicas(client)
    controller.errors["x-000"] = [RecursionError("too deep") for _ in range(10_000)]
    await want(client, "x", 2)
    await want(client, "y", 1)
    tally = Tally()
    async with running(controller, tally):
        await asyncio.sleep(3600)
        assert pods(client) == ["y-000"]
        assert 10 < len(controller.faults) < 60
        assert tally.results.count("fault") == len(controller.faults)
        (before, _), (last, _) = controller.faults[-2:]
        assert last - before > 10
        controller.errors.clear()
        await want(client, "x", 3)  # a change is looked at at once
        await asyncio.sleep(0.1)
        assert pods(client) == ["x-000", "x-001", "x-002", "y-000"]


@pytest.mark.parametrize("where", ["decide", "key_of"])
def test_a_fault_of_ours_ends_the_loop_and_its_mirrors(where: str) -> None:
    async def main() -> None:
        client = FakeClient()
        controller = Replicas(client)
        await want(client, "x", 1)

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        setattr(controller, where, broken)
        loop = ControllerLoop(controller, clock=LoopClock(EPOCH), rng=random.Random(3))
        with pytest.RaisesGroup(ZeroDivisionError):
            await loop.run()
        assert client._watchers == []

    run(main())


@pytest.mark.parametrize("latency_seconds", [0.0, 0.01])
def test_killed_at_any_await_and_started_anew_it_ends_with_the_same_world(
    latency_seconds: float,
) -> None:
    async def main(steps: int) -> bool:
        client = FakeClient(latency_seconds=latency_seconds)
        await want(client, "x", 3)
        await want(client, "y", 2)
        victim = ControllerLoop(Replicas(client), clock=LoopClock(EPOCH), rng=random.Random(3))
        task = asyncio.create_task(victim.run())
        for _ in range(steps):
            await asyncio.sleep(latency_seconds / 4)
        finished = len(pods(client)) == 5
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client._watchers == []
        async with running(Replicas(client)):
            await asyncio.sleep(10)
            assert pods(client) == ["x-000", "x-001", "x-002", "y-000", "y-001"]
        assert client.count("create", "pods") == 5
        return finished

    outcomes = [run(main(steps)) for steps in range(60)]
    assert False in outcomes
    assert True in outcomes


@simulated
async def test_loops_may_share_mirrors_that_somebody_else_runs() -> None:
    client = FakeClient()
    controller = Replicas(client)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(mirror.run()) for mirror in controller.mirrors]
        for _ in range(2):  # the second is a restart
            async with running(controller, runs_mirrors=False):
                await want(client, "x", client.count("create", "pods") + 1)
                await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
    assert pods(client) == ["x-000", "x-001"]
    assert client.count("list", "pods") == 1


class Queue(Replicas):
    """Says when it has something to decide."""

    def due_at(self) -> float | None:
        return 0.0 if len(self.dirty) else self.dirty.wake_at()


@simulated
async def test_a_change_that_leaves_nothing_to_decide_starts_no_cycle() -> None:
    client = FakeClient(latency_seconds=0.001)
    controller = Queue(client)
    async with running(controller):
        await want(client, "x", 3)
        await asyncio.sleep(10)
        assert pods(client) == ["x-000", "x-001", "x-002"]
        cycles, changes = len(controller.decided_at), []
        controller.wanted.on_change(changes.append)
        controller.dirty.add = lambda key: None  # from now on changes give it nothing to do
        await want(client, "x", 1)
        await asyncio.sleep(10)
        assert len(changes) == 2  # what was there, and the change
        assert len(controller.decided_at) == cycles


@simulated
async def test_a_change_that_moves_the_deadline_forward_is_served_at_the_new_one() -> None:
    client = FakeClient()
    controller = Queue(client)
    async with running(controller):
        controller.wanted.on_change(lambda change: controller.dirty.add_at(change.key, EPOCH + 50))
        controller.dirty.add_at(("a", "later"), EPOCH + 500)
        controller.dirty.add = lambda key: None
        await want(client, "x", 0)
        await asyncio.sleep(100)
        assert controller.decided_at[-1] == pytest.approx(EPOCH + 50, abs=0.01)
        await asyncio.sleep(500)
        assert controller.decided_at[-1] == pytest.approx(EPOCH + 500, abs=0.01)


@simulated
async def test_what_is_marked_while_it_acts_is_decided_on_next() -> None:
    client = FakeClient(latency_seconds=1.0)
    controller = Queue(client)
    async with running(controller):
        await want(client, "x", 1)
        await asyncio.sleep(0.5)
        assert controller.performing == 1
        await want(client, "y", 1)
        await asyncio.sleep(10)
        assert pods(client) == ["x-000", "y-000"]
