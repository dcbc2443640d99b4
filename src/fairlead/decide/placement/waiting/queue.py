"""The jobs that wait, in order, and what is remembered of them.

A group holds the jobs of one lane (team, priority) that ask for the same: whatever a decision looks
at (quota of the team, priority, shape) is equal for all of them, so when the first of a group has
to wait, all have to. A stage that looks at something else adds it to the key of the lane.
Only the first of a group is ever tried. What depends on the request alone (does it fit, and why
not) is remembered per shape, for the groups of all lanes: a thousand equal jobs cost what one does.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import inf
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct

from fairlead.api.jobs.job import Job
from fairlead.decide.placement.places.kept_room import FoundStart
from fairlead.decide.placement.waiting.lost_work import HoldingAttempt
from fairlead.decide.placement.waiting.order import (
    Age,
    LaneKey,
    Order,
    OrderKey,
    Rank,
)
from fairlead.decide.placement.waiting.run_times import Likeness
from fairlead.decide.verdict import Verdict
from fairlead.model.asks.requests import MemberClass
from fairlead.model.gang.gangs import GangRequest, InvalidGang
from fairlead.model.holdings.quotas import Memo, QuotaQuestion
from fairlead.model.inventory.fits import FitTable

#: Gangs of several roles, or bound to one domain, that are looked at per call of `candidates`.
_COMPLEX_MAX = 256
#: Different times of holding nodes, and likenesses, that are looked at per group.
_HOLDS_MAX = 256
#: Failures that are remembered per shape.
_FAILURES_MAX = 64
_rank = attrgetter("rank")
#: What the jobs of a group may have in common beside.
K = TypeVar("K", float, Likeness)


class QueueEntry(Struct):
    """What the planner keeps of a job."""

    job: Job
    gang: GangRequest | InvalidGang
    lane: LaneKey
    age: Age
    user: str = ""
    #: How long an attempt may hold its nodes; infinity without a time limit.
    hold_seconds: float = inf
    #: What its run time is predicted from; None with a time limit.
    likeness: Likeness | None = None
    #: It is in none of the planner's sets of jobs but the queue, as most waiting jobs are.
    only_waits: bool = False
    #: The group that it waits in; None when it does not wait for a first place.
    group: EqualJobs | None = None
    #: `NodeTable.nodes_version` of the last decision that raised over the job as it is.
    faulted_at: int | None = None
    #: State of what the last search for places of its next attempt depended on, which failed.
    unrepaired_on: object = None
    #: Its attempt that holds nodes, once that was asked for.
    run: HoldingAttempt | None = None
    #: What `FirstStart` found for it, and on what.
    first_start: FoundStart | None = None


@dataclass(slots=True)
class Judgement:
    """A verdict on a shape, with what it was made on."""

    verdict: Verdict
    made_at: float
    #: `NodeTable.nodes_version` then.
    nodes_version: int
    #: State of what the verdict depends on; None when it must be made again at the next chance.
    basis: tuple[object, ...] | None


@dataclass(slots=True)
class RequestShape:
    """A request that waiting jobs share, and what is remembered of it."""

    gang: GangRequest | InvalidGang
    groups: dict[LaneKey, EqualJobs] = field(default_factory=dict["LaneKey", "EqualJobs"])
    judgement: Judgement | None = None
    #: State of what the last failure depended on, by the reservations that the job had to respect
    #: (`Context.respected`); not there: try again.
    failed_on: dict[int, object] = field(default_factory=dict[int, object])
    #: The verdict on an empty cluster, with the `nodes_version` that it was made on.
    on_empty: tuple[int, Verdict | None] | None = None
    #: What `QuotaTable.excess` answered about its jobs.
    over_quota: dict[QuotaQuestion, Memo] = field(default_factory=dict[QuotaQuestion, Memo])

    @property
    def first(self) -> OrderKey:
        """The first of its jobs."""
        return min(group.order(0) for group in self.groups.values())

    def note_failure(self, respected: int, basis: object) -> None:
        """Remember that it has no place beside some reservations."""
        if len(self.failed_on) >= _FAILURES_MAX:
            self.failed_on.clear()
        self.failed_on[respected] = basis


@dataclass(slots=True)
class _Lane:
    """The waiting jobs of a lane, and those whose status lacks their shape's outcome, by age."""

    key: LaneKey
    rank: Rank
    ages: list[Age] = field(default_factory=list[Age])
    unwritten: list[Age] = field(default_factory=list[Age])


