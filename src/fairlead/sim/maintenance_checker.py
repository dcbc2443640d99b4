"""Checks promise 7: no attempt begins on a node that it may still hold when maintenance begins.

It reads windows and time limits from the objects by itself. A decision may be older than its write,
and was made by a clock that may be wrong: only what is wrong by all such clocks is reported, and
only where the window was known by then. Pods of other tools stay where they are, so their jobs are
left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fairlead.api.core import Node
from fairlead.api.job import Job
from fairlead.api.names import MAINTENANCE
from fairlead.api.times import parse_time
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.checkers import PromiseBroken
from fairlead.sim.observer import Observer

#: A write that its author decided on earlier comes at most this much later.
_STALE_SECONDS = 150.0
_GRACE_SECONDS = 30.0


@dataclass(slots=True)
class MaintenanceChecker(Observer):
    """An `Observer`. `judged` counts attempts that begin while nodes have windows; `spared` their
    nodes whose window is still to come, long enough after.
    """

    clock_error_seconds: float = 0.0
    judged: int = 0
    spared: int = 0
    #: (start, end, known since)
    _windows: dict[str, tuple[float, float, float]] = field(
        default_factory=dict[str, tuple[float, float, float]]
    )
    _attempts: dict[ObjectKey, tuple[str, int]] = field(
        default_factory=dict[ObjectKey, tuple[str, int]]
    )

    def job(self, new: Job | None, key: ObjectKey, now: float) -> None:
        """7: a placement of a further attempt."""
        placement = new.status.placement if new is not None else None
        if new is None:
            self._attempts.pop(key, None)
            return
        attempt = (new.metadata.uid, placement.attempt if placement is not None else 0)
        before, self._attempts[key] = self._attempts.get(key), attempt
        if placement is None or before == attempt or new.spec.adopts is not None:
            return
        self.judged += bool(self._windows)
        limit = new.spec.time_limit_seconds
        hold = float("inf") if limit is None else limit + _GRACE_SECONDS
        earliest = now - _STALE_SECONDS - self.clock_error_seconds
        latest = now + self.clock_error_seconds
        for node in {node for role in placement.roles for node in role.nodes} & set(self._windows):
            start, end, since = self._windows[node]
            self.spared += latest + hold < start
            if since < now - _STALE_SECONDS and latest < end and earliest + hold > start:
                raise PromiseBroken(
                    f"7: attempt {placement.attempt} of {'/'.join(key)} is placed on {node}, whose "
                    f"maintenance begins in {start - now:.0f} s, for up to {hold:g} s"
                )

    def node(self, new: Node | None, name: str, now: float) -> None:
        """Take in the window of a node, or that it has none."""
        text = new.metadata.annotations.get(MAINTENANCE) if new is not None else None
        if text is None:
            self._windows.pop(name, None)
            return
        start, end = map(parse_time, text.split("/"))
        known = self._windows.get(name)
        if known is None or known[:2] != (start, end):
            self._windows[name] = (start, end, now)
