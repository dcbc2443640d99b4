"""People delete jobs of a simulated world, and submit most of them again under their names.

They act at random moments, or just after a job was written: it waits, starts, runs, restarts or has
ended. A name is free only when the deleted job has gone, which may take as long as a node is down.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from fairlead.api.resources import JOBS
from fairlead.api.status import NotFound
from fairlead.app.context import Streams
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.client import Client, Propagation
from fairlead.sim.deletion_checker import DeletionChecker
from fairlead.sim.disturbances import Disturbances
from fairlead.sim.workload import Submission
from fairlead.sim.world_options import DAY_SECONDS, WorldOptions

#: Of the deleted jobs, the share that comes back, and after how long on average.
_AGAIN_SHARE, _AGAIN_SECONDS_MEAN = 0.7, 10.0
#: Of the deletions, the share that is of jobs that have ended.
_ENDED_SHARE = 0.2
#: Of the deletions, the share that waits for what the job owns (`kubectl delete --cascade`).
_FOREGROUND_SHARE = 0.25


@dataclass(slots=True)
class Deletions:
    """Deletes until the instant that it is given; returns when all that come back have done so."""

    options: WorldOptions
    client: Client
    submission: Submission
    users: Disturbances
    checker: DeletionChecker
    streams: Streams
    #: Jobs that are deleted, or about to be submitted again.
    _under_way: set[ObjectKey] = field(default_factory=set[ObjectKey])

    async def run(self, until: float) -> None:
        """Delete jobs at exponential intervals."""
        rng, rate = self.streams("deletions"), self.options.deletions_per_day / DAY_SECONDS
        now = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as again:
            while rate > 0 and (wait := rng.expovariate(rate)) < until - now():
                await asyncio.sleep(wait)
                ended = self.checker.ended if rng.random() < _ENDED_SHARE else ()
                key = rng.choice(ended) if ended else await self.users.chosen(rng)
                if key is None or key in self._under_way:
                    continue
                how = Propagation.FOREGROUND if rng.random() < _FOREGROUND_SHARE else None
                comes_back = rng.random() < _AGAIN_SHARE
                seconds = rng.expovariate(1 / _AGAIN_SECONDS_MEAN)
                await self._delete(key, how)
                if comes_back:
                    self._under_way.add(key)
                    again.create_task(self._submit_again(key, seconds))

    async def _delete(self, key: ObjectKey, how: Propagation | None) -> None:
        self.checker.asked(key)
        with suppress(NotFound):  # it has gone by itself
            await self.client.delete(JOBS, key[1], namespace=key[0], propagation=how)

    async def _submit_again(self, key: ObjectKey, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.submission.run_again(key)
        self._under_way.discard(key)
