"""The jobs that wait, in order, grouped by equal shape.

Order: priority (higher first), then creation time, then namespace and name. Jobs whose gangs ask
for the same stand in one group: only the first of a group is ever tried, and a judgement holds for
all of it. A thousand equal jobs thus cost what one costs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.api.job import Job
from fairlead.api.times import parse_time
from fairlead.decide.verdict import Verdict
from fairlead.model.fits import FitTable
from fairlead.model.gangs import GangRequest, InvalidGang, JobKey
from fairlead.model.quotas import Asked, Memo
from fairlead.model.requests import MemberClass

#: Gangs of several roles, or bound to one domain, that are looked at per call of `candidates`.
_COMPLEX_MAX = 256


class OrderKey(NamedTuple):
    """Sorts the queue. `created` is in seconds since the epoch."""

    minus_priority: int
    created: float
    namespace: str
    name: str

    @property
    def job_key(self) -> JobKey:
        """Which job it is."""
        return (self.namespace, self.name)


@dataclass(slots=True)
class QueueEntry:
    """What the planner keeps of a job."""

    job: Job
    gang: GangRequest | InvalidGang
    order: OrderKey
    #: The group that it waits in; None when it does not wait for a first place.
    group: ShapeGroup | None = None
    #: `NodeTable.nodes_version` of the last decision that raised over the job as it is.
    faulted_at: int | None = None


@dataclass(slots=True)
class Judgement:
    """A verdict on a group, with what it was made on."""

    verdict: Verdict
    made_at: float
    #: `NodeTable.nodes_version` then.
    nodes_version: int
    #: State of what the verdict depends on; None when it must be made again at the next chance.
    basis: tuple[object, ...] | None


@dataclass(slots=True)
class ShapeGroup:
    """Waiting jobs that ask for the same."""

    gang: GangRequest | InvalidGang
    #: In queue order.
    orders: list[OrderKey] = field(default_factory=list[OrderKey])
    judgement: Judgement | None = None
    #: State of what the last failure depended on; None: try again.
    failed_on: tuple[object, ...] | None = None
    #: The verdict on an empty cluster, with the `nodes_version` that it was made on.
    on_empty: tuple[int, Verdict | None] | None = None
    #: What `QuotaTable.excess` answered about its jobs.
    over_quota: dict[Asked, Memo] = field(default_factory=dict[Asked, Memo])


class _ByCount:
    """Groups of one member class by their count, smallest first."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        #: Several, because gangs of equal members may differ in the role's name or a preference.
        self.groups: dict[int, list[ShapeGroup]] = {}

    def add(self, count: int, group: ShapeGroup) -> None:
        if count not in self.groups:
            insort(self.counts, count)
            self.groups[count] = []
        self.groups[count].append(group)

    def remove(self, count: int, group: ShapeGroup) -> None:
        self.groups[count] = [g for g in self.groups[count] if g is not group]
        if not self.groups[count]:
            del self.groups[count]
            self.counts.pop(bisect_left(self.counts, count))


