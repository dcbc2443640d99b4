"""How devices are counted: as rows of the node table, one for each set of kinds that may compete.

Kinds of devices overlap: some devices are of several. Members fit on a node if and only if, for
each set of kinds, all that ask for one of them are no more than the devices of any of them (Hall's
theorem). So a set of kinds that are connected by devices in common is a *row*: a node offers the
devices of any kind in it, and a member takes of it what it asks of the kinds that lie within it.
Sets that are made up of the same devices are one row. Kinds apart, the usual case, are a row each,
and kinds of which one contains the other as well; CPU and devices are then alike to the planner.

Kinds with devices that share counters have rows in an order, the largest devices first: what
members take of the row of a kind is 1, or the weight of an earlier kind (`shared_counters.py`).

What a device is of is a *mask*: bit i for kind i. Rows follow from the masks that there are.

What a request with options takes depends on the node: the first option that the node can serve
(`DeviceKind.options`). It has a row of its own, of how many such members a node has room for. For
each row of which options take, and each way in which they do on some node, there is a *variant* of
the row with what they take; on nodes where they take otherwise there is enough of it for all.

Devices that are to be alike, or to differ (`DeviceKind.together`), have such a row: how many
*bundles* a node has. Whichever device another pod gets, it breaks one at most, so each costs 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import lcm
from typing import TypeAlias

from fairlead.api.values.quantity import CLAIMED, SERVING
from fairlead.model.asks.requests import Request, request_of
from fairlead.model.claimed.device_asks import (
    ALL,
    DEVICES_PER_CLAIM_MAX,
    DeviceAsk,
    DeviceKind,
)
from fairlead.model.claimed.kind_words import short, text_of
from fairlead.model.claimed.shared_counters import Layout, NodeProfile, weight_of
from fairlead.model.claimed.work import Work, all_of
from fairlead.model.inventory.device_offers import ServedResources

#: Kinds that overlap in a chain, those that share counters, and rows in all. Kinds beyond have no
#: row.
OVERLAPPING_MAX, SHARING_MAX, ROWS_MAX = 6, 8, 128
_KNOWN_MAX = 4_096
_NONE: Mapping[int, int] = {}
#: Parts into which a unit of a row is divided for members that share devices.
_SCALE_MAX = 1 << 40
#: Masks that are compared in a unit of work.
_MASKS_PER_WORK = 32


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row: its name, the kinds of which all devices count (bits), and what a member takes of it
    for a device of each kind.
    """

    name: str
    bits: int
    weights: Mapping[int, int]
    #: Of a variant: the row that it is of, what of it kinds with options (bits) take, and into how
    #: many parts each unit is divided, so that all of them take whole ones.
    of: str = ""
    taken: tuple[tuple[int, int], ...] = ()
    scale: int = 1

    @property
    def has_others(self) -> bool:
        """True where kinds that are not of the row take of it."""
        return any(bit & ~self.bits for bit in self.weights)

    def takes(self, mask: int) -> int:
        """Return what a device with this mask takes that some pod has."""
        return max((weight for bit, weight in self.weights.items() if bit & mask), default=0)


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices of a node that share counters: which are had (bits), and which of these by pods that
    count on their node.
    """

    layout: Layout
    taken: int = 0
    of_pods: int = 0


#: What made up kinds take on a node: the bit, that of a kind of devices, and how many.
_Served: TypeAlias = tuple[tuple[int, int, int], ...]


class DeviceRows:
    """The rows of some kinds."""

    def __init__(self) -> None:
        """Make those of no kinds; see `rows_of`."""
        self.rows: tuple[DeviceRow, ...] = ()
        #: Ways in which devices share counters, and the kinds (bits) that there are in each.
        self._layouts: dict[Layout, None] = {}
        self._sharing_bits: list[int] = []
        #: Masks of devices that share nothing; by bit of a kind, the masks of its devices.
        self._plain: frozenset[int] = frozenset()
        self._content: dict[int, frozenset[int]] = {}
        #: What groups offer of `rows`; they are alike by the thousand.
        self._known: dict[DeviceGroup, tuple[tuple[int, int], ...]] = {}
        self._bits: dict[DeviceKind, int] = {}
        #: Rows of devices, and beside them those of made up kinds, by bit, and variants.
        self._base: tuple[DeviceRow, ...] = ()
        self._own: dict[int, DeviceRow] = {}
        self._variants: tuple[DeviceRow, ...] = ()
        self._resources: dict[int, str] = {}  # of containers that a kind serves, by its bit
        self._sharers: dict[int, int] = {}  # of devices, by the bit of a kind
        self._served: dict[NodeProfile, _Served] = {}

    @classmethod
    def of(
        cls,
        kinds: Sequence[tuple[DeviceKind, int]],
        masks: Iterable[int],
        layouts: Iterable[Layout] = (),
        profiles: Collection[NodeProfile] = (),
    ) -> Work[DeviceRows]:
        """Return the rows of some kinds, of which the earlier ones come first where they are too
        many.

        `kinds` with the bit of each; `masks` of all devices, `layouts` of those that share
        counters: a group of any other layout counts nothing. `profiles` of all nodes, where there
        are kinds with options.
        """
        found = cls()
        found._layouts = dict.fromkeys(layouts)
        found._sharing_bits = [_union(each.masks) for each in found._layouts]
        found._plain = frozenset(mask for mask in masks if mask)
        every = sorted(found._plain.union(*(each.masks for each in found._layouts)) - {0})
        plain = [(kind, bit) for kind, bit in kinds if not kind.is_made_up]
        for _, bit in plain:
            found._content[bit] = frozenset(mask for mask in every if mask & bit)
            yield 1 + len(every) // _MASKS_PER_WORK
        names: dict[int, str] = {}
        for kind, bit in plain:
            rows = yield from found._rows({**names, bit: text_of(kind)})
            if rows is not None:
                found._bits, found._base = {**found._bits, kind: bit}, rows
                names[bit] = text_of(kind)
        found.rows = found._base
        if len(plain) < len(kinds):
            made_up = [each for each in kinds if each[0].is_made_up]
            yield from found._add_made_up(made_up, profiles)
        return found

    def has(self, kind: DeviceKind) -> bool:
        """True for a kind that is counted."""
        return kind in self._bits

    def is_nowhere(self, kind: DeviceKind) -> bool:
        """True for a kind of which there is no device, or whose options no node serves."""
        bit = self._bits.get(kind)
        if kind.together:
            return any(self.is_nowhere(each.kind) for each in kind.together)
        if kind.options:
            return not any(bit == each[0] for served in self._served.values() for each in served)
        return bit is None or not self._content[bit]

    def takes(self, kind: DeviceKind) -> tuple[tuple[str, int], ...] | None:
        """Return what a device of a kind takes of each row; None for a kind that has no row."""
        bit = self._bits.get(kind)
        if bit is None:
            return None
        return tuple((row.name, row.weights[bit]) for row in self.rows if bit in row.weights)

    @property
    def served(self) -> ServedResources:
        """The resources of containers that devices serve."""
        return {kind.resource: self.takes(kind) or () for kind in self._bits if kind.resource}

    def request(self, asks: Iterable[DeviceAsk]) -> Request:
        """Return what a member takes of each row; it asks for kinds that are counted."""
        counts = [(self._bits[ask.kind], ask.count) for ask in asks]
        taken = {r.name: sum(n * r.weights.get(bit, 0) for bit, n in counts) for r in self.rows}
        return request_of(taken.items())

    def had(self, masks: Mapping[int, int], bundles: Mapping[int, int]) -> Request:
        """Return what a pod has of each row, given how many of its devices have each mask, and by
        bit how many bundles it breaks.
        """
        broken = {self._own[bit].name: n for bit, n in bundles.items() if bit in self._own}
        found = {r.name: sum(n * r.takes(mask) for mask, n in masks.items()) for r in self.rows}
        return request_of((found | broken).items())

    def offered(
        self,
        masks: Mapping[int, int],
        groups: Sequence[DeviceGroup] = (),
        profile: NodeProfile | None = None,
        *,
        bundles: Mapping[int, int] = _NONE,
    ) -> Work[dict[str, int]]:
        """Return what there is of each row, given how many devices have each mask, and those that
        share counters; `profile` is that of the node, which has so many bundles, by bit.
        """
        found = yield from self._offered(masks, groups)
        served = self._served.get(profile, ()) if profile is not None else ()
        members = {bit: n for bit, n in bundles.items() if n and bit in self._own}
        found |= {self._own[bit].name: n for bit, n in members.items()}
        for bit, of, count in served:
            if bit in bundles:
                continue
            rows = [row for row in self._base if of in row.weights]
            room = min((found.get(r.name, 0) // (count * r.weights[of]) for r in rows), default=0)
            room *= self._sharers[bit]
            if room:
                members[bit] = found[self._own[bit].name] = room
                if resource := self._resources.get(bit):
                    found[resource] = room
        bases = {row.name: row for row in self._base}
        yield len(self._variants) // _MASKS_PER_WORK
        for row in self._variants:
            amount = found.get(row.of, 0) * row.scale
            if row.taken != self._taken(bases[row.of], served)[0]:
                amount += sum(n * members.get(bit, 0) for bit, n in row.taken)
            if amount:
                found[row.name] = amount
        return found

    def _offered(
        self, masks: Mapping[int, int], groups: Sequence[DeviceGroup]
    ) -> Work[dict[str, int]]:
        found: dict[str, int] = {}
        groups = [group for group in groups if group.layout in self._layouts]
        rooms = yield from all_of(self._rooms(group) for group in groups)
        yield 4 + len(self._base) * (len(masks) + len(groups)) // _MASKS_PER_WORK
        for i, row in enumerate(self._base):
            count = sum(n for mask, n in masks.items() if mask & row.bits)
            count += sum(each[i][0] for each in rooms)
            if row.has_others and not (count or any(g.layout.of(row.bits) for g in groups)):
                # No device of the kind: all others may be had.
                rest = chain(masks.items(), ((m, 1) for g in groups for m in g.layout.masks))
                count = sum(n * row.takes(mask) for mask, n in rest)
            if count:
                found[row.name] = count
        return found

    def stranded(
        self, groups: Sequence[DeviceGroup], profile: NodeProfile | None = None
    ) -> Work[Request]:
        """Return what a node offers of each row that nobody can have: parts that are covered by
        those that pods have.
        """
        rooms = yield from all_of(
            self._rooms(group)
            for group in groups
            if group.of_pods and group.layout in self._layouts
        )
        lost = {row.name: sum(each[i][1] for each in rooms) for i, row in enumerate(self._base)}
        if self._variants and any(lost.values()):
            served = self._served.get(profile, ()) if profile is not None else ()
            bases = {row.name: row for row in self._base}
            for row in self._variants:
                if row.taken == self._taken(bases[row.of], served)[0]:
                    lost[row.name] = lost[row.of] * row.scale
        return request_of(lost.items())

    def _rooms(self, group: DeviceGroup) -> Work[tuple[tuple[int, int], ...]]:
        """Return what a group offers of each row, to pods that count on the node and to others, and
        what of it is stranded: parts that nobody can have beside those that pods have.
        """
        found = self._known.get(group)
        if found is None:
            rooms = yield from all_of(_room(row, group) for row in self._base)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            found = self._known[group] = tuple(rooms)
        return found

    def _add_made_up(
        self, kinds: Sequence[tuple[DeviceKind, int]], profiles: Collection[NodeProfile]
    ) -> Work[None]:
        """Add the rows of kinds that are made up of others, as far as there are not too many."""
        static: dict[NodeProfile, dict[str, int]] = {}
        for profile in profiles:
            groups = [DeviceGroup(layout) for layout in profile.layouts]
            static[profile] = yield from self._offered(dict(profile.masks), groups)
        for kind, bit in kinds:
            if not all(map(self.has, kind.parts[:-1])):
                continue
            served, self._sharers[bit] = dict(self._served), kind.sharers
            for profile, amounts in static.items():
                compared = len(kind.options) * (len(profile.masks) + len(self._base))
                yield 1 + compared // _MASKS_PER_WORK
                found = self._serve(kind, profile, amounts) if kind.options else None
                taken = [found] if found else [(self._bits[e.kind], e.count) for e in kind.together]
                served[profile] = (*served.get(profile, ()), *((bit, *each) for each in taken))
            own = {**self._own, bit: DeviceRow(f"{CLAIMED}{text_of(kind)}", 0, {bit: 1})}
            own = {each: self._breaking(row, each, kinds, served) for each, row in own.items()}
            variants: dict[str, DeviceRow] = {}
            for ways in dict.fromkeys(served.values()):
                yield 1 + len(self._base) * len(ways) // _MASKS_PER_WORK
                for row in self._base:
                    taken, scale = self._taken(row, ways)
                    if taken:
                        variant = _variant(row, taken, own, scale=scale)
                        variants[variant.name] = variant
            has_room = len(self._base) + len(own) + len(variants) <= ROWS_MAX
            if has_room and all(each.scale <= _SCALE_MAX for each in variants.values()):
                self._bits = {**self._bits, kind: bit}
                self._own, self._served = own, served
                self._resources[bit] = kind.resource
                self._variants = tuple(variants[name] for name in sorted(variants))
        every = (*self._base, *self._own.values(), *self._variants)
        self.rows = tuple(sorted(every, key=lambda row: row.name))

    def _taken(self, row: DeviceRow, served: _Served) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return what members with made up kinds take of a row, on nodes that serve them so, and
        into how many parts each unit of the row is divided for that.
        """
        found: dict[int, int] = {}
        for bit, of, n in served:
            if of in row.weights:
                found[bit] = found.get(bit, 0) + n * row.weights[of]
        scale = lcm(*(self._sharers[bit] for bit in found))
        return tuple((bit, n * scale // self._sharers[bit]) for bit, n in found.items()), scale

    def _breaking(
        self,
        row: DeviceRow,
        own: int,
        kinds: Sequence[tuple[DeviceKind, int]],
        served: Mapping[NodeProfile, _Served],
    ) -> DeviceRow:
        """Return the row of a made up kind; where it is one of bundles with what others break of
        these, a device of any kind in common one.
        """
        kind = next(kind for kind, bit in kinds if bit == own)
        if not kind.together:
            return row
        ours = frozenset[int]().union(*(self._content[self._bits[e.kind]] for e in kind.together))
        weights = {bit: 1 for bit, masks in self._content.items() if not masks.isdisjoint(ours)}
        taken: dict[int, int] = {}
        for ways in dict.fromkeys(served.values()):
            here = Counter[int]()
            for bit, of, count in ways:
                if bit != own and of in weights:
                    here[bit] += count
            taken |= {bit: max(n, taken.get(bit, 0)) for bit, n in here.items()}
        return DeviceRow(row.name, 0, {own: 1, **weights, **taken})

    def _serve(
        self, kind: DeviceKind, profile: NodeProfile, amounts: Mapping[str, int]
    ) -> tuple[int, int] | None:
        """Return the kind (bit) of the first option that a node can serve, and its count of
        devices; None where there is none, or where it is not certain which kube-scheduler takes.

        Options before it are those of which the node has too few devices, whoever has these.
        """
        bits = [self._bits[option.kind] for option in kind.options]
        for option, bit in zip(kind.options, bits, strict=True):
            # These are counted before all others, and a fault ends all (`validateDeviceRequest`).
            if option.count == ALL and (not profile.is_whole or bit & profile.unsure):
                return None
        for option, bit in zip(kind.options, bits, strict=True):
            if bit & profile.unsure:
                return None
            there = profile.count(bit)
            count = option.count or there
            is_spoilt = option.count == ALL and (not there or bit & profile.spoilt)
            if is_spoilt or count > min(there, DEVICES_PER_CLAIM_MAX):
                continue
            rows = [row for row in self._base if bit in row.weights]
            has_room = all(amounts.get(r.name, 0) >= count * r.weights[bit] for r in rows)
            is_certain = has_room and (option.count != ALL or count <= option.most)
            return (bit, count) if is_certain else None
        return None

    def _rows(self, names: Mapping[int, str]) -> Work[tuple[DeviceRow, ...] | None]:
        """Return the rows of some kinds, by bit; None where there would be too many."""
        found: list[DeviceRow] = []
        yield 1 + len(names) * len(names) // _MASKS_PER_WORK
        for part in self._parts(list(names)):
            is_sharing = any(bits & sum(part) for bits in self._sharing_bits)
            if len(part) > (SHARING_MAX if is_sharing else OVERLAPPING_MAX):
                return None
            rows = self._sharing(part, names) if is_sharing else self._rows_of(part, names)
            found += yield from rows
        return None if len(found) > ROWS_MAX else tuple(sorted(found, key=lambda row: row.name))

    def _parts(self, bits: Sequence[int]) -> list[list[int]]:
        """Return the kinds that are connected by devices, or counters, in common."""
        parts: list[list[int]] = []
        for bit in bits:
            touched = [p for p in parts if any(self._compete(bit, other) for other in p)]
            parts = [part for part in parts if part not in touched]
            parts.append(sorted([bit, *(other for part in touched for other in part)]))
        return parts

    def _compete(self, one: int, other: int) -> bool:
        shares = any(bits & one and bits & other for bits in self._sharing_bits)
        return shares or not self._content[one].isdisjoint(self._content[other])

    def _sharing(self, part: Sequence[int], names: Mapping[int, str]) -> Work[list[DeviceRow]]:
        """Return the rows of kinds that share counters: how many there are, and how many remain
        beside earlier kinds.
        """
        sizes: dict[int, int] = {}
        for bit in part:
            rooms = yield from all_of(each.room(bit, {bit: 1}) for each in self._layouts)
            sizes[bit] = max(rooms, default=1)
        order = sorted(part, key=lambda bit: (sizes[bit], names[bit]))
        found: list[DeviceRow] = []
        for i, bit in enumerate(order):
            own = {bit: 1}
            found.append(DeviceRow(f"{CLAIMED}{names[bit]}", bit, own))
            others: dict[int, int] = {}
            for other in order[:i]:
                if weight := (yield from self._weight(other, bit)):
                    others[other] = weight
            if others:
                name = f"{CLAIMED}{names[bit]} beside larger ones"
                found.append(DeviceRow(name, bit, own | others))
        return found

    def _weight(self, earlier: int, bit: int) -> Work[int]:
        of_plain = int(any(mask & earlier and mask & bit for mask in self._plain))
        found = yield from all_of(weight_of(each, earlier, bit) for each in self._layouts)
        return max((of_plain, *found))

    def _rows_of(self, part: Sequence[int], names: Mapping[int, str]) -> Work[list[DeviceRow]]:
        rows: dict[frozenset[int], DeviceRow] = {}
        for size in range(1, len(part) + 1):
            for chosen in combinations(part, size):
                masks = sum(len(self._content[bit]) for bit in chosen)
                yield 1 + masks * len(chosen) // _MASKS_PER_WORK
                if len(self._parts(chosen)) > 1:
                    continue  # the rows of its parts say as much
                content = frozenset[int]().union(*(self._content[bit] for bit in chosen))
                if content not in rows:
                    within = [bit for bit in part if self._content[bit] <= content]
                    rows[content] = self._row(content, within, names)
        return list(rows.values())

    def _row(
        self, content: frozenset[int], within: Sequence[int], names: Mapping[int, str]
    ) -> DeviceRow:
        """Return a row, named after the kinds that are in no other one of it."""
        outer = [
            bit for bit in within if not any(self._content[bit] < self._content[o] for o in within)
        ]
        name = " or ".join(sorted({names[bit] for bit in outer}))
        return DeviceRow(f"{CLAIMED}{short(name)}", sum(within), dict.fromkeys(within, 1))


def _room(row: DeviceRow, group: DeviceGroup) -> Work[tuple[int, int]]:
    layout, of_others = group.layout, group.taken & ~group.of_pods
    offered = yield from layout.room(row.bits, row.weights, of_others)
    if not group.of_pods:
        return offered, 0
    left = yield from layout.room(row.bits, row.weights, group.taken)
    had = sum(row.takes(m) for i, m in enumerate(layout.masks) if group.of_pods >> i & 1)
    return offered, max(0, offered - had - left)


def _variant(
    row: DeviceRow,
    taken: tuple[tuple[int, int], ...],
    own: Mapping[int, DeviceRow],
    *,
    scale: int,
) -> DeviceRow:
    names = [(own[bit].name.removeprefix(CLAIMED), n) for bit, n in taken]
    words = [f"{n} {name}" if name.startswith(SERVING) else f"{n} for {name}" for name, n in names]
    parts = f", each in {scale} parts" if scale > 1 else ""
    weights = {bit: scale * weight for bit, weight in row.weights.items()} | dict(taken)
    name = f"{row.name}{parts} ({short(', '.join(words))})"
    return DeviceRow(name, row.bits, weights, row.name, taken, scale)


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
