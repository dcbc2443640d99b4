"""Maintenance windows and drains of nodes: when each takes no job that could still run.

A window closes its node to an attempt that would begin before the end of the window and may hold
the node beyond its start: as long as the job's time limit and grace period allow, without a limit
for ever. What runs there already is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import GRACE_SECONDS_DEFAULT
from fairlead.api.names import DRAIN, HEALTH_DRAIN, MAINTENANCE
from fairlead.api.values.times import format_time, parse_time

_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class Window:
    """From `start` until `end`, instants in seconds; all time where it cannot be read."""

    start: float
    end: float
    #: What stands there, where it cannot be read.
    error: str = ""
    #: Of a drain: since when gangs are asked to leave. It lasts until it is taken off.
    asked_at: float | None = None

    @property
    def words(self) -> str:
        """When it is, for people."""
        if self.error:
            return self.error
        if self.end == inf:
            return f"from {format_time(self.start)} until it is ended"
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


def drain_of(notes: Mapping[str, str]) -> Window | None:
    """Return until when a node with these annotations is to be empty; None: it is not.

    `start` is the deadline, the earlier one of a person's drain and of that for a fault. Without
    one (`SINCE/`), and where the text cannot be read, the node is closed and what is there stays.
    """
    if HEALTH_DRAIN not in notes and DRAIN not in notes:
        return None
    found = (_read_drain(notes[key]) for key in (HEALTH_DRAIN, DRAIN) if key in notes)
    return min(found, key=lambda drain: drain.start)


def _read_drain(text: str) -> Window:
    since, _, deadline = text.partition("/")
    if deadline:
        window = read_window(text)
        start, asked_at = (inf, -inf) if window.error else (window.end, window.start)
        return Window(start, inf, window.error, asked_at)
    try:
        return Window(inf, inf, "", parse_time(since.strip()))
    except ValueError:
        return Window(inf, inf, read_window(text).error, -inf)


def closed_of(notes: Mapping[str, str]) -> Window | None:
    """Return when a node with these annotations takes no job that could still run; None: always."""
    drain = drain_of(notes)
    if drain is not None:
        return Window(-inf if drain.asked_at is None else drain.asked_at, inf, drain.error)
    text = notes.get(MAINTENANCE)
    return None if text is None else read_window(text)


def hold_seconds(job: Job) -> float:
    """Return how long an attempt may hold its nodes from its start; infinity without a limit."""
    limit = job.spec.time_limit_seconds
    return inf if limit is None else limit + grace_seconds(job)


def grace_seconds(job: Job) -> float:
    """Return how long the members of a job may take to end once they are asked to."""
    graces = [role.template.spec.termination_grace_period_seconds for role in job.spec.roles]
    longest = max((GRACE_SECONDS_DEFAULT if g is None else g for g in graces), default=0)
    return float(longest)
