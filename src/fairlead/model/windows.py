"""Maintenance windows of nodes: from when until when each takes no job that could still run.

A window closes its node to an attempt that would begin before the end of the window and may hold
the node beyond its start: as long as the job's time limit and grace period allow, without a limit
for ever. What runs there already is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from fairlead.api.core import GRACE_SECONDS_DEFAULT
from fairlead.api.job import Job
from fairlead.api.times import format_time, parse_time

_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class Window:
    """From `start` until `end`, instants in seconds; all time where it cannot be read."""

    start: float
    end: float
    #: What stands there, where it cannot be read.
    error: str = ""

    @property
    def words(self) -> str:
        """When it is, for people."""
        if self.error:
            return self.error
        return f"from {format_time(self.start)} to {format_time(self.end)}"

    def is_closed(self, hold_seconds: float, now: float) -> bool:
        """True where an attempt that begins now and may take so long would run into it."""
        return now < self.end and now + hold_seconds > self.start


def window_text(start: float, end: float) -> str:
    """Return a window as it stands in the annotation; it lasts a second at least."""
    return f"{format_time(start)}/{format_time(max(end, start + 1.0))}"


def read_window(text: str) -> Window:
    """Read the annotation `MAINTENANCE` of a node: START/END, two RFC 3339 times.

    What cannot be read closes the node for good: it was to be closed at some time.
    """
    start, _, end = text.partition("/")
    try:
        window = Window(parse_time(start.strip()), parse_time(end.strip()))
    except ValueError:
        window = Window(inf, inf)
    if window.start < window.end:
        return window
    shown = text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
    return Window(-inf, inf, f"'{shown}', which cannot be read; accepted: START/END in RFC 3339")


def hold_seconds(job: Job) -> float:
    """Return how long an attempt may hold its nodes from its start; infinity without a limit."""
    limit = job.spec.time_limit_seconds
    return inf if limit is None else limit + grace_seconds(job)


def grace_seconds(job: Job) -> float:
    """Return how long the members of a job may take to end once they are asked to."""
    graces = [role.template.spec.termination_grace_period_seconds for role in job.spec.roles]
    longest = max((GRACE_SECONDS_DEFAULT if g is None else g for g in graces), default=0)
    return float(longest)
