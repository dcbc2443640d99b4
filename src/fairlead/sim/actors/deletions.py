"""People delete jobs and node pools of a simulated world, and make most of them again.

They act at random moments, on jobs often just after one was written: it waits, starts, runs,
restarts or has ended. What comes back has the name of what was deleted, so it comes once that has
gone: a job after its pods, which may take as long as a node is down; a pool after the word about
its machines, or after the last of them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from fairlead.api.cluster.node_pool import DeletionPolicy
from fairlead.api.resources import JOBS, NODE_POOLS
from fairlead.api.status import AlreadyExists, NotFound
from fairlead.app.context import Streams
from fairlead.decide.verdict import ObjectKey
from fairlead.runtime.client import Client, Propagation
from fairlead.sim.actors.disturbances import Disturbances
from fairlead.sim.actors.machines import pool_body
from fairlead.sim.promises.jobs_checker import JobsChecker
from fairlead.sim.setup.workload import WorkloadSubmission
from fairlead.sim.setup.world_options import DAY_SECONDS, PoolShape, WorldOptions

#: Of the deleted jobs, the share that comes back, and after how long on average.
_AGAIN_SHARE, _AGAIN_SECONDS_MEAN = 0.7, 10.0
#: Of the deletions, the share that is of jobs that have ended.
_ENDED_SHARE = 0.2
#: Of the deletions, the share that waits for what the job owns (`kubectl delete --cascade`).
_FOREGROUND_SHARE = 0.25
#: Of the deleted pools, the share whose machines are to go, after how long a pool comes back on
#: average, and how often it is tried while the name is taken.
_DRAINED_SHARE, _POOL_SECONDS_MEAN, _TAKEN_SECONDS = 0.3, 120.0, 5.0

_KEEP = {"spec": {"deletionPolicy": DeletionPolicy.KEEP.value}}


@dataclass(slots=True)
class Deletions:
    """Deletes until the instant that it is given; what comes back may do so later."""

    options: WorldOptions
    client: Client
    submission: WorkloadSubmission
    users: Disturbances
    checker: JobsChecker
    streams: Streams
    pools: int = 0
    #: Jobs that were deleted and come back, and pools.
    jobs_under_way: set[ObjectKey] = field(default_factory=set[ObjectKey])
    pools_under_way: set[str] = field(default_factory=set[str])

    @property
    def left(self) -> list[ObjectKey | str]:
        """What was deleted and has not gone, or not come back."""
        jobs, pools = sorted(self.jobs_under_way), sorted(self.pools_under_way)
        return [*self.checker.left, *jobs, *pools]

    async def run(self, until: float) -> None:
        """Delete at exponential intervals; return when all that comes back has done so."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._delete_jobs(until, group))
            group.create_task(self._delete_pools(until, group))

    async def _delete_jobs(self, until: float, again: asyncio.TaskGroup) -> None:
        rng, rate = self.streams("deletions"), self.options.deletions_per_day / DAY_SECONDS
        now = asyncio.get_running_loop().time
        while rate > 0 and (wait := rng.expovariate(rate)) < until - now():
            await asyncio.sleep(wait)
            ended = self.checker.ended if rng.random() < _ENDED_SHARE else ()
            key = rng.choice(ended) if ended else await self.users.chosen(rng)
            if key is None or key in self.jobs_under_way:
                continue
            how = Propagation.FOREGROUND if rng.random() < _FOREGROUND_SHARE else None
            comes_back = rng.random() < _AGAIN_SHARE
            seconds = rng.expovariate(1 / _AGAIN_SECONDS_MEAN)
            self.checker.asked(key)
            with suppress(NotFound):  # it has gone by itself
                await self.client.delete(JOBS, key[1], namespace=key[0], propagation=how)
            if comes_back and self.submission.has(key):
                self.jobs_under_way.add(key)
                again.create_task(self._submit_again(key, seconds))

    async def _submit_again(self, key: ObjectKey, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.submission.run_again(key)
        self.jobs_under_way.discard(key)

    async def _delete_pools(self, until: float, again: asyncio.TaskGroup) -> None:
        options, rng = self.options, self.streams("pool deletions")
        rate, now = options.pool_deletions_per_day / DAY_SECONDS, asyncio.get_running_loop().time
        while rate > 0 and (wait := rng.expovariate(rate)) < until - now():
            await asyncio.sleep(wait)
            pool, is_drained = rng.choice(options.pools), rng.random() < _DRAINED_SHARE
            seconds = rng.expovariate(1 / _POOL_SECONDS_MEAN)
            if pool.name in self.pools_under_way:
                continue
            policy = DeletionPolicy.DRAIN if is_drained else DeletionPolicy.KEEP
            self.pools += 1
            self.pools_under_way.add(pool.name)
            spec = {"spec": {"deletionPolicy": policy.value}}
            await self.client.patch(NODE_POOLS, pool.name, spec)
            await self.client.delete(NODE_POOLS, pool.name)
            again.create_task(self._make_again(pool, seconds, until))

    async def _make_again(self, pool: PoolShape, seconds: float, until: float) -> None:
        """Make a pool once its name is free; a drain, which may take days, is ended in the end."""
        await asyncio.sleep(seconds)
        body = pool_body(pool, self.options.profile.node)
        while pool.name in self.pools_under_way:
            try:
                await self.client.create(NODE_POOLS, body)
                self.pools_under_way.discard(pool.name)
            except AlreadyExists:
                if asyncio.get_running_loop().time() > until:
                    with suppress(NotFound):
                        await self.client.patch(NODE_POOLS, pool.name, _KEEP)
                await asyncio.sleep(_TAKEN_SECONDS)