@dataclass(slots=True)
class EqualJobs:
    """Waiting jobs that are equal but for their age, the oldest first."""

    shape: RequestShape
    lane: _Lane
    ages: list[Age] = field(default_factory=list[Age])
    #: The same by how long they may hold nodes, and these times in order.
    by_hold: dict[float, list[Age]] = field(default_factory=dict[float, list[Age]])
    holds: list[float] = field(default_factory=list[float])
    #: Those without a limit by what their run times are predicted from, and these in order.
    by_likeness: dict[Likeness, list[Age]] = field(default_factory=dict["Likeness", "list[Age]"])
    likenesses: list[Likeness] = field(default_factory=list["Likeness"])
    #: What the last search for victims found none on, and when protected jobs may be victims.
    no_victims: tuple[tuple[object, ...], float] | None = None
    #: Whether it fits on the nodes that are available, were they empty, with the versions of nodes
    #: and teams that it was asked on.
    fits_available: tuple[tuple[int, int], bool] | None = None
    #: When it had its turn to look for borrowers of its team's nodes.
    sought_at: float = float("-inf")

    def order(self, index: int) -> OrderKey:
        """Return the place in the queue of one of its jobs."""
        return OrderKey(self.lane.rank, self.ages[index])

    def following(
        self, index: int, hold_max: float, is_short: Callable[[Likeness], bool]
    ) -> int | None:
        """Return the index of the first job after one that holds nodes for so long at most, or is
        predicted to be short.

        People state few different limits; where a group has many, only the shortest count, and of
        the likenesses the first.
        """
        age, found = self.ages[index], list[Age]()
        holds = self.holds[: min(bisect_right(self.holds, hold_max), _HOLDS_MAX)]
        short = [each for each in self.likenesses[:_HOLDS_MAX] if is_short(each)]
        for ages in (
            *map(self.by_hold.__getitem__, holds),
            *map(self.by_likeness.__getitem__, short),
        ):
            if (at := bisect_right(ages, age)) < len(ages):
                found.append(ages[at])
        return bisect_left(self.ages, min(found)) if found else None

    def of_other_namespace(self, index: int) -> int | None:
        """Return the index of the first job after one that is of another namespace."""
        namespace, count = self.ages[index].namespace, len(self.ages)
        following = (i for i in range(index + 1, count) if self.ages[i].namespace != namespace)
        return next(following, None)

    def add(self, entry: QueueEntry) -> None:
        """Put in a job."""
        age, likeness = entry.age, entry.likeness
        insort(self.ages, age)
        if likeness is None:
            _file(self.by_hold, self.holds, entry.hold_seconds, age)
        else:
            _file(self.by_likeness, self.likenesses, likeness, age)

    def remove(self, entry: QueueEntry) -> None:
        """Take out a job."""
        age, likeness = entry.age, entry.likeness
        _remove(self.ages, age)
        if likeness is None:
            _unfile(self.by_hold, self.holds, entry.hold_seconds, age)
        else:
            _unfile(self.by_likeness, self.likenesses, likeness, age)


