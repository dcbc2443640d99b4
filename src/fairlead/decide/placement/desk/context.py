"""What the stages of one decision share, and how a fault over one job is contained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import TypeVar, cast

from fairlead.decide.placement.desk.memory import PlanMemory
from fairlead.decide.placement.desk.policy import PlacementPolicy
from fairlead.decide.placement.desk.repair import GangGrowth, GangRelease, PlacedGang, Wait
from fairlead.decide.placement.places.capacity import EmptyCapacity, PresentCapacity
from fairlead.decide.placement.places.image_preference import with_images
from fairlead.decide.placement.places.kept_room import End, KeptRoom, QueueReservation, together
from fairlead.decide.placement.places.search import Plan, plan_gang, uses_of
from fairlead.decide.placement.places.size import largest_plan, planned
from fairlead.decide.placement.places.unplaceable import judge_empty
from fairlead.decide.placement.waiting.borrowing import Borrowing
from fairlead.decide.placement.waiting.job_limits import RunningLimits
from fairlead.decide.placement.waiting.queue import EqualJobs, QueueEntry, RequestShape
from fairlead.decide.placement.waiting.quota import TakenQuota, excess_of
from fairlead.decide.placement.waiting.state import PlacementState
from fairlead.decide.verdict import ObjectKey, Verdict
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.inventory.labels import FOREIGN, OWN
from fairlead.model.inventory.nodes import Bools, Ints

T = TypeVar("T")


class PlanningContext:
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
        #: What becomes of gangs, as it was found. The caller of the stages makes writes of it.
        self.outcomes: list[tuple[QueueEntry, PlacedGang | Wait | GangRelease]] = []
        #: Jobs placed in this decision and the slots that they took.
        self.placed: dict[ObjectKey, Ints] = {}
        #: What the decision has placed so far that has a known end: until when, and what it uses.
        self.placed_until: list[End] = []
        #: The same of jobs without a time limit, by their predicted run times.
        self.placed_predicted: list[End] = []
        #: What is kept for the heads of the queue, in its order: see `reserve`.
        self.reservations: tuple[QueueReservation, ...] = ()
        self._heads: tuple[ObjectKey, ...] = ()
        #: Since when room is kept for waiting jobs. A copy: forecasts look ahead.
        self.kept_since = dict(state.kept_since)
        self.borrowing = Borrowing(state.cluster)
        self.limits = RunningLimits(state.cluster)
        self.quota = TakenQuota(state.cluster)
        #: When to decide again.
        self.wakes: list[float] = []
        self.faults: dict[ObjectKey, Exception] = {}
        #: Called with a job over which a step raised; None: the error is raised.
        self.on_fault: Callable[[ObjectKey, Exception], None] | None = None
        #: What earlier decisions have found, or those before the one that is made again.
        self.memory = PlanMemory()
        #: Failures of a what-if, as in `RequestShape.failed_on`, by the id of the shape, which is
        #: held: a shape that is dropped on the way leaves its id to another one. None: of a
        #: decision, which the shapes remember.
        self.foreseen: dict[int, tuple[RequestShape, dict[int, object]]] | None = None

    def has_failed(self, shape: RequestShape, respected: int, basis: object) -> bool:
        """True when a search for places of a shape is known to have failed on this basis."""
        if shape.failed_on.get(respected) == basis:
            return True
        seen = None if self.foreseen is None else self.foreseen.get(id(shape))
        return seen is not None and seen[1].get(respected) == basis

    def note_failure(self, shape: RequestShape, respected: int, basis: object) -> None:
        """Remember that a search for places of a shape has failed."""
        if self.foreseen is None:
            shape.note_failure(respected, basis)
        else:
            self.foreseen.setdefault(id(shape), (shape, {}))[1][respected] = basis

    def is_left_alone(self, key: ObjectKey) -> bool:
        """True for a job that is not to be touched: writes of it fail, or deciding about it."""
        if key in self.state.write_blocked:
            return True
        if key in self.faults:
            return self.state.jobs[key].faulted_at == self.cluster.table.nodes_version
        has_faulted = self.state.jobs[key].faulted_at == self.cluster.table.nodes_version
        return self.memory.is_left_alone(key, has_faulted=has_faulted)

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

    def foreign(self, team: str) -> Bools | None:
        """Return bool[N]: the nodes of other teams; None where there are none."""
        if not self.cluster.uses.has_owners:
            return None
        return self.cluster.table.labels.tiers(team) == FOREIGN

    def limited(
        self,
        entry: QueueEntry,
        gang: GangRequest,
        beside: Iterable[QueueReservation] = (),
        *,
        borrows: bool = True,
    ) -> PresentCapacity:
        """Return the capacity that limits of borrowing, and some reservations, leave a gang.

        Without `borrows` it has no node of another team.
        """
        team = entry.lane.team
        capacity = self.capacity.unbarred()
        capacity.kept = together([self.kept_from(team, reservation) for reservation in beside])
        if not borrows:
            capacity.barred = self.foreign(team)
        return self.borrowing.limited(capacity, gang, team, entry.lane.priority)

    def reserve(self, *reservations: QueueReservation) -> None:
        """Keep this room for heads of the queue from now on."""
        self.reservations = reservations
        self._heads = tuple(reservation.head for reservation in reservations)
        self.capacity.kept = tuple(reservation.kept for reservation in reservations)

    def kept_from(self, team: str, reservation: QueueReservation) -> KeptRoom:
        """Return what is kept for a head of the queue from jobs of a team; a head that would
        borrow keeps no team off its own nodes.
        """
        if not team or self.state.jobs[reservation.head].lane.team == team:
            return reservation.kept
        return reservation.kept.but(self.cluster.table.labels.tiers(team) == OWN)

    def respected(self, entry: QueueEntry) -> int:
        """Return the reservations that a job which begins now has to leave room for: of those heads
        that may start before it is over. Bit i is set for `reservations[i]`.
        """
        if not self.reservations:
            return 0
        over_at, likely_at = self.now + entry.hold_seconds, self.now + self.likely_seconds(entry)
        return sum(
            1 << index
            for index, each in enumerate(self.reservations)
            if each.starts_by is None
            or (likely_at if each.is_predicted else over_at) > each.starts_by
        )

    def reserved(self, respected: int) -> tuple[QueueReservation, ...]:
        """Return the reservations of which `respected` names the bits."""
        return tuple(each for i, each in enumerate(self.reservations) if respected >> i & 1)

    def likely_seconds(self, entry: QueueEntry) -> float:
        """Return for how long a job holds its nodes: its limit, or as is predicted without one;
        infinity where nothing says it.
        """
        if entry.likeness is None or not self.policy.predictions_seconds_max:
            return entry.hold_seconds
        predicted = self.state.run_times.predicted(entry.likeness)
        return inf if predicted is None else predicted

    def plan(
        self,
        entry: QueueEntry,
        gang: GangRequest,
        beside: Iterable[QueueReservation] = (),
        *,
        borrows: bool = True,
    ) -> Plan | None:
        """Place a gang, at its largest size, in what `limited` returns; None takes nothing."""
        capacity = self.limited(entry, gang, beside, borrows=borrows)
        table = self.cluster.table
        wanted = with_images(table, entry.job, gang)
        return largest_plan(
            capacity, wanted, partial(plan_gang, capacity, table), partial(self.admits, entry)
        )

    def growth(self, entry: QueueEntry) -> GangGrowth | None:
        """Return where an elastic gang gets members beyond its least; None for any other gang."""
        gang = entry.gang
        if isinstance(gang, InvalidGang) or not gang.is_elastic:
            return None
        capacity = self.limited(entry, gang, self.reserved(self.respected(entry)))
        return GangGrowth(capacity, partial(self.admits, entry))

    def admits(self, entry: QueueEntry, gang: GangRequest) -> bool:
        """True when neither a limit nor a quota keeps a job from being of this size."""
        if self.limits.verdict(entry, gang) is not None:
            return False
        return excess_of(self.quota, entry.job, gang) is None

    def note_placed(self, entry: QueueEntry, plan: Plan) -> None:
        """Take in the place of a job, for all that is looked at after it."""
        self.placed[entry.age.job_key] = plan.distinct_slots
        self.borrowing.note(entry.lane.team, plan.distinct_slots)
        if not isinstance(entry.gang, GangRequest):
            return
        got = planned(entry.gang, plan)
        self.limits.take(entry, got)
        self.quota.take(entry, got)
        if self.reservations:
            self.note_passed(entry, plan)
        likely, is_limited = self.likely_seconds(entry), entry.hold_seconds < inf
        if likely < inf:
            uses = tuple(uses_of(entry.gang, plan))
            ends = self.placed_until if is_limited else self.placed_predicted
            ends.append((self.now + likely, uses))

    def note_passed(self, entry: QueueEntry, plan: Plan) -> None:
        """Take in that a job which begins now is over before some of the heads start: they need no
        more than before of what is less now.
        """
        if entry.group is None or not isinstance(entry.gang, GangRequest):
            return  # of a gang that is repaired some members hold their places already
        respected, uses = self.respected(entry), tuple(uses_of(entry.gang, plan))
        for index, each in enumerate(self.reservations):
            if not respected >> index & 1:
                each.kept.add(self.cluster.table, uses, sign=-1)

    def basis(self, gang: GangRequest | InvalidGang) -> tuple[object, ...]:
        """Return a value that differs once something has changed that the gang could use."""
        if isinstance(gang, InvalidGang):
            return ()
        fits = self.cluster.fits
        roles = gang.roles if gang.borrowing is None else (*gang.roles, *gang.borrowing.roles)
        changes = [fits.mask(role.member.constraints).changed_at for role in roles]
        version = self.cluster.table.nodes_version
        teams = self.cluster.teams.version
        return (*changes, version, teams, self.capacity.version, self._heads)

    def on_empty(self, shape: RequestShape) -> Verdict | None:
        """Return why a shape could never be placed on these nodes, even empty; None: it could."""
        version = self.cluster.table.nodes_version
        if shape.on_empty is None or shape.on_empty[0] != version:
            shape.on_empty = (version, judge_empty(self.cluster, shape.gang))
        return shape.on_empty[1]

    def fits_available(self, group: EqualJobs) -> bool:
        """True when the planner finds a place on the nodes that are available, were they empty,
        within the limits of borrowing.
        """
        gang, lane = group.shape.gang, group.lane.key
        assert not isinstance(gang, InvalidGang)
        version = (self.cluster.table.nodes_version, self.cluster.teams.version)
        if group.fits_available is None or group.fits_available[0] != version:
            room = EmptyCapacity(self.cluster, available_only=True)
            idle = Borrowing(self.cluster, is_idle=True)
            room.barred = idle.barred(room, gang, lane.team, lane.priority)
            plan = plan_gang(room, self.cluster.table, gang)
            group.fits_available = (version, plan is not None)
        return group.fits_available[1]
