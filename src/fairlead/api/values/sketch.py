"""A mergeable summary of values: how many there were of each size, to one percent.

The mapping is that of DDSketch (Masson, Rim and Lee, VLDB 2019, doi:10.14778/3352063.3352135):
a value x > 0 counts in bin ceil(log x / log g) with g = (1 + a) / (1 - a), so that the middle of
its bin, 2 g**i / (g + 1), is off by at most the share a. Sketches are added, and subtracted, bin by
bin. Count, sum, extremes and quantiles all follow from the bins, so a text has nothing that could
contradict itself.

Text form: `bin:count` separated by blanks, in order; `z` is the bin of zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

ACCURACY = 0.01
_G = (1 + ACCURACY) / (1 - ACCURACY)
_LOG_G = math.log(_G)
#: Smaller values are zero, larger ones are refused: no count of bytes of a machine is near.
LEAST, MOST = 1e-6, 1e15
_BIN_MIN, _BIN_MAX = (math.ceil(math.log(each) / _LOG_G) for each in (LEAST, MOST))
#: Comes before all others.
_ZERO = _BIN_MIN - 1
#: In a text. Of more bins the lowest are added up, so high quantiles keep their accuracy.
TEXT_BINS_MAX = 64
BIN_COUNT_MAX = 9_999
TEXT_MAX = TEXT_BINS_MAX * len(f"{_BIN_MIN}:{BIN_COUNT_MAX} ")
TEXT_PATTERN = r"^((z|-?[0-9]{1,4}):[0-9]{1,4}( |$))*$"
_CELL = re.compile(r"(z|-?[0-9]{1,4}):([0-9]{1,4})", re.ASCII)


class BadSketch(ValueError):
    """A text that is no sketch."""


@dataclass(slots=True)
class Sketch:
    """Counts by bin; no bin has none."""

    counts: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, value: float) -> bool:
        """Count a value; False for one that is negative, no number, or too large."""
        if not 0 <= value <= MOST:
            return False
        found = _ZERO if value < LEAST else math.ceil(math.log(value) / _LOG_G)
        self.counts[found] = self.counts.get(found, 0) + 1
        return True

    def merge(self, other: Sketch, sign: int = 1) -> None:
        """Add another one; with sign -1 take away one that was added."""
        counts = self.counts
        for found, count in other.counts.items():
            left = counts.get(found, 0) + sign * count
            if left:
                counts[found] = left
            else:
                del counts[found]

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts.values())

    @property
    def total(self) -> float:
        """The sum of the values."""
        return sum(_middle(found) * count for found, count in self.counts.items())

    def quantiles(self, wanted: Iterable[float]) -> Iterator[float]:
        """Yield the value below which the share q lies, for rising q; 0 is the least, 1 the most.

        Nothing where there is no value.
        """
        if not self.counts:
            return
        left = sorted(self.counts.items(), reverse=True)
        last, passed = self.count - 1, 0
        found, count = left.pop()
        for q in wanted:
            while passed + count <= q * last:
                passed += count
                found, count = left.pop()
            yield _middle(found)

    def text(self) -> str:
        """Return the text form, within TEXT_MAX."""
        cells = sorted(self.counts.items())
        if len(cells) > TEXT_BINS_MAX:
            low, cells = cells[:-TEXT_BINS_MAX], cells[-TEXT_BINS_MAX:]
            lowest, count = cells[0]
            cells[0] = lowest, count + sum(each for _, each in low)
        return " ".join(
            f"{'z' if found == _ZERO else found}:{min(count, BIN_COUNT_MAX)}"
            for found, count in cells
        )


def _middle(found: int) -> float:
    return 0.0 if found == _ZERO else 2 * _G**found / (_G + 1)


def parse_sketch(text: str) -> Sketch:
    """Return the sketch of a text, whoever wrote it; BadSketch."""
    if len(text) > TEXT_MAX:
        raise BadSketch(f"longer than {TEXT_MAX} characters")
    counts: dict[int, int] = {}
    for cell in text.split(" ") if text else ():
        match = _CELL.fullmatch(cell)
        if match is None:
            raise BadSketch(f"{cell[:20]!r} is no bin with its count")
        found = _ZERO if match[1] == "z" else int(match[1])
        count = int(match[2])
        is_bin = _BIN_MIN <= found <= _BIN_MAX or match[1] == "z"
        if not is_bin or not count or found in counts:
            raise BadSketch(f"{cell!r} is out of bounds, empty or there twice")
        counts[found] = count
    if len(counts) > TEXT_BINS_MAX:
        raise BadSketch(f"more than {TEXT_BINS_MAX} bins")
    return Sketch(counts)
