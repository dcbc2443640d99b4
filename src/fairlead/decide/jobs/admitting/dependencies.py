"""Which jobs a job waits for, and whether it waits for itself by way of others (pure).

Nothing keeps two jobs from being written so that each starts after the other: `spec.after` may be
changed at any time, and names jobs that do not exist yet.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead.api.jobs.job import Job
from fairlead.decide.verdict import ObjectKey

#: Jobs that are looked at for one answer. A longer ring is not found: its jobs wait as any other.
VISITED_MAX = 1_000


def waits_for(job: Job | None) -> list[ObjectKey]:
    """Return the jobs that a job waits for, which matters until it is admitted."""
    if job is None or job.status.attempt > 0:
        return []
    namespace = job.metadata.namespace
    return [(namespace, after.job) for after in job.spec.after if not after.elements]


def links_of(job: Job | None) -> list[ObjectKey]:
    """Return the jobs by way of which one that has not ended may wait for itself.

    None of several alternatives: another one may hold.
    """
    if job is None or job.is_finished:
        return []
    alternatives = {after.job for after in job.spec.after if after.alternative}
    passed_over = alternatives if len(alternatives) > 1 else set[str]()
    return [key for key in waits_for(job) if key[1] not in passed_over]


def find_cycle(job: Job, find: Callable[[ObjectKey], Job | None]) -> tuple[str, ...]:
    """Return the names along a ring in which a job waits for itself, it first and last; () where it
    does not. `find` returns a job by its key.
    """
    if not job.spec.after or not links_of(job):
        return ()
    start = job.metadata.key
    path, seen = [start], {start}
    rest = [iter(links_of(job))]
    while rest:
        following = next(rest[-1], None)
        if following is None:
            rest.pop()
            path.pop()
        elif following == start:
            return tuple(name for _, name in (*path, start))
        elif following not in seen and len(seen) < VISITED_MAX:
            seen.add(following)
            path.append(following)
            rest.append(iter(links_of(find(following))))
    return ()
