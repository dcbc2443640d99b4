"""Collects rows and adds them to a tally, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fairlead.doctor.audit.tally import CLOCK_STEPS, DUPLICATE, Tally, Template, micros

ROWS_MAX = 40_000
TEMPLATES_MAX = 50_000
_NO_ID = hash("")

#: Returns which of the audit ids were not seen before; None when all are new.
Fresh = Callable[[list[str]], Sequence[bool] | None]


class SeenIds:
    """The audit ids of this and the previous flush, as hashes."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def fresh(self, audit_ids: list[str]) -> Sequence[bool] | None:
        """Return which ids are new; those without an id are."""
        hashes = list(map(hash, audit_ids))
        current = set(hashes)
        previous, self._seen = self._seen, current
        if len(current) == len(hashes) and previous.isdisjoint(current):
            return None
        fresh: list[bool] = []
        for each in hashes:
            fresh.append(each == _NO_ID or each not in previous)
            previous.add(each)
        return fresh


class Columns:
    """Rows that are not added up yet, and the templates that they refer to."""

    def __init__(self, tally: Tally, fresh: Fresh) -> None:
        self.tally = tally
        self._fresh = fresh
        self.templates: list[Template] = []
        self.numbers: dict[Template, int] = {}
        self._ids: list[int] = []
        self._stamps: list[bytes] = []
        self._waits: dict[int, float] = {}
        self._audit_ids: list[str] = []

    def number_of(self, template: Template) -> int:
        """Return the number of a template."""
        found = self.numbers.get(template)
        if found is None:
            found = self.numbers[template] = len(self.templates)
            self.templates.append(template)
            self.tally.note(template)
        return found

    @property
    def is_full(self) -> bool:
        """True when the templates should be dropped: `clear` then."""
        return len(self.templates) > TEMPLATES_MAX

    def wait(self, number: int, seconds: float) -> None:
        """Note that a request waited for a seat."""
        self._waits[number] = self._waits.get(number, 0.0) + seconds

    def add(self, ids: list[int], stamps: bytes, audit_ids: list[str]) -> None:
        """Take rows; `stamps` are joined and clean."""
        self._ids += ids
        self._stamps.append(stamps)
        self._audit_ids += audit_ids
        if len(self._ids) >= ROWS_MAX:
            self.flush()

    def clear(self) -> None:
        """Add up what there is and drop the templates; numbers are new from here on."""
        self.flush()
        self.templates.clear()
        self.numbers.clear()

    def flush(self) -> None:
        """Add all rows up."""
        for number, seconds in self._waits.items():
            self.tally.cost(self.templates[number].key).queue_seconds += seconds
        self._waits.clear()
        if not self._ids:
            return
        rows = len(self._ids)
        ids = np.array(self._ids, np.int64)
        joined = b"".join(self._stamps)
        start, end = micros(joined, rows, 0), micros(joined, rows, 47)
        fresh = self._fresh(self._audit_ids)
        if fresh is not None and not all(fresh):
            kept = np.array(fresh, np.bool_)
            self.tally.skipped[DUPLICATE] += int((~kept).sum())
            ids, start, end = ids[kept], start[kept], end[kept]
        self._ids, self._stamps, self._audit_ids = [], [], []
        if len(ids):
            self._add_up(ids, start, end)

    def _add_up(
        self,
        ids: np.ndarray[tuple[int], np.dtype[np.int64]],
        start: np.ndarray[tuple[int], np.dtype[np.int64]],
        end: np.ndarray[tuple[int], np.dtype[np.int64]],
    ) -> None:
        tally = self.tally
        seconds = (end - start) / 1e6
        stepped = (seconds < 0) | (start <= 0)
        count = int(stepped.sum())
        if count:
            tally.skipped[CLOCK_STEPS] += count
            seconds = np.where(stepped, 0.0, seconds)
        used, inverse = np.unique(ids, return_inverse=True)
        counts = np.bincount(inverse)
        sums = np.bincount(inverse, weights=seconds)
        largest = np.zeros(len(used))
        np.maximum.at(largest, inverse, seconds)
        is_list = np.zeros(len(used), np.bool_)
        for row, number in enumerate(used.tolist()):
            template = self.templates[number]
            cost = tally.cost(template.key)
            requests = int(counts[row])
            cost.requests += requests
            cost.codes[template.code] += requests
            if template.node:
                cost.nodes.add(template.node)
            if not template.is_long:
                cost.seconds += float(sums[row])
                cost.seconds_max = max(cost.seconds_max, float(largest[row]))
            is_list[row] = template.key.verb == "list"
        moments = start[is_list[inverse]] // 1_000_000
        tally.count_lists(*np.unique(moments, return_counts=True))
        tally.events += len(ids)
        written = end[end > 0]  # a line is written when its request ends
        if len(written):
            tally.see(int(written.min()), int(written.max()))
