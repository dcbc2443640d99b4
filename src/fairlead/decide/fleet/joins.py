"""How many nodes may begin to take work: a token bucket that follows the API server.

A node that joins costs the API server and everything that watches nodes: pods of DaemonSets,
images, endpoints. Hundreds at once have taken control planes down. The bucket holds a tenth of the
cluster at most; its rate rises while the server answers well and is halved while it does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class JoinLimits:
    """How fast nodes join."""

    per_minute: float = 100.0
    per_minute_max: float = 500.0
    per_minute_min: float = 5.0
    #: Of the cluster's nodes, at once; and at least so many.
    share_max: float = 0.1
    least: int = 10
    good_latency_seconds: float = 0.3
    bad_latency_seconds: float = 1.0
    bad_error_share: float = 0.02


@dataclass(frozen=True, slots=True)
class JoinBucket:
    """What is left; a process begins with an empty one."""

    tokens: float = 0.0
    per_minute: float = 0.0

    def after(
        self, elapsed: float, nodes: int, limits: JoinLimits, *, latency: float, errors: float
    ) -> JoinBucket:
        """Return the bucket `elapsed` seconds later, in a cluster of so many nodes."""
        rate = self.per_minute or limits.per_minute
        if errors > limits.bad_error_share or latency > limits.bad_latency_seconds:
            rate = max(limits.per_minute_min, rate * 0.5 ** min(1.0, elapsed / 5.0))
        elif latency <= limits.good_latency_seconds:
            rate = min(limits.per_minute_max, rate * 1.1 ** min(1.0, elapsed / 5.0))
        most = max(limits.least, int(nodes * limits.share_max))
        return JoinBucket(min(self.tokens + elapsed * rate / 60.0, most), rate)

    def take(self, count: int) -> tuple[int, JoinBucket]:
        """Take up to `count` whole tokens; return how many, and what is left."""
        taken = min(count, int(self.tokens))
        return taken, replace(self, tokens=self.tokens - taken)
