"""When jobs give the nodes back that they hold, as far as that is known; and which changed lately.

Kept per event, so that a decision reads what changed since the one before, and not all jobs.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import takewhile

from fairlead.model.gang.gangs import JobKey

#: Changes that are remembered.
CHANGES_MAX = 256


class HeldEnds:
    """The known ends of jobs with a claim, in seconds since the epoch."""

    def __init__(self) -> None:
        #: (end, job), in order.
        self.in_order: list[tuple[float, JobKey]] = []
        self._of: dict[JobKey, float] = {}
        #: Rises with each change of an end, or of what a job with a known end holds.
        self.version = 0
        #: The version of the last change of each job, in order: the latest ones.
        self._changed: dict[JobKey, int] = {}
        #: All changes after this version are remembered.
        self._complete_since = 0

    def of(self, key: JobKey) -> float | None:
        """Return when a job gives its nodes back; None where that is not known, or it has none."""
        return self._of.get(key)

    def put(self, key: JobKey, end: float | None, *, has_moved: bool) -> None:
        """Take in when a job ends, None as in `of`, and whether it holds something else now."""
        before = self._of.get(key)
        if end == before and not (has_moved and end is not None):
            return
        if end != before:
            if before is not None:
                self.in_order.pop(bisect_left(self.in_order, (before, key)))
                del self._of[key]
            if end is not None:
                insort(self.in_order, (end, key))
                self._of[key] = end
        self.version += 1
        self._changed.pop(key, None)
        self._changed[key] = self.version
        if len(self._changed) > CHANGES_MAX:
            oldest = next(iter(self._changed))
            self._complete_since = self._changed.pop(oldest)

    def changed_since(self, version: int) -> list[JobKey] | None:
        """Return the jobs that have changed after a version, sorted; None where that is too long
        ago.
        """
        if version < self._complete_since:
            return None
        latest = takewhile(lambda each: each[1] > version, reversed(self._changed.items()))
        return sorted(key for key, _ in latest)
