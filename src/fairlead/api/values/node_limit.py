"""A limit on nodes as people write it: a count such as 3, or a share of a pool such as "10%"."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PERCENT = re.compile(r"(\d{1,2}|100)%", re.ASCII)
_COUNT = re.compile(r"\d{1,6}", re.ASCII)


class NodeLimitError(ValueError):
    """The text is no limit; the message says what is accepted."""


@dataclass(frozen=True, slots=True)
class NodeLimit:
    """So many nodes, or percent of them."""

    number: int
    is_percent: bool = False

    def of(self, size: int) -> int:
        """Return how many nodes of a pool of that size: shares round down, but not to 0."""
        if not self.is_percent:
            return self.number
        return max(1, size * self.number // 100) if self.number else 0


def parse_limit(value: str | int) -> NodeLimit:
    """Return the limit that 3, "3" or "10%" means; NodeLimitError."""
    text = str(value)
    if _PERCENT.fullmatch(text):
        return NodeLimit(int(text[:-1]), is_percent=True)
    if isinstance(value, bool) or not _COUNT.fullmatch(text):
        raise NodeLimitError('must be a count of nodes such as 3, or a share such as "10%"')
    return NodeLimit(int(text))
