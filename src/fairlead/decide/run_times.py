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
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from fairlead.api.job import Attempt, Job
from fairlead.api.times import parse_time
from fairlead.model.cluster import JobEntry
from fairlead.model.completion import began_at
from fairlead.model.gangs import JobKey, gpus_of
from fairlead.model.phase import Phase

#: Past jobs that a class must have, and the latest of them that count.
SAMPLES_MIN, SAMPLES_MAX = 20, 500
#: The chance that a job ends before it is predicted to, and then is predicted again.
PREDICTED_QUANTILE = 0.75
#: Likenesses whose predictions are remembered.
_REMEMBERED_MAX = 20_000
_NUMBER = re.compile(r"[-._]?[0-9]")


class Likeness(NamedTuple):
    """What is predicted from: whose job it is, its name up to a number, and its GPUs."""

    namespace: str
    user: str
    name: str
    gpus: int
    #: How long it has run before: its checkpoint is what it goes on from.
    elapsed: float = 0.0

    @classmethod
    def of(cls, entry: JobEntry, *, elapsed: float = 0.0) -> Likeness:
        """Return that of a job."""
        meta = entry.job.metadata
        number = _NUMBER.search(meta.name)
        stem = meta.name if number is None else meta.name[: number.start()]
        return cls(meta.namespace, entry.user, stem, gpus_of(entry.gang), elapsed)

    def classes(self) -> Iterator[_ClassKey]:
        """Yield what a job has in common with others, the narrowest class first."""
        user = (self.namespace, self.user)
        yield user, self.name, self.gpus
        yield user, self.name, None
        yield user, None, self.gpus
        yield user, None, None
        yield None, None, self.gpus
        yield None, None, None


_ClassKey: TypeAlias = tuple[tuple[str, str] | None, str | None, int | None]


class _Sample(NamedTuple):
    """A past job. The order is that of their ends."""

    finished_at: str
    key: JobKey
    seconds: float


@dataclass(slots=True)
class _Past:
    """The past jobs of a class, in order of their ends."""

    samples: list[_Sample] = field(default_factory=list[_Sample])
    #: The run times of the latest of them, sorted; None: to be made again.
    values: list[float] | None = None
    #: Whose predictions depend on them.
    readers: dict[Likeness, None] = field(default_factory=dict["Likeness", None])


