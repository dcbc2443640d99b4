"""GPU-hours of attempts: what is clipped, borrowed, busy and lost."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.api.jobs.job import Attempt, Cause, Job, Progress
from fairlead.api.jobs.placement import HeldNodes
from fairlead.api.names import SUBMITTED_BY
from fairlead.api.values.times import format_time
from fairlead.decide.attempts.end_reason import EndReason
from fairlead.decide.attempts.record import End, closed_record, new_record
from fairlead.decide.attempts.usage import JobAccount, Usage, account_of, usage_of, weeks_of
from fairlead.testing.builders import EPOCH, make_job

HOUR = 3600.0


def at(hours: float) -> str:
    return format_time(EPOCH + hours * HOUR)


def attempt(begun: float, ended: float | None, **more: Any) -> Attempt:
    end = at(ended) if ended is not None else None
    return Attempt(1, begun_at=at(begun), started_at=at(begun), finished_at=end, **more)


def job(*attempts: Attempt) -> Job:
    made = make_job("train", namespace="vision", count=2, gpus=4, status={"attempts": attempts})
    return replace(made, metadata=replace(made.metadata, annotations={SUBMITTED_BY: "ana"}))


def hours(*attempts: Attempt, since: float = 0.0, until: float = 10.0) -> list[Usage]:
    return list(usage_of(job(*attempts), EPOCH + since * HOUR, EPOCH + until * HOUR))


def test_an_attempt_holds_all_gpus_from_its_begin_to_its_end() -> None:
    (found,) = hours(attempt(1, 3))
    assert (found.held, found.busy) == (2 * 8 * HOUR, 2 * 8 * HOUR)
    assert (found.borrowed, found.lost_to_failures, found.lost_to_preemption) == (0, 0, 0)
    assert (found.user, found.namespace, found.job, found.pool) == ("ana", "vision", "train", "")


def test_gpus_of_every_vendor_count() -> None:
    extra, status = {"amd.com/gpu": 4}, {"attempts": (attempt(1, 3),)}
    made = make_job("train", count=2, gpus=0, extra=extra, status=status)
    (found,) = usage_of(made, EPOCH, EPOCH + 10 * HOUR)
    assert found.held == 2 * 8 * HOUR


def test_an_attempt_holds_the_gpus_of_the_members_that_it_had() -> None:
    """An elastic job may have had another size before, and has the size of its next attempt."""
    small, large = attempt(0, 1, sizes={"worker": 1}), attempt(1, 2, sizes={"worker": 2})
    assert [one.held for one in hours(small, large, small)] == [4 * HOUR, 8 * HOUR, 4 * HOUR]


def test_what_is_outside_of_the_span_does_not_count_and_what_runs_counts_until_its_end() -> None:
    assert [one.held for one in hours(attempt(1, 3), since=2)] == [8 * HOUR]
    assert [one.held for one in hours(attempt(9, None))] == [8 * HOUR]
    assert hours(attempt(1, 2), since=2) == []


def test_it_is_busy_while_all_members_run() -> None:
    started = Attempt(1, begun_at=at(0), started_at=at(1), finished_at=at(3))
    never = Attempt(2, begun_at=at(4), finished_at=at(5))
    assert [one.busy for one in hours(started, never)] == [2 * 8 * HOUR, 0.0]


def test_a_failed_attempt_lost_what_it_did_after_its_last_checkpoint() -> None:
    failed = attempt(0, 4, cause=Cause.NODE, reason="NodeLost", saved_at=at(3))
    preempted = attempt(4, 6, reason=EndReason.PREEMPTED.value)
    lost = [(one.lost_to_failures, one.lost_to_preemption) for one in hours(failed, preempted)]
    assert lost == [(8 * HOUR, 0.0), (0.0, 2 * 8 * HOUR)]


def test_hours_are_of_the_pools_and_lenders_that_the_attempt_began_with() -> None:
    held = (HeldNodes("a100", "", 6), HeldNodes("h100", "speech", 2))
    found = hours(attempt(0, 1, held=held, team="vision"))
    assert [(one.team, one.pool, one.held, one.borrowed) for one in found] == [
        ("vision", "a100", 6 * HOUR, 0.0),
        ("vision", "h100", 2 * HOUR, 2 * HOUR),
    ]


def test_a_cost_is_by_the_price_when_it_was_placed_and_unknown_where_a_part_has_none() -> None:
    priced = HeldNodes("h100", "", 8, gpu_hour_micros=2_500_000)
    known = job(attempt(0, 2, held=(priced,)), attempt(2, 3, held=(priced,)))
    assert account_of(known, EPOCH + 9 * HOUR) == JobAccount(24.0, 60.0)
    assert account_of(known, EPOCH + HOUR) == JobAccount(8.0, 20.0)
    partly = job(attempt(0, 2, held=(priced, HeldNodes("old", "", 4))))
    assert account_of(partly, EPOCH + 9 * HOUR) == JobAccount(24.0, None)
    (one, other) = usage_of(partly, EPOCH, EPOCH + 9 * HOUR)
    assert (one.cost, one.unpriced, other.cost, other.unpriced) == (40.0, 0.0, 0.0, 8 * HOUR)
    assert account_of(job(attempt(0, 1)), EPOCH + 9 * HOUR) == JobAccount(8.0, None)
    assert account_of(job(), EPOCH) == JobAccount(0.0, None)


@pytest.mark.parametrize(("saved", "expected"), [(2.0, at(2)), (0.5, None)])
def test_a_record_is_closed_with_the_checkpoint_of_its_own_attempt(
    saved: float, expected: str | None
) -> None:
    record = new_record(job(), EPOCH + HOUR)
    progress = Progress(step=9, checkpoint_step=8, checkpointed_at=at(saved))
    closed = closed_record(record, End(EndReason.PREEMPTED), EPOCH + 3 * HOUR, progress)
    assert closed.saved_at == expected


def test_a_span_is_cut_at_the_mondays_and_its_hours_stay_the_same() -> None:
    begin, end = EPOCH + 5 * HOUR, EPOCH + 24 * HOUR * 20
    spans = list(weeks_of(begin, end))
    assert (spans[0][0], spans[-1][1]) == (begin, end)
    assert all(one[1] == other[0] for one, other in pairwise(spans))
    mondays = [datetime.fromtimestamp(since, UTC) for since, _ in spans[1:]]
    assert {(day.weekday(), day.hour, day.minute) for day in mondays} == {(0, 0, 0)}
    long = job(attempt(0, 24 * 20))
    parts = [each for span in spans for each in usage_of(long, *span)]
    (whole,) = usage_of(long, begin, end)
    assert sum(each.held for each in parts) == whole.held
    assert [each.week for each in parts[1:]] == [day.date().isoformat() for day in mondays]
    assert list(weeks_of(end, begin)) == []
