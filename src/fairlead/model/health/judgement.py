"""Judges figures of a machine: against floors of its devices, and against machines of its shape.

The limit of a figure is the stricter of the two. That of the fleet is the median minus five median
absolute deviations (Hampel's rule with room for tails), and at least a tenth below the median, as
good machines can be so alike that five deviations are less than the noise of one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.machine_result import Figure, MachineFinding, MachineOutcome, SuiteResult
from fairlead.api.cluster.node_report import ID_MAX, WHY_MAX
from fairlead.api.cluster.node_suites import (
    Better,
    FigureKind,
    MachineTest,
    device_floor,
    machine_tests,
)
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.quantity import CPU, QuantityError, is_gpu, resources_to_base

#: Other nodes whose figures make a median that means something.
PEERS_MIN = 8
DEVIATIONS = 5.0
#: Of the median: what is no slowness. Times vary more than bandwidths.
_SPREAD = {Better.HIGHER: 0.1, Better.LOWER: 1.0}


class PeerFigures:
    """What machines that are alike measured last: their figures, in columns.

    A figure is judged by those of all others, so they are kept as they are asked for: a test of one
    of thousands of nodes would otherwise walk all that all of them found, for each of its figures.
    """

    def __init__(self, measured: Mapping[str, Sequence[MachineFinding]] | None = None) -> None:
        """Begin with what machines measured, by name."""
        #: By test and figure: the value of each machine; of a figure that is there twice, the last.
        self._columns: dict[tuple[str, str], dict[str, float]] = {}
        #: The same values in order.
        self._ordered: dict[tuple[str, str], list[float]] = {}
        for name, findings in (measured or {}).items():
            self.put(name, findings)

    def put(self, name: str, measured: Sequence[MachineFinding]) -> None:
        """Take in what a machine measured, in place of what it had measured."""
        self.remove(name)
        found = {(each.test, one.name): one.value for each in measured for one in each.figures}
        for key, value in found.items():
            self._columns.setdefault(key, {})[name] = value
            insort(self._ordered.setdefault(key, []), value)

    def remove(self, name: str) -> None:
        """Forget what a machine measured; harmless where it is unknown."""
        for key, column in self._columns.items():
            if name in column:
                _drop(self._ordered[key], column.pop(name))

    def values(self, test: str, figure: str, *, but: str = "") -> Sequence[float]:
        """Return one figure of all machines that have it, but for one; in order.

        It is what is kept, if that one has none: read it before the next `put`.
        """
        ordered = self._ordered.get((test, figure), [])
        if ordered and but in (column := self._columns[test, figure]):
            ordered = list(ordered)
            _drop(ordered, column[but])
        return ordered


def _drop(ordered: list[float], value: float) -> None:
    del ordered[bisect_left(ordered, value)]


def shape_of(node: Node) -> str:
    """Return what makes nodes alike: the type of the instance, CPUs and GPUs."""
    type_ = node.metadata.labels.get(names.INSTANCE_TYPE, "")
    try:
        capacity = resources_to_base(node.status.capacity)
    except QuantityError:
        capacity = {}
    gpus = sum(amount for name, amount in capacity.items() if is_gpu(name))
    return f"{type_}/{capacity.get(CPU, 0)}m/{gpus}"[:ID_MAX]


def judged(
    result: SuiteResult, peers: PeerFigures, *, but: str = "", apart: Collection[str] = (),
    own: Iterable[MachineTest] = (),
) -> tuple[MachineFinding, ...]:  # fmt: skip
    """Return what was measured, with the limit of each figure; what misses one has Failed.

    What the peer `but` measured does not count: it is the machine itself. Tests that are `apart`
    ran with other options than those of the peers. What a machine says that should be done about
    it does not count; of the administrator's `own` tests it is as he says.
    """
    kinds = machine_tests(own)
    return tuple(
        _judged(
            replace(each, action=None),
            kinds.get(each.test),
            result.devices,
            PeerFigures() if each.test in apart else peers,
            but=but,
        )
        for each in result.measured
    )


def _judged(
    measured: MachineFinding, kind: MachineTest | None, devices: Sequence[str],
    peers: PeerFigures, *, but: str,
) -> MachineFinding:  # fmt: skip
    if kind is None:
        return measured
    figures, misses = list[Figure](), list[str]()
    for figure in measured.figures:
        known = kind.kind_of(figure.name)
        floors = [device_floor(device, measured.test, figure.name) for device in devices]
        of_fleet = fleet_limit(known, peers.values(measured.test, figure.name, but=but))
        limit = _stricter(known.better, [*floors, of_fleet])
        figures.append(replace(figure, limit=limit))
        if limit is not None and is_beyond(known.better, figure.value, limit):
            side = "less" if known.better is Better.HIGHER else "more"
            misses.append(f"{figure.name} {figure.value:.3g} is {side} than {limit:.3g}")
    outcome, message = measured.outcome, measured.message
    if misses and outcome is MachineOutcome.PASSED:
        outcome, message = MachineOutcome.FAILED, "; ".join(misses)[:WHY_MAX]
    return replace(
        measured, outcome=outcome, message=message, figures=tuple(figures),
        action=kind.action if kind.command else None,
    )  # fmt: skip


def comparable(test: NodeTest) -> tuple[MachineFinding, ...]:
    """Return what a test found of which the options were those of its suite."""
    if not test.spec.retests:
        return test.status.measured
    return tuple(each for each in test.status.measured if each.test not in test.spec.retests)


def fleet_limit(kind: FigureKind, values: Sequence[float]) -> float | None:
    """Return the limit that the figures of others, which are in order, set; None: too few, or it
    is not judged.
    """
    if kind.better is Better.NEITHER or len(values) < PEERS_MIN:
        return None
    half, is_even = len(values) // 2, len(values) % 2 == 0
    middle = (values[half - 1] + values[half]) / 2 if is_even else values[half]
    deviation = _distance(values, middle, half + 1)
    if is_even:
        deviation = (_distance(values, middle, half) + deviation) / 2
    room = max(DEVIATIONS * deviation, _SPREAD[kind.better] * abs(middle))
    return middle - room if kind.better is Better.HIGHER else middle + room


def _distance(ordered: Sequence[float], middle: float, count: int) -> float:
    """Return the `count`-th smallest distance of any of the values, which are in order, to another.

    The nearest ones are neighbours: of all runs of so many, the first whose lower end is no farther
    away than the value that follows it.
    """
    first = bisect_left(
        range(len(ordered) - count), True,
        key=lambda at: middle - ordered[at] <= ordered[at + count] - middle,
    )  # fmt: skip
    return max(abs(middle - ordered[first]), abs(ordered[first + count - 1] - middle))


def _stricter(better: Better, limits: Iterable[float | None]) -> float | None:
    found = [limit for limit in limits if limit is not None]
    if not found or better is Better.NEITHER:
        return None
    return max(found) if better is Better.HIGHER else min(found)


def is_beyond(better: Better, value: float, limit: float) -> bool:
    """True for a figure that is beyond its limit."""
    return value < limit if better is Better.HIGHER else value > limit
