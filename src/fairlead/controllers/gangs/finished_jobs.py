"""The ended jobs of each namespace in the order of their ends: the oldest are the first to go."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from fairlead.api.jobs.job import Job
from fairlead.decide.verdict import ObjectKey


class FinishedJobs:
    """Keeps at most `count_max` ended jobs a namespace; those before them are surplus. Jobs that go
    by a time of their own, or with their owner, are not counted.

    So a tenant with many jobs loses its own, and no other's. None: no job is surplus.
    """

    def __init__(self, count_max: int | None) -> None:
        self._count_max = count_max
        #: By namespace: (end as it goes over the wire, name), the oldest first.
        self._ends: dict[str, list[tuple[str, str]]] = {}

    def put(self, key: ObjectKey, old: Job | None, new: Job | None) -> Iterator[ObjectKey]:
        """Take in a change of a job; yield the jobs that are surplus with it, the oldest first."""
        before, after = _end_of(old), _end_of(new)
        if before == after or self._count_max is None:
            return
        ends = self._ends.setdefault(key[0], [])
        if before is not None:
            self._drop(ends, (before, key[1]))
        if after is not None:
            insort(ends, (after, key[1]))
        for _, name in ends[: max(0, len(ends) - self._count_max)]:
            yield key[0], name
        if not ends:
            del self._ends[key[0]]

    def is_surplus(self, job: Job) -> bool:
        """True for a job that has ended before so many later ones."""
        end, key = _end_of(job), job.metadata.key
        if end is None or self._count_max is None:
            return False
        ends = self._ends.get(key[0], [])
        return len(ends) - bisect_left(ends, (end, key[1])) > self._count_max

    @staticmethod
    def _drop(ends: list[tuple[str, str]], end: tuple[str, str]) -> None:
        at = bisect_left(ends, end)
        if ends[at : at + 1] == [end]:
            del ends[at]


def _end_of(job: Job | None) -> str | None:
    """Return when a job ended that neither its owner nor a time of its own removes; instants of
    one format sort as texts.
    """
    if job is None or not job.is_finished or job.metadata.owner_references:
        return None
    return job.status.finished_at if job.spec.ttl_seconds_after_finished is None else None
