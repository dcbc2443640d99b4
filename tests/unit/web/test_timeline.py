"""Where a job's time went."""

from __future__ import annotations

import pytest

from fairlead.api import names
from fairlead.api.jobs.attempt import Attempt, Cause
from fairlead.api.jobs.job import Condition, VerdictStatus
from fairlead.api.values.times import format_time
from fairlead.testing.builders import EPOCH, make_job
from fairlead.web.pages.timeline import WIDTH, SpanKind, bars_of, spans_of


def at(seconds: float) -> str:
    return format_time(EPOCH + seconds)


def done(type_: str, seconds: float) -> Condition:
    return Condition(type=type_, status="True", reason="Ok", last_transition_time=at(seconds))


def test_a_job_that_was_restarted_shows_each_wait_and_what_ended_each_attempt() -> None:
    first = Attempt(
        1, begun_at=at(60), started_at=at(70), finished_at=at(100), cause=Cause.NODE,
        reason="NodeLost", message="n7 is gone",
    )  # fmt: skip
    second = Attempt(2, begun_at=at(130), started_at=at(140))
    job = make_job("train", attempt=2, conditions=[done(names.ADMITTED, 10)],
                   status={"attempts": (first, second), "submitted_at": at(0)})  # fmt: skip
    spans = spans_of(job)
    assert [(s.kind, s.start - EPOCH, s.seconds(EPOCH + 200), s.attempt) for s in spans] == [
        (SpanKind.ADMISSION, 0, 10, 0), (SpanKind.WAITS, 10, 50, 1), (SpanKind.STARTS, 60, 10, 1),
        (SpanKind.RUNS, 70, 30, 1), (SpanKind.WAITS, 100, 30, 2), (SpanKind.STARTS, 130, 10, 2),
        (SpanKind.RUNS, 140, 60, 2),
    ]  # fmt: skip
    assert spans[3].words == "NodeLost: n7 is gone (Node)"
    assert spans[4].words == "for the next attempt, after NodeLost"


def test_a_job_that_waits_says_why_for_as_long_as_it_does() -> None:
    verdict = VerdictStatus("Blocked", "Held")
    job = make_job("held", suspend=True, verdict=verdict, status={"submitted_at": at(0)})
    (span,) = spans_of(job)
    assert (span.kind, span.end, span.seconds(EPOCH + 90)) == (SpanKind.WAITS, None, 90)
    assert span.words.startswith("Held: ")


def test_a_job_that_was_cancelled_before_it_ran_has_waited_until_then() -> None:
    job = make_job("gone", conditions=[done(names.FAILED, 40)],
                   status={"submitted_at": at(0), "finished_at": at(40)})  # fmt: skip
    (span,) = spans_of(job)
    assert (span.kind, span.seconds(0)) == (SpanKind.WAITS, 40)


def test_the_picture_is_as_wide_as_it_says_and_short_spans_are_seen() -> None:
    attempt = Attempt(1, begun_at=at(1), started_at=at(2), finished_at=at(100_000))
    job = make_job("long", conditions=[done(names.SUCCEEDED, 100_000)],
                   status={"attempts": (attempt,), "submitted_at": at(0)})  # fmt: skip
    bars = bars_of(spans_of(job)[:3], EPOCH + 100_000)
    assert bars[0].x == 0
    assert bars[-1].x + bars[-1].width == WIDTH
    assert all(bar.width >= 2 for bar in bars)
    assert bars_of([], EPOCH) == []


@pytest.mark.parametrize(
    ("condition", "seconds", "waits"),
    [(names.FAILED, 100.4, 0), (names.SUCCEEDED, 105, 0), (names.FAILED, 160, 60)],
)
def test_a_job_that_ended_with_its_attempt_waited_for_no_other(
    condition: str, seconds: float, waits: int
) -> None:
    attempt = Attempt(1, begun_at=at(0), started_at=at(1), finished_at=at(100), reason="ExitCode")
    job = make_job("ended", conditions=[done(condition, seconds)],
                   status={"attempts": (attempt,), "submitted_at": at(0),
                           "finished_at": at(seconds)})  # fmt: skip
    after = spans_of(job)[2:]
    words = "for the next attempt, after ExitCode"
    assert [(s.kind, s.seconds(0), s.words) for s in after] == (
        [(SpanKind.WAITS, waits, words)] if waits else []
    )
