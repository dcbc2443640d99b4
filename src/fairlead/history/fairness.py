"""Who loses what when a store is full: the one that holds most loses its oldest.

Repeated until everything fits, this takes from the largest holders down to one level and nothing
from those below it, so a namespace that writes without end drops its own records only, as long as
it holds more than an equal share.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V", bound="DataclassInstance")


def fair_level(held: Mapping[str, int], total_max: int) -> int | None:
    """Return what each holder may keep so that all fit into `total_max`; None when they do."""
    left = total_max
    sizes = sorted(held.values())
    for place, size in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return None


class FairStore(Generic[V]):
    """Values by key, in the order in which they were put, bounded in number and in bytes."""

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._holder_of: dict[str, str] = {}
        #: By holder and key: what a value takes up, and the value.
        self._held: dict[str, dict[str, tuple[int, V]]] = {}
        self._byte_counts: dict[str, int] = {}
        self.byte_count = 0

    def get(self, key: str) -> V | None:
        """Return the value, or None."""
        holder = self._holder_of.get(key)
        return self._held[holder][key][1] if holder is not None else None

    def values(self, holder: str = "") -> Iterator[V]:
        """Yield what a holder has, or, for "", what all have."""
        found: Iterable[dict[str, tuple[int, V]]] = self._held.values()
        if holder:
            found = (self._held.get(holder, {}),)
        return (value for kept in found for _, value in kept.values())

    def put(self, key: str, value: V, *, holder: str) -> None:
        """Keep a value as the latest one, in place of an earlier one of the key."""
        self._drop(key)
        size = memory_bytes(value)
        self._holder_of[key] = holder
        self._held.setdefault(holder, {})[key] = (size, value)
        self._count(holder, size)
        while len(self._holder_of) > self._count_max:
            self._drop_oldest(max(self._held, key=lambda each: (len(self._held[each]), each)))
        while self.byte_count > self._bytes_max:
            self._drop_oldest(max(self._held, key=lambda each: (self._byte_counts[each], each)))

    def _drop_oldest(self, holder: str) -> None:
        self._drop(next(iter(self._held[holder])))

    def _drop(self, key: str) -> None:
        holder = self._holder_of.pop(key, None)
        if holder is None:
            return
        size, _ = self._held[holder].pop(key)
        self._count(holder, -size)
        if not self._held[holder]:
            del self._held[holder], self._byte_counts[holder]

    def _count(self, holder: str, size: int) -> None:
        self._byte_counts[holder] = self._byte_counts.get(holder, 0) + size
        self.byte_count += size


def memory_bytes(value: DataclassInstance) -> int:
    """Return what a record takes up in memory, with the few fields that it has."""
    # Not by `astuple`, which copies each value.
    parts = (sys.getsizeof(getattr(value, each.name)) for each in fields(value))
    return sys.getsizeof(value) + sum(parts)