class _ByCount:
    """Shapes of one member class by their count, smallest first."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        #: Several, because gangs of equal members may differ in the role's name or a preference.
        self.shapes: dict[int, list[RequestShape]] = {}

    def add(self, count: int, shape: RequestShape) -> None:
        if count not in self.shapes:
            insort(self.counts, count)
            self.shapes[count] = []
        self.shapes[count].append(shape)

    def remove(self, count: int, shape: RequestShape) -> None:
        self.shapes[count] = [s for s in self.shapes[count] if s is not shape]
        if not self.shapes[count]:
            del self.shapes[count]
            self.counts.pop(bisect_left(self.counts, count))


class WaitQueue:
    """Waiting jobs in order, their groups, and whose written verdict is not their shape's."""

    def __init__(self, fits: FitTable, order: Order) -> None:
        self._fits = fits
        self._policy = order
        self._now = 0.0
        self._shapes: dict[GangRequest | InvalidGang, RequestShape] = {}
        self._lanes: dict[LaneKey, _Lane] = {}
        #: The lanes by rank; None when they must be sorted again.
        self._sorted: list[_Lane] | None = None
        self._count = self._unwritten_count = 0
        #: Shapes of one role that any free node may serve, by class and count.
        self._simple: dict[MemberClass, _ByCount] = {}
        self._complex: dict[GangRequest, RequestShape] = {}
        #: Shapes still to be looked at in this round, and the nodes' version that it began with.
        self._round: list[RequestShape] = []
        self._round_version = 0
        #: When the next part of a round is due.
        self.deep_at = 0.0

    def __len__(self) -> int:
        return self._count

    def reorder(self, now: float) -> None:
        """Put every lane where it stands at this time: O(lanes), however many jobs wait."""
        self._now = now
        for lane in self._lanes.values():
            rank = self._policy.rank(lane.key, now)
            if rank != lane.rank:
                lane.rank, self._sorted = rank, None

    def order_of(self, entry: QueueEntry) -> OrderKey:
        """Return where a job stands, or would stand if it waited."""
        return OrderKey(self._policy.rank(entry.lane, self._now), entry.age)

    def in_order(self) -> Iterator[OrderKey]:
        """Yield the waiting jobs, first to last."""
        return self._merged(lambda lane: lane.ages)

    def first(self, count: int) -> list[OrderKey]:
        """Return the head of the queue."""
        return list(islice(self.in_order(), count))

    def groups(self, admits: Callable[[LaneKey], bool]) -> Iterator[EqualJobs]:
        """Yield the groups of the lanes that are admitted; O(shapes), or O(lanes) if none is."""
        admitted = frozenset(filter(admits, self._lanes))
        if not admitted:
            return
        for shape in self._shapes.values():
            yield from (group for lane, group in shape.groups.items() if lane in admitted)

    def position(self, order: OrderKey) -> int:
        """Return how many waiting jobs are ahead."""
        ahead = 0
        for lane in self._by_rank():
            if lane.rank < order.rank:
                ahead += len(lane.ages)
            elif lane.rank == order.rank:
                ahead += bisect_left(lane.ages, order.age)
        return ahead

    def unwritten(self, count: int) -> list[OrderKey]:
        """Return the first jobs whose written verdict is out of date or missing."""
        return list(islice(self._merged(lambda lane: lane.unwritten), count))

    @property
    def unwritten_count(self) -> int:
        """Jobs whose written verdict is out of date or missing."""
        return self._unwritten_count

    def outdated(self, nodes_version: int, count: int) -> list[RequestShape]:
        """Return up to `count` shapes that were judged on other nodes; a round visits each once."""
        if not self._round and self._round_version != nodes_version:
            self._round = sorted(self._shapes.values(), key=attrgetter("first"), reverse=True)
            self._round_version = nodes_version
        out: list[RequestShape] = []
        while self._round and len(out) < count:
            shape = self._round.pop()
            judgement = shape.judgement
            if shape.groups and judgement and judgement.nodes_version != nodes_version:
                out.append(shape)
        return out

    def has_outdated(self, nodes_version: int) -> bool:
        """True while a round is under way or due."""
        return bool(self._round) or (bool(self._shapes) and self._round_version != nodes_version)

    def add(self, entry: QueueEntry) -> None:
        """Put a job into the queue."""
        shape = self._shapes.get(entry.gang)
        if shape is None:
            shape = self._new_shape(entry.gang)
        group = shape.groups.get(entry.lane)
        if group is None:
            group = shape.groups[entry.lane] = EqualJobs(shape, self._lane(entry.lane))
        lane, age = group.lane, entry.age
        entry.group = group
        group.add(entry)
        insort(lane.ages, age)
        self._count += 1
        if not _is_written(entry, group.shape):
            insort(lane.unwritten, age)
            self._unwritten_count += 1

    def remove(self, entry: QueueEntry) -> None:
        """Take a job out of the queue."""
        group = entry.group
        if group is None:
            return
        lane, age = group.lane, entry.age
        group.remove(entry)
        _remove(lane.ages, age)
        self._count -= 1
        self._set_unwritten(lane, age, unwritten=False)
        entry.group = None
        if not lane.ages:
            del self._lanes[entry.lane]
            self._sorted = None
        if not group.ages:
            del group.shape.groups[entry.lane]
            if not group.shape.groups:
                self._drop_shape(group.shape)

    def recall(self, entry: QueueEntry, before: EqualJobs) -> None:
        """Remember what was known of a job's group and shape, which were dropped meanwhile."""
        group = entry.group
        if group is None or group is before:
            return
        group.no_victims, group.sought_at = before.no_victims, before.sought_at
        group.fits_available = before.fits_available
        own, old = group.shape, before.shape
        if own is not old:
            own.judgement, own.failed_on = old.judgement, old.failed_on
            own.on_empty, own.over_quota = old.on_empty, old.over_quota
            self._round = [own if each is old else each for each in self._round]
        self.mark_written(entry)

    def mark_written(self, entry: QueueEntry) -> None:
        """See whether the job's status carries its shape's outcome."""
        group = entry.group
        assert group is not None
        unwritten = not _is_written(entry, group.shape)
        self._set_unwritten(group.lane, entry.age, unwritten=unwritten)

    def candidates(self) -> Iterator[RequestShape]:
        """Yield the shapes that may fit now, going by what all nodes together have room for.

        Beyond some hundreds of gangs with several roles, and beyond the classes that the fit table
        has rows for, each call looks at some, in turn.
        """
        for member in self._fits.within_reach():
            by_count = self._simple[member]
            room = self._fits.total(member)
            for count in by_count.counts[: bisect_right(by_count.counts, room)]:
                yield from by_count.shapes[count]
        for gang in list(self._complex)[:_COMPLEX_MAX]:
            shape = self._complex[gang]
            if len(self._complex) > _COMPLEX_MAX:
                del self._complex[gang]
                self._complex[gang] = shape
            if all(self._fits.total(r.member) >= r.count for r in gang.roles):
                yield shape

    @property
    def has_unseen(self) -> bool:
        """True when the last call of `candidates` did not look at every shape."""
        return self._fits.has_unseen or len(self._complex) > _COMPLEX_MAX

    def _lane(self, key: LaneKey) -> _Lane:
        if key not in self._lanes:
            self._lanes[key] = _Lane(key, self._policy.rank(key, self._now))
            self._sorted = None
        return self._lanes[key]

    def _by_rank(self) -> list[_Lane]:
        if self._sorted is None:
            self._sorted = sorted(self._lanes.values(), key=_rank)
        return self._sorted

    def _merged(self, ages_of: Callable[[_Lane], list[Age]]) -> Iterator[OrderKey]:
        for rank, lanes in groupby(self._by_rank(), _rank):
            ages = [ages_of(lane) for lane in lanes]
            for age in ages[0] if len(ages) == 1 else heapq.merge(*ages):
                yield OrderKey(rank, age)

    def _new_shape(self, gang: GangRequest | InvalidGang) -> RequestShape:
        shape = self._shapes[gang] = RequestShape(gang)
        if isinstance(gang, InvalidGang):
            return shape
        for role in gang.roles:
            self._fits.pin(role.member)
        if gang.is_simple:
            role = gang.roles[0]
            by_count = self._simple.setdefault(role.member, _ByCount())
            by_count.add(role.count, shape)
            self._fits.set_need(role.member, by_count.counts[0])
        else:
            self._complex[gang] = shape
        return shape

    def _drop_shape(self, shape: RequestShape) -> None:
        gang = shape.gang
        del self._shapes[gang]
        if isinstance(gang, InvalidGang):
            return
        if gang.is_simple:
            role = gang.roles[0]
            by_count = self._simple[role.member]
            by_count.remove(role.count, shape)
            if not by_count.counts:
                del self._simple[role.member]
            self._fits.set_need(role.member, by_count.counts[0] if by_count.counts else None)
        else:
            del self._complex[gang]
        for role in gang.roles:
            self._fits.unpin(role.member)

    def _set_unwritten(self, lane: _Lane, age: Age, *, unwritten: bool) -> None:
        ages = lane.unwritten
        index = bisect_left(ages, age)
        is_there = index < len(ages) and ages[index] == age
        if unwritten and not is_there:
            ages.insert(index, age)
            self._unwritten_count += 1
        elif is_there and not unwritten:
            ages.pop(index)
            self._unwritten_count -= 1


def _is_written(entry: QueueEntry, shape: RequestShape) -> bool:
    """True when the status of a job carries the outcome of its shape."""
    verdict, judgement = entry.job.status.verdict, shape.judgement
    if verdict is None or judgement is None:
        return False
    return verdict.outcome == judgement.verdict.outcome.value


def _remove(ages: list[Age], age: Age) -> None:
    ages.pop(bisect_left(ages, age))


def _file(by_kind: dict[K, list[Age]], kinds: list[K], kind: K, age: Age) -> None:
    """Put a job under what it has in common with others, and this in order."""
    ages = by_kind.get(kind)
    if ages is None:
        ages = by_kind[kind] = []
        insort(kinds, kind)
    insort(ages, age)


def _unfile(by_kind: dict[K, list[Age]], kinds: list[K], kind: K, age: Age) -> None:
    ages = by_kind[kind]
    _remove(ages, age)
    if not ages:
        del by_kind[kind]
        kinds.pop(bisect_left(kinds, kind))
