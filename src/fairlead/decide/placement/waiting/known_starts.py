"""Which starts of reserved jobs still hold in a new decision, though jobs have begun or ended.

To find a start is a search over all instants and nodes (`first_start.py`). Between two decisions
mostly a few jobs begin or end, on a few nodes. `KnownStarts` says on which nodes, until when and by
how much the free room differs (`Changes`). With that, `Chain` goes through the heads of the queue:
a start holds if the gang has no room at any earlier instant, and the planner would choose the same
nodes. Both are proven from the few nodes that differ and from what `Proof` keeps of the search.
What cannot be proven is searched again, so all starts are those of a search in each decision.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import numpy.typing as npt

from fairlead.decide.placement.places.kept_room import (
    FoundStart,
    KeptRoom,
    Proof,
    QueueReservation,
    Start,
    Token,
    together,
)
from fairlead.decide.placement.places.releases import ENDS_MAX
from fairlead.decide.placement.places.search import tier_shift
from fairlead.decide.placement.waiting.queue import QueueEntry
from fairlead.decide.verdict import ObjectKey
from fairlead.model.asks.requests import MemberClass
from fairlead.model.cluster import ClusterState
from fairlead.model.gang.gangs import RoleRequest
from fairlead.model.inventory.labels import OWN
from fairlead.model.inventory.nodes import Bools, Ints, NodeTable, Use, counted

#: Jobs and nodes that may differ; beyond, all starts are searched again.
_JOBS_MAX, _SLOTS_MAX = 64, 256


@dataclass(frozen=True, slots=True)
class _Held:
    """What a job holds until a known end."""

    end: float
    places: tuple[Use, ...]


class Changes:
    """By how much the room over time differs from what it was in the decision before."""

    def __init__(
        self, cluster: ClusterState, before: Sequence[_Held], after: Sequence[_Held]
    ) -> None:
        """`before` is what the jobs held that differ, `after` what they hold now."""
        table = cluster.table
        held = [*((each, 1) for each in before), *((each, -1) for each in after)]
        parts = [slots for each, _ in held for slots, _, _ in each.places]
        #: int64[S], in order: the slots on which it differs.
        self.slots: Ints = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *parts]))
        #: The ends that are new or no more, and the first new one.
        self.ends = frozenset(each.end for each, _ in held)
        self.first_new = min((each.end for each in after), default=inf)
        #: From each of these instants on it differs by int64[D, S].
        self.bounds = [-inf, *sorted(self.ends)]
        shape = (len(self.bounds), len(table.resources), len(self.slots))
        self.amounts: Ints = np.zeros(shape, dtype=np.int64)
        for each, sign in held:
            until = self.bounds.index(each.end)
            for slots, counts, request in each.places:
                more = sign * table.vector(request)[:, None] * counts
                self.amounts[:until, :, np.searchsorted(self.slots, slots)] += more
        #: bool[bounds, S]: where more is free from some bound up to this one.
        self._more = np.logical_or.accumulate((self.amounts > 0).any(axis=1), axis=0)
        #: int64[D, S]: what these nodes have in all.
        self.owned: Ints = table.allocatable[:, self.slots]

    def at(self, instant: float) -> Ints:
        """Return int64[D, S]: how much more is free at an instant than it was to be."""
        return self.amounts[bisect_right(self.bounds, instant) - 1]

    def at_each(self, instants: Sequence[float]) -> Ints:
        """Return int64[instants, D, S]: the same for each."""
        return self.amounts[np.searchsorted(self.bounds, instants, side="right") - 1]

    def more_before(self, instant: float) -> Bools:
        """Return bool[S]: where more is free at some instant up to this one."""
        more: Bools = self._more[bisect_right(self.bounds, instant) - 1]
        return more


@dataclass(slots=True)
class KnownStarts:
    """What the last decision saw that kept room for jobs, and what it kept."""

    #: Names that decision.
    stamp: int = 0
    _end_count: int = 0
    _free: Ints | None = None
    _rank: Ints | None = None
    _held: dict[ObjectKey, _Held] = field(default_factory=dict[ObjectKey, _Held])
    #: `HeldEnds.version` that this is of, and the jobs whose ends did not count.
    _held_version: int = -1
    _endless: frozenset[ObjectKey] = frozenset()
    #: The tokens of the jobs, int64[K, D, N]: what was kept for each (`KeptRoom.amounts` is a
    #: part), and `QueueReservation.version`.
    _tokens: tuple[Token, ...] = ()
    _amounts: Ints | None = None
    _versions: list[int] = field(default_factory=list[int])
    #: Of which decision they are, and where they were changed since.
    _kept_stamp: int = 0
    _given: list[KeptRoom] = field(default_factory=list[KeptRoom])
    #: What `together` returned last, and the slots on which more has changed since.
    _together: tuple[KeptRoom, ...] = ()
    _stale: set[int] = field(default_factory=set[int])
    _drawn: int = 0

    def draw(self) -> int:
        """Return a token that was never returned before."""
        self._drawn += 1
        return self._drawn

    def changes(self, cluster: ClusterState, endless: frozenset[ObjectKey]) -> Changes | None:
        """Return what differs since the last call; None where that is much, or not known.

        All known ends of jobs that hold nodes count, but for those of the jobs that are `endless`.
        """
        ledger, free, rank = cluster.ledger, cluster.table.free(), cluster.table.rank
        self.stamp += 1
        known, self._free = self._free, free
        is_known = known is not None and known.shape == free.shape
        if self._rank is None or not np.array_equal(rank, self._rank):
            self._rank, is_known = rank.copy(), False
        before, after = self._follow(cluster, endless)
        if ledger.has_uses_beyond:
            self._free = None
            return None
        self._end_count = len(self._held)
        if known is None or not is_known:
            return None
        if len(before) + len(after) > _JOBS_MAX:
            return None
        found = Changes(cluster, before, after)
        more = free - known
        is_told = np.array_equal(more[:, found.slots], found.amounts[0])
        more[:, found.slots] = 0
        return found if is_told and len(found.slots) <= _SLOTS_MAX and not more.any() else None

    def _follow(
        self, cluster: ClusterState, endless: frozenset[ObjectKey]
    ) -> tuple[list[_Held], list[_Held]]:
        """Return what the jobs that differ since the last call held, and what they hold."""
        ends, before, after = cluster.held_ends, list[_Held](), list[_Held]()
        keys = ends.changed_since(self._held_version) if self._held_version >= 0 else None
        if keys is None:
            keys = sorted(self._held.keys() | {key for _, key in ends.in_order})
        keys += sorted(endless ^ self._endless)
        self._held_version, self._endless = ends.version, endless
        for key in dict.fromkeys(keys):
            was, end = self._held.get(key), None if key in endless else ends.of(key)
            if end is None:
                before += () if was is None else (self._held.pop(key),)
                continue
            places = cluster.ledger.places_of(key)
            if was is not None and was.end == end and was.places is places:
                continue
            after.append(_Held(end, places))
            before += () if was is None else (was,)
            self._held[key] = after[-1]
        return before, after

    def is_complete(self, ahead: int) -> bool:
        """True where a search beside so many jobs ahead looks at all ends and starts."""
        return self._end_count + 2 * ahead < ENDS_MAX

    def remember(self, tokens: Sequence[Token], reservations: Sequence[QueueReservation]) -> None:
        """Take in what is kept for jobs, before anything is placed beside it."""
        amounts = [each.kept.amounts for each in reservations]
        known = [each for each in amounts if each is not None]
        self._tokens = tuple(tokens) if len(known) == len(tokens) else ()
        self._amounts = np.stack(known) if self._tokens else None
        self._versions, self._given = [each.version for each in reservations], []
        self._together = ()
        self._kept_stamp = self.stamp

    def recall(
        self,
        tokens: Sequence[Token],
        reservations: Sequence[QueueReservation],
        changes: Changes,
        table: NodeTable,
    ) -> tuple[QueueReservation, ...] | None:
        """Return the reservations with what is kept for each beside those behind it, as of now;
        None where they are not those that are remembered.
        """
        is_recent, kept = self._kept_stamp == self.stamp - 1, self._amounts
        if not tokens or kept is None or not is_recent or self._tokens != tuple(tokens):
            return None
        self._stale |= {*self._added_slots(), *changes.slots.tolist()}
        for uses, numbers, times in self._added():
            for slots, counts, request in uses:
                more = table.vector(request) * counts[:, None]
                kept[numbers[:, None], :, slots] -= times[:, None, None] * more
        later = changes.at_each([each.at for each in reservations])
        kept[:, :, changes.slots] += changes.amounts[0] - later
        for number in np.flatnonzero(later.any(axis=(1, 2))).tolist():
            self._versions[number] = hash((self._versions[number], self.stamp))
        self._kept_stamp = self.stamp
        self._given = [
            KeptRoom(each.kept.nodes, amounts, [])
            for each, amounts in zip(reservations, kept, strict=True)
        ]
        own = zip(reservations, self._given, self._versions, strict=True)
        return tuple(each.keeping(room, version) for each, room, version in own)

    def together(self, kept: Sequence[KeptRoom]) -> tuple[KeptRoom, ...]:
        """Return what the function of this name does; it is computed again only where something has
        changed since the last decision, if it is what `recall` has returned.
        """
        if len(kept) < 2 or [*map(id, kept)] != [*map(id, self._given)]:
            return together(kept)
        nodes = np.logical_or.reduce([each.nodes for each in kept])
        known = self._together[0] if self._together else None
        if known is None or known.amounts is None or not np.array_equal(known.nodes, nodes):
            self._together = together(kept)
        else:
            slots = np.array(sorted({*self._stale, *self._added_slots()}), dtype=np.int64)
            amounts = [(each.nodes[slots], each.amounts) for each in kept]
            own = [np.where(n, a[:, slots], 0) for n, a in amounts if a is not None]
            known.amounts[:, slots] = np.maximum(np.maximum.reduce(own), 0)
        self._stale.clear()
        return self._together

    def _added(self) -> Iterator[tuple[Sequence[Use], Ints, Ints]]:
        """Yield what `KeptRoom.add` was called with for what was recalled last, the numbers of
        those for which it was the same, and how often, negative where it was taken away.
        """
        numbers: dict[tuple[int, int], tuple[Sequence[Use], list[int]]] = {}
        for number, each in enumerate(self._given):
            for uses, sign in each.added or ():
                numbers.setdefault((id(uses), sign), (uses, []))[1].append(number)
        for (_, sign), (uses, found) in numbers.items():
            distinct, times = counted(np.array(found, dtype=np.int64))
            yield uses, distinct, sign * times

    def _added_slots(self) -> set[int]:
        """Return where `KeptRoom.add` was called for what was recalled last."""
        added = (uses for each in self._given for uses, _ in each.added or ())
        return {slot for uses in added for slots, _, _ in uses for slot in slots.tolist()}


class Chain:
    """The heads of one decision that have a place, in order, on the slots that differ."""

    def __init__(self, cluster: ClusterState, changes: Changes, now: float, *, stamp: int) -> None:
        """`stamp` is that of the decision."""
        self._cluster, self.changes, self._now, self._stamp = cluster, changes, now, stamp
        table, slots = cluster.table, len(changes.slots)
        self._free = table.free(changes.slots)
        self._free_before = self._free - changes.amounts[0]
        #: int64[K, D, S]: what is left free once a head has its place; bool[K, S]: where its place
        #: is, and where room is kept for it; float64[K]: when it starts and ends.
        self._left: Ints = np.zeros((8, len(table.resources), slots), dtype=np.int64)
        self._is_used: Bools = np.zeros((8, slots), dtype=np.bool_)
        self._is_kept: Bools = np.zeros((8, slots), dtype=np.bool_)
        self._at, self._until = np.zeros(8), np.zeros(8)
        self._teams: list[str] = []
        self._ends = [self._ends_on(slot) for slot in changes.slots.tolist()]
        self._shifts: dict[RoleRequest, Ints | None] = {}
        #: By member: int64[S], how many the nodes could have in all; bool[S], where one has room.
        self._owned: dict[MemberClass, Ints] = {}
        self._has_room: dict[MemberClass, Bools] = {}
        #: The place that was looked at last, and its members on the slots.
        self._taken: tuple[tuple[Use, ...], Ints] = ((), np.zeros(slots, dtype=np.int64))

    def _ends_on(self, slot: int) -> list[float]:
        """Return when jobs end that use a slot, in order."""
        jobs, claims = self._cluster.jobs, self._cluster.ledger.claims_on(slot)
        return sorted(end for c in claims if (end := jobs[c.key].ends_at) is not None)

    def holds(self, found: FoundStart, entry: QueueEntry, ahead: Ints) -> bool:
        """True where a search would find the start that was found before, which then keeps what has
        to stay free as of now. `ahead` are the numbers of the jobs ahead on its nodes.
        """
        changes, start, proof, nodes = self.changes, found.start, found.proof, found.nodes
        if start is None or start.amounts is None or proof is None or nodes is None:
            return False
        at, inside = start.at, nodes[changes.slots]
        if at <= self._now or at in changes.ends:
            return False
        gained = int(self._owned_by(proof)[changes.more_before(at) & inside].sum())
        if (gained and gained >= proof.slack) or not self._is_after_all(proof, inside):
            return False
        taken = self._members(start.place)
        left = self._free_before - start.amounts[:, changes.slots] + changes.at(at)
        room = left + taken * proof.request[:, None]
        later = ahead[(at < self._at[ahead]) & (self._at[ahead] < at + entry.hold_seconds)]
        if len(later):
            is_kept = self._kept_from(later, entry.lane.team)[:, None, :]
            room = np.minimum(room, np.where(is_kept, self._left[later], room).min(axis=0))
        fits = np.where(inside, _rooms(proof, room), 0)
        if ((taken > 0) & ((fits != taken) | (changes.slots == proof.last))).any():
            return False
        others = (fits > 0) & (taken == 0)
        if others.any() or (proof.has_spare and taken.any()):
            before = self._are_before(proof, at, room, ahead)
            if before is None or before[others].any() or not before[taken > 0].all():
                return False
        start.amounts[:, changes.slots] = self._free - left
        if changes.at(at).any():
            found.start = replace(start, version=hash((start.version, self._stamp)))
        proof.has_spare = proof.has_spare or bool(others.any())
        proof.slack -= gained
        proof.first = min(proof.first, changes.first_new)
        return True

    def _is_after_all(self, proof: Proof, inside: Bools) -> bool:
        """True where the gang has no room at new instants before those that were looked at."""
        if self.changes.first_new >= proof.first:
            return True
        more = int(self._owned_by(proof)[inside].sum())
        return self._cluster.fits.total(proof.role.member) + more < proof.role.count

    def _owned_by(self, proof: Proof) -> Ints:
        """Return int64[S]: members that the nodes could have in all."""
        member = proof.role.member
        if member not in self._owned:
            self._owned[member] = _rooms(proof, self.changes.owned)
        return self._owned[member]

    def _members(self, place: tuple[Use, ...]) -> Ints:
        """Return int64[S]: members of a place of one role on the slots."""
        if self._taken[0] is not place:
            self._taken = (place, _members(place[0], self.changes.slots))
        return self._taken[1]

    def _kept_from(self, numbers: Ints, team: str) -> Bools:
        """Return bool[numbers, S]: as `Context.kept_from`."""
        kept = self._is_kept[numbers]
        others = [self._teams[number] != team for number in numbers.tolist()] if team else []
        if any(others):
            kept[others] &= self._cluster.table.labels.tiers(team)[self.changes.slots] != OWN
        return kept

    def _are_before(self, proof: Proof, at: float, room: Ints, ahead: Ints) -> Bools | None:
        """Return bool[S]: nodes that come before the one that is chosen last; None: not known."""
        table, slots, role = self._cluster.table, self.changes.slots, proof.role
        if role not in self._shifts:
            shift = tier_shift(table, role)
            self._shifts[role] = None if shift is None else shift[slots]
        shift = self._shifts[role]
        if shift is None:
            return None
        order, key = self._order(role, at, ahead), table.packing_key(room, slots) + shift
        return (order < proof.rank[0]) | ((order == proof.rank[0]) & (key < proof.rank[1]))

    def _order(self, role: RoleRequest, at: float, ahead: Ints) -> Ints:
        if role.member not in self._has_room:
            fits = self._cluster.fits.fits(role.member)
            self._has_room[role.member] = fits[self.changes.slots] > 0
        has_room = self._has_room[role.member]
        counts = [bisect_right(ends, at) for ends in self._ends]
        given = [ends[n - 1] if n else 0.0 for ends, n in zip(self._ends, counts, strict=True)]
        since = np.where(has_room, 0.0, np.array(given))
        over = ahead[self._until[ahead] <= at]
        if len(over):
            until = np.where(self._is_used[over], self._until[over][:, None], 0.0)
            since = np.maximum(since, until.max(axis=0))
        return latest_first(since)

    def add(self, reservation: QueueReservation, start: Start, team: str) -> int:
        """Take in a head; it takes room from what those leave that start while it runs. Return its
        number.
        """
        assert start.amounts is not None
        number, slots, table = len(self._teams), self.changes.slots, self._cluster.table
        if number == len(self._at):
            for name in ("_left", "_is_used", "_is_kept", "_at", "_until"):
                before = getattr(self, name)
                setattr(self, name, np.concatenate([before, np.zeros_like(before)]))
        self._teams.append(team)
        at, until = reservation.at, reservation.ends_by(is_predicted=False)
        self._at[number], self._until[number] = at, until
        self._left[number] = self._free - start.amounts[:, slots]
        self._is_kept[number] = reservation.kept.nodes[slots]
        place = reservation.place
        for use in place:
            members = self._members(place) if len(place) == 1 else _members(use, slots)
            if not members.any():
                continue
            beside = np.flatnonzero((at <= self._at[:number]) & (self._at[:number] < until))
            self._left[beside] -= table.vector(use[2])[:, None] * members
            self._is_used[number] |= members > 0
        return number


def latest_first(since: npt.NDArray[np.float64]) -> Ints:
    """Return int64[N] by which nodes come first that have had room since the latest instants."""
    return (since * -1000.0).astype(np.int64)


def _members(use: Use, slots: Ints) -> Ints:
    """Return int64[S]: members of one role on these slots."""
    used, counts, _ = use
    at = np.minimum(np.searchsorted(used, slots), len(used) - 1)
    return np.where(used[at] == slots, counts[at], 0)


def _rooms(proof: Proof, room: Ints) -> Ints:
    """Return int64[S]: members that fit into int64[D, S]."""
    asked = np.flatnonzero(proof.request)
    rooms: Ints = (room[asked] // proof.request[asked][:, None]).min(axis=0)
    return np.minimum(np.maximum(rooms, 0), proof.role.member.per_node_max)