class RunTimes:
    """The run times of past jobs, in seconds, by what the jobs had in common; and when jobs without
    a time limit that hold nodes are expected to end.

    It follows the jobs by `put`, at O(classes) for each job that ends.
    """

    def __init__(self) -> None:
        self._past: dict[_ClassKey, _Past] = {}
        self._ended: dict[JobKey, tuple[Likeness, _Sample]] = {}
        #: What jobs without a limit that run now are like, and when they began.
        self._running: dict[JobKey, tuple[Likeness, float]] = {}
        #: By likeness: for how long a job runs that has run for longer than the one before.
        self._steps: dict[Likeness, list[float]] = {}
        #: Rises with each change.
        self.version = 0

    @classmethod
    def of(cls, entries: Iterable[JobEntry]) -> RunTimes:
        """Learn from the jobs that have ended."""
        out = cls()
        for entry in entries:
            out.put(entry.job.metadata.key, entry)
        return out

    def put(self, key: JobKey, entry: JobEntry | None) -> None:
        """Take in a job, new or changed; None: it is gone, and nothing more is learned from it."""
        ended, running = self._ended.get(key), self._running.pop(key, None)
        if entry is not None and entry.phase is Phase.FINISHED:
            self._put_ended(key, ended, entry)
        elif ended is not None:
            self._remove(*self._ended.pop(key))
        now_running = None if entry is None else _running(entry)
        if now_running is not None:
            self._running[key] = now_running
        self.version += running != now_running

    @property
    def count(self) -> int:
        """Past jobs that are counted."""
        return len(self._ended)

    @property
    def is_enough(self) -> bool:
        """True once so many jobs have ended that they tell something."""
        return self.count >= SAMPLES_MIN

    @property
    def has_running(self) -> bool:
        """True while jobs without a time limit hold nodes."""
        return bool(self._running)

    def remaining(self, entry: JobEntry, elapsed: float, quantile: float) -> float:
        """Return for how many seconds more a job runs that has run for `elapsed`.

        With the probability `quantile`, in (0, 1), it is less. A job that has run for longer than
        nearly all others runs for as long again with a chance of one half, and so on.
        """
        return self._remaining(Likeness.of(entry), elapsed, quantile)

    def predicted(self, likeness: Likeness) -> float | None:
        """Return for how many seconds a job runs that begins now; None where nothing says it."""
        if not self.is_enough:
            return None
        return self._step(likeness._replace(elapsed=0.0), likeness.elapsed) - likeness.elapsed

    def ends(self, now: float) -> list[tuple[float, JobKey]]:
        """Return when each running job without a limit ends, in order, all of them later than now.

        An end that has passed is predicted again, from the past jobs that ran for longer. So it is
        the same until then, unless other jobs end.
        """
        if not self.is_enough:
            return []
        found = (
            (max(began + self._step(likeness, now - began), now + 1.0), key)
            for key, (likeness, began) in self._running.items()
        )
        return sorted(found)

    def _step(self, likeness: Likeness, elapsed: float) -> float:
        """Return how long a job runs in all that has run for `elapsed`."""
        steps = self._steps.get(likeness)
        if steps is None:
            if len(self._steps) >= _REMEMBERED_MAX:
                self._steps.clear()
                self._past = {kind: past for kind, past in self._past.items() if past.samples}
                for past in self._past.values():
                    past.readers.clear()
            steps = self._steps[likeness] = []
        while not steps or steps[-1] <= elapsed:
            last = steps[-1] if steps else 0.0
            steps.append(last + self._remaining(likeness, last, PREDICTED_QUANTILE))
        return steps[bisect_right(steps, elapsed)]

    def _remaining(self, likeness: Likeness, elapsed: float, quantile: float) -> float:
        for kind in likeness.classes():
            past = self._past.setdefault(kind, _Past())  # without jobs: it may get some
            past.readers[likeness] = None
            if past.values is None:
                past.values = sorted(sample.seconds for sample in past.samples[-SAMPLES_MAX:])
            first = bisect_right(past.values, elapsed)
            if len(past.values) - first >= SAMPLES_MIN:
                return _quantile(past.values[first:], quantile) - elapsed
        return elapsed / (1 - quantile) - elapsed

    def _put_ended(
        self, key: JobKey, before: tuple[Likeness, _Sample] | None, entry: JobEntry
    ) -> None:
        seconds = run_seconds(entry.job, None)
        sample = _Sample(entry.job.status.finished_at or "", key, seconds)
        if before is not None:
            if before[1] == sample:
                return
            self._remove(*self._ended.pop(key))
        if seconds:
            likeness = Likeness.of(entry)
            self._ended[key] = (likeness, sample)
            for past in self._changed(likeness):
                insort(past.samples, sample)

    def _remove(self, likeness: Likeness, sample: _Sample) -> None:
        for past in self._changed(likeness):
            past.samples.pop(bisect_left(past.samples, sample))

    def _changed(self, likeness: Likeness) -> Iterator[_Past]:
        """Yield the classes of a past job that comes or goes."""
        self.version += 1
        for kind in likeness.classes():
            past = self._past.setdefault(kind, _Past())
            yield past
            past.values = None
            for reader in past.readers:
                self._steps.pop(reader, None)
            past.readers.clear()
            if not past.samples:
                del self._past[kind]


def _running(entry: JobEntry) -> tuple[Likeness, float] | None:
    """Return what a job is like that holds nodes and has no limit, and when its work began."""
    job, is_over = entry.job, entry.phase is Phase.FINISHED
    if job.spec.time_limit_seconds is not None or job.status.placement is None or is_over:
        return None
    began = began_at(job)
    return None if began is None else (Likeness.of(entry), began - run_seconds(job, None))


def elapsed_before(job: Job) -> float:
    """Return how long a job has run whose next attempt goes on from a checkpoint; else 0."""
    progress = job.status.progress
    goes_on = progress is not None and progress.checkpoint_step is not None
    return run_seconds(job, None) if goes_on else 0.0


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


def _quantile(values: list[float], quantile: float) -> float:
    """Return a quantile of sorted values, at their expected places among future ones.

    Of n values the k-th is the quantile k / (n + 1) of what comes next.
    """
    place = quantile * (len(values) + 1) - 1
    low = min(max(int(place), 0), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * min(max(place - low, 0.0), 1.0)
