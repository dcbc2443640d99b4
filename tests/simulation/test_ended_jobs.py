"""Jobs that have ended go by themselves, and never before their record is safe."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.simulation.embedded_world import EmbeddedWorld, embedded_world

from fairlead.api.resources import JOBS
from fairlead.app.configuration.policies import Policies
from fairlead.history.memory import MemoryHistory
from fairlead.runtime.kept.history import HistoryError, HistoryQuery, JobRecord
from fairlead.sim.loop import run

KEPT_SECONDS, KEPT_MAX = 3600.0, 3
DEFAULTS = Policies()
POLICIES = replace(
    DEFAULTS,
    jobs=replace(
        DEFAULTS.jobs, keep_finished_seconds=KEPT_SECONDS, keep_finished_jobs_max=KEPT_MAX
    ),
)


class Unsteady(MemoryHistory):
    """Stands for one on a disk; stores nothing while it is down."""

    is_durable = True
    is_down = False

    async def record(self, record: JobRecord) -> None:
        if self.is_down:
            raise HistoryError("the database does not answer")
        await super().record(record)

    async def names(self) -> set[str]:
        """What was recorded."""
        return {each.name async for page in self.query(HistoryQuery()) for each in page}


async def stored(world: EmbeddedWorld) -> set[str]:
    return {job.metadata.name for job in (await world.client.list(JOBS)).items}


async def ends(world: EmbeddedWorld, name: str, **spec: object) -> None:
    await world.submit(name, 1, seconds=1, **spec)
    await world.until(name, lambda job: job.is_finished)


def test_ended_jobs_go_beyond_a_count_and_after_their_time_and_their_records_stay() -> None:
    async def main() -> None:
        history = Unsteady()
        async with embedded_world(2, POLICIES, history=history) as world:
            await ends(world, "own-time", ttlSecondsAfterFinished=7200)
            for number in range(5):
                await ends(world, f"j-{number}")
            await asyncio.sleep(5)
            assert await stored(world) == {"own-time", "j-2", "j-3", "j-4"}
            await asyncio.sleep(KEPT_SECONDS)
            assert await stored(world) == {"own-time"}
            await asyncio.sleep(KEPT_SECONDS)
            assert await stored(world) == set()
            assert await history.names() == {"own-time", *(f"j-{n}" for n in range(5))}

    run(main())


def test_no_ended_job_goes_while_its_record_cannot_be_stored() -> None:
    async def main() -> None:
        history = Unsteady()
        async with embedded_world(2, POLICIES, history=history) as world:
            await ends(world, "before")
            history.is_down = True
            names = [f"j-{number}" for number in range(KEPT_MAX + 1)]
            for name in names:
                await world.submit(name, 1, seconds=1)
            await asyncio.sleep(2 * KEPT_SECONDS)
            assert await stored(world) == set(names)
            history.is_down = False
            await asyncio.sleep(2 * KEPT_SECONDS)
            assert await stored(world) == set()
            assert await history.names() == {"before", *names}

    run(main())
