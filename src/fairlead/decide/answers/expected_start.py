"""Between when and when a waiting job starts, if jobs run for as long as past ones like them did.

The forecast is made several times, each with other ends of the jobs that run or come first, drawn
from the run times of past jobs (`run_times.py`). The draws of a job are one from each of equal
parts of its distribution, in random order, and of 20 values the least and the greatest have 19 of
21 parts of the next one between them.

Of a job of which too few alike ones have ended, nothing but its time limit is known. Where there
are such jobs, all draws are made twice: once as if these end as soon as they can, and once as if
they use their limits. The range covers both. How often starts lie within it is measured with
recorded loads (`tools/measure_forecasts.py`).

As in the forecast, no job that comes first is submitted, released or restarted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from fairlead.decide.answers.explanation import RUN_SECONDS_MIN, ExpectedStart, Forecast
from fairlead.decide.answers.forecast import forecast
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.waiting.run_times import (
    Likeness,
    RunTimes,
    elapsed_before,
    run_seconds,
)
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import ObjectKey
from fairlead.model.job_entry import JobEntry

#: Forecasts that are made, and as many again where some jobs are not predicted.
DRAWS = 20


def expected_start(
    state: PlacementState,
    key: ObjectKey,
    now: float,
    policy: PlacementPolicy,
    *,
    is_late: Callable[[], bool] = lambda: False,
) -> ExpectedStart | None:
    """Return when a waiting job starts, by the run times of the jobs in the state that have ended.

    None where none of the jobs before it is like enough of these, or where run times alone do not
    say it: it preempts others, comes after a job that waits for another one, waits for one without
    a limit that is not predicted, or more jobs end before than a forecast looks at; and once
    `is_late`. The same state gives the same answer.
    """
    times = state.run_times
    if not times.is_enough:
        return None
    ends = _DrawnEnds(times, is_late, is_late_end=True)
    starts = _drawn(state, key, now, policy, ends=ends)
    if starts and ends.has_unknown:
        soon = _DrawnEnds(times, is_late, is_late_end=False)
        early = _drawn(state, key, now, policy, ends=soon)
        starts = early and starts + early
    if not starts or not ends.learned:
        return None
    starts.sort()
    half = len(starts) // 2
    middle = (starts[half - 1] + starts[half]) / 2
    count = sum(map(times.count, ends.learned))
    return ExpectedStart(starts[0], middle, starts[-1], count)


def _drawn(
    state: PlacementState, key: ObjectKey, now: float, policy: PlacementPolicy, *, ends: _DrawnEnds
) -> list[float]:
    """Return the start in each draw; empty where there is none in some."""
    starts: list[float] = []
    for ends.draw in range(DRAWS):
        found = forecast(state, key, now, policy, ends=ends)
        if not isinstance(found, Forecast):
            return []
        starts.append(found.may_start_by)
    return starts


@dataclass(slots=True)
class _DrawnEnds:
    """The ends of one draw; a job is never taken to run beyond its limit."""

    times: RunTimes
    is_late: Callable[[], bool]
    #: Jobs that are not predicted use their limits; else they end as soon as they can.
    is_late_end: bool
    draw: int = 0
    #: What predicted jobs are like, and whether there was one that is not predicted.
    learned: dict[Likeness, None] = field(default_factory=dict[Likeness, None])
    has_unknown: bool = False
    _seen: dict[str, tuple[Likeness, list[int]]] = field(
        default_factory=dict[str, "tuple[Likeness, list[int]]"]
    )

    def running(self, entry: JobEntry, now: float) -> float | None:
        limit = entry.ends_at
        seconds = self._remaining(entry, run_seconds(entry.job, now))
        end = now + seconds if limit is None else min(now + seconds, max(limit, now))
        return end if end < inf else None

    def starting(self, entry: JobEntry, at: float) -> float | None:
        seconds = self._remaining(entry, elapsed_before(entry.job))
        end = at + min(seconds, entry.hold_seconds)
        return end if end < inf else None

    def _remaining(self, entry: JobEntry, elapsed: float) -> float:
        uid = entry.job.metadata.uid
        if uid not in self._seen:
            self._seen[uid] = Likeness.of(entry), _shuffled(uid)
        likeness, order = self._seen[uid]
        seconds = self.times.remaining(likeness, elapsed, (order[self.draw] + 0.5) / DRAWS)
        if seconds is None:
            self.has_unknown = True
            return inf if self.is_late_end else RUN_SECONDS_MIN
        self.learned[likeness] = None
        return seconds


def _shuffled(uid: str) -> list[int]:
    """Return all draws in an order of the job's own, always the same."""
    return sorted(range(DRAWS), key=lambda draw: blake2b(f"{uid}/{draw}".encode()).digest())
