"""Devices that share counters (partitions of one GPU: MIG): how many a node offers, whatever is
allocated first.

A device consumes some of each counter of a set, and is had while the sets have enough left. Kinds
are put in an order, and *members of earlier kinds are bound first*. Then the question for a kind
is: how cheaply can others leave no device of it? A device of the kind costs 1, one of an earlier
kind its weight. While what is bound costs less than that, kube-scheduler finds a device of the
kind, whichever devices it took before: so a sum of weights that stays below is a row of the node
table (`device_rows.py`), added up over the GPUs of a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from math import lcm

import msgspec
from msgspec import Struct

from fairlead.api.kubernetes.devices import CounterSet, Device
from fairlead.api.values.quantity import parse
from fairlead.model.claimed.work import Work

#: States of one group of devices that a search visits; what it has found by then is on the safe
#: side. Answers that are kept.
STATES_MAX, _ANSWERS_MAX = 4_096, 16_384
#: Units of work of a state (20 us).
WORK_PER_STATE = 4
#: Devices of a group; of a larger one none is offered.
GROUP_MAX = 64


class CounterShape(Struct, frozen=True, cache_hash=True):
    """Devices of a group by what they consume: counters are digits of one number, each below its
    bit in `guards`.
    """

    uses: tuple[int, ...]
    limits: int
    guards: int

    def left(self, taken: int) -> int | None:
        """Return what is left beside these devices (bits); None where they have too much."""
        left: int | None = self.limits
        for i, use in enumerate(self.uses):
            if taken >> i & 1 and left is not None:
                left = self.without(left, use)
        return left

    def without(self, left: int, use: int) -> int | None:
        """Return what a device leaves of what there is; None where it does not fit."""
        rest = (left | self.guards) - use
        return rest & ~self.guards if rest & self.guards == self.guards else None


class Layout(Struct, frozen=True, cache_hash=True):
    """A shape, and the mask of each device: bit i for kind i."""

    shape: CounterShape
    masks: tuple[int, ...]

    def of(self, bits: int) -> int:
        """Return the devices (bits) that are of one of these kinds."""
        return sum(1 << i for i, mask in enumerate(self.masks) if mask & bits)

    def room(self, wanted: int, weights: Mapping[int, int], taken: int = 0) -> Work[int]:
        """Return what devices that are taken cost at least when none of a kind is left to take.

        `weights` of the kinds by their bits, that of `wanted` among them; a kind that is not there
        is not taken. `taken` (bits) has been taken before, and costs nothing.
        """
        costs = [
            min((w for bit, w in weights.items() if mask & bit), default=-1) for mask in self.masks
        ]
        cost, states = _room(self.shape, taken, self.of(wanted), tuple(costs))
        yield states * WORK_PER_STATE
        return cost


@lru_cache(maxsize=_ANSWERS_MAX)
def _room(shape: CounterShape, taken: int, wanted: int, costs: tuple[int, ...]) -> tuple[int, int]:
    """See `Layout.room`; a cost below 0 is of a device that is not taken. Returns the states that
    were visited as well.
    """
    start = shape.left(taken)
    if start is None:
        return 0, 1
    usable = [i for i, cost in enumerate(costs) if cost >= 0 and not taken >> i & 1]
    heap, seen = [(0, taken, start)], set[int]()
    while heap:
        cost, has, left = heappop(heap)
        if has in seen:
            continue
        seen.add(has)
        after = [
            (i, rest)
            for i in usable
            if not has >> i & 1 and (rest := shape.without(left, shape.uses[i])) is not None
        ]
        if len(seen) > STATES_MAX or not any(wanted >> i & 1 for i, _ in after):
            return cost, len(seen)
        for i, rest in after:
            heappush(heap, (cost + costs[i], has | 1 << i, rest))
    raise AssertionError("a search ends where nothing more fits")


def weight_of(layout: Layout, earlier: int, kind: int) -> Work[int]:
    """Return what a device of an earlier kind (bit) is to cost in the row of a kind; 0: the one
    leaves the other as it is.

    With a high weight all devices of the kind are offered, but the earlier kind may have a part of
    its own only; with a low one it is the reverse. The weight is the one that loses least of
    either, and at most a third of the kind: who asks for the earlier kind may be somebody else.
    """
    own = yield from layout.room(kind, {kind: 1})
    others = yield from layout.room(earlier, {earlier: 1})
    if not own or not others:
        return 0
    beside = yield from layout.room(kind, {kind: 1, earlier: 0})
    if beside == own:
        return 0
    choices: list[tuple[int, int]] = []
    for weight in range(1, own + 1):
        room = yield from layout.room(kind, {kind: 1, earlier: weight})
        lost, lost_earlier = own - room, others - min(others, room // weight)
        if lost * 3 <= own:
            choices.append((max(lost * others, lost_earlier * own), weight))
    return min(choices)[1] if choices else own


#: Groups of devices by index, each with its shape.
Groups = tuple[tuple[tuple[int, ...], CounterShape], ...]
#: Pools of a cluster are alike, and to read what they consume takes long.
_POOLS_MAX = 64
_pools: dict[bytes, Groups | None] = {}


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """The devices of a node, whoever has them: how many of each mask there are, and those that
    share counters.
    """

    masks: tuple[tuple[int, int], ...] = ()
    layouts: tuple[Layout, ...] = ()
    #: Kinds (bits) of which kube-scheduler may find others, or fails; and those with a device that
    #: nobody can have.
    unsure: int = 0
    spoilt: int = 0
    #: False: nothing is had by a request for all devices.
    is_whole: bool = True

    def count(self, bit: int) -> int:
        """Return how many devices of a kind there are."""
        shared = sum(1 for layout in self.layouts for mask in layout.masks if mask & bit)
        return shared + sum(n for mask, n in self.masks if mask & bit)


def shapes(devices: Sequence[Device], sets: Sequence[CounterSet]) -> Groups | None:
    """Return the groups of devices that share counters, directly or through others; None where a
    device consumes what there is not (`validateDeviceCounterConsumption`). QuantityError.
    """
    key = msgspec.json.encode(([each.consumes_counters for each in devices], sets))
    if key not in _pools:
        if len(_pools) >= _POOLS_MAX:
            _pools.clear()
        _pools[key] = _read(devices, sets)
    return _pools[key]


def _read(devices: Sequence[Device], sets: Iterable[CounterSet]) -> Groups | None:
    limits = {(s.name, name): parse(c.value) for s in sets for name, c in s.counters.items()}
    uses = {i: each.consumed for i, each in enumerate(devices) if each.consumes_counters}
    if not all(use.keys() <= limits.keys() for use in uses.values()):
        return None
    scale = lcm(*(v.denominator for use in (limits, *uses.values()) for v in use.values()))
    groups: list[tuple[set[str], list[int]]] = []
    for i, use in uses.items():
        touched = {name for name, _ in use}
        near = [group for group in groups if group[0] & touched]
        groups = [group for group in groups if group not in near]
        members = [other for group in near for other in group[1]]
        groups.append((touched.union(*(group[0] for group in near)), [*members, i]))
    found: list[tuple[tuple[int, ...], CounterShape]] = []
    for touched, members in groups:
        digits, guards, at = dict[tuple[str, str], int](), 0, 0
        for key in sorted(limits):
            if key[0] in touched:
                digits[key] = at
                most = max(limits[key], *(uses[i].get(key, 0) for i in members))
                at += int(most * scale).bit_length() + 1
                guards |= 1 << at - 1
        total, *each = (
            sum(int(amount * scale) << digits[key] for key, amount in use.items() if key in digits)
            for use in (limits, *(uses[i] for i in members))
        )
        found.append((tuple(members), CounterShape(tuple(each), total, guards)))
    return tuple(found)
