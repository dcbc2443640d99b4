"""Judges figures of a machine: against floors of its devices, and against machines of its shape.

The limit of a figure is the stricter of the two. That of the fleet is the median minus five median
absolute deviations (Hampel's rule with room for tails), and at least a tenth below the median, as
good machines can be so alike that five deviations are less than the noise of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from fairlead.api import names
from fairlead.api.cluster.machine_result import Figure, MachineFinding, MachineOutcome, SuiteResult
from fairlead.api.cluster.node_report import ID_MAX, WHY_MAX
from fairlead.api.cluster.node_suites import Better, FigureKind, device_floor, machine_tests
from fairlead.api.kubernetes.core import Node
from fairlead.api.values.quantity import CPU, QuantityError, is_gpu, resources_to_base

#: Other nodes whose figures make a median that means something.
PEERS_MIN = 8
DEVIATIONS = 5.0
#: Of the median: what is no slowness. Times vary more than bandwidths.
_SPREAD = {Better.HIGHER: 0.1, Better.LOWER: 1.0}

#: What other nodes measured last, by name.
Peers = Mapping[str, Sequence[MachineFinding]]


def shape_of(node: Node) -> str:
    """Return what makes nodes alike: the type of the instance, CPUs and GPUs."""
    type_ = node.metadata.labels.get(names.INSTANCE_TYPE, "")
    try:
        capacity = resources_to_base(node.status.capacity)
    except QuantityError:
        capacity = {}
    gpus = sum(amount for name, amount in capacity.items() if is_gpu(name))
    return f"{type_}/{capacity.get(CPU, 0)}m/{gpus}"[:ID_MAX]


def judged(result: SuiteResult, peers: Peers) -> tuple[MachineFinding, ...]:
    """Return what was measured, with the limit of each figure; what misses one has Failed.

    `peers` has other nodes only.
    """
    return tuple(_judged(each, result.devices, peers) for each in result.measured)


def _judged(measured: MachineFinding, devices: Sequence[str], peers: Peers) -> MachineFinding:
    kind = machine_tests().get(measured.test)
    if kind is None:
        return measured
    figures, misses = list[Figure](), list[str]()
    for figure in measured.figures:
        known = kind.kind_of(figure.name)
        floors = [device_floor(device, measured.test, figure.name) for device in devices]
        of_fleet = fleet_limit(known, values_of(peers, measured.test, figure.name))
        limit = _stricter(known.better, [*floors, of_fleet])
        figures.append(replace(figure, limit=limit))
        if limit is not None and is_beyond(known.better, figure.value, limit):
            side = "less" if known.better is Better.HIGHER else "more"
            misses.append(f"{figure.name} {figure.value:.3g} is {side} than {limit:.3g}")
    outcome, message = measured.outcome, measured.message
    if misses and outcome is MachineOutcome.PASSED:
        outcome, message = MachineOutcome.FAILED, "; ".join(misses)[:WHY_MAX]
    return replace(measured, outcome=outcome, message=message, figures=tuple(figures))


def values_of(peers: Peers, test: str, figure: str) -> list[float]:
    """Return one figure of all peers that have it."""
    return [
        found.value
        for measured in peers.values()
        for each in measured
        if each.test == test
        for found in each.figures
        if found.name == figure
    ]


def fleet_limit(kind: FigureKind, values: Sequence[float]) -> float | None:
    """Return the limit that the figures of others set; None: too few, or it is not judged."""
    if kind.better is Better.NEITHER or len(values) < PEERS_MIN:
        return None
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    room = max(DEVIATIONS * deviation, _SPREAD[kind.better] * abs(middle))
    return middle - room if kind.better is Better.HIGHER else middle + room


def _stricter(better: Better, limits: Iterable[float | None]) -> float | None:
    found = [limit for limit in limits if limit is not None]
    if not found or better is Better.NEITHER:
        return None
    return max(found) if better is Better.HIGHER else min(found)


def is_beyond(better: Better, value: float, limit: float) -> bool:
    """True for a figure that is beyond its limit."""
    return value < limit if better is Better.HIGHER else value > limit
