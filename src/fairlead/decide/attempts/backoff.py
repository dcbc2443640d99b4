"""How long to wait before the next try: doubling delays with a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.api.jobs.job import Attempt, JobStatus
from fairlead.api.values.times import parse_time
from fairlead.decide.attempts.end_reason import EndReason, end_of

#: The back-off of a borrower that gave way twice in a row, and the longest one: 13 times or more.
_BORROWER_SECONDS_FIRST, _BORROWER_SECONDS_MAX = 60.0, 86_400.0
#: The first back-off of a job whose place was refused so often that it gives the place up.
_REFUSED_SECONDS_FIRST = 10.0
#: 2 to this power is more than any delay.
_DOUBLINGS_MAX = 30


def doubled(first: float, doublings: int, longest: float) -> float:
    """Return `first`, doubled so many times (none if negative), but at most `longest`."""
    return min(first * 2 ** min(max(doublings, 0), _DOUBLINGS_MAX), longest)


def last_attempts(
    attempts: Sequence[Attempt], ended: Callable[[EndReason], bool]
) -> Sequence[Attempt]:
    """Return the latest attempts that all ended in such a way, oldest first."""
    count = 0
    for attempt in reversed(attempts):
        end = end_of(attempt)
        if end is None or not ended(end):
            break
        count += 1
    return attempts[len(attempts) - count :]


def refusals_in_a_row(attempts: Sequence[Attempt]) -> int:
    """Return how many of the latest attempts ended because their place was refused."""
    return len(last_attempts(attempts, lambda end: end.refuses_place))


def refused_seconds(attempts: Sequence[Attempt], most: int, longest: float) -> float:
    """Return the back-off after `most` refusals of a place in a row, or more; 0 before.

    A single one is usual on nodes that others fill as well. The next attempt keeps the nodes that
    were not refused, so it comes at once; a place that is refused again and again is none.
    """
    times = refusals_in_a_row(attempts)
    return doubled(_REFUSED_SECONDS_FIRST, times - most, longest) if times >= most else 0.0


@dataclass(frozen=True, slots=True)
class BorrowerBackOff:
    """How often a job gave way in a row on borrowed nodes without progress, and from when on it may
    borrow again. Instants are seconds since the epoch.
    """

    times: int
    until: float


def borrower_backoff(status: JobStatus) -> BorrowerBackOff | None:
    """Return the back-off of a job that waits; None where it may borrow at any time.

    Counted are its latest attempts that were preempted on borrowed nodes, and from whose checkpoint
    the next one starts: they saved none of their own. The records that a status keeps
    (`bounds.ATTEMPTS_MAX`) are more than it takes to get to the longest back-off, so those that are
    dropped do not matter.
    """
    if not status.attempts:
        return None
    step = status.progress.checkpoint_step if status.progress is not None else None
    times = 0
    for attempt in reversed(status.attempts):
        is_borrowed = any(held.lender for held in attempt.held)
        is_counted = is_borrowed and end_of(attempt) is EndReason.PREEMPTED
        if not is_counted or attempt.resumed_from_step != step:
            break
        times += 1
    ended_at = status.attempts[-1].finished_at if times > 1 else None
    if ended_at is None:
        return None
    wait_seconds = doubled(_BORROWER_SECONDS_FIRST, times - 2, _BORROWER_SECONDS_MAX)
    return BorrowerBackOff(times, parse_time(ended_at) + wait_seconds)
