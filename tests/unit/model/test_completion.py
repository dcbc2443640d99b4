"""When a job gives its nodes back at the latest."""

from __future__ import annotations

import pytest

from fairlead.api.jobs.job import Attempt
from fairlead.api.values.times import format_time
from fairlead.model.holdings.completion import ends_at
from fairlead.testing.builders import EPOCH, make_job, make_placement

#: The time limit of the job, and the grace period of its members.
HOLDS = 600.0 + 30.0
STARTED = Attempt(1, started_at=format_time(EPOCH + 60))
ENDED = Attempt(1, started_at=format_time(EPOCH + 60), finished_at=format_time(EPOCH + 90))


@pytest.mark.parametrize(
    ("attempts", "attempt", "expected"),
    [
        ((), 1, EPOCH + HOLDS),
        ((Attempt(1),), 1, EPOCH + HOLDS),
        ((STARTED,), 1, EPOCH + 60 + HOLDS),
        ((ENDED,), 1, None),
        ((ENDED,), 2, EPOCH + HOLDS),
        ((ENDED, Attempt(2, started_at=format_time(EPOCH + 300))), 2, EPOCH + 300 + HOLDS),
    ],
)
def test_each_attempt_has_the_whole_limit_and_none_is_known_between_two(
    attempts: tuple[Attempt, ...], attempt: int, expected: float | None
) -> None:
    place = make_placement(["n0"], attempt=attempt)
    more = {"placement": place, "attempt": attempt, "status": {"attempts": attempts}}
    assert ends_at(make_job("j", time_limit_seconds=600, **more)) == expected
    assert ends_at(make_job("j", **more)) is None


def test_a_job_without_nodes_gives_none_back() -> None:
    assert ends_at(make_job("j", time_limit_seconds=600)) is None
