"""The node table: what each node has and what of it is in use, as columns of integers.

Dim-major (resource x node), so that one vector operation answers a question for all nodes. A node
keeps its slot while it exists; a deleted node's slot is given to the next new node, lowest first.
A node that is used (by a claim or a pod) but not known, or no longer, keeps a slot as a ghost: its
use must not be forgotten, and nothing new goes there.

Every change is O(what changed): a slot's column is updated and the slot is put on the list of
stale slots, from which `fits.py` brings its rows up to date when it is next asked.

A resource has a row while some node offers it. Requests make no rows: every user who may create a
pod or a job chooses the names in it, and a row costs one cell per node. A request for a resource
without a row fits nowhere, and its amount of that resource is not booked; `set_node` returns the
resources that got a row, for the ledger to book what it holds of them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fairlead.api.kubernetes.core import Node
from fairlead.api.values.quantity import CPU, MEMORY, PODS
from fairlead.model.asks.requests import (
    NAME_COLUMN,
    ORDINARY,
    MemberClass,
    Request,
    RequestReader,
    is_device,
)
from fairlead.model.health.node_health import is_answering
from fairlead.model.health.windows import closed_of
from fairlead.model.inventory.device_offers import NODE_AMOUNT_MAX, DeviceOffers, ServedResources
from fairlead.model.inventory.image_table import ImageTable
from fairlead.model.inventory.labels import LabelTable, resized
from fairlead.model.inventory.mark_table import MarkTable
from fairlead.model.inventory.packing_order import (
    RANK_BITS,
    images_shift,
    packing_key,
    packing_key_of,
)
from fairlead.model.inventory.reserved_nodes import NodeReservation
from fairlead.model.inventory.window_table import WindowTable

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

_ONCE: Ints = np.ones(1, dtype=np.int64)
_ONCE.setflags(write=False)
_CAPACITY_START = 64
_VECTORS_MAX = 10_000
#: Resources of one node that count, and of all nodes together; further ones are not offered.
RESOURCES_PER_NODE_MAX = 64
ROWS_MAX = 256

#: They have a row whether a node offers them or not, the first ones.
_PERMANENT = (CPU, MEMORY, PODS)


class Use(NamedTuple):
    """`counts[i]` requests on each of the distinct slots."""

    slots: Ints
    counts: Ints
    request: Request


def counted(slots: Ints) -> tuple[Ints, Ints]:
    """Return the distinct slots in order, and how often each occurs; neither is to be changed.

    Most gangs have one member, for which `np.unique` takes 50 times as long as this.
    """
    return (slots, _ONCE) if len(slots) == 1 else np.unique(slots, return_counts=True)


class NodeTable:
    """Columns over node slots. All arrays have one column (or cell) per slot, used or not."""

    def __init__(self, reader: RequestReader | None = None) -> None:
        self._reader = reader or RequestReader()
        self._slots: dict[str, int] = {}
        self._free_slots: list[int] = list(range(_CAPACITY_START))
        #: The names in order, and the slot of each.
        self._sorted_names: list[str] = []
        self._sorted_slots: list[int] = []
        #: What nodes offer of devices that claims ask for. Read it only.
        self.devices = DeviceOffers()
        self._rows: dict[str, int] = {name: row for row, name in enumerate(_PERMANENT)}
        #: How many nodes offer each resource that has a row.
        self._offer_counts: dict[str, int] = dict.fromkeys(_PERMANENT, 0)
        self._vectors: dict[Request, Ints] = {}
        #: Name by slot, "" for an empty one.
        self.names: list[str] = [""] * _CAPACITY_START
        self.labels = LabelTable(_CAPACITY_START)
        self.windows = WindowTable(_CAPACITY_START)
        self.images = ImageTable(_CAPACITY_START)
        #: Which pods may be near which: what is booked, by slot.
        self.marks = MarkTable()
        #: int64[D, N], base units.
        self.allocatable: Ints = np.zeros((len(_PERMANENT), _CAPACITY_START), dtype=np.int64)
        #: int64[D, N], base units: claims of jobs and pods that no claim covers.
        self.used: Ints = np.zeros((len(_PERMANENT), _CAPACITY_START), dtype=np.int64)
        #: bool[N]: a node object exists (not empty, not a ghost).
        self.exists: Bools = np.zeros(_CAPACITY_START, dtype=np.bool_)
        self.ready: Bools = np.zeros(_CAPACITY_START, dtype=np.bool_)
        self.cordoned: Bools = np.zeros(_CAPACITY_START, dtype=np.bool_)
        #: bool[N]: nodes that may fail soon: see `set_suspects`.
        self.suspect: Bools = np.zeros(_CAPACITY_START, dtype=np.bool_)
        self._suspects: list[int] = []
        #: int64[N]: the packing order, smaller first: see `packing_order.py`. Unique per node.
        self._key: Ints = np.zeros(_CAPACITY_START, dtype=np.int64)
        self._rank: Ints = np.zeros(_CAPACITY_START, dtype=np.int64)
        self._ranks_stale = False
        #: `empty_key`, and the nodes that it is of.
        self._empty_key: tuple[tuple[int, int], Ints] | None = None
        self._device_rows: list[int] = []
        #: Slots whose amounts changed since the fits were last brought up to date.
        self.stale_amounts: list[Ints] = []
        #: Slots whose labels, taints or flags changed since then.
        self.stale_flags: list[int] = []
        #: Another number after every change of what a node is, as opposed to what is in use.
        self.nodes_version = 0
        self._versions = 0
        #: Rises with every change of which resources have rows, and where.
        self.rows_version = 0

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return len(self.names)

    @property
    def resources(self) -> list[str]:
        """Resource names by row."""
        return list(self._rows)

    @property
    def node_count(self) -> int:
        """Nodes that exist."""
        return int(self.exists.sum())

    def slot(self, name: str) -> int | None:
        """Return the slot of a node or a ghost, None when there is neither."""
        return self._slots.get(name)

    def row(self, resource: str) -> int:
        """Return the row of a resource; KeyError when no node offers it."""
        return self._rows[resource]

    def find_row(self, resource: str) -> int | None:
        """Return the row of a resource; None when no node offers it."""
        return self._rows.get(resource)

    def offers(self, request: Request) -> bool:
        """True when each resource of the request is offered by some node, whatever the amount."""
        return all(resource in self._rows for resource, _ in request)

    def owned(self, resource: str) -> Ints:
        """Return int64[N]: what each node has of a resource, used or not."""
        row = self._rows.get(resource)
        return np.zeros(self.capacity, dtype=np.int64) if row is None else self.allocatable[row]

    def unused(self, resource: str) -> Ints:
        """Return int64[N]: what is left of a resource on each node, not below zero."""
        row = self._rows.get(resource)
        if row is None:
            return np.zeros(self.capacity, dtype=np.int64)
        return np.clip(self.allocatable[row] - self.used[row], 0, None)

    def vector(self, request: Request) -> Ints:
        """Return a request as int64[D], without what no node offers. Shared: do not change it."""
        vector = self._vectors.get(request)
        if vector is None:
            if len(self._vectors) >= _VECTORS_MAX:
                self._vectors.clear()
            vector = np.zeros(len(self._rows), dtype=np.int64)
            for resource, amount in request:
                row = self._rows.get(resource)
                if row is not None:
                    vector[row] = min(amount, NODE_AMOUNT_MAX + 1)
            self._vectors[request] = vector
        return vector

    def set_node(self, node: Node, *, like: str = "") -> tuple[str, ...]:
        """Add or update a node; a heartbeat that changes nothing else costs nothing.

        Returns the resources that have a row from now on, in which nothing is booked yet. `like`:
        the node whose devices that claims ask for it has, by default its own.
        """
        name = node.metadata.name
        slot = self.occupy(name)
        changed = self._set_flags(slot, node)
        labels = {**node.metadata.labels, NAME_COLUMN: name}
        changed |= self.labels.set(slot, labels, node.spec.taints)
        changed |= self.windows.set(slot, closed_of(node.metadata.annotations))
        changed |= self.windows.set_labels(slot, labels)
        self.images.set(slot, node.status.images)
        if changed:
            self.stale_flags.append(slot)
        amounts = self._offered(node)
        self.devices.put_own(name, {r: n for r, n in amounts.items() if is_device(r)})
        amounts |= self.devices.of(name, like=like)
        new = self._add_rows([name for name in amounts if name not in self._rows])
        if self._set_amounts(slot, amounts) or changed:
            self.nodes_version = self.draw_version()
        return new

    def set_devices(
        self, offered: Mapping[str, Mapping[str, int]], served: ServedResources | None = None
    ) -> tuple[str, ...]:
        """Set what nodes offer of devices that claims ask for, whether they are known or not yet;
        see `DeviceOffers.set`.

        Returns what `set_node` does.
        """
        amounts = self.devices.set(offered, served, self._slots)
        if not amounts:
            return ()
        slots = [self._slots.get(name, -1) for name in amounts]
        here = [(s, a) for s, a in zip(slots, amounts.values(), strict=True)
                if s >= 0 and self.exists[s]]  # fmt: skip
        names = dict.fromkeys(chain.from_iterable(amounts for _, amounts in here))
        new = self._add_rows([resource for resource in names if resource not in self._rows])
        changed = np.array([slot for slot, _ in here], dtype=np.int64)
        claimed = {r: row for r, row in self._rows.items() if self.devices.are_of(r)}
        for row in claimed.values():
            self.allocatable[row, changed] = 0
        cells = [(self._rows[r], slot, n) for slot, amounts in here for r, n in amounts.items()
                 if r in self._rows]  # fmt: skip
        rows, columns, values = np.array(cells, dtype=np.int64).reshape(-1, 3).T
        self.allocatable[rows, columns] = values
        for resource, row in claimed.items():
            self._offer_counts[resource] = int((self.allocatable[row] > 0).sum())
        self._drop_rows()
        self._touch(changed)
        self.nodes_version = self.draw_version()
        return new

    def remove_node(self, name: str) -> None:
        """Remove a node; what still uses it keeps a ghost alive. Unknown names are ignored."""
        slot = self._slots.get(name)
        if slot is None or not self.exists[slot]:
            return
        self.exists[slot] = self.ready[slot] = self.cordoned[slot] = False
        self.labels.clear(slot)
        self.windows.set(slot, None)
        self.windows.set_labels(slot, {})
        self.images.set(slot, ())
        self.devices.put_own(name, {})
        self.stale_flags.append(slot)
        if not self._set_amounts(slot, {}):
            self._touch(np.array([slot]))
        self.nodes_version = self.draw_version()
        self.vacate(slot)

    def reserve(self, reserved: Iterable[NodeReservation]) -> None:
        """Set the reservations of nodes."""
        if changed := self.windows.reserve(reserved, self.labels.labels):
            self.stale_flags.extend(changed)
        self.nodes_version = self.draw_version()

    def set_suspects(self, names: Iterable[str]) -> None:
        """Put these nodes behind the others that have as many devices free."""
        slots = [slot for name in names if (slot := self._slots.get(name)) is not None]
        if slots != self._suspects:
            changed = np.array(sorted({*slots, *self._suspects}), dtype=np.int64)
            self.suspect[self._suspects] = False
            self.suspect[slots] = True
            self._suspects = slots
            self._touch(changed)
            self.nodes_version = self.draw_version()

    def occupy(self, name: str) -> int:
        """Return the slot of a name, making a ghost when it has none."""
        slot = self._slots.get(name)
        if slot is not None:
            return slot
        if not self._free_slots:
            self.resize(self.capacity * 2)
        slot = heapq.heappop(self._free_slots)
        self._slots[name] = slot
        self.names[slot] = name
        place = bisect_left(self._sorted_names, name)
        self._sorted_names.insert(place, name)
        self._sorted_slots.insert(place, slot)
        if place == len(self._slots) - 1:
            self._rank[slot] = place  # the last in order changes no other's rank
        else:
            self._ranks_stale = True
        return slot

    def vacate(self, slot: int) -> None:
        """Give a ghost's slot back once nothing uses it; every user takes at least one pod."""
        name = self.names[slot]
        if not name or self.exists[slot] or self.used[self._rows[PODS], slot]:
            return
        del self._slots[name]
        self.names[slot] = ""
        place = bisect_left(self._sorted_names, name)
        del self._sorted_names[place], self._sorted_slots[place]
        heapq.heappush(self._free_slots, slot)
        self._ranks_stale = self._ranks_stale or place < len(self._slots)

    def resize(self, capacity: int) -> None:
        """Have so many slots from now on; those cut off must be empty."""
        before = self.capacity
        if capacity == before:
            return
        assert capacity < 1 << RANK_BITS, "more nodes than the packing order has room for"
        assert not any(self.names[capacity:]), "a slot that is cut off is in use"
        self.names = self.names[:capacity] + [""] * (capacity - before)
        for column in (
            "allocatable", "used", "exists", "ready", "cordoned", "suspect", "_key", "_rank",
        ):  # fmt: skip
            setattr(self, column, resized(getattr(self, column), capacity))
        self.labels.resize(capacity)
        self.windows.resize(capacity)
        self.images.resize(capacity)
        slots = [slot for slot in self._free_slots if slot < capacity]
        self._free_slots = sorted([*slots, *range(before, capacity)])

    def draw_version(self) -> int:
        """Return a number that was never returned before."""
        self._versions += 1
        return self._versions

    def add(self, slots: Ints, counts: Ints, vector: Ints) -> None:
        """Put `counts[i]` members of this request on each of the distinct slots; may be
        negative.
        """
        self._count(slots, counts, vector)
        self._touch(slots)

    def book(self, slots: Ints, counts: Ints, request: Request) -> None:
        """Do the same for a request, with its marks."""
        self.add(slots, counts, self.vector(request))
        self.marks.add(request, slots, counts)

    def book_all(self, uses: Sequence[Use]) -> None:
        """Do the same for several; which place each node has in the packing order is found once."""
        if len(uses) == 1:
            self.book(*uses[0])
            return
        touched = np.zeros(self.capacity, dtype=np.bool_)
        for slots, counts, request in uses:
            self._count(slots, counts, self.vector(request))
            self.marks.add(request, slots, counts)
            touched[slots] = True
        self._touch(np.flatnonzero(touched))

    def _count(self, slots: Ints, counts: Ints, vector: Ints) -> None:
        if len(slots) == 1:
            self.used[:, slots[0]] += vector * counts[0]
        else:
            self.used[:, slots] += vector[:, None] * counts

    def free(self, slots: Ints | slice = slice(None)) -> Ints:
        """Return what is left per resource and slot; below zero where a node is overfull."""
        return self.allocatable[:, slots] - self.used[:, slots]

    @property
    def key(self) -> Ints:
        """The packing order of all slots: members go to the node with the smallest key that
        fits.
        """
        self._refresh_ranks()
        return self._key

    @property
    def empty_key(self) -> Ints:
        """The same were nothing in use; only the order of nodes that exist counts. Shared: do not
        change it.
        """
        nodes = (self.nodes_version, self.capacity)
        if self._empty_key is None or self._empty_key[0] != nodes:
            self._empty_key = (nodes, self.packing_key(self.allocatable))
        return self._empty_key[1]

    @property
    def rank(self) -> Ints:
        """The place of each slot in the order of node names."""
        self._refresh_ranks()
        return self._rank

    def packing_key(self, free: Ints, slots: Ints | slice = slice(None)) -> Ints:
        """Return the packing order of some slots, given what is free on them."""
        return packing_key(
            free, self.allocatable[:, slots], self._device_rows,
            suspect=self.suspect[slots], rank=self.rank[slots],
        )  # fmt: skip

    def images_key(self, member: MemberClass, images: tuple[str, ...]) -> Ints | None:
        """Return what `images` add to the packing order of a member, int64[N]; None where all nodes
        are alike. Nodes with less to pull come first among those that are as good.
        """
        lacking = self.images.uneven(images, self.exists)
        if lacking is None:
            return None
        has_devices = any(is_device(resource) for resource, _ in member.request)
        return lacking << images_shift(has_devices=has_devices)

    def _touch(self, slots: Ints) -> None:
        self.stale_amounts.append(slots)
        if self._ranks_stale:
            return
        if len(slots) == 1:
            slot = int(slots[0])
            self._key[slot] = packing_key_of(
                self.used[:, slot].tolist(), self.allocatable[:, slot].tolist(), self._device_rows,
                is_suspect=bool(self.suspect[slot]), rank=int(self._rank[slot]),
            )  # fmt: skip
        else:
            self._key[slots] = self.packing_key(self.free(slots), slots)

    def _refresh_ranks(self) -> None:
        if self._ranks_stale:
            order = np.array(self._sorted_slots, dtype=np.int64)
            self._rank[order] = np.arange(len(order))
            self._ranks_stale = False
            self._key = self.packing_key(self.free())

    def _set_flags(self, slot: int, node: Node) -> bool:
        before = (self.exists[slot], self.ready[slot], self.cordoned[slot])
        after = (True, is_answering(node), node.spec.unschedulable)
        self.exists[slot], self.ready[slot], self.cordoned[slot] = after
        return before != after

    def _offered(self, node: Node) -> dict[str, int]:
        """Return what a node offers, zero amounts left out; of too many names the ordinary ones."""
        given = node.status.allocatable or node.status.capacity
        if len(given) > RESOURCES_PER_NODE_MAX:
            order = sorted(given, key=lambda name: (name not in ORDINARY, name))
            given = {name: given[name] for name in order[:RESOURCES_PER_NODE_MAX]}
        amounts = self._reader.amounts(given)
        return {name: min(a, NODE_AMOUNT_MAX) for name, a in amounts.items() if a > 0}

    def _set_amounts(self, slot: int, amounts: Mapping[str, int]) -> bool:
        column = [0] * len(self._rows)
        for name, amount in amounts.items():
            row = self._rows.get(name)
            if row is not None:
                column[row] = amount
        before: list[int] = self.allocatable[:, slot].tolist()
        if before == column:
            return False
        for name, row in self._rows.items():
            self._offer_counts[name] += (column[row] > 0) - (before[row] > 0)
        self.allocatable[:, slot] = column
        self._drop_rows()
        self._touch(np.array([slot]))
        return True

    def _add_rows(self, resources: Sequence[str]) -> tuple[str, ...]:
        """Give each of these a row of zeros, as far as there may be more rows; return which."""
        new = tuple(resources[: ROWS_MAX - len(self._rows)])
        if new:
            zeros = np.zeros((len(new), self.capacity), dtype=np.int64)
            self.allocatable = np.concatenate([self.allocatable, zeros])
            self.used = np.concatenate([self.used, zeros])
            self._set_rows([*self._rows, *new])
        return new

    def _drop_rows(self) -> None:
        """Drop the rows of resources that no node offers any more."""
        kept = [n for n, count in self._offer_counts.items() if count or n in _PERMANENT]
        if len(kept) < len(self._rows):
            rows = [self._rows[name] for name in kept]
            self.allocatable, self.used = self.allocatable[rows], self.used[rows]
            self._set_rows(kept)

    def _set_rows(self, resources: Sequence[str]) -> None:
        counts = self._offer_counts
        self._rows = {name: row for row, name in enumerate(resources)}
        self._offer_counts = {name: counts.get(name, 0) for name in resources}
        self._device_rows = [row for name, row in self._rows.items() if is_device(name)]
        self._vectors.clear()
        self.rows_version += 1
