"""Nodes that nothing uses and whose last test is old: kept by event, so that a look costs nothing.

A node is due once it has been idle for a while and its last test is an interval ago; at once where
a sign of trouble is younger than that test. Instants are of a monotonic clock, as in
`pools/pool_nodes.py`; those of tests are of the wall clock, and count by their age when seen. A new
process does not know since when nodes are idle, and counts from its start.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replaced
from heapq import heapify, heappop, heappush
from itertools import takewhile

from fairlead.api.kubernetes.core import Node

#: After a test that found nothing out, the next one is so much later.
RETRY_SECONDS = 3600.0
#: Every node that is idle is tested within so long.
WITHIN_SECONDS = 86_400.0
NEVER = float("-inf")
#: Entries out of date that the queue may have.
_QUEUE_SLACK = 1000


@dataclass(frozen=True, slots=True)
class PastTests:
    """What tests of a node there were. Instants of the wall clock; NEVER: none.

    `tested_at`: the latest that found out how the machine is; `tried_at`: the latest that ended.
    """

    number: int = 0
    tested_at: float = NEVER
    tried_at: float = NEVER


@dataclass(frozen=True, slots=True)
class DueNode:
    """A node that is to be tested. Instants: `since` when, `late_at` when it should have been, and
    `tested` of its last test. By `order`, suspects come first, then the longest untested.
    """

    node: Node
    past: PastTests
    tested: float
    since: float
    order: tuple[bool, float, str]
    #: Set when it is due for the first time since its last test, and then kept if it is used.
    late_at: float = float("inf")

    @property
    def is_suspect(self) -> bool:
        """True when it has shown a sign of trouble since its last test."""
        return not self.order[0]


class DueNodes:
    """The nodes that are to be tested, by `order`: of thousands a decision looks at the first."""

    def __init__(self) -> None:
        self._by_name: dict[str, DueNode] = {}
        self._orders: list[tuple[bool, float, str]] = []
        #: (`late_at`, name), the earliest first.
        self._ends: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[DueNode]:
        return (self._by_name[name] for _, _, name in self._orders)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def names(self) -> Iterator[str]:
        """The nodes, in the order in which they became due."""
        return iter(self._by_name)

    def late(self, instant: float) -> list[DueNode]:
        """Return those that should have been tested, and were not, the longest late first."""
        found = takewhile(lambda end: end[0] <= instant, self._ends)
        return [self._by_name[name] for _, name in found]

    def put(self, name: str, due: DueNode) -> None:
        """Take in a node that is none of them."""
        self._by_name[name] = due
        insort(self._orders, due.order)
        insort(self._ends, (due.late_at, name))

    def remove(self, name: str) -> None:
        """Take a node out; nothing where it is none of them."""
        due = self._by_name.pop(name, None)
        if due is not None:
            del self._orders[bisect_left(self._orders, due.order)]
            del self._ends[bisect_left(self._ends, (due.late_at, name))]


class IdleNodes:
    """Which nodes are to be tested."""

    def __init__(self, idle_seconds: float, interval_seconds: float) -> None:
        """`idle_seconds`: before a node is tested; `interval_seconds`: between two tests."""
        self._idle_seconds = idle_seconds
        self._interval_seconds = interval_seconds
        self._idle_since: dict[str, float] = {}
        #: Nodes that may be tested, as soon as they are due. Those in use are not among them.
        self._waiting: dict[str, DueNode] = {}
        self._fit: dict[str, DueNode] = {}
        #: (instant, node); what `_waiting` has with another instant is out of date.
        self._queue: list[tuple[float, str]] = []
        self._due = DueNodes()

    def put(self, node: Node, past: PastTests, *, is_fit: bool, now: float, instant: float) -> None:
        """Take in a node and its tests. `is_fit`: it can be tested, if nothing uses it."""
        name, before = node.metadata.name, self._fit.get(node.metadata.name)
        self._idle_since.setdefault(name, instant)
        if not is_fit:
            self._fit.pop(name, None)
            self._leave(name)
            return
        if before is not None and before.past == past:
            self._fit[name] = replaced(before, node=node)
            return
        tested, tried = (instant - (now - at) for at in (past.tested_at, past.tried_at))
        since = max(tested + self._interval_seconds, tried + RETRY_SECONDS)
        since = min(since, instant + self._interval_seconds)
        self._fit[name] = DueNode(node, past, tested, since, (True, past.tested_at, name))
        self._wait(name)

    def remove(self, name: str) -> None:
        """Take in that a node is gone."""
        self._idle_since.pop(name, None)
        self._fit.pop(name, None)
        self._leave(name)

    def set_used(self, name: str, instant: float, *, is_used: bool) -> None:
        """Take in that use of a node has begun or ended."""
        if is_used:
            self._idle_since[name] = float("inf")
            self._leave(name)
        elif name in self._idle_since:
            self._idle_since[name] = instant
            self._wait(name)

    def suspect(self, signs: Mapping[str, float], now: float, instant: float) -> None:
        """Have those tested at once that have shown a sign, by the wall clock, since their test."""
        for name, at in sorted(signs.items()):
            fit = self._fit.get(name)
            if fit is None or fit.is_suspect or at <= fit.past.tested_at:
                continue
            tried = instant - (now - fit.past.tried_at)
            self._fit[name] = replaced(
                fit, since=tried + RETRY_SECONDS, order=(False, *fit.order[1:])
            )
            self._wait(name)

    def due(self, instant: float) -> DueNodes:
        """Return the nodes that are to be tested now."""
        while self._queue and self._queue[0][0] <= instant:
            at, name = heappop(self._queue)
            waiting = self._waiting.get(name)
            if waiting is not None and waiting.since == at:
                del self._waiting[name]
                self._due.put(name, self._first_due(name, at))
        return self._due

    def is_free(self, name: str) -> bool:
        """True for a node that nothing uses and that may be tested, due or not."""
        return name in self._waiting or name in self._due

    def free(self) -> Iterator[str]:
        """Yield these nodes."""
        yield from self._waiting
        yield from self._due.names

    def idle_since(self, name: str) -> float:
        """Return since when a node has been idle, as far as this process knows; infinity: it is
        not.
        """
        return self._idle_since.get(name, float("inf"))

    def _first_due(self, name: str, at: float) -> DueNode:
        fit = self._fit[name]
        if fit.late_at == float("inf"):
            late_at = max(fit.tested, self._idle_since[name]) + WITHIN_SECONDS
            self._fit[name] = fit = replaced(fit, late_at=late_at)
        return replaced(fit, since=at)

    def _wait(self, name: str) -> None:
        """Put a node into the queue, where it may be tested and is idle."""
        self._leave(name)
        fit, idle_since = self._fit.get(name), self._idle_since[name]
        if fit is None or idle_since == float("inf"):
            return
        at = max(fit.since, idle_since if fit.is_suspect else idle_since + self._idle_seconds)
        self._waiting[name] = replaced(fit, since=at)
        heappush(self._queue, (at, name))
        if len(self._queue) > 2 * len(self._waiting) + _QUEUE_SLACK:
            self._queue = [(each.since, name) for name, each in self._waiting.items()]
            heapify(self._queue)

    def _leave(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._due.remove(name)
