"""Notices in the whole cluster under virtual time: with preemption, deletion and faults of both."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter

from tests.simulation.embedded_world import EmbeddedWorld, embedded_world

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.notify import NoticeState
from fairlead.api.resources import JOBS, PRIORITY_CLASSES
from fairlead.api.status import NotFound
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.notices import HOLD_SECONDS_MAX, held_until
from fairlead.decide.notices import Delivery, NoticesPolicy, Post, TryOutcome, TryReason
from fairlead.sim.loop import run
from fairlead.sim.setup.workload import Arrival, WorkloadOptions, generate
from fairlead.sim.setup.world_options import WorldOptions
from fairlead.sim.world import World


class Receivers:
    """Whom notices are sent to. Of the first two tries of each one is taken, and not answered."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        self.taken: list[str] = []

    async def send(self, delivery: Delivery) -> TryOutcome:
        letter = delivery.letter
        said = f"{letter.name} {letter.event.value} {letter.attempt}"
        self.tried[said] += 1
        await asyncio.sleep(1)
        if self.tried[said] == 1:
            return TryOutcome(TryReason.BUSY, 503)
        self.taken.append(said)
        return TryOutcome(TryReason.DELIVERED, 200)

    async def post_ticket(self, post: Post) -> TryOutcome:
        raise AssertionError("jobs have no tickets")


async def _is_gone(world: EmbeddedWorld, name: str) -> bool:
    try:
        await world.job(name)
    except NotFound:
        return True
    return False


def test_a_job_that_is_preempted_and_then_deletes_itself_has_sent_each_notice_once() -> None:
    receivers = Receivers()

    async def main() -> None:
        async with embedded_world(1, notices=receivers) as world:
            await world.client.create(
                PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 1000}
            )
            notify = [{"on": ["Start", "Preempt", "End"], "url": "https://hooks.example/"}]
            await world.submit("low", 1, seconds=300, notify=notify, ttlSecondsAfterFinished=0)
            await world.until("low", lambda job: job.status.state == "Running")
            await asyncio.sleep(90)
            await world.submit("high", 1, seconds=30, priorityClassName="high")
            job = await world.until("low", lambda job: bool(job.status.finished_at), 1200)
            assert [each.reason for each in job.status.attempts] == ["Preempted", "Succeeded"]
            for _ in range(600):
                if await _is_gone(world, "low"):
                    break
                await asyncio.sleep(1)
            assert await _is_gone(world, "low")
            # One that is deleted withdraws what it owes.
            await world.submit("away", 1, notify=notify)
            await world.until("away", lambda job: job.status.state == "Running")
            await world.client.delete(JOBS, "away", namespace="default")
            await asyncio.sleep(3600)

    run(main())
    assert receivers.taken == ["low Start 1", "low Preempt 1", "low End 2"]
    assert [receivers.tried[each] for each in receivers.taken] == [2, 2, 2]
    assert receivers.tried["away End 1"] == 0


HARSH = WorldOptions(
    nodes=5, workload=WorkloadOptions(12, 3600.0, members_max=4), lease_seconds=15.0,
    calls_between_kills_mean=100.0, steps_between_crashes_mean=60.0,
)  # fmt: skip


def _asking(arrival: Arrival) -> Arrival:
    notify = [{"on": ["Start", "End"], "url": "https://hooks.example/"}]
    spec = {**arrival.body["spec"], "notify": notify}
    return dataclasses.replace(arrival, body={**arrival.body, "spec": spec})


def test_replicas_that_are_killed_lose_no_notice_and_repeat_none_without_bound() -> None:
    """Every job of a random world asks; faults, kills and crashes are those of explored worlds."""

    async def main() -> tuple[World, list[Job]]:
        arrivals = [_asking(each) for each in generate(HARSH.workload, random.Random(5))]
        world = World(HARSH, 5, arrivals=arrivals)
        await world.run()
        return world, [job for job in (await world.client.list(JOBS)).items if job.is_finished]

    world, jobs = run(main())
    receivers, now = world.replicas.receivers, world.last_write_at
    assert world.kills > 3
    assert len(jobs) == 12
    assert max(receivers.tries.values()) > 1, "the trouble took place"
    settled = 0
    for job in jobs:
        for record in job.status.notices:
            id_ = f"{job.metadata.uid}-0-{record.event.value.lower()}-{record.attempt}"
            assert receivers.tries[id_] <= record.tries <= NoticesPolicy().tries_max
            if record.state is NoticeState.DELIVERED:
                assert receivers.taken[id_] >= 1
                settled += 1
        ended_at = parse_time(job.status.finished_at or "")
        if now - ended_at > HOLD_SECONDS_MAX:
            assert held_until(job, ended_at) is None
    assert settled > 12
