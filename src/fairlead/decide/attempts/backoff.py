"""How long to wait before the next try: doubling delays with a bound."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fairlead.api.job import Attempt

#: 2 to this power is more than any delay.
_DOUBLINGS_MAX = 30


def doubled(first: float, doublings: int, longest: float) -> float:
    """Return `first`, doubled so many times (none if negative), but at most `longest`."""
    return min(first * 2 ** min(max(doublings, 0), _DOUBLINGS_MAX), longest)


def last_ended_for(attempts: Sequence[Attempt], reasons: Collection[str]) -> Sequence[Attempt]:
    """Return the latest attempts that all ended for one of these reasons, oldest first."""
    count = 0
    for attempt in reversed(attempts):
        if attempt.reason not in reasons:
            break
        count += 1
    return attempts[len(attempts) - count :]
