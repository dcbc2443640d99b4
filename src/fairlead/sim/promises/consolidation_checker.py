"""Checks the moves that empty nodes: where they are allowed, and that they need no further node.

At the request, a gang leaves nodes of a pool that is consolidated, for nodes in use or of no pool,
as a whole, and no sooner than a gang may be moved. What a decision has seen is as old as a late
write may be, so nodes count as in use for that long.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from fairlead.api.jobs.job import Job
from fairlead.api.jobs.placement import nodes_of
from fairlead.api.kubernetes.core import Node
from fairlead.api.names import POOL
from fairlead.decide.verdict import ObjectKey
from fairlead.sim.observers.broken_promise import PromiseBroken
from fairlead.sim.observers.observer import STALE_SECONDS
from fairlead.sim.setup.world_options import WorldOptions


@dataclass(slots=True)
class _Use:
    """The jobs that have a place on a node, and until when others had one."""

    jobs: dict[ObjectKey, None] = field(default_factory=dict[ObjectKey, None])
    until: dict[ObjectKey, float] = field(default_factory=dict[ObjectKey, float])

    def by_others(self, key: ObjectKey, now: float) -> bool:
        """True where another job has a place, or had one lately."""
        late = (other for other, at in self.until.items() if now - at <= STALE_SECONDS)
        return any(other != key for other in (*self.jobs, *late))


class ConsolidationChecker:
    """Fed by the checker of preemptions."""

    def __init__(self, options: WorldOptions, *, clock_error_seconds: float = 0.0) -> None:
        """The clocks of the controllers are wrong by at most `clock_error_seconds`."""
        #: Requests to gangs to move so that nodes empty.
        self.requests = 0
        self._pools = {pool.name for pool in options.pools if pool.consolidates}
        # Between two readings of a clock, both of which may be wrong.
        self._spared_seconds = options.policy.move_min_run_seconds - 2 * clock_error_seconds
        self._pool_of: dict[str, str] = {}
        self._uses: defaultdict[str, _Use] = defaultdict(_Use)
        self._placed_at: dict[ObjectKey, float] = {}

    def node(self, new: Node | None, name: str) -> None:
        """Note the pool of a node; of one that is gone it stays known."""
        if new is not None:
            self._pool_of[name] = new.metadata.labels.get(POOL, "")

    def held(
        self, key: ObjectKey, before: frozenset[str], after: frozenset[str], now: float
    ) -> None:
        """Note where a job has its place."""
        for name in before - after:
            self._uses[name].jobs.pop(key, None)
            self._uses[name].until[key] = now
        for name in after - before:
            self._uses[name].jobs[key] = None
        if after and not before:
            self._placed_at[key] = now

    def asked(self, key: ObjectKey, new: Job, nodes: frozenset[str], now: float) -> None:
        """5: see above."""
        preemption, nomination = new.status.preemption, new.status.nomination
        assert preemption is not None
        self.requests += 1
        empties = set(preemption.empties)
        if not empties or not empties <= nodes:
            raise PromiseBroken(f"5: {key} gives its place back for no job and no node")
        if not all(self._pool_of.get(name) in self._pools for name in empties):
            raise PromiseBroken(
                f"5: {key} leaves {sorted(empties)}, whose pool is to stay as it is"
            )
        kept = set(nodes_of(nomination))
        further = [
            name for name in sorted(kept - (nodes - empties))
            if name in empties
            or (self._pool_of.get(name) and not self._uses[name].by_others(key, now))
        ]  # fmt: skip
        if further:
            raise PromiseBroken(f"5: {key} leaves {sorted(empties)} for {further}, not in use")
        if new.spec.adopts is not None:
            raise PromiseBroken(f"5: {key} of another tool is moved")
        if now - self._placed_at.get(key, now) < self._spared_seconds:
            raise PromiseBroken(
                f"5: {key} is moved {now - self._placed_at[key]:.0f} s after it came"
            )