class WaitQueue:
    """Waiting jobs in order, their groups, and whose written verdict is not their group's."""

    def __init__(self, fits: FitTable) -> None:
        self._fits = fits
        self._groups: dict[GangRequest | InvalidGang, ShapeGroup] = {}
        self._orders: list[OrderKey] = []
        #: Groups of one role that any free node may serve, by class and count.
        self._simple: dict[MemberClass, _ByCount] = {}
        self._complex: dict[GangRequest, ShapeGroup] = {}
        #: Exactly the waiting jobs whose status lacks their group's outcome.
        self._unwritten: list[OrderKey] = []
        self._is_unwritten: dict[OrderKey, None] = {}
        #: Groups still to be looked at in this round, and the nodes' version that it began with.
        self._round: list[ShapeGroup] = []
        self._round_version = 0
        #: When the next part of a round is due.
        self.deep_at = 0.0

    def __len__(self) -> int:
        return len(self._orders)

    def first(self, count: int) -> list[OrderKey]:
        """Return the head of the queue."""
        return self._orders[:count]

    def at(self, index: int) -> OrderKey | None:
        """Return the job at a position, None beyond the end."""
        return self._orders[index] if index < len(self._orders) else None

    def outdated(self, nodes_version: int, count: int) -> list[ShapeGroup]:
        """Return up to `count` groups that were judged on other nodes; a round visits each once."""
        if not self._round and self._round_version != nodes_version:
            self._round = sorted(self._groups.values(), key=lambda g: g.orders[0], reverse=True)
            self._round_version = nodes_version
        out: list[ShapeGroup] = []
        while self._round and len(out) < count:
            group = self._round.pop()
            judgement = group.judgement
            if group.orders and judgement and judgement.nodes_version != nodes_version:
                out.append(group)
        return out

    def has_outdated(self, nodes_version: int) -> bool:
        """True while a round is under way or due."""
        return bool(self._round) or (bool(self._groups) and self._round_version != nodes_version)

    def position(self, order: OrderKey) -> int:
        """Return how many waiting jobs are ahead."""
        return bisect_left(self._orders, order)

    def unwritten(self, count: int) -> list[OrderKey]:
        """Return the first jobs whose written verdict is out of date or missing."""
        return self._unwritten[:count]

    @property
    def unwritten_count(self) -> int:
        """Jobs whose written verdict is out of date or missing."""
        return len(self._unwritten)

    def add(self, entry: QueueEntry) -> None:
        """Put a job into the queue."""
        group = self._groups.get(entry.gang)
        if group is None:
            group = self._new_group(entry.gang)
        entry.group = group
        insort(group.orders, entry.order)
        insort(self._orders, entry.order)
        self.mark_written(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Take a job out of the queue."""
        group = entry.group
        if group is None:
            return
        _remove(group.orders, entry.order)
        _remove(self._orders, entry.order)
        self._set_unwritten(entry.order, unwritten=False)
        entry.group = None
        if not group.orders:
            self._drop_group(group)

    def mark_written(self, entry: QueueEntry) -> None:
        """See whether the job's status carries its group's outcome."""
        assert entry.group is not None
        verdict, judgement = entry.job.status.verdict, entry.group.judgement
        current = (
            verdict is not None
            and judgement is not None
            and verdict.outcome == judgement.verdict.outcome.value
        )
        self._set_unwritten(entry.order, unwritten=not current)

    def candidates(self) -> Iterator[ShapeGroup]:
        """Yield the groups that may fit now, going by what all nodes together have room for.

        Beyond some hundreds of gangs with several roles, and beyond the classes that the fit table
        has rows for, each call looks at some, in turn.
        """
        for member in self._fits.within_reach():
            by_count = self._simple[member]
            capacity = self._fits.total(member)
            for count in by_count.counts[: bisect_right(by_count.counts, capacity)]:
                yield from by_count.groups[count]
        for gang in list(self._complex)[:_COMPLEX_MAX]:
            group = self._complex[gang]
            if len(self._complex) > _COMPLEX_MAX:
                del self._complex[gang]
                self._complex[gang] = group
            if all(self._fits.total(r.member) >= r.count for r in gang.roles):
                yield group

    @property
    def has_unseen(self) -> bool:
        """True when `candidates` does not look at every group in every call."""
        return self._fits.has_uncached or len(self._complex) > _COMPLEX_MAX

    def _new_group(self, gang: GangRequest | InvalidGang) -> ShapeGroup:
        group = self._groups[gang] = ShapeGroup(gang)
        if isinstance(gang, InvalidGang):
            return group
        for role in gang.roles:
            self._fits.pin(role.member)
        if gang.is_simple:
            role = gang.roles[0]
            by_count = self._simple.setdefault(role.member, _ByCount())
            by_count.add(role.count, group)
            self._fits.set_need(role.member, by_count.counts[0])
        else:
            self._complex[gang] = group
        return group

    def _drop_group(self, group: ShapeGroup) -> None:
        gang = group.gang
        del self._groups[gang]
        if isinstance(gang, InvalidGang):
            return
        if gang.is_simple:
            role = gang.roles[0]
            by_count = self._simple[role.member]
            by_count.remove(role.count, group)
            if not by_count.counts:
                del self._simple[role.member]
            self._fits.set_need(role.member, by_count.counts[0] if by_count.counts else None)
        else:
            del self._complex[gang]
        for role in gang.roles:
            self._fits.unpin(role.member)

    def _set_unwritten(self, order: OrderKey, *, unwritten: bool) -> None:
        if unwritten == (order in self._is_unwritten):
            return
        if unwritten:
            insort(self._unwritten, order)
            self._is_unwritten[order] = None
        else:
            _remove(self._unwritten, order)
            del self._is_unwritten[order]


def _remove(orders: list[OrderKey], order: OrderKey) -> None:
    orders.pop(bisect_left(orders, order))


def order_of(job: Job, priority: int) -> OrderKey:
    """Return the place in the queue of a job with this priority."""
    created = job.metadata.creation_timestamp
    return OrderKey(
        -priority,
        parse_time(created) if created else 0.0,
        job.metadata.namespace,
        job.metadata.name,
    )
