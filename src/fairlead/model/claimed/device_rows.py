"""How devices are counted: as rows of the node table, one for each set of kinds that may compete.

Kinds of devices overlap: some devices are of several. Members fit on a node if and only if, for
each set of kinds, all that ask for one of them are no more than the devices of any of them (Hall's
theorem). So a set of kinds that are connected by devices in common is a *row*: a node offers the
devices of any kind in it, and a member takes of it what it asks of the kinds that lie within it.
Sets that are made up of the same devices are one row. Kinds apart, the usual case, are a row each,
and kinds of which one contains the other as well; CPU and devices are then alike to the planner.

What a device is of is a *mask*: bit i for kind i. Rows follow from the masks that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations

from fairlead.api.quantity import CLAIMED
from fairlead.model.asks.requests import Request, request_of
from fairlead.model.claimed.device_asks import DeviceAsk, DeviceKind

#: Kinds that overlap in a chain, and rows in all. Kinds beyond have no row.
OVERLAPPING_MAX, ROWS_MAX = 6, 128
_TEXT_MAX = 120


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row: its name, and the bits of the kinds that lie within, of which all devices count."""

    name: str
    bits: int

    def counts(self, mask: int) -> bool:
        """True for a device with this mask."""
        return bool(self.bits & mask)


class DeviceRows:
    """The rows of some kinds. The earlier kinds come first where there are too many."""

    def __init__(self, kinds: Sequence[tuple[DeviceKind, int]], masks: Iterable[int]) -> None:
        """`kinds` with the bit of each; `masks` of all devices."""
        self._masks = sorted({mask for mask in masks if mask})
        self._content = {
            bit: frozenset(mask for mask in self._masks if mask & bit) for _, bit in kinds
        }
        self.rows: tuple[DeviceRow, ...] = ()
        self._bits: dict[DeviceKind, int] = {}
        names: dict[int, str] = {}
        for kind, bit in kinds:
            bits = {**self._bits, kind: bit}
            rows = self._rows({**names, bit: _text(kind)})
            if rows is not None:
                self._bits, self.rows = bits, rows
                names[bit] = _text(kind)

    def has(self, kind: DeviceKind) -> bool:
        """True for a kind that is counted."""
        return kind in self._bits

    def is_nowhere(self, kind: DeviceKind) -> bool:
        """True for a kind of which there is no device."""
        bit = self._bits.get(kind)
        return bit is None or not self._content[bit]

    def request(self, asks: Iterable[DeviceAsk]) -> Request:
        """Return what a member takes of each row; it asks for kinds that are counted."""
        counts = [(self._bits[ask.kind], ask.count) for ask in asks]
        taken = {r.name: sum(n for bit, n in counts if r.bits & bit) for r in self.rows}
        return request_of(taken.items())

    def offered(self, masks: Mapping[int, int]) -> dict[str, int]:
        """Return what there is of each row, given how many devices have each mask."""
        return {
            row.name: count
            for row in self.rows
            if (count := sum(n for mask, n in masks.items() if row.counts(mask)))
        }

    def _rows(self, names: Mapping[int, str]) -> tuple[DeviceRow, ...] | None:
        """Return the rows of some kinds, by bit; None where there would be too many."""
        found: list[DeviceRow] = []
        for part in self._parts(list(names)):
            if len(part) > OVERLAPPING_MAX:
                return None
            found += self._rows_of(part, names)
        return None if len(found) > ROWS_MAX else tuple(sorted(found, key=lambda row: row.name))

    def _parts(self, bits: Sequence[int]) -> list[list[int]]:
        """Return the kinds that are connected by devices in common."""
        parts: list[list[int]] = []
        for bit in bits:
            touched = [p for p in parts if any(self._content[bit] & self._content[o] for o in p)]
            parts = [part for part in parts if part not in touched]
            parts.append(sorted([bit, *(other for part in touched for other in part)]))
        return parts

    def _rows_of(self, part: Sequence[int], names: Mapping[int, str]) -> Iterable[DeviceRow]:
        rows: dict[frozenset[int], DeviceRow] = {}
        for size in range(1, len(part) + 1):
            for chosen in combinations(part, size):
                if len(self._parts(chosen)) > 1:
                    continue  # the rows of its parts say as much
                content = frozenset[int]().union(*(self._content[bit] for bit in chosen))
                if content not in rows:
                    within = [bit for bit in part if self._content[bit] <= content]
                    rows[content] = self._row(content, within, names)
        return rows.values()

    def _row(
        self, content: frozenset[int], within: Sequence[int], names: Mapping[int, str]
    ) -> DeviceRow:
        """Return a row, named after the kinds that are in no other one of it."""
        outer = [
            bit for bit in within if not any(self._content[bit] < self._content[o] for o in within)
        ]
        name = " or ".join(sorted({names[bit] for bit in outer}))
        return DeviceRow(f"{CLAIMED}{_short(name)}", sum(within))


def _text(kind: DeviceKind) -> str:
    if not kind.selectors:
        return kind.device_class
    return f"{kind.device_class} [{_short(' && '.join(kind.selectors))}]"


def _short(text: str) -> str:
    """Return a text that is no longer than can be read, and still one of a kind."""
    if len(text) <= _TEXT_MAX:
        return text
    return f"{text[:_TEXT_MAX]}... {sha256(text.encode()).hexdigest()[:8]}"
