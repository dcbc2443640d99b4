"""A job's time from its submission on: what it waited for, ran, and why that ended (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from fairlead.api import names
from fairlead.api.jobs.job import Attempt, Job
from fairlead.api.meta import find_condition, is_true
from fairlead.api.values.times import parse_time
from fairlead.cli.views.jobs import waiting
from fairlead.cli.views.words import reason_words
from fairlead.decide.attempts.record import straggler_words, tested_words

WIDTH = 1_000
#: Of the picture: the least width of what took no time to speak of.
_WIDTH_MIN = 3
#: From the end of an attempt until a job that ends with it is written as ended.
_WRITTEN_SECONDS_MAX = 2.0


class SpanKind(Enum):
    """What a job does in a span of time."""

    ADMISSION = "Admission"
    WAITS = "Waits"
    STARTS = "Starts"
    RUNS = "Runs"


class Span(NamedTuple):
    """One span; `end` is None while it goes on, and counts as now then."""

    kind: SpanKind
    start: float
    end: float | None
    words: str
    attempt: int = 0

    def seconds(self, now: float) -> float:
        """Return how long it took, or has taken so far."""
        return max(0.0, (now if self.end is None else self.end) - self.start)


class Bar(NamedTuple):
    """A span as a part of the picture, in units of WIDTH."""

    span: Span
    x: int
    width: int


def spans_of(job: Job) -> list[Span]:
    """Return the spans, each of which begins where the one before it ended."""
    return [span for span in _spans(job) if span.end is None or span.end > span.start]


def _spans(job: Job) -> Iterator[Span]:
    status = job.status
    at = _instant(status.submitted_at or job.metadata.creation_timestamp)
    if at is None:
        return
    admitted = find_condition(status.conditions, names.ADMITTED)
    when = admitted.last_transition_time if admitted and admitted.status == "True" else None
    first = min((_instant(each.begun_at) or at for each in status.attempts), default=None)
    if when is not None and at < (until := parse_time(when)) and (first is None or until <= first):
        yield Span(SpanKind.ADMISSION, at, until, "until it was admitted")
        at = until
    before = "for a place"
    for attempt in sorted(status.attempts, key=lambda each: each.number):
        begun = _instant(attempt.begun_at)
        if begun is None:
            continue
        yield Span(SpanKind.WAITS, at, begun, before, attempt.number)
        yield from _of_attempt(attempt, begun)
        ended = _instant(attempt.finished_at)
        if ended is None:
            return
        at, before = ended, f"for the next attempt, after {attempt.reason or 'its end'}"
    if not job.is_finished:
        yield Span(SpanKind.WAITS, at, None, waiting(job), status.attempt)
    elif (end := _instant(status.finished_at)) is not None and not _ended_it(job, end - at):
        words = before if status.attempts else "until it was ended"
        yield Span(SpanKind.WAITS, at, end, words, status.attempt)


def _ended_it(job: Job, seconds: float) -> bool:
    """Return whether the job ended with its last attempt, which was so long before."""
    return bool(job.status.attempts) and (
        is_true(job.status.conditions, names.SUCCEEDED) or seconds < _WRITTEN_SECONDS_MAX
    )


def _of_attempt(attempt: Attempt, begun: float) -> Iterator[Span]:
    started, ended = _instant(attempt.started_at), _instant(attempt.finished_at)
    words, tested = ending_words(attempt), tested_words(attempt)
    until = "until all members run" + (f"; nodes: {tested}" if tested else "")
    if started is None:
        yield Span(SpanKind.STARTS, begun, ended, words or until, attempt.number)
        return
    yield Span(SpanKind.STARTS, begun, started, until, attempt.number)
    slow = (straggler_words(each) for each in attempt.stragglers)
    words = "; ".join((words or "all members run", *slow))
    yield Span(SpanKind.RUNS, started, ended, words, attempt.number)


def ending_words(attempt: Attempt) -> str:
    """Return how an attempt ended; "" while it goes on."""
    if attempt.finished_at is None:
        return ""
    cause = f" ({attempt.cause.value})" if attempt.cause is not None else ""
    return reason_words(attempt.reason or "Ended", attempt.message) + cause


def bars_of(spans: list[Span], now: float) -> list[Bar]:
    """Return the spans side by side, as wide as they took; what took hardly any time is seen."""
    total = sum(span.seconds(now) for span in spans)
    if not spans or total <= 0:
        return []
    room = WIDTH - _WIDTH_MIN * len(spans)
    bars: list[Bar] = []
    x = 0.0
    for span in spans:
        width = _WIDTH_MIN + room * span.seconds(now) / total
        bars.append(Bar(span, round(x), round(x + width) - round(x)))
        x += width
    return bars


def _instant(text: str | None) -> float | None:
    return parse_time(text) if text else None
