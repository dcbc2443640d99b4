"""How many members of each class every node has room for, kept up to date slot by slot.

One row per member class (`fits[c, n]`, 0 where the node is not eligible) and one mask per set of
constraints. When slots change, the columns of those slots are computed again, for all classes in
one vector operation, and a row's total says at once whether a gang of one role can fit. A mask
counts the changes on nodes that it admits, which is what lets a gang that did not fit rest until
something it could use has changed (scheduling equivalence, Kueue KEP 9694).
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from fairlead.api.values.quantity import PODS
from fairlead.model.asks.requests import MEMBERS_PER_NODE_MAX, Constraints, MemberClass, is_device
from fairlead.model.inventory.labels import resized
from fairlead.model.inventory.nodes import NODE_AMOUNT_MAX, Bools, Ints, NodeTable
from fairlead.model.inventory.supply import Supply
from fairlead.model.inventory.window_table import NodeHold

#: Rows kept; further classes are computed each time they are asked for.
ROWS_MAX = 1024
#: Masks kept beyond those that rows need.
_MASKS_SPARE_MAX = 256
#: Classes without a row that are looked at per call of `within_reach`.
_UNCACHED_MAX = 64
_UNLIMITED = MEMBERS_PER_NODE_MAX
_FEW_SLOTS_MAX = 64
#: The need of a row without waiting gangs: no sum of fits reaches it.
_NO_NEED = np.iinfo(np.int64).max
#: No instant is between these.
_UNKNOWN = (inf, -inf)
#: An amount that no node has.
_NEVER = np.iinfo(np.int64).max
_ROWS_START = 8


class Mask:
    """Which nodes a set of constraints admits."""

    __slots__ = ("changed_at", "eligible", "is_open", "keeps_running", "matches")

    def __init__(self, capacity: int) -> None:
        #: The node as such: it exists, labels and lasting taints admit it.
        self.matches: Bools = np.zeros(capacity, dtype=np.bool_)
        #: No maintenance window closes it now.
        self.is_open: Bools = np.zeros(capacity, dtype=np.bool_)
        #: It matches and can start pods now: open, ready, not cordoned, no passing taint.
        self.eligible: Bools = np.zeros(capacity, dtype=np.bool_)
        #: Pods that are there may stay: it exists, is ready, has no NoExecute taint.
        self.keeps_running: Bools = np.zeros(capacity, dtype=np.bool_)
        #: Differs once an admitted node, or which nodes are admitted, has changed.
        self.changed_at = 0

    def resize(self, capacity: int) -> None:
        """Have so many slots from now on."""
        for name in ("matches", "is_open", "eligible", "keeps_running"):
            setattr(self, name, resized(getattr(self, name), capacity))


def _make_room(answers: dict[Any, Any]) -> None:
    """Forget all answers where there are as many as may be kept: anybody may ask."""
    if len(answers) >= ROWS_MAX:
        answers.clear()


class _Most:
    """Bounds of how many members of a class all nodes together have room for: by each resource
    alone, whichever nodes are eligible. Nodes lack devices first, so these are counted by node.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._free = np.maximum(table.free(), 0)
        self._sums: list[int] = self._free.sum(axis=1).tolist()
        #: By row of a device and how many a member asks for.
        self._by_node: dict[tuple[int, int], int] = {}

    def of(self, member: MemberClass) -> int:
        """Return a number that the total never exceeds."""
        return min((self._rooms(*asked) for asked in member.request), default=_NO_NEED)

    def _rooms(self, resource: str, wanted: int) -> int:
        row = self._table.find_row(resource)
        if row is None:
            return 0
        if not is_device(resource):
            return self._sums[row] // wanted
        if (row, wanted) not in self._by_node:
            amount = min(wanted, NODE_AMOUNT_MAX + 1)
            self._by_node[row, wanted] = int((self._free[row] // amount).sum())
        return self._by_node[row, wanted]


class FitTable:
    """Rows of fits and masks over a node table; reading brings them up to date first."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._masks: dict[Constraints, Mask] = {}
        self._index: dict[MemberClass, int] = {}
        self._pins: dict[MemberClass, int] = {}
        self._spare_rows: list[int] = []
        self._member_of_row: list[MemberClass | None] = []
        #: Members of the smallest gang that waits, by class and by row.
        self._needs: dict[MemberClass, int] = {}
        self._need_of_row: Ints = np.zeros(0, dtype=np.int64)
        #: Classes with a need and no row, the one that was looked at longest ago first.
        self._uncached: dict[MemberClass, None] = {}
        #: Those of them that were not looked at yet.
        self._uncached_new: list[MemberClass] = []
        #: True when the last call of `within_reach` did not look at every class.
        self.has_unseen = False
        self._may_have_idle_rows = False
        #: The rows that share a mask; None when it is out of date.
        self._rows_by_mask: list[tuple[Mask, Ints]] | None = None
        #: See `_divisors`; None when they are out of date.
        self._divisors_known: list[tuple[int, Ints, Bools, bool]] | None = None
        #: The requests without zeros, and where the zeros were; None: out of date.
        self._divisor: Ints | None = None
        self._is_unasked: Bools = np.zeros((0, 0), dtype=np.bool_)
        self._fits: npt.NDArray[np.int32] = np.zeros((0, table.capacity), dtype=np.int32)
        self._requests: Ints = np.zeros((0, 0), dtype=np.int64)
        self._totals: Ints = np.zeros(0, dtype=np.int64)
        #: How many members of the class one node may have.
        self._most: Ints = np.zeros(0, dtype=np.int64)
        self._changes = 0
        #: The instant for which the masks are.
        self._now = -inf
        #: Between these instants no maintenance window changes a mask.
        self._steady = _UNKNOWN
        #: `NodeTable.rows_version` that the requests were laid out for.
        self._rows_version = -1
        #: True inside a transaction: changes are not counted, for they will be undone.
        self._is_tentative = False
        #: `changed_at` by mask, from before the transaction changed any.
        self._changed_at: dict[Constraints, int] = {}
        #: What was asked since the last change, and the totals of empty nodes of a version.
        self._supplies: dict[tuple[Constraints, str], Supply] = {}
        self._empty_totals: tuple[int, dict[MemberClass, int]] = (-1, {})

    def pin(self, member: MemberClass) -> None:
        """Keep this class's row while a gang waits with it."""
        self._pins[member] = self._pins.get(member, 0) + 1

    def unpin(self, member: MemberClass) -> None:
        """Undo one `pin`."""
        self._pins[member] -= 1
        if not self._pins[member]:
            del self._pins[member]
            self._may_have_idle_rows = True

    def set_need(self, member: MemberClass, count: int | None) -> None:
        """Set the smallest waiting gang of this class; None if none waits."""
        if count is None:
            del self._needs[member]
            self._uncached.pop(member, None)
            if member in self._index:
                self._need_of_row[self._index[member]] = _NO_NEED
            return
        self.sync()
        self._needs[member] = count
        row = self._row(member)
        if row is None:
            self._uncached[member] = None
            self._uncached_new.append(member)
        else:
            self._need_of_row[row] = count

    def within_reach(self) -> list[MemberClass]:
        """Return the classes for whose least need all nodes together have room.

        Of the classes beyond the limit of rows, some are looked at in each call, in turn.
        """
        self.sync()
        self.has_unseen = len(self._uncached) > _UNCACHED_MAX
        rows = np.flatnonzero(self._totals >= self._need_of_row).tolist()
        out = [member for row in rows if (member := self._member_of_row[row]) is not None]
        new = [member for member in self._uncached_new if member in self._uncached]
        self._uncached_new.clear()
        turn = dict.fromkeys([*new, *list(self._uncached)[:_UNCACHED_MAX]])
        most = _Most(self._table) if turn else None
        for member in turn:
            del self._uncached[member]
            if self._may_have_idle_rows and (row := self._row(member)) is not None:
                self._need_of_row[row] = self._needs[member]
            else:
                self._uncached[member] = None
            need = self._needs[member]
            if most is not None and most.of(member) >= need and self.total(member) >= need:
                out.append(member)
        return out

    def fits(self, member: MemberClass) -> npt.NDArray[Any]:
        """Return int[N]: members that each node can take now. Shared: do not change it."""
        self.sync()
        row = self._row(member)
        if row is None:
            return self.compute(member, self._table.free(), self.mask(member.constraints).eligible)
        return self._fits[row]

    def total(self, member: MemberClass) -> int:
        """Return how many members all nodes together can take now."""
        self.sync()
        row = self._row(member)
        return int(self.fits(member).sum()) if row is None else int(self._totals[row])

    def supply(self, constraints: Constraints, resource: str) -> Supply:
        """Return what eligible nodes have of a resource now."""
        self.sync()
        key, nodes, table = (constraints, resource), self._mask(constraints).eligible, self._table
        if key not in self._supplies:
            _make_room(self._supplies)
            unused, owned = table.unused(resource)[nodes], table.owned(resource)[nodes]
            self._supplies[key] = Supply.of(unused, owned)
        return self._supplies[key]

    def empty_total(self, member: MemberClass) -> int:
        """Return how many members all matching nodes together would take, were they empty."""
        self.sync()
        if self._empty_totals[0] != self._table.nodes_version:
            self._empty_totals = (self._table.nodes_version, {})
        totals, matches = self._empty_totals[1], self._mask(member.constraints).matches
        if member not in totals:
            _make_room(totals)
            totals[member] = int(self.compute(member, self._table.allocatable, matches).sum())
        return totals[member]

    def mask(self, constraints: Constraints) -> Mask:
        """Return the mask of these constraints, up to date."""
        self.sync()
        return self._mask(constraints)

    def compute(self, member: MemberClass, free: Ints, admitted: Bools) -> Ints:
        """Return int64[N]: members that fit into `free` on the admitted nodes, from scratch."""
        out = np.full(free.shape[1], member.per_node_max, dtype=np.int64)
        for resource, wanted in member.request:
            amount = min(wanted, NODE_AMOUNT_MAX + 1)
            row = self._table.find_row(resource)
            if row is None or row >= len(free):
                return np.zeros(free.shape[1], dtype=np.int64)
            np.minimum(out, free[row] // amount, out=out)
        np.maximum(out, 0, out=out)
        out[~admitted] = 0
        return out

    def sync(self) -> None:
        """Bring masks and rows up to date with the table."""
        table = self._table
        if self._fits.shape[1] != table.capacity:
            self._resize()
        if self._rows_version != table.rows_version:
            self._lay_out()
        if table.stale_flags:
            self._steady = _UNKNOWN
            flagged = np.unique(np.array(table.stale_flags, dtype=np.int64))
            table.stale_flags.clear()
            table.stale_amounts.append(flagged)
            self._changes += 1
            for constraints, mask in self._masks.items():
                if self._is_tentative:
                    self._changed_at.setdefault(constraints, mask.changed_at)
                self._judge(constraints, mask, flagged)
        if not table.stale_amounts:
            return
        stale = table.stale_amounts
        slots = stale[0] if len(stale) == 1 else _distinct(stale)
        stale.clear()
        self._supplies.clear()
        if not self._is_tentative:
            self._changes += 1
            for mask in self._masks.values():
                if mask.eligible[slots].any():
                    mask.changed_at = self._changes
        if self._index:
            self._refresh(slots)

    def advance(self, now: float) -> None:
        """Take in the time, which may be earlier than before: windows close and open nodes."""
        self.sync()
        before, self._now = self._now, now
        table, (since, until) = self._table, self._steady
        if not table.windows or since < now < until:
            return
        holds = {hold for constraints in self._masks if (hold := _hold_of(constraints))}
        if turned := table.windows.turned(holds, before, now):
            table.stale_flags.extend(turned)
            table.nodes_version = table.draw_version()
            self.sync()
        self._steady = table.windows.steady(holds, now)

    @property
    def now(self) -> float:
        """The instant for which the masks are."""
        return self._now

    def begin(self) -> None:
        """Count no change of what is in use until `end`: it will be undone."""
        assert not self._is_tentative, "transactions do not nest"
        self.sync()
        self._is_tentative = True

    def end(self) -> None:
        """End what `begin` began, with the table as it was then."""
        self.sync()
        self._is_tentative = False
        for constraints, changed_at in self._changed_at.items():
            if constraints in self._masks:
                self._masks[constraints].changed_at = changed_at
        self._changed_at.clear()

    def _mask(self, constraints: Constraints) -> Mask:
        mask = self._masks.get(constraints)
        if mask is None:
            if len(self._masks) > len(self._index) + _MASKS_SPARE_MAX:
                used = {member.constraints for member in self._index}
                self._masks = {c: m for c, m in self._masks.items() if c in used}
            mask = self._masks[constraints] = Mask(self._table.capacity)
            self._steady = _UNKNOWN
            self._judge(constraints, mask, np.arange(self._table.capacity))
            mask.changed_at = self._changes
        return mask

    def _judge(self, constraints: Constraints, mask: Mask, slots: Ints) -> None:
        table = self._table
        lasting, passing, keeps_running = table.labels.tolerated(constraints, slots)
        matches = table.exists[slots] & table.labels.selected(constraints, slots) & lasting
        if constraints.reach:
            matches &= table.labels.reached(constraints.reach, slots)
        if constraints.reservation:
            matches &= table.windows.reserved(constraints.reservation, slots)
        is_open = np.ones(len(slots), dtype=np.bool_)
        if (hold := _hold_of(constraints)) is not None:
            is_open = ~table.windows.closed(hold, slots, self._now)
        eligible = matches & is_open & table.ready[slots] & ~table.cordoned[slots] & passing
        if (mask.matches[slots] != matches).any() or (mask.eligible[slots] != eligible).any():
            mask.changed_at = self._changes
        mask.matches[slots] = matches
        mask.is_open[slots] = is_open
        mask.eligible[slots] = eligible
        mask.keeps_running[slots] = table.exists[slots] & table.ready[slots] & keeps_running

    def _refresh(self, slots: Ints) -> None:
        if len(slots) == 1:
            self._refresh_one(int(slots[0]))
            return
        free = self._table.free(slots)
        rooms = np.repeat(self._most[:, None], len(slots), axis=1)
        for d, asked, is_asked, is_asked_by_all in self._divisors():
            room = free[d][None, :] // asked
            if not is_asked_by_all:
                room = np.where(is_asked, room, _UNLIMITED)
            np.minimum(rooms, room, out=rooms)
        np.maximum(rooms, 0, out=rooms)
        for mask, rows in self._masked_rows():
            rooms[rows] *= mask.eligible[slots]
        self._totals += (rooms - self._fits[:, slots]).sum(axis=1)
        self._fits[:, slots] = rooms

    def _refresh_one(self, slot: int) -> None:
        """Do the same for one slot, with fewer and smaller vectors."""
        if self._divisor is None:
            self._divisor = np.maximum(self._requests, 1)
            self._is_unasked = self._requests == 0
        rooms = self._table.free(slice(slot, slot + 1))[:, 0] // self._divisor
        rooms[self._is_unasked] = _UNLIMITED
        room = np.minimum(np.maximum(rooms.min(axis=1), 0), self._most)
        for mask, rows in self._masked_rows():
            if not mask.eligible[slot]:
                room[rows] = 0
        self._totals += room - self._fits[:, slot]
        self._fits[:, slot] = room

    def _divisors(self) -> list[tuple[int, Ints, Bools, bool]]:
        """Return, per resource that any row asks for: its row, and what each class asks, as a
        column without zeros; which classes ask at all; whether all do.
        """
        if self._divisors_known is None:
            self._divisors_known = [
                (d, np.maximum(asked, 1)[:, None], (asked > 0)[:, None], bool((asked > 0).all()))
                for d, asked in enumerate(self._requests.T)
                if asked.any()
            ]
        return self._divisors_known

    def _masked_rows(self) -> list[tuple[Mask, Ints]]:
        if self._rows_by_mask is None:
            rows: dict[Constraints, list[int]] = {}
            for member, row in self._index.items():
                rows.setdefault(member.constraints, []).append(row)
            self._rows_by_mask = [(self._mask(c), np.array(r)) for c, r in rows.items()]
        return self._rows_by_mask

    def _row(self, member: MemberClass) -> int | None:
        row = self._index.get(member)
        return row if row is not None else self._new_row(member)

    def _new_row(self, member: MemberClass) -> int | None:
        if not self._spare_rows and not self._make_spare_rows():
            return None
        row = self._spare_rows.pop()
        mask = self._mask(member.constraints)
        self._index[member] = row
        self._may_have_idle_rows |= member not in self._pins
        self._member_of_row[row] = member
        self._need_of_row[row] = self._needs.get(member, _NO_NEED)
        self._rows_by_mask = self._divisors_known = self._divisor = None
        self._requests[row] = self._asked(member)
        self._most[row] = member.per_node_max
        self._fits[row] = self.compute(member, self._table.free(), mask.eligible)
        self._totals[row] = self._fits[row].sum()
        return row

    def _make_spare_rows(self) -> bool:
        """Find rows: new ones up to the limit, then those that no gang waits with."""
        count = len(self._totals)
        if count < ROWS_MAX:
            added = min(max(count, _ROWS_START), ROWS_MAX - count)
            self._fits = _more_rows(self._fits, added)
            self._requests = _more_rows(self._requests, added)
            self._totals = _more_rows(self._totals, added)
            self._most = _more_rows(self._most, added)
            self._need_of_row = _more_rows(self._need_of_row, added)
            self._member_of_row.extend([None] * added)
            self._empty(list(range(count + added - 1, count - 1, -1)))
            return True
        if not self._may_have_idle_rows:
            return False
        self._may_have_idle_rows = False
        idle = [member for member in self._index if member not in self._pins]
        self._empty([self._index.pop(member) for member in idle])
        return bool(idle)

    def _empty(self, rows: list[int]) -> None:
        """Make rows spare: a request that no node ever has room for."""
        self._rows_by_mask = self._divisors_known = self._divisor = None
        self._fits[rows] = 0
        self._totals[rows] = 0
        self._need_of_row[rows] = _NO_NEED
        for row in rows:
            self._member_of_row[row] = None
        self._requests[rows] = 0
        self._requests[rows, self._table.row(PODS)] = _NEVER
        self._spare_rows.extend(rows)

    def _asked(self, member: MemberClass) -> Ints:
        """Return what a member asks, as int64[D]; never to be had if no node offers all of it."""
        if self._table.offers(member.request):
            return self._table.vector(member.request)
        never = np.zeros(len(self._table.resources), dtype=np.int64)
        never[self._table.row(PODS)] = _NEVER
        return never

    def _lay_out(self) -> None:
        """Rewrite the requests for the table's rows of resources, which have changed.

        Only nodes that offer such a resource fit other classes than before, and these are stale.
        """
        table = self._table
        self._rows_version = table.rows_version
        self._requests = np.zeros((len(self._totals), len(table.resources)), dtype=np.int64)
        self._requests[:, table.row(PODS)] = _NEVER
        for member, row in self._index.items():
            self._requests[row] = self._asked(member)
        self._divisors_known = self._divisor = None

    def _resize(self) -> None:
        self._fits = resized(self._fits, self._table.capacity)
        for mask in self._masks.values():
            mask.resize(self._table.capacity)


def _hold_of(constraints: Constraints) -> NodeHold | None:
    """Return what windows depend on; None where they do not matter."""
    if constraints.hold_seconds is None:
        return None
    return (constraints.hold_seconds, constraints.reservation)


def _distinct(parts: list[Ints]) -> Ints:
    """Return the distinct slots in order. Mostly a handful, which `np.unique` takes longer over."""
    if sum(map(len, parts)) > _FEW_SLOTS_MAX:
        return np.unique(np.concatenate(parts))
    slots = sorted({slot for part in parts for slot in part.tolist()})
    return np.array(slots, dtype=np.int64)


def _more_rows(array: npt.NDArray[Any], added: int) -> npt.NDArray[Any]:
    return np.concatenate([array, np.zeros((added, *array.shape[1:]), dtype=array.dtype)])
