"""The supervisor: restarts, fatal services, order and limits of the shutdown, health."""

from __future__ import annotations

import asyncio
import random

import pytest

from fairlead.runtime.backoff import BackoffOptions
from fairlead.runtime.clock import LoopClock
from fairlead.runtime.supervisor import (
    OnCrash,
    ServiceState,
    SupervisedService,
    Supervisor,
    SupervisorOptions,
)
from fairlead.sim.loop import run


class Story:
    """What happened, and when."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.logged: list[str] = []

    def service(
        self, name: str, *, stop_seconds: float = 0.0, **options: object
    ) -> SupervisedService:
        async def live() -> None:
            self.lines.append(f"{name} starts")
            try:
                await asyncio.sleep(1e9)
            finally:
                if stop_seconds:
                    await asyncio.sleep(stop_seconds)
                self.lines.append(f"{name} stops")

        return SupervisedService(name, live, **options)

    def crasher(self, name: str, lives: list[float], **options: object) -> SupervisedService:
        async def live() -> None:
            self.lines.append(f"{name} starts")
            if not lives:
                await asyncio.sleep(1e9)
            await asyncio.sleep(lives.pop(0))
            raise ZeroDivisionError(f"{name} is broken")

        return SupervisedService(name, live, **options)

    def error(self, event: str, **facts: object) -> None:
        self.logged.append(f"{event}: {facts['service']}: {facts.get('error')}")

    info = debug = warning = lambda self, event, **facts: None


def supervise(story: Story, *services: SupervisedService, **options: object) -> Supervisor:
    return Supervisor(
        services,
        clock=LoopClock(0.0),
        rng=random.Random(1),
        options=SupervisorOptions(**options),
        log=story,
    )


def test_services_stop_in_reverse_order_each_after_the_one_above_it_has_ended() -> None:
    async def main() -> None:
        story = Story()
        supervisor = supervise(
            story,
            story.service("log"),
            story.service("api", stop_seconds=1.0),
            story.service("jobs", stop_seconds=2.0),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            await asyncio.sleep(1)
            supervisor.stop()
        assert story.lines == [
            "log starts", "api starts", "jobs starts", "jobs stops", "api stops", "log stops",
        ]  # fmt: skip

    run(main())


def test_a_stop_before_its_start_ends_it_at_once() -> None:
    async def main() -> None:
        story = Story()
        supervisor = supervise(story, story.service("a"), story.service("b"))
        supervisor.stop()
        begun_at = asyncio.get_running_loop().time()
        await supervisor.run()
        assert asyncio.get_running_loop().time() == begun_at
        assert story.logged == []
        assert story.lines.count("a starts") == story.lines.count("a stops")

    run(main())


def test_cancelling_it_is_an_orderly_shutdown_too() -> None:
    async def main() -> None:
        story = Story()
        supervisor = supervise(story, story.service("a"), story.service("b", stop_seconds=1.0))
        task = asyncio.create_task(supervisor.run())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert story.lines[2:] == ["b stops", "a stops"]

    run(main())


def test_a_crashed_service_is_started_anew_ever_later_and_the_others_never_notice() -> None:
    async def main() -> None:
        story = Story()
        service = story.crasher("sick", [0.0] * 20)
        supervisor = supervise(
            story, story.service("well"), service, backoff=BackoffOptions(1.0, 60.0)
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            await asyncio.sleep(30)
            [well, sick] = supervisor.health().services
            assert well.ready
            assert sick.state is ServiceState.BACKING_OFF
            assert 4 <= sick.crash_count <= 7
            assert sick.last_error == "ZeroDivisionError: sick is broken"
            assert supervisor.health().live
            assert not supervisor.health().ready
            await asyncio.sleep(2000)
            assert supervisor.health().ready
            supervisor.stop()
        assert story.lines.count("well starts") == 1
        assert story.logged[0] == "Service crashed: sick: ZeroDivisionError: sick is broken"

    run(main())


def test_a_long_healthy_life_wipes_the_slate() -> None:
    async def main() -> None:
        story = Story()
        lives = [0.0] * 8 + [500.0]
        supervisor = supervise(story, story.crasher("sick", lives), healthy_seconds=300.0)
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            while supervisor.health().services[0].crash_count < 9:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            crashed_at = loop.time()
            while supervisor.health().services[0].state is not ServiceState.RUNNING:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            assert loop.time() - crashed_at < 1.0
            supervisor.stop()

    run(main())


def test_the_first_fatal_crash_stops_everything_in_order_and_is_raised() -> None:
    async def main() -> None:
        story = Story()
        supervisor = supervise(
            story,
            story.service("a"),
            story.crasher("log", [5.0], on_crash=OnCrash.FATAL),
            story.crasher("listener", [5.5], on_crash=OnCrash.FATAL),
            story.service("b", stop_seconds=1.0),
        )
        with pytest.raises(ZeroDivisionError, match="log is broken"):
            await supervisor.run()
        assert story.lines[-2:] == ["b stops", "a stops"]
        assert not supervisor.health().live
        states = [each.state for each in supervisor.health().services[1:3]]
        assert states == [ServiceState.CRASHED] * 2

    run(main())


def test_who_does_not_stop_in_time_is_reported_and_the_rest_goes_on_stopping() -> None:
    async def main() -> None:
        story = Story()
        stuck: list[str] = []
        supervisor = Supervisor(
            [story.service("a"), story.service("slow", stop_seconds=100.0), story.service("c")],
            clock=LoopClock(0.0),
            rng=random.Random(1),
            options=SupervisorOptions(stop_seconds_max=5.0),
            stuck=stuck.append,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            await asyncio.sleep(1)
            supervisor.stop()
        assert stuck == ["slow"]
        assert story.lines[3:] == ["c stops", "a stops", "slow stops"]

    run(main())


def test_a_service_that_crashes_while_it_is_stopped_is_not_started_again() -> None:
    """A task group whose child has failed raises that error, and swallows a cancellation."""
    story = Story()

    async def main() -> None:
        stopped = asyncio.Event()

        async def slow() -> None:
            try:
                await stopped.wait()
            finally:
                await asyncio.sleep(1.0)

        async def crashing() -> None:
            story.lines.append("broken starts")
            async with asyncio.TaskGroup() as group:
                group.create_task(slow())
                await asyncio.sleep(5.0)
                raise ZeroDivisionError("broken")

        supervisor = supervise(story, SupervisedService("broken", crashing))
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            await asyncio.sleep(5.5)
            supervisor.stop()
        assert asyncio.get_running_loop().time() < 7.0

    run(main())
    assert story.lines == ["broken starts"]
    assert story.logged == ["Service crashed: broken: ZeroDivisionError: broken"]


def test_readiness_asks_the_service_while_it_runs() -> None:
    async def main() -> None:
        story = Story()
        synced = False
        supervisor = supervise(story, story.service("a", is_ready=lambda: synced))
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            await asyncio.sleep(1)
            assert not supervisor.health().ready
            synced = True
            assert supervisor.health().ready
            supervisor.stop()
        assert not supervisor.health().ready

    run(main())


def test_a_service_that_keeps_crashing_is_never_ready_in_between() -> None:
    async def main() -> None:
        story = Story()
        crasher = story.crasher("jobs", [3.0, 3.0, 3.0, 3.0])
        supervisor = supervise(story, crasher, proven_seconds=5.0, backoff=BackoffOptions(1.0, 1.0))
        ready: list[bool] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            for _ in range(30):
                await asyncio.sleep(1.0)
                ready.append(supervisor.health().ready)
            supervisor.stop()
        assert story.lines.count("jobs starts") == 5
        assert ready[:2] == [True, True], "before the first crash"
        first_ready = ready.index(True, 2)
        assert all(ready[first_ready:]), "and after the last"
        assert first_ready >= 4 * 3 + 5

    run(main())


def test_two_services_of_one_name_are_refused() -> None:
    async def main() -> None:
        story = Story()
        with pytest.raises(ValueError, match="different names"):
            supervise(story, story.service("a"), story.service("a"))

    run(main())


def test_a_shutdown_that_is_cut_short_starts_nothing_again() -> None:
    """The service fails as it is cancelled, before its turn in the shutdown has come."""

    async def main() -> None:
        story = Story()

        async def fails_at_its_end() -> None:
            story.lines.append("leader starts")
            try:
                await asyncio.sleep(1e9)
            except asyncio.CancelledError:
                raise RuntimeError("a member of its group failed") from None

        slow = story.service("jobs", stop_seconds=5.0)
        supervisor = supervise(story, SupervisedService("leader", fails_at_its_end), slow)
        running = asyncio.create_task(supervisor.run())
        await asyncio.sleep(1)
        supervisor.stop()
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running], timeout=60)
        assert running.done()
        assert story.lines.count("leader starts") == 1

    run(main())
