"""Fencing: a former leader, paused or with packets on their way, cannot do harm in a later term.

A lease alone does not make a former leader harmless. A process that was paused, or whose packets
were, may send after it lost the lease what it had decided before. Two things stop it:

1. `LeaderClient` lets no write out once the term's deadline has passed; those under way are aborted
   then, as the elector cancels all that runs for the term. So whatever is sent late was *decided*
   before the deadline, on what was stored then.
2. `fence` runs at the start of each term, before anything is decided: it touches every
   job that a former leader may still be about to place. Placing is a compare-and-swap on the job's
   resourceVersion; each one decided earlier fails from then on. The compare-and-swap alone would
   not do: two leaders can give one node to two jobs, each write being right for its own job.

All other writes take no room (statuses, releases), have a uid as precondition (deletes), or are
named after an attempt that has its place (pods); docs/design/real-cluster.md walks through them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from fairlead.api import names
from fairlead.api.jobs.job import Job
from fairlead.api.resources import JOBS
from fairlead.api.status import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    Unavailable,
)
from fairlead.model.gang.phase import PLACEABLE, is_new, phase_of
from fairlead.runtime.backoff import BackoffOptions, delay_seconds
from fairlead.runtime.client import Client, ClientWrapper, Request
from fairlead.runtime.leading.leader import LeaderOptions, LeaderTerm
from fairlead.runtime.watching.barrier import Barrier, Written
from fairlead.runtime.watching.mirror import Mirror

T = TypeVar("T")
A = TypeVar("A")


def needs_fence(job: Job) -> bool:
    """Return True when a scheduler that saw the job like this might place it."""
    return phase_of(job) in PLACEABLE or is_new(job)


async def fence(
    client: Client,
    mirror: Mirror[Job],
    term: LeaderTerm,
    *,
    rng: random.Random,
    options: LeaderOptions | None = None,
) -> int:
    """Make every placement that was decided before this term fail; return the jobs touched.

    The mirror must not run yet: it runs here, from its one list until it shows all that was
    touched, and the next leader goes on from there. Sooner nothing may be decided on it: it
    could show one job as touched, and not yet what a former leader did to another one just before.

    Raises the ApiError of a write that does not get through (in a group): a term must not start
    without.
    """
    options = options or LeaderOptions()
    barrier = Barrier((mirror,), timeout_seconds=options.fence_seen_seconds)
    body = {"metadata": {"annotations": {names.FENCE: term.token}}}

    async def touch_all(rest: Iterator[Job]) -> None:
        for job in rest:
            namespace, name = job.metadata.key
            touch = partial(client.patch, JOBS.only_metadata, name, body, namespace=namespace)
            with suppress(NotFound):
                touched = await _through(touch, rng=rng, options=options)
                barrier.expect(Written.of(JOBS, touched))

    async with asyncio.TaskGroup() as reading:
        reader = reading.create_task(mirror.run(), name="fence")
        await mirror.wait_synced()
        jobs = [job for job in mirror.items() if needs_fence(job)]
        work = iter(jobs)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(options.fence_parallel_max, len(jobs))):
                group.create_task(touch_all(work), name="fence")
        await barrier.wait()
        reader.cancel()
    return len(jobs)


async def _through(
    call: Callable[[], Awaitable[T]], *, rng: random.Random, options: LeaderOptions
) -> T:
    """Return the call's answer; an outage's end, when roles are not known yet, may pass."""
    for attempt in range(options.fence_retries_max):
        try:
            return await call()
        except ApiError as error:
            if not (error.retryable or isinstance(error, Conflict | Forbidden)):
                raise
            delay = delay_seconds(rng, attempt, BackoffOptions(0.1, 2.0))
            await asyncio.sleep(max(delay, error.retry_after_seconds))
    return await call()


class LeaderClient(ClientWrapper):
    """A `Client` that writes only during a term; reads pass. Closing it closes nothing.

    To be used by what the elector runs for that term: nothing else is cancelled at its end.
    """

    def __init__(self, inner: Client, term: LeaderTerm) -> None:
        super().__init__(inner)
        self._term = term

    async def call(self, request: Request[A]) -> A:
        """Pass a read on, and a write during the term; Unavailable for a write after it."""
        if request.is_write and self._term.is_over:
            raise Unavailable("not written: this replica is no longer the leader")
        return await self.inner.call(request)
