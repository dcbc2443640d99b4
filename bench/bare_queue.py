"""A queue in front of one pool of GPUs: no nodes, no controllers, no start delays.

The yardstick of simulated policies: strict order, and EASY backfill with exact run times (Mu'alem
and Feitelson, TPDS 2001): a later job may start if it delays the first one that waits in no way.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BareJob:
    """A gang that starts at once or not at all, and runs for a known time."""

    at: float
    run_seconds: float
    gpus: int


class _Pool:
    """The free GPUs, and when the others come back."""

    def __init__(self, gpus: int) -> None:
        self.free = gpus
        self.ends: list[tuple[float, int]] = []

    def advance(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            self.free += heapq.heappop(self.ends)[1]

    def start(self, job: BareJob, now: float) -> None:
        self.free -= job.gpus
        heapq.heappush(self.ends, (now + job.run_seconds, job.gpus))

    def room_for(self, job: BareJob) -> tuple[float, int]:
        """Return when a job that does not fit now will, and how many GPUs it leaves then."""
        free = self.free
        for end, gpus in sorted(self.ends):
            free += gpus
            if free >= job.gpus:
                return end, free - job.gpus
        raise ValueError(f"a job of {job.gpus} GPUs on a pool of {free}")


def bare_waits(jobs: Sequence[BareJob], gpus: int, *, backfills: bool) -> list[float]:
    """Return the wait of each job in seconds; `jobs` are in order of arrival."""
    pool, waits = _Pool(gpus), [0.0] * len(jobs)
    queue, arrived = list[int](), 0
    while arrived < len(jobs) or queue:
        due = [jobs[arrived].at] if arrived < len(jobs) else []
        due += [pool.ends[0][0]] if pool.ends and queue else []
        now = min(due)
        pool.advance(now)
        while arrived < len(jobs) and jobs[arrived].at <= now:
            queue.append(arrived)
            arrived += 1
        for number in _started(jobs, queue, pool, now, backfills=backfills):
            waits[number] = now - jobs[number].at
    return waits


def _started(
    jobs: Sequence[BareJob], queue: list[int], pool: _Pool, now: float, *, backfills: bool
) -> list[int]:
    """Start what may start, take it out of the queue and return it."""
    count = 0
    while count < len(queue) and jobs[queue[count]].gpus <= pool.free:
        pool.start(jobs[queue[count]], now)
        count += 1
    out = queue[:count]
    del queue[:count]
    if not queue or not backfills or not pool.free:
        return out
    first_at, spare = pool.room_for(jobs[queue[0]])
    for number in queue[1:]:
        job = jobs[number]
        ends_before = now + job.run_seconds <= first_at
        if job.gpus <= pool.free and (ends_before or job.gpus <= spare):
            spare -= 0 if ends_before else job.gpus
            pool.start(job, now)
            out.append(number)
    passed = set(out)
    queue[:] = [number for number in queue if number not in passed]
    return out
