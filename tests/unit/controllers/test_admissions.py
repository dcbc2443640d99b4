"""Jobs that are placed by the write that admits them."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace
from tests.unit.controllers.test_cluster_world import Process, play

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.meta import find_condition, is_true
from fairlead.api.resources import JOBS
from fairlead.controllers.admissions import OFFER_SECONDS_MAX
from fairlead.decide.attempts.status import StatusDraft
from fairlead.model.gang.phase import Phase, is_new, phase_of
from fairlead.testing.builders import EPOCH, make_job, make_nodes


def new_job(name: str, **more: Any) -> Job:
    return make_job(name, attempt=0, **more)


def admitted(job: Job) -> Job:
    return replace(job, status=StatusDraft.of(job, EPOCH).admitted(1).set(number=7).status)


def stored(process: Process, name: str) -> Job:
    return next(job for job in process.client.stored(JOBS) if job.metadata.name == name)


async def mirrored(process: Process, job: Job) -> Job:
    """Create a job and return it as the mirror has it."""
    await process.create(job)
    await asyncio.sleep(0.1)
    found = process.mirrors.jobs.get(*job.metadata.key)
    assert found is not None
    return found


def test_a_job_that_is_offered_is_admitted_and_placed_by_one_write() -> None:
    async def main(process: Process) -> None:
        await process.create(*make_nodes(1))
        async with process.scheduler():
            job = await mirrored(process, new_job("a"))
            until = process.world.admissions.offer(admitted(job), EPOCH)
            assert until == EPOCH + OFFER_SECONDS_MAX
            await asyncio.sleep(0.1)
            after = stored(process, "a")
            assert is_true(after.status.conditions, names.ADMITTED)
            assert (after.status.attempt, after.status.number) == (1, 7)
            assert phase_of(after) is Phase.ACTIVE
            assert after.metadata.version == job.metadata.version + 1
            assert process.world.admissions.jobs == ()

    play(main)


def test_an_offer_without_a_place_is_declined_unless_the_scheduler_says_why_it_waits() -> None:
    async def main(process: Process) -> None:
        declined: list[Any] = []
        async with process.scheduler():
            process.world.admissions.on_declined(declined.append)
            job = await mirrored(process, new_job("a"))
            assert process.world.admissions.offer(admitted(job), EPOCH) is not None
            await asyncio.sleep(0.1)
            after = stored(process, "a")
            assert is_true(after.status.conditions, names.ADMITTED)
            assert after.status.verdict is not None
            assert (after.status.placement, declined) == (None, [])

    play(main)


def test_a_version_that_the_job_does_not_have_any_more_is_not_offered() -> None:
    """Or the state would lose the place that has been written since."""

    async def main(process: Process) -> None:
        await process.create(*make_nodes(1))
        async with process.scheduler():
            job = await mirrored(process, new_job("a"))
            process.world.admissions.offer(admitted(job), EPOCH)
            await asyncio.sleep(0.1)
            assert phase_of(process.world.state.jobs[job.metadata.key].job) is Phase.ACTIVE
            assert process.world.admissions.offer(admitted(job), EPOCH) == EPOCH
            assert phase_of(process.world.state.jobs[job.metadata.key].job) is Phase.ACTIVE

    play(main)


def test_nothing_is_offered_where_no_scheduler_listens_and_not_for_longer_than_its_time() -> None:
    async def main(process: Process) -> None:
        admissions = process.world.admissions
        job = await mirrored(process, new_job("a"))
        assert admissions.offer(admitted(job), EPOCH) is None
        admissions.on_change(lambda: None)
        assert admissions.offer(admitted(job), EPOCH) is None
        detach = admissions.attach()
        until = admissions.offer(admitted(job), EPOCH)
        assert until == EPOCH + OFFER_SECONDS_MAX
        assert admissions.offer(admitted(job), EPOCH + 1.0) == until
        assert admissions.offer(admitted(job), EPOCH + OFFER_SECONDS_MAX) is None
        assert admissions.offer(admitted(job), EPOCH - 3600.0) is None  # the clock was set back
        detach()

    play(main)


def test_what_the_scheduler_does_not_write_on_is_declined_once() -> None:
    async def main(process: Process) -> None:
        admissions, declined = process.world.admissions, list[Any]()
        admissions.on_change(lambda: None)
        admissions.on_declined(declined.append)
        admissions.attach()
        first, second = [await mirrored(process, new_job(name)) for name in "ab"]
        for job in (first, second):
            assert admissions.offer(admitted(job), EPOCH) is not None
        admissions.decided({first.metadata.key})
        admissions.decided(())
        assert declined == [second.metadata.key]
        assert admissions.offer(admitted(second), EPOCH) is None
        assert admissions.offer(admitted(first), EPOCH) is not None

    play(main)


def test_an_offer_ends_with_a_change_of_the_job_and_with_the_state_that_took_it_in() -> None:
    async def main(process: Process) -> None:
        world = process.world
        world.admissions.on_change(lambda: None)
        world.admissions.attach()
        job = await mirrored(process, new_job("a"))
        key = job.metadata.key
        world.admissions.offer(admitted(job), EPOCH)
        assert phase_of(world.state.jobs[key].job) is Phase.QUEUED
        world.rebuild()
        assert world.admissions.jobs == ()
        assert is_new(world.state.jobs[key].job)
        world.admissions.offer(admitted(job), EPOCH)
        held = {"spec": {"suspend": True}}
        await process.client.patch(JOBS, "a", held, namespace=key[0])
        await asyncio.sleep(0.1)
        assert world.admissions.jobs == ()
        assert phase_of(world.state.jobs[key].job) is Phase.HELD

    play(main)


def test_a_job_is_new_until_somebody_has_judged_it() -> None:
    job = new_job("a")
    assert is_new(job)
    assert not is_new(admitted(job))
    waits = StatusDraft.of(job, EPOCH).condition(names.ADMITTED, "False", "Dependency").status
    assert find_condition(waits.conditions, names.ADMITTED) is not None
    assert not is_new(replace(job, status=waits))
    assert not is_new(replace(job, spec=replace(job.spec, suspend=True)))
