"""Asks a Prometheus server how the lines of a board went over a time, a query for each line."""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.doctor.monitoring.boards import SPAN, Board
from fairlead.doctor.prometheus.api import BadPrometheusAnswer, PrometheusApi, server_get
from fairlead.runtime.outside.fetch import TooMuch, Web
from fairlead.terminal import printable

REQUESTS_MAX = 300
SECONDS_MAX, QUERY_SECONDS_MAX = 120.0, 15.0
POINTS_MAX = 240
#: Of an answer: two thousand series.
SAMPLES_MAX = 500_000
#: The least window of a rate: four scrapes a minute apart, and as long as that of the alerts.
RATE_SECONDS_MIN = 300


@dataclass(frozen=True, slots=True)
class QueryWindow:
    """Instants in seconds since the epoch: multiples of `step` from `start` to `end`, inclusive."""

    start: int
    end: int
    step: int

    @staticmethod
    def of(start: float, end: float) -> QueryWindow:
        """Return a window of at most POINTS_MAX points that covers this time."""
        step = max(1, math.ceil((end - start) / (POINTS_MAX - 2)))
        return QueryWindow(int(start // step * step), math.ceil(end / step) * step, step)

    @property
    def instants(self) -> range:
        """The instants."""
        return range(self.start, self.end + 1, self.step)


@dataclass(frozen=True, slots=True)
class RangeSeries:
    """One series of an answer: its labels, and a value for each instant; None where it has none."""

    labels: Mapping[str, str]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """What a query gave: its series, or why it gave none."""

    lines: tuple[RangeSeries, ...] = ()
    failure: str = ""


#: By the query, as the board has it.
Answers = dict[str, RangeAnswer]


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


def matrix(data: Mapping[str, Any], window: QueryWindow) -> tuple[RangeSeries, ...]:
    """Return the series of an answer to a range query; BadAnswer.

    Values that are no finite numbers are gaps.
    """
    if data.get("resultType") != "matrix":
        raise BadPrometheusAnswer("the answer is not a range of values")
    try:
        result = msgspec.convert(data.get("result"), list[_Series])
    except msgspec.ValidationError as error:
        raise BadPrometheusAnswer(f"the answer is not a range of values: {error}") from error
    if len(result) * len(window.instants) > SAMPLES_MAX:
        raise BadPrometheusAnswer(f"the answer has more than {SAMPLES_MAX:,} samples")
    return tuple(RangeSeries(each.metric, tuple(_values(each, window))) for each in result)


def _values(series: _Series, window: QueryWindow) -> Iterator[float | None]:
    try:
        at = {round(instant): float(text) for instant, text in series.values}
    except (ValueError, OverflowError) as error:
        raise BadPrometheusAnswer("the answer has a value that is no number") from error
    for instant in window.instants:
        value = at.get(instant)
        yield value if value is not None and math.isfinite(value) else None


class BoardReader:
    """Reads one server. `clock` gives seconds, for the deadline."""

    def __init__(self, url: str, web: Web, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ends = clock() + SECONDS_MAX
        get = server_get(url, web, seconds_left=self._seconds_left)
        self._api = PrometheusApi(get, REQUESTS_MAX)

    def read(self, boards: Sequence[Board], window: QueryWindow) -> Answers:
        """Return the answer to each query of the boards; OSError for a server that is not there."""
        found: Answers = {}
        for query, _ in (line for board in boards for line in board.lines):
            if query not in found:
                found[query] = self._answer(query, window)
        return found

    def _answer(self, query: str, window: QueryWindow) -> RangeAnswer:
        rate = f"{max(RATE_SECONDS_MIN, window.step)}s"
        arguments = {
            "query": query.replace(SPAN, rate), "start": window.start, "end": window.end,
            "step": window.step, "timeout": f"{QUERY_SECONDS_MAX:g}s",
        }  # fmt: skip
        try:
            data = self._api.data(f"/api/v1/query_range?{urllib.parse.urlencode(arguments)}")
            return RangeAnswer(matrix(data, window))
        except (BadPrometheusAnswer, TooMuch, TimeoutError) as error:
            return RangeAnswer(failure=printable(str(error) or "no answer in time", 300))

    def _seconds_left(self) -> float:
        left = self._ends - self._clock()
        if left <= 0:
            raise TooMuch(f"the {SECONDS_MAX:g} s for all answers are over")
        return min(left, QUERY_SECONDS_MAX)
