"""Asks a Prometheus server how the lines of a board went over a time, a query for each line."""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead.doctor.monitoring.boards import SPAN, Board
from fairlead.doctor.prometheus.api import BadAnswer, PrometheusApi, server_get
from fairlead.doctor.readers.web import TooMuch, Web
from fairlead.terminal import printable

REQUESTS_MAX = 300
SECONDS_MAX, QUERY_SECONDS_MAX = 120.0, 15.0
POINTS_MAX = 240
#: Of an answer: two thousand series.
SAMPLES_MAX = 500_000
#: The least window of a rate: four scrapes a minute apart, and as long as that of the alerts.
RATE_SECONDS_MIN = 300


@dataclass(frozen=True, slots=True)
class Window:
    """Instants in seconds since the epoch: multiples of `step` from `start` to `end`, inclusive."""

    start: int
    end: int
    step: int

    @staticmethod
    def of(start: float, end: float) -> Window:
        """Return a window of at most POINTS_MAX points that covers this time."""
        step = max(1, math.ceil((end - start) / (POINTS_MAX - 2)))
        return Window(int(start // step * step), math.ceil(end / step) * step, step)

    @property
    def instants(self) -> range:
        """The instants."""
        return range(self.start, self.end + 1, self.step)


@dataclass(frozen=True, slots=True)
class Line:
    """One series of an answer: its labels, and a value for each instant; None where it has none."""

    labels: Mapping[str, str]
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query gave: its series, or why it gave none."""

    lines: tuple[Line, ...] = ()
    failure: str = ""


#: By the query, as the board has it.
Answers = dict[str, Answer]


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []


def matrix(data: Mapping[str, Any], window: Window) -> tuple[Line, ...]:
    """Return the series of an answer to a range query; BadAnswer.

    Values that are no finite numbers are gaps.
    """
    if data.get("resultType") != "matrix":
        raise BadAnswer("the answer is not a range of values")
    try:
        result = msgspec.convert(data.get("result"), list[_Series])
    except msgspec.ValidationError as error:
        raise BadAnswer(f"the answer is not a range of values: {error}") from error
    if len(result) * len(window.instants) > SAMPLES_MAX:
        raise BadAnswer(f"the answer has more than {SAMPLES_MAX:,} samples")
    return tuple(Line(each.metric, tuple(_values(each, window))) for each in result)


def _values(series: _Series, window: Window) -> Iterator[float | None]:
    try:
        at = {round(instant): float(text) for instant, text in series.values}
    except (ValueError, OverflowError) as error:
        raise BadAnswer("the answer has a value that is no number") from error
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

    def read(self, boards: Sequence[Board], window: Window) -> Answers:
        """Return the answer to each query of the boards; OSError for a server that is not there."""
        found: Answers = {}
        for query, _ in (line for board in boards for line in board.lines):
            if query not in found:
                found[query] = self._answer(query, window)
        return found

    def _answer(self, query: str, window: Window) -> Answer:
        rate = f"{max(RATE_SECONDS_MIN, window.step)}s"
        arguments = {
            "query": query.replace(SPAN, rate), "start": window.start, "end": window.end,
            "step": window.step, "timeout": f"{QUERY_SECONDS_MAX:g}s",
        }  # fmt: skip
        try:
            data = self._api.data(f"/api/v1/query_range?{urllib.parse.urlencode(arguments)}")
            return Answer(matrix(data, window))
        except (BadAnswer, TooMuch, TimeoutError) as error:
            return Answer(failure=printable(str(error) or "no answer in time", 300))

    def _seconds_left(self) -> float:
        left = self._ends - self._clock()
        if left <= 0:
            raise TooMuch(f"the {SECONDS_MAX:g} s for all answers are over")
        return min(left, QUERY_SECONDS_MAX)
