"""How long each controller has worked: a clock that stands while none of that name can act.

Where processes are killed at every tenth call, they spend most of their lives down or listing, and
no code could keep a bound on time meanwhile. So such bounds count the time from a process's first
decision to its end; before the first process ends, all time counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

JOBS, SCHEDULER, TEAMS, HEALTH = "jobs", "scheduler", "teams", "health"


@dataclass(slots=True)
class _Idle:
    """The time that does not count: before the present span, and the span."""

    seconds: float = 0.0
    since: float = math.inf
    until: float = math.inf

    def before(self, now: float) -> float:
        """Return the seconds until `now` that do not count."""
        return self.seconds + max(0.0, min(now, self.until) - self.since)


class WorkingTime:
    """The clocks of the controllers whose acts are checked by the clock."""

    def __init__(self, *, inherited_seconds: float = 0.0) -> None:
        """A new jobs controller may wait `inherited_seconds` for what the one before asked for."""
        self._waits = {JOBS: inherited_seconds, SCHEDULER: 0.0, TEAMS: 0.0, HEALTH: 0.0}
        self._idle = {name: _Idle() for name in self._waits}

    def ended(self, controller: str, now: float) -> None:
        """A controller was killed; "": all of a process."""
        for name, idle in self._idle.items():
            if controller in ("", name):
                self._idle[name] = _Idle(idle.before(now), now)

    def works(self, controller: str, now: float) -> None:
        """A controller has decided."""
        idle = self._idle.get(controller)
        if idle is not None and idle.until == math.inf:
            idle.until = now + self._waits[controller]

    def began_at(self, controller: str) -> float:
        """Return when the present process first decided; infinity before its first decision."""
        return self._idle[controller].until - self._waits[controller]

    def seconds(self, controller: str, now: float) -> float:
        """Return the instant `now` on the clock of a controller."""
        return now - self._idle[controller].before(now)
