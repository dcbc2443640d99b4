"""What the stages of one decision share, and how a fault over one job is contained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from fairlead.decide.placement.borrowing import Borrowing
from fairlead.decide.placement.capacity import EmptyCapacity, PresentCapacity
from fairlead.decide.placement.job_limits import RunningLimits
from fairlead.decide.placement.policy import PlacementPolicy
from fairlead.decide.placement.queue import QueueEntry, Shape
from fairlead.decide.placement.search import Plan, plan_gang
from fairlead.decide.placement.state import PlacementState
from fairlead.decide.placement.unplaceable import judge_empty
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.gangs import GangRequest, InvalidGang
from fairlead.model.labels import OWN
from fairlead.model.nodes import Bools, Ints

T = TypeVar("T")


class Context:
    """The state of one decision: what it reads, what it has placed, when to decide again."""

    def __init__(
        self, state: PlacementState, policy: PlacementPolicy, now: float, capacity: PresentCapacity
    ) -> None:
        self.state = state
        self.cluster = state.cluster
        self.policy = policy
        #: The time, and that at which the decision began: forecasts look ahead.
        self.now = self.began = now
        self.capacity = capacity
        #: Jobs placed in this decision and the slots that they took.
        self.placed: dict[ObjectKey, Ints] = {}
        #: The job at the head for which nodes are reserved, if any.
        self.reserved_for: ObjectKey | None = None
        self.borrowing = Borrowing(state.cluster)
        self.limits = RunningLimits(state.cluster)
        #: When to decide again.
        self.wakes: list[float] = []
        self.faults: dict[ObjectKey, Exception] = {}
        #: Called with a job over which a step raised; None: the error is raised.
        self.on_fault: Callable[[ObjectKey, Exception], None] | None = None

    def is_left_alone(self, key: ObjectKey) -> bool:
        """True for a job that is not to be touched: writes of it fail, or deciding about it."""
        if key in self.state.write_blocked:
            return True
        return self.state.jobs[key].faulted_at == self.cluster.table.nodes_version

    def contained(self, key: ObjectKey, step: Callable[[], T], otherwise: T | None = None) -> T:
        """Return what `step`, which is about one job, returns; `otherwise` if it raises.

        What a step that raises has taken is released.
        """
        if self.is_left_alone(key):
            return cast("T", otherwise)
        mark = self.capacity.mark()
        try:
            return step()
        except Exception as error:
            if self.on_fault is None:
                raise
            self.capacity.rollback_to(mark)
            self.state.jobs[key].faulted_at = self.cluster.table.nodes_version
            self.faults[key] = error
            self.on_fault(key, error)
            return cast("T", otherwise)

    def limited(
        self, entry: QueueEntry, gang: GangRequest, *, but_barred: bool = False
    ) -> PresentCapacity:
        """Return the capacity that limits of borrowing leave a gang, without what is barred."""
        capacity = self.capacity.unbarred()
        if but_barred:
            capacity.barred = self._barred_for(entry.lane.team)
        return self.borrowing.limited(capacity, gang, entry.lane.team, entry.lane.priority)

    def _barred_for(self, team: str) -> Bools | None:
        """Return the nodes that are kept for the head of the queue; a head that would borrow keeps
        no team off its own.
        """
        barred = self.capacity.barred
        if barred is None or self.reserved_for is None or not team:
            return barred
        if self.state.jobs[self.reserved_for].lane.team == team:
            return barred
        return barred & (self.cluster.table.labels.tiers(team) != OWN)

    def plan(self, entry: QueueEntry, gang: GangRequest) -> Plan | None:
        """Place a gang in the capacity, within the limits of borrowing; None takes nothing."""
        return plan_gang(self.limited(entry, gang, but_barred=True), self.cluster.table, gang)

    def basis(self, gang: GangRequest | InvalidGang) -> tuple[object, ...]:
        """Return a value that differs once something has changed that the gang could use."""
        if isinstance(gang, InvalidGang):
            return ()
        fits = self.cluster.fits
        roles = gang.roles if gang.borrowing is None else (*gang.roles, *gang.borrowing.roles)
        changes = [fits.mask(role.member.constraints).changed_at for role in roles]
        version = self.cluster.table.nodes_version
        teams = self.cluster.teams.version
        return (*changes, version, teams, self.capacity.version, self.reserved_for)

    def on_empty(self, shape: Shape) -> Verdict | None:
        """Return why a shape could never be placed on these nodes, even empty; None: it could."""
        version = self.cluster.table.nodes_version
        if shape.on_empty is None or shape.on_empty[0] != version:
            shape.on_empty = (version, judge_empty(self.cluster, shape.gang))
        return shape.on_empty[1]

    def fits_available(self, shape: Shape) -> bool:
        """True when the planner finds a place on the nodes that are available, were they empty."""
        assert not isinstance(shape.gang, InvalidGang)
        version = self.cluster.table.nodes_version
        if shape.fits_available is None or shape.fits_available[0] != version:
            available = EmptyCapacity(self.cluster, available_only=True)
            plan = plan_gang(available, self.cluster.table, shape.gang)
            shape.fits_available = (version, plan is not None)
        return shape.fits_available[1]
