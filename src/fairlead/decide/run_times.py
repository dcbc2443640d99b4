"""How long jobs run, learned from those that have ended.

A job resembles the past jobs of its user with its name and its number of GPUs, else those of its
user with its name, and so on; the first of these classes in which enough past jobs ran at least as
long as the job has run already says how long it goes on. Users run the same things again and again:
past jobs of the user and the name predict better than what people state (Tsafrir, Etsion,
Feitelson, "Backfilling Using System-Generated Predictions Rather than User Runtime Estimates",
IEEE TPDS 2007).

Only the time between the start and the end of attempts counts. An attempt that went on from a
checkpoint carries the time of those before it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

from fairlead.api.job import Attempt, Job
from fairlead.api.times import parse_time
from fairlead.model.cluster import JobEntry
from fairlead.model.gangs import gpus_of

#: Past jobs that a class must have, and the latest of them that count.
SAMPLES_MIN, SAMPLES_MAX = 20, 500
_NUMBERED = re.compile(r"[-._]?[0-9].*")


@dataclass(slots=True)
class RunTimes:
    """The run times of past jobs, in seconds, by what the jobs had in common."""

    #: Sorted.
    _by_class: dict[Hashable, list[float]] = field(default_factory=dict[Hashable, list[float]])
    #: Past jobs that are counted.
    count: int = 0

    @classmethod
    def of(cls, entries: Iterable[JobEntry]) -> RunTimes:
        """Learn from the jobs that have ended; others are ignored."""
        ended = list[tuple[str, float, JobEntry]]()
        for entry in entries:
            if entry.job.is_finished and (seconds := run_seconds(entry.job, None)):
                ended.append((entry.job.status.finished_at or "", seconds, entry))
        ended.sort(key=lambda each: each[0], reverse=True)
        found = defaultdict[Hashable, list[float]](list)
        for _, seconds, entry in ended:
            for kind in _classes(entry):
                if len(found[kind]) < SAMPLES_MAX:
                    found[kind].append(seconds)
        return cls({kind: sorted(values) for kind, values in found.items()}, len(ended))

    @property
    def is_enough(self) -> bool:
        """True once so many jobs have ended that they tell something."""
        return self.count >= SAMPLES_MIN

    def remaining(self, entry: JobEntry, elapsed: float, quantile: float) -> float:
        """Return for how many seconds more a job runs that has run for `elapsed`.

        With the probability `quantile`, in (0, 1), it is less. A job that has run for longer than
        nearly all others runs for as long again with a chance of one half, and so on.
        """
        for kind in _classes(entry):
            values = self._by_class.get(kind, [])
            first = bisect_right(values, elapsed)
            if len(values) - first >= SAMPLES_MIN:
                return _quantile(values[first:], quantile) - elapsed
        return elapsed / (1 - quantile) - elapsed


def run_seconds(job: Job, now: float | None) -> float:
    """Return how long a job has run: its last attempt, and those whose work that goes on with.

    An attempt that has not ended counts until `now`; None: not at all. 0 for a job that never ran.
    """
    total = 0.0
    for attempt in reversed(job.status.attempts):
        total += _seconds(attempt, now)
        if attempt.resumed_from_step is None:
            break
    return total


def _seconds(attempt: Attempt, now: float | None) -> float:
    if not attempt.started_at:
        return 0.0
    end = parse_time(attempt.finished_at) if attempt.finished_at else now
    return 0.0 if end is None else max(end - parse_time(attempt.started_at), 0.0)


def _classes(entry: JobEntry) -> Iterator[Hashable]:
    """Yield what a job has in common with others, the narrowest class first."""
    meta, gpus = entry.job.metadata, gpus_of(entry.gang)
    user, name = (meta.namespace, entry.user), _NUMBERED.sub("", meta.name)
    yield user, name, gpus
    yield user, name
    yield user, gpus
    yield user
    yield gpus
    yield ()


def _quantile(values: list[float], quantile: float) -> float:
    """Return a quantile of sorted values, at their expected places among future ones.

    Of n values the k-th is the quantile k / (n + 1) of what comes next.
    """
    place = quantile * (len(values) + 1) - 1
    low = min(max(int(place), 0), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * min(max(place - low, 0.0), 1.0)
