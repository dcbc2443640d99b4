"""What a node may send of a team's budget while it hears nothing of it (pure).

A rate that was given holds for `hold_seconds` after it was last confirmed. The sum over all nodes
is within the budget for as long as no rate rises, so a rate falls first: in equal steps to the safe
share, where it is larger. Only when all others have done so does a smaller one rise to it. The rate
is never without a limit, and never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The least that is enforced: a connection stays alive.
BITS_PER_SECOND_MIN = 8_000
STEPS = 10


@dataclass(frozen=True, slots=True)
class EgressLeaseTimes:
    """How long a rate holds, falls, and waits for those that fall; in seconds.

    Nodes hear of the budget at different times, at most `hold_seconds` apart where it is confirmed
    in time, so a small rate waits so long before it rises.
    """

    hold_seconds: float = 900.0
    fall_seconds: float = 300.0

    @property
    def rise_seconds(self) -> float:
        """After so long without word a rate that is less than the safe share becomes it."""
        return 2 * self.hold_seconds + self.fall_seconds


LEASE_TIMES = EgressLeaseTimes()


def leased_rate(
    rate: int, safe: int, silent_seconds: float, *, times: EgressLeaseTimes = LEASE_TIMES
) -> int:
    """Return the rate to enforce, in bits per second, after so long without word."""
    if rate > safe and silent_seconds > times.hold_seconds:
        past = (silent_seconds - times.hold_seconds) / times.fall_seconds
        steps = min(STEPS, 1 + int(past * STEPS))
        rate -= (rate - safe) * steps // STEPS
    elif rate < safe and silent_seconds > times.rise_seconds:
        rate = safe
    return max(BITS_PER_SECOND_MIN, rate)
