"""Between when and when a waiting job starts, if jobs run for as long as past ones did.

The forecast is made several times, each with other ends of the jobs that run or come first, drawn
from the run times of past jobs (`run_times.py`). What comes out lies between its earliest and
its latest start in about nine of ten cases: the draws of a job are one from each of equal parts
of its distribution, in random order, and of 20 values the least and the greatest have 19 of 21
parts of the next one between them.

As in the forecast, no job that comes first is submitted, released or restarted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from fairlead.decide.forecast import Forecast, forecast
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.run_times import RunTimes, elapsed_before, run_seconds
from fairlead.decide.verdict import ObjectKey
from fairlead.model.cluster import JobEntry

#: Forecasts that are made.
DRAWS = 20


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """The earliest and latest start of all draws and the one in the middle, as instants."""

    earliest: float
    median: float
    latest: float
    #: Past jobs whose run times were learned from.
    past_jobs: int


def expected_start(
    state: PlacementState,
    key: ObjectKey,
    now: float,
    policy: PlacementPolicy,
    *,
    is_late: Callable[[], bool] = lambda: False,
) -> ExpectedStart | None:
    """Return when a waiting job starts, by the run times of the jobs in the state that have ended.

    None where these are too few, or where run times alone do not say it: it preempts others, comes
    after a job that waits for another one, or more jobs end before than a forecast looks at; and
    once `is_late`. The same state gives the same answer.
    """
    times = state.run_times
    ends, starts = _DrawnEnds(times, is_late), list[float]()
    for ends.draw in range(DRAWS if times.is_enough else 0):
        found = forecast(state, key, now, policy, ends=ends)
        if not isinstance(found, Forecast):
            return None
        starts.append(found.may_start_by)
    if not starts:
        return None
    starts.sort()
    middle = (starts[(DRAWS - 1) // 2] + starts[DRAWS // 2]) / 2
    return ExpectedStart(starts[0], middle, starts[-1], times.count)


@dataclass(slots=True)
class _DrawnEnds:
    """The ends of one draw; a job is never taken to run beyond its limit."""

    times: RunTimes
    is_late: Callable[[], bool]
    draw: int = 0
    _orders: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def running(self, entry: JobEntry, now: float) -> float | None:
        end, limit = now + self._remaining(entry, run_seconds(entry.job, now)), entry.ends_at
        return end if limit is None else min(end, max(limit, now))

    def starting(self, entry: JobEntry, at: float) -> float | None:
        return at + min(self._remaining(entry, elapsed_before(entry.job)), entry.hold_seconds)

    def _remaining(self, entry: JobEntry, elapsed: float) -> float:
        uid = entry.job.metadata.uid
        order = self._orders.get(uid)
        if order is None:
            order = self._orders[uid] = _shuffled(uid)
        return self.times.remaining(entry, elapsed, (order[self.draw] + 0.5) / DRAWS)


def _shuffled(uid: str) -> list[int]:
    """Return all draws in an order of the job's own, always the same."""
    return sorted(range(DRAWS), key=lambda draw: blake2b(f"{uid}/{draw}".encode()).digest())
