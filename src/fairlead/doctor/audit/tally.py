"""Adds events up per caller and kind of request, in bounded memory; tallies of parts can be merged.

An event becomes a row: the number of its template and two times. Templates (who, what, which code)
are few; what is added up per row is done for many rows at a time, in columns.

Distinct texts are counted exactly while they are few, then by linear counting (Whang et al. 1990),
which with 32,768 bits has a standard error of about 0.5 % at 10,000.
"""

from __future__ import annotations

import datetime
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairlead.doctor.audit.event import TEXT_MAX, AuditCaller
from fairlead.doctor.audit.request import AuditRequest
from fairlead.doctor.audit.summary import Key

EXACT_MAX = 512
BITS = 1 << 15


def value_of(text: str) -> int:
    """Return the 32 bits that a text is counted by; the same on every machine."""
    return zlib.crc32(text.encode("utf-8", "replace")) * 2_654_435_761 & 0xFFFFFFFF


class Distinct:
    """A set of texts of which only the size is asked; at most 4 KiB when there are many."""

    __slots__ = ("_bits", "_exact")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._exact: set[int] | None = set()
        self._bits = bytearray()
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        """Count a text."""
        self._add(value_of(text))

    def add_values(self, values: NDArray[np.int64]) -> None:
        """Count texts by their values."""
        for value in np.unique(values).tolist():
            self._add(value)

    def _add(self, value: int) -> None:
        if self._exact is not None:
            self._exact.add(value)
            if len(self._exact) > EXACT_MAX:
                self._spread()
            return
        bit = value >> 17  # of 32: the well mixed ones
        self._bits[bit >> 3] |= 1 << (bit & 7)

    def _spread(self) -> None:
        """Go over from the set to bits."""
        values, self._exact = self._exact or (), None
        self._bits = bytearray(BITS // 8)
        for value in values:
            self._add(value)

    def update(self, other: Distinct) -> None:
        """Count what another one counted."""
        if other._exact is not None:
            for value in other._exact:
                self._add(value)
            return
        if self._exact is not None:
            self._spread()
        merged = int.from_bytes(self._bits, "big") | int.from_bytes(other._bits, "big")
        self._bits = bytearray(merged.to_bytes(BITS // 8, "big"))

    def __len__(self) -> int:
        if self._exact is not None:
            return len(self._exact)
        empty = BITS - int.from_bytes(self._bits, "big").bit_count()
        return round(-BITS * math.log(max(empty, 1) / BITS))


KEYS_MAX = 20_000
SECONDS_MAX = 200_000
RESOURCES_MAX = 2_000
STAMP_BYTES = 74
SEPARATOR = b'","stageTimestamp":"'
DUPLICATE = "duplicate events"
CLOCK_STEPS = "durations below zero, taken as zero (clock steps)"
LONG_RUNNING = frozenset(("watch", "connect"))
_DIGITS = np.array([0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 22, 23, 24, 25])
_MARKS = {4: 45, 7: 45, 10: 84, 13: 58, 16: 58, 19: 46, 26: 90}


OTHER = Key("(others)", "", "", "", "", "", "")


class RowTemplate(NamedTuple):
    """What rows have in common."""

    key: Key
    node: str
    has_node: bool
    code: int
    is_long: bool


@dataclass
class Cost:
    """What one key cost."""

    requests: int = 0
    seconds: float = 0.0
    seconds_max: float = 0.0
    queue_seconds: float = 0.0
    codes: Counter[int] = field(default_factory=Counter[int])
    nodes: Distinct = field(default_factory=Distinct)

    def merge(self, other: Cost) -> None:
        """Add another part's cost of the same key."""
        self.requests += other.requests
        self.seconds += other.seconds
        self.seconds_max = max(self.seconds_max, other.seconds_max)
        self.queue_seconds += other.queue_seconds
        self.codes += other.codes
        self.nodes.update(other.nodes)


@dataclass
class Tally:
    """All costs of a log, or of a part of one. Times are microseconds since 1970."""

    costs: dict[Key, Cost] = field(default_factory=dict[Key, Cost])
    skipped: Counter[str] = field(default_factory=Counter[str])
    lists_by_second: Counter[int] = field(default_factory=Counter[int])
    objects: dict[str, Distinct] = field(default_factory=dict[str, Distinct])
    nodes: Distinct = field(default_factory=Distinct)
    addresses: Distinct = field(default_factory=Distinct)
    events: int = 0
    panics: int = 0
    first: int = 0
    last: int = 0

    def cost(self, key: Key) -> Cost:
        """Return the cost of a key to add to; keys beyond the bound share one."""
        found = self.costs.get(key)
        if found is None:
            if len(self.costs) >= KEYS_MAX:
                self.skipped["kinds of request beyond the bound, added up as others"] += 1
                return self.costs.setdefault(OTHER, Cost())
            found = self.costs[key] = Cost()
        return found

    def see(self, start: int, end: int) -> None:
        """Widen the time that the log covers."""
        self.first = min(self.first or start, start)
        self.last = max(self.last, end)

    def see_name(self, request: AuditRequest, namespace: str, name: str) -> None:
        """Count the object that a request names: a lower bound of how many there are."""
        names = self._names_of(request)
        if names is not None:
            names.add(f"{namespace}/{name}")

    def see_values(self, request: AuditRequest, values: NDArray[np.int64]) -> None:
        """Count objects of which only the values of `distinct.value_of` are known."""
        names = self._names_of(request)
        if names is not None:
            names.add_values(values)

    def _names_of(self, request: AuditRequest) -> Distinct | None:
        resource = request.resource.partition("/")[0]
        if resource not in self.objects and len(self.objects) >= RESOURCES_MAX:
            return None
        return self.objects.setdefault(resource, Distinct())

    def note(self, caller: AuditCaller | RowTemplate) -> None:
        """Count the node of a caller."""
        if caller.node:
            (self.nodes if caller.has_node else self.addresses).add(caller.node)

    def count_lists(self, seconds: NDArray[np.int64], lists: NDArray[np.int64]) -> None:
        """Count LISTs by the second in which they began."""
        for second, count in zip(seconds.tolist(), lists.tolist(), strict=True):
            if second in self.lists_by_second or len(self.lists_by_second) < SECONDS_MAX:
                self.lists_by_second[second] += count

    def merge(self, other: Tally) -> None:
        """Add the tally of another part."""
        for key, cost in other.costs.items():
            self.cost(key).merge(cost)
        self.skipped += other.skipped
        lists = other.lists_by_second
        self.count_lists(np.fromiter(lists.keys(), np.int64), np.fromiter(lists.values(), np.int64))
        for resource, names in other.objects.items():
            self.objects.setdefault(resource, Distinct()).update(names)
        self.nodes.update(other.nodes)
        self.addresses.update(other.addresses)
        self.events += other.events
        self.panics += other.panics
        if other.last:
            self.see(other.first, other.last)


def template_of(caller: AuditCaller, verb: str, request: AuditRequest, code: int) -> RowTemplate:
    """Return the template of an event."""
    key = Key(caller.principal, caller.program, caller.workload, verb[:TEXT_MAX], request.resource,
              request.scope, request.shape)  # fmt: skip
    is_long = verb in LONG_RUNNING or request.is_connection
    return RowTemplate(key, caller.node, caller.has_node, code, is_long)


def stamps_are_clean(joined: bytes, rows: int) -> bool:
    """True when all stamps are two times of 27 characters with the separator between."""
    if len(joined) != rows * STAMP_BYTES:
        return False
    if rows < 50:
        return _STAMPS.fullmatch(joined) is not None
    cells = np.frombuffer(joined, np.uint8).reshape(rows, STAMP_BYTES)
    if not bool((cells[:, 27:47] == _SEPARATOR).all()):
        return False
    for offset in (0, 47):
        digits = cells[:, _DIGITS + offset]
        if bool(((digits < 48) | (digits > 57)).any()):
            return False
        if any(bool((cells[:, at + offset] != mark).any()) for at, mark in _MARKS.items()):
            return False
    return True


_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
_STAMPS = re.compile(rb"(?:" + _TIME + re.escape(SEPARATOR) + _TIME + rb")*")
_SEPARATOR = np.frombuffer(SEPARATOR, np.uint8)


def micros(joined: bytes, rows: int, offset: int) -> NDArray[np.int64]:
    """Return the times of clean stamps at the offset, in microseconds since 1970."""
    cells = np.frombuffer(joined, np.uint8).reshape(rows, STAMP_BYTES)[:, offset : offset + 27]
    d = cells.astype(np.int64) - 48
    days = np.empty(rows, np.int64)
    dates = d[:, 0] * 10**7 + d[:, 1] * 10**6 + d[:, 2] * 10**5 + d[:, 3] * 10**4
    dates += d[:, 5] * 1000 + d[:, 6] * 100 + d[:, 8] * 10 + d[:, 9]
    for date in np.unique(dates):
        days[dates == date] = _day(int(date))
    seconds = (d[:, 11] * 10 + d[:, 12]) * 3600 + (d[:, 14] * 10 + d[:, 15]) * 60
    seconds += d[:, 17] * 10 + d[:, 18] + days * 86_400
    fraction = d[:, 20:26] @ np.array([100_000, 10_000, 1000, 100, 10, 1], np.int64)
    return seconds * 1_000_000 + fraction


def _day(date: int) -> int:
    """Return the day since 1970 of YYYYMMDD; 0 for a date that does not exist."""
    try:
        return datetime.date(date // 10_000, date // 100 % 100, date % 100).toordinal() - 719_163
    except ValueError:
        return 0
