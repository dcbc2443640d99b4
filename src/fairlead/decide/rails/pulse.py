"""How the API server answers us: averages of our own requests, which age when none is sent.

A controller that stops because its requests fail sends no more of them. Without ageing, it would
never learn that the API server has recovered.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Share of the newest sample in the averages.
_NEWEST = 0.1
#: Without a request, the averages halve in this time.
HALF_LIFE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """Averages at an instant of a monotonic clock."""

    latency_seconds: float = 0.0
    error_share: float = 0.0
    at: float = 0.0

    def aged(self, instant: float) -> Pulse:
        """Return the averages at a later instant, when nothing was sent since."""
        kept = 0.5 ** (max(0.0, instant - self.at) / HALF_LIFE_SECONDS)
        return Pulse(self.latency_seconds * kept, self.error_share * kept, instant)

    def after(self, seconds: float, *, failed: bool, instant: float) -> Pulse:
        """Take in one request that took so long and ended at an instant."""
        latency = self.latency_seconds + (seconds - self.latency_seconds) * _NEWEST
        errors = self.error_share + (float(failed) - self.error_share) * _NEWEST
        return Pulse(latency, errors, instant)
