"""Which devices of a node a pod's claims get, as kube-scheduler chooses them, and whose they are.

Pure: it reads the classes and slices that its owner knows, and what claims have. The options of a
request are tried in their order, with those of the others, as kube-scheduler does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, islice

from fairlead.api.kubernetes.core import Pod
from fairlead.api.kubernetes.devices import Device, DeviceClass, ResourceClaim, ResourceSlice
from fairlead.api.values.quantity import QuantityError, parse
from fairlead.decide.verdict import ObjectKey
from fairlead.embedded.own_controllers.device_search import (
    Allocation,
    CounterKey,
    DeviceId,
    SharedUse,
    Tries,
    Way,
    allocations,
    find_devices,
)
from fairlead.model.claimed.device_asks import (
    ALL,
    ClaimName,
    ClaimPart,
    DeviceKind,
    DeviceOption,
    UnsupportedClaim,
    parts_of,
)
from fairlead.model.claimed.device_selectors import (
    ExpressionError,
    alike,
    device_expression,
    is_chosen,
    will_do,
)

#: Devices that are tried for the pods of a namespace in one decision, or for one pod.
TRIES_MAX = 10_000
#: Sets of values that are tried for devices that differ.
DIFFERENT_MAX = 256


class NodeDevices:
    """The devices of nodes."""

    def __init__(
        self,
        device_class: Callable[[str], DeviceClass | None],
        slices: Callable[[], Iterable[ResourceSlice]],
    ) -> None:
        """`device_class` returns a class by its name, `slices` all slices that there are."""
        self._class = device_class
        self._slices = slices

    def allocate(
        self,
        claims: Sequence[ResourceClaim],
        node: str,
        taken: set[DeviceId],
        tries: Tries | None = None,
    ) -> list[Allocation] | None:
        """Return devices of a node for each claim; None: too few, or not found in so many tries,
        by default `TRIES_MAX`.
        """
        tries = Tries(TRIES_MAX) if tries is None else tries
        ways: list[list[list[tuple[int, Way]]]] = []
        for i, claim in enumerate(claims):
            name = ClaimName(claim.metadata.name, is_template=False)
            parts = parts_of(name, claim.spec.devices)
            if isinstance(parts, UnsupportedClaim):
                return None
            for part in parts:
                found = self._ways(part, node, taken, tries)
                ways.append([[(i, way) for way in each] for each in found])
        try:
            shared = self._shared(node, taken)
        except QuantityError:  # no admission has seen the slice
            return None
        found = find_devices(ways, shared, tries)
        return None if found is None else allocations(len(claims), *found, node)

    def _ways(
        self, part: ClaimPart, node: str, taken: set[DeviceId], tries: Tries
    ) -> Iterator[list[Way]]:
        """Yield the ways to serve a part of a claim: its options, or all of them by devices that
        are alike, or differ. Those that differ are of one kind: any order of values will do.
        """
        found = [self._way(option, node, taken, tries) for option in part.options]
        chosen = [way for way in found if way is not None]
        if not part.alike:
            yield from ([way] for way in chosen)
            return
        if len(chosen) < len(found):
            return
        kind = DeviceKind(alike=part.alike)
        devices = {(driver, pool, each.name): each for driver, pool, each in self._on(node)}
        values = {id_: alike(kind, id_[0], devices[id_]) for way in chosen for id_ in way.devices}
        found_values = dict.fromkeys(each for each in values.values() if None not in each)
        for of_ways in (
            islice(combinations(found_values, len(chosen)), DIFFERENT_MAX) if part.differ
            else ([value] * len(chosen) for value in found_values)
        ):  # fmt: skip
            if not tries.take():
                return
            ways = [
                Way(way.name, way.count, [id_ for id_ in way.devices if values[id_] == value])
                for way, value in zip(chosen, of_ways, strict=True)
            ]
            if all(len(way.devices) >= way.count for way in ways):
                yield ways

    def _way(
        self, option: DeviceOption, node: str, taken: set[DeviceId], tries: Tries
    ) -> Way | None:
        """Return what a node has for an option of a request; None for too few devices."""
        if not tries.take():
            return None
        kind, count = option.ask.kind, option.ask.count
        found = list(self._fitting(kind, node, is_for_all=count == ALL))
        tries.take(len(found))
        free = [id_ for id_ in found if id_ not in taken]
        if count == ALL:
            is_had = 0 < len(free) == len(found) <= option.ask.most
            return Way(option.name, len(free), free) if is_had else None
        return Way(option.name, count, free) if len(free) >= count else None

    def _shared(self, node: str, taken: set[DeviceId]) -> SharedUse:
        """Return what devices of a node consume of counters, and what is left of these."""
        left: dict[CounterKey, Fraction] = {}
        uses: dict[DeviceId, dict[CounterKey, Fraction]] = {}
        for driver, pool, each in self._slices_on(node):
            for found in each.spec.shared_counters:
                for name, counter in found.counters.items():
                    left[driver, pool, found.name, name] = parse(counter.value)
            for device in each.spec.devices:
                if device.consumes_counters:
                    consumed = device.consumed.items()
                    uses[driver, pool, device.name] = {
                        (driver, pool, *key): amount for key, amount in consumed
                    }
        shared = SharedUse(left, uses)
        for id_ in taken & uses.keys():
            shared.take(id_, 1)
        return shared

    def _fitting(self, kind: DeviceKind, node: str, *, is_for_all: bool) -> Iterator[DeviceId]:
        """Yield the devices of a node that are of a kind; none where an expression fails, where
        they are not alike in what they are to be, or where all are wanted and one cannot be had.
        """
        found = self._class(kind.device_class)
        of_class = found.spec.selectors if found is not None else ()
        expressions = [each.cel.expression for each in of_class if each.cel is not None]
        try:
            selectors = [device_expression(each) for each in (*expressions, *kind.selectors)]
            if found is None or len(expressions) < len(of_class):
                return
            every = [e for e in self._on(node) if is_chosen(selectors, e[0], e[2])]
            chosen = [e for e in every if e[2].is_plain and will_do(kind, selectors, e[0], e[2])]
            if is_for_all and len(chosen) < len(every):
                return
            if len({alike(kind, driver, device) for driver, _, device in chosen}) <= 1:
                yield from ((driver, pool, device.name) for driver, pool, device in chosen)
        except ExpressionError:
            return

    def _on(self, node: str) -> Iterator[tuple[str, str, Device]]:
        for driver, pool, each in self._slices_on(node):
            yield from ((driver, pool, device) for device in each.spec.devices)

    def _slices_on(self, node: str) -> Iterator[tuple[str, str, ResourceSlice]]:
        for each in sorted(self._slices(), key=lambda s: s.metadata.name):
            if each.spec.node_name == node and self._is_newest(each):
                yield each.spec.driver, each.spec.pool.name, each

    def _is_newest(self, given: ResourceSlice) -> bool:
        pool = given.spec.pool
        return not any(
            other.pool_key == given.pool_key and other.spec.pool.generation > pool.generation
            for other in self._slices()
        )


def own_claim_name(pod: str, claim: str) -> str:
    """Return the name of the claim that a pod has of its own for one of its claims."""
    return f"{pod}-{claim}"


def claims_of(pod: Pod) -> Iterator[tuple[ObjectKey, str]]:
    """Yield the claims of a pod, each with the template that it is made from, or ""."""
    namespace, pod_name = pod.metadata.key
    for each in pod.spec.resource_claims:
        template = each.resource_claim_template_name
        name = own_claim_name(pod_name, each.name) if template else each.resource_claim_name
        yield (namespace, name), template


def devices_of(claim: ResourceClaim) -> Iterator[DeviceId]:
    """Yield the devices that a claim has."""
    allocation = claim.status.allocation
    for each in () if allocation is None else allocation.devices.results:
        yield (each.driver, each.pool, each.device)


def id_of(result: Mapping[str, str]) -> DeviceId:
    """Return the device of a result of an allocation."""
    return (result["driver"], result["pool"], result["device"])
