"""What is changed of a job that is queued already has its effect in the cluster."""

from __future__ import annotations

import asyncio

from tests.simulation.embedded_world import embedded_world

from fairlead.api.values.times import format_time
from fairlead.cli.views.jobs import where_or_why
from fairlead.sim.loop import run


def test_a_job_in_the_queue_is_put_off_and_keeps_its_place_before_later_ones() -> None:
    async def main() -> None:
        async with embedded_world(2) as world:
            await world.submit("holder", 2)
            await world.runs("holder")
            await world.submit("off", 2)
            await asyncio.sleep(5)
            await world.submit("small", 2, seconds=60)
            await asyncio.sleep(5)
            assert where_or_why(await world.job("off")).startswith("InsufficientCapacity")
            begin = world.clock.now() + 600
            await world.patch("off", notBefore=format_time(begin))
            await asyncio.sleep(5)
            assert where_or_why(await world.job("off")).startswith(
                "NotBefore: may not start before"
            )
            await world.patch("holder", cancel=True)
            await world.runs("small")  # the room of one that is put off is for others
            await world.submit("later", 2, priority=0)
            await asyncio.sleep(begin - world.clock.now() - 20)
            await world.runs("later")
            assert (await world.job("off")).status.attempts == ()
            await world.submit("last", 2)
            await asyncio.sleep(60)
            await world.patch("later", cancel=True)
            await world.runs("off")
            assert (await world.job("last")).status.attempts == ()

    run(main())
