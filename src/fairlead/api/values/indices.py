"""The indices of a job array, in the form of Slurm's `--array`: `0-31`, `1,3,5-7`, `0-99:4`.

An array may have a million elements, so a single range stays a range, and every other list is
expanded once, within the bounds below. Source: slurm.schedmd.com/job_array.html.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

#: The most elements of one array.
ELEMENTS_MAX = 1_000_000
#: The largest index: that of the largest MaxArraySize which Slurm accepts, 4000001.
INDEX_MAX = 4_000_000
#: The longest text of indices, in characters.
INDICES_TEXT_MAX = 65_536
_RANGE = re.compile(r"(\d{1,12})(?:-(\d{1,12})(?::(\d{1,12}))?)?", re.ASCII)
_FORMS = "accepted: indices and ranges, such as 0-31, 1,3,5-7 or 0-99:4"


class IndicesError(ValueError):
    """A text that is no list of indices; the message says which part, and what is accepted."""


@dataclass(frozen=True, slots=True)
class Indices:
    """The indices of an array in ascending order; an element's position is its place among them."""

    values: Sequence[int]
    #: Distance of the indices of a single range; 1 for a list (SLURM_ARRAY_TASK_STEP).
    step: int = 1

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self.values)

    def __iter__(self) -> Iterator[int]:
        """Yield the indices in ascending order."""
        return iter(self.values)

    @property
    def first(self) -> int:
        """The lowest index."""
        return self.values[0]

    @property
    def last(self) -> int:
        """The highest index."""
        return self.values[-1]

    def at(self, position: int) -> int:
        """Return the index of the element at a position."""
        return self.values[position]

    def position(self, index: int) -> int | None:
        """Return the position of an index; None when the array has no such element."""
        if isinstance(self.values, range):  # asked of each job of an array, again and again
            return self.values.index(index) if index in self.values else None
        place = bisect_left(self.values, index)
        return place if place < len(self.values) and self.values[place] == index else None


def parse_indices(text: str) -> Indices:
    """Return the indices that a text lists.

    IndicesError for an empty or malformed list, a descending range, a step of 0, an index beyond
    INDEX_MAX, an index that is listed twice, and more than ELEMENTS_MAX elements.
    """
    if not text.strip():
        raise IndicesError(f"lists no index; {_FORMS}")
    if len(text) > INDICES_TEXT_MAX:
        raise IndicesError(f"may have at most {INDICES_TEXT_MAX} characters, has {len(text)}")
    ranges = [_range(part.strip()) for part in text.split(",")]
    count = sum(map(len, ranges))
    if count > ELEMENTS_MAX:
        raise IndicesError(f"lists {count:,} elements; an array may have {ELEMENTS_MAX:,}")
    if len(ranges) == 1:
        return Indices(ranges[0], ranges[0].step)
    marks = bytearray(max(each[-1] for each in ranges) + 1)
    for each in ranges:
        found = marks[each.start : each.stop : each.step].find(1)
        if found >= 0:
            raise IndicesError(f"lists index {each[found]} twice")
        marks[each.start : each.stop : each.step] = b"\1" * len(each)
    return Indices(array("i", compress(range(len(marks)), marks)))


def format_indices(indices: Sequence[int], *, step: int = 1) -> str:
    """Return ascending indices as `parse_indices` reads them: `5-8,10`, with a step `0-8:4,16`."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - step:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    suffix = f":{step}" if step > 1 else ""
    return ",".join(str(a) if a == b else f"{a}-{b}{suffix}" for a, b in runs)


def _range(part: str) -> range:
    """Return one part of the list."""
    match = _RANGE.fullmatch(part)
    if match is None:
        raise IndicesError(f'"{part[:40]}" is no index and no range; {_FORMS}')
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    step = 1 if match[3] is None else int(match[3])
    if last < first:
        raise IndicesError(f'range "{part}" descends; write {last}-{first}')
    if step < 1:
        raise IndicesError(f'range "{part}" has the step 0; the least is 1')
    if last > INDEX_MAX:
        raise IndicesError(f"index {last} is too large; the largest is {INDEX_MAX:,}")
    return range(first, last + 1, step)
