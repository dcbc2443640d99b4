"""How long jobs run, learned from those that have ended.

Users run the same things again and again, so past jobs of the user and the name predict better than
what people state (Tsafrir, Etsion, Feitelson, "Backfilling Using System-Generated Predictions
Rather than User Runtime Estimates", IEEE TPDS 2007). Jobs are alike of one namespace and user, with
one name up to its number, and up to a factor of two with as many GPUs, as many members and the
same time limit. What has fewer than `SAMPLES_MIN` alike past jobs is not predicted: jobs of another
size or name say nothing about it.

A past job whose last attempt was cancelled, held or preempted, or whose nodes failed, would have
run for longer: for how long is not known. So it is a censored observation (Kaplan and Meier,
"Nonparametric Estimation from Incomplete Observations", 1958), and does not count as one of the
`SAMPLES_MIN`. Only the time between the start and the end of attempts counts. An attempt that went
on from a checkpoint carries the time of those before it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.end_reason import is_own_end
from fairlead.model.gang.gangs import InvalidGang, JobKey, gpus_of
from fairlead.model.gang.phase import Phase
from fairlead.model.holdings.completion import began_at
from fairlead.model.job_entry import JobEntry

#: Alike past jobs that came to an end of their own without which nothing is predicted, and how
#: many of the latest of all are looked at.
SAMPLES_MIN, SAMPLES_MAX = 10, 500
#: The chance that a job ends before it is predicted to, and then is predicted again.
PREDICTED_QUANTILE = 0.75
_NUMBER = re.compile(r"[-._]?[0-9]")


class Likeness(NamedTuple):
    """What is predicted from: whose job it is, its name up to a number, and its size.

    Of numbers only the count of their bits is kept. Jobs are alike of which all is equal but for
    `elapsed`.
    """

    namespace: str
    user: str
    name: str
    gpu_bits: int
    member_bits: int
    #: Of the time limit in seconds; 0 without one.
    limit_bits: int
    #: How long it has run before: its checkpoint is what it goes on from.
    elapsed: float = 0.0

    @classmethod
    def of(cls, entry: JobEntry, *, elapsed: float = 0.0) -> Likeness:
        """Return that of a job."""
        meta, gang = entry.job.metadata, entry.gang
        members = 0 if isinstance(gang, InvalidGang) else gang.member_count
        limit = entry.job.spec.time_limit_seconds or 0
        number = _NUMBER.search(meta.name)
        stem = meta.name if number is None else meta.name[: number.start()]
        return cls(
            meta.namespace, entry.user, stem, gpus_of(gang).bit_length(), members.bit_length(),
            limit.bit_length(), elapsed,
        )  # fmt: skip

    @property
    def kind(self) -> Likeness:
        """What alike jobs have in common."""
        return self._replace(elapsed=0.0) if self.elapsed else self


class _Sample(NamedTuple):
    """A past job. The order is that of their ends."""

    finished_at: str
    key: JobKey
    seconds: float
    #: False where it would have run for longer.
    is_whole: bool


@dataclass(slots=True)
class _Past:
    """Past jobs that are alike, in order of their ends."""

    samples: list[_Sample] = field(default_factory=list[_Sample])
    #: How long the latest of them ran; None: to be made again.
    spans: _Spans | None = None
    #: How long a job runs that has run for longer than the one before; as far as was asked.
    steps: list[float] = field(default_factory=list[float])

    @property
    def whole_count(self) -> int:
        """How many of the latest of them came to an end of their own."""
        return sum(sample.is_whole for sample in self.samples[-SAMPLES_MAX:])

    def quantile(self, elapsed: float, quantile: float) -> float:
        """Return how long a job runs in all that has run for `elapsed`."""
        if self.spans is None:
            self.spans = _Spans.of(self.samples[-SAMPLES_MAX:])
        return self.spans.quantile(elapsed, quantile)

    def step(self, elapsed: float) -> float:
        """Return how long a job is predicted to run in all that has run for `elapsed`."""
        steps = self.steps
        while not steps or steps[-1] <= elapsed:
            last = steps[-1] if steps else 0.0
            steps.append(self.quantile(last, PREDICTED_QUANTILE))
        return steps[bisect_right(steps, elapsed)]

    def changed(self) -> None:
        """Take in that a past job has come or gone."""
        self.spans = None
        self.steps.clear()


@dataclass(frozen=True, slots=True)
class _Spans:
    """The distribution of a run time.

    n whole runs part what may come next into n + 1 equally likely spans. In the last one the chance
    to go on halves each time that the run doubles. What a run that is not whole would count goes in
    equal parts to all that ran for longer.
    """

    #: The whole runs, sorted, and the probability that a run is not longer than each of them.
    ends: tuple[float, ...]
    passed: tuple[float, ...]
    #: The longest run, whole or not.
    longest: float

    @classmethod
    def of(cls, samples: Sequence[_Sample]) -> Self:
        """Return that of some past jobs."""
        runs = sorted((sample.seconds, sample.is_whole) for sample in samples)
        part, total = 1 / (len(runs) + 1), 0.0
        ends, passed = list[float](), list[float]()
        for left, (seconds, is_whole) in zip(range(len(runs), 0, -1), runs, strict=True):
            if not is_whole:
                part += part / left
                continue
            total += part
            ends.append(seconds)
            passed.append(total)
        return cls(tuple(ends), tuple(passed), runs[-1][0])

    def quantile(self, elapsed: float, quantile: float) -> float:
        """Return a quantile of the runs that are longer than `elapsed`, where their first span
        begins.
        """
        first = bisect_right(self.ends, elapsed)
        before = self.passed[first - 1] if first else 0.0
        wanted = before + quantile * (1 - before)
        index = bisect_right(self.passed, wanted, first)
        if index == len(self.ends):
            rest = 1 - (self.passed[-1] if self.passed else 0.0)
            return max(self.longest, elapsed) * rest / (1 - wanted)
        is_first = index == first
        begins = elapsed if is_first else self.ends[index - 1]
        passed = before if is_first else self.passed[index - 1]
        share = (wanted - passed) / (self.passed[index] - passed)
        return begins + (self.ends[index] - begins) * share


class RunTimes:
    """The run times of past jobs, in seconds, by what the jobs have in common; and when jobs
    without a time limit that hold nodes are expected to end.

    It follows the jobs by `put`, at O(log n) for each job that ends.
    """

    def __init__(self) -> None:
        self._past: dict[Likeness, _Past] = {}
        self._ended: dict[JobKey, tuple[Likeness, _Sample]] = {}
        #: What jobs without a limit that run now are like, and when they began.
        self._running: dict[JobKey, tuple[Likeness, float]] = {}
        #: The kinds of job that are predicted.
        self._predicted: dict[Likeness, _Past] = {}
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
    def is_enough(self) -> bool:
        """True once so many alike jobs have ended that some are predicted."""
        return bool(self._predicted)

    @property
    def has_running(self) -> bool:
        """True while jobs without a time limit hold nodes."""
        return bool(self._running)

    def count(self, likeness: Likeness) -> int:
        """Return from how many past jobs a job is predicted; 0 where it is not."""
        past = self._predicted.get(likeness.kind)
        return 0 if past is None else past.whole_count

    def remaining(self, likeness: Likeness, elapsed: float, quantile: float) -> float | None:
        """Return for how many seconds more a job runs that has run for `elapsed`.

        With the probability `quantile`, in (0, 1), it is less. A job that has run for longer than
        all others runs for as long again with a chance of one half, and so on. None where too few
        alike jobs have ended.
        """
        past = self._predicted.get(likeness.kind)
        return None if past is None else past.quantile(elapsed, quantile) - elapsed

    def predicted(self, likeness: Likeness) -> float | None:
        """Return for how many seconds a job runs that begins now; None where nothing says it."""
        past = self._predicted.get(likeness.kind)
        return None if past is None else past.step(likeness.elapsed) - likeness.elapsed

    def ends(self, now: float) -> list[tuple[float, JobKey]]:
        """Return when each running job without a limit ends that is predicted, in order, all of
        them later than now.

        An end that has passed is predicted again, from the past jobs that ran for longer. So it is
        the same until then, unless other jobs end.
        """
        found = (
            (max(began + past.step(now - began), now + 1.0), key)
            for key, (likeness, began) in self._running.items()
            if (past := self._predicted.get(likeness)) is not None
        )
        return sorted(found)

    def _put_ended(
        self, key: JobKey, before: tuple[Likeness, _Sample] | None, entry: JobEntry
    ) -> None:
        status, seconds = entry.job.status, run_seconds(entry.job, None)
        is_whole = bool(status.attempts) and is_own_end(status.attempts[-1])
        sample = _Sample(status.finished_at or "", key, seconds, is_whole)
        if before is not None:
            if before[1] == sample:
                return
            self._remove(*self._ended.pop(key))
        if seconds:
            likeness = Likeness.of(entry)
            self._ended[key] = (likeness, sample)
            past = self._past.setdefault(likeness, _Past())
            insort(past.samples, sample)
            self._changed(likeness, past)

    def _remove(self, likeness: Likeness, sample: _Sample) -> None:
        past = self._past[likeness]
        past.samples.pop(bisect_left(past.samples, sample))
        self._changed(likeness, past)

    def _changed(self, likeness: Likeness, past: _Past) -> None:
        self.version += 1
        past.changed()
        if past.whole_count >= SAMPLES_MIN:
            self._predicted[likeness] = past
        else:
            self._predicted.pop(likeness, None)
        if not past.samples:
            del self._past[likeness]


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
