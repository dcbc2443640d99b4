"""What nodes' exporters said in their latest windows, by fleet, pool, rack, team and job (pure).

Each report is added as it comes and taken away as the next one replaces it. A node speaks for
itself: its pool and rack are those of its Node, and a pod counts for its team and job only while
it is bound to that node. A node that lies falsifies sums of which it is a part anyway, and by a
bounded number of values. Nothing is decided by these figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Self

from fairlead.api.cluster.node_report import (
    EXPORTED_METRICS_MAX,
    EXPORTED_SECONDS_MAX,
    EXPORTED_VALUES_MAX,
    ReportedExports,
)
from fairlead.api.values.sketch import BadSketch, Sketch, parse_sketch
from fairlead.api.values.times import parse_time

#: A window counts for so many of its lengths, and a write of the collector, after its end.
_WINDOWS_MAX, _WRITE_SECONDS = 3, 30.0


class ExportScope(Enum):
    """What values are added up by; `most` is how many of it have figures."""

    _value_: str
    most: int

    def __new__(cls, value: str, most: int) -> Self:
        """Make a member."""
        made = object.__new__(cls)
        made._value_, made.most = value, most
        return made

    FLEET = "fleet", 1
    POOL = "pool", 500
    RACK = "rack", 500
    TEAM = "team", 500
    JOB = "job", 50  # those with the most values


class ExportState(Enum):
    """What is known of a node's exporters."""

    COUNTED = "counted"
    SILENT = "silent"  # its latest window is old: it counts no longer
    REFUSED = "refused"  # its report is no sketch


class ExportKey(NamedTuple):
    """A sum: of what, of which one, and of which metric."""

    scope: ExportScope
    name: str
    metric: str


#: Returns the team and the job of a pod that is on the node; "": none.
PodOwner = Callable[[str, str], tuple[str, str]]


class _Given(NamedTuple):
    """What a node has added, so that it can be taken away: the text, not what it was read to."""

    ends_at: float
    state: ExportState
    parts: tuple[tuple[tuple[ExportKey, ...], str], ...]


@dataclass(slots=True)
class ExportBook:
    """The sums over all nodes whose windows are fresh."""

    _sums: dict[ExportKey, Sketch] = field(default_factory=dict[ExportKey, Sketch])
    _given: dict[str, _Given] = field(default_factory=dict[str, _Given])
    #: Nodes by metric: those that few nodes report have no figures where there are too many.
    _metrics: Counter[str] = field(default_factory=Counter[str])

    def put(
        self, node: str, exports: ReportedExports | None, now: float,
        *, pool: str = "", rack: str = "", owner: PodOwner = lambda _space, _pod: ("", ""),
    ) -> None:  # fmt: skip
        """Replace what a node said; None: it says nothing."""
        self._take_away(node)
        self._given.pop(node, None)
        if exports is None:
            return
        of_node = [(ExportScope.FLEET, ""), (ExportScope.POOL, pool), (ExportScope.RACK, rack)]
        parts: list[tuple[tuple[ExportKey, ...], str]] = []
        try:
            ends_at = _ends_at(exports, now)
            read = [parse_sketch(each.sketch) for each in exports.sketches]
            _check(exports, read)
        except ValueError:
            self._given[node] = _Given(now + _WRITE_SECONDS, ExportState.REFUSED, ())
            return
        for each in exports.sketches:
            team, job = owner(each.namespace, each.pod) if each.pod else ("", "")
            scopes = [*of_node, (ExportScope.TEAM, team), (ExportScope.JOB, job)]
            keys = tuple(
                ExportKey(scope, name, each.metric)
                for scope, name in scopes
                if name or scope is ExportScope.FLEET
            )
            parts.append((keys, each.sketch))
        for (keys, _), sketch in zip(parts, read, strict=True):
            for key in keys:
                self._sums.setdefault(key, Sketch()).merge(sketch)
        self._metrics.update({each.metric for each in exports.sketches})
        self._given[node] = _Given(ends_at, ExportState.COUNTED, tuple(parts))

    def expire(self, now: float) -> None:
        """Take away what nodes said whose latest window is old."""
        for node, given in list(self._given.items()):
            if given.ends_at < now and given.state is not ExportState.SILENT:
                self._take_away(node)
                self._given[node] = _Given(given.ends_at, ExportState.SILENT, ())

    def _take_away(self, node: str) -> None:
        given = self._given.get(node)
        if given is None:
            return
        for keys, text in given.parts:
            sketch = parse_sketch(text)
            for key in keys:
                found = self._sums[key]
                found.merge(sketch, -1)
                if not found.counts:
                    del self._sums[key]
        self._metrics.subtract({keys[0].metric for keys, _ in given.parts})
        self._metrics += Counter()

    @property
    def states(self) -> Counter[ExportState]:
        """How many nodes have said something, by what became of it."""
        return Counter(each.state for each in self._given.values())

    def get(self, key: ExportKey) -> Sketch | None:
        """Return a sum; None where nothing is in it."""
        return self._sums.get(key)

    def shown(self) -> Iterator[ExportKey]:
        """Yield the sums that have figures, in order; bounded whatever nodes say."""
        order = sorted(self._metrics.items(), key=lambda each: (-each[1], each[0]))
        metrics = sorted(name for name, _ in order[:EXPORTED_METRICS_MAX])
        by: dict[tuple[str, ExportScope], list[ExportKey]] = {}
        for key in self._sums:
            by.setdefault((key.metric, key.scope), []).append(key)
        for metric in metrics:
            for scope in ExportScope:
                found = sorted(by.get((metric, scope), ()), key=lambda key: key.name)
                if scope is ExportScope.JOB:
                    found.sort(key=lambda key: -self._sums[key].count)
                yield from found[: scope.most]


def _ends_at(exports: ReportedExports, now: float) -> float:
    """Return until when a window counts; ValueError.

    Neither a clock that is ahead nor a long window has a node count for longer.
    """
    seconds = min(exports.seconds, EXPORTED_SECONDS_MAX)
    return min(parse_time(exports.at), now) + _WINDOWS_MAX * seconds + _WRITE_SECONDS


def _check(exports: ReportedExports, sketches: list[Sketch]) -> None:
    """Refuse more values of a metric than a node may have; BadSketch."""
    counts: Counter[str] = Counter()
    for each, sketch in zip(exports.sketches, sketches, strict=True):
        counts[each.metric] += sketch.count
    if counts and max(counts.values()) > EXPORTED_VALUES_MAX:
        raise BadSketch(f"more than {EXPORTED_VALUES_MAX:,} values of a metric")
