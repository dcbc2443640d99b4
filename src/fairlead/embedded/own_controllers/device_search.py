"""Devices of one node for the claims of a pod: what an allocation gives to each request.

By augmenting paths, which find devices where there are any, and where devices share counters by
trying them in order, as kube-scheduler does. Both count what they try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, product
from typing import Any, TypeAlias

#: Driver, pool and name of a device.
DeviceId: TypeAlias = tuple[str, str, str]
#: Driver, pool, set and name of a counter.
CounterKey: TypeAlias = tuple[str, str, str, str]
#: Index of the claim, name of the request, and the devices that will do.
Wanted: TypeAlias = tuple[int, str, list[DeviceId]]
#: `status.allocation` of a claim.
Allocation: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """A way to serve a request on a node: its name in an allocation, and the devices that do."""

    name: str
    count: int
    devices: list[DeviceId]


class Tries:
    """How many devices may still be tried."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int = 1) -> bool:
        """Count some; False where none are left."""
        self.left -= count
        return self.left >= 0


def find_devices(
    ways: Sequence[Sequence[Sequence[tuple[int, Way]]]], shared: SharedUse, tries: Tries
) -> tuple[list[Wanted], dict[DeviceId, int]] | None:
    """Return the first ways of all parts of claims together for which there are devices, as slots,
    and a slot for each device; None where there are none, or none were found in so many tries.

    `ways` of each part, each of which serves one or several requests of a claim (its index).
    """
    for chosen in product(*ways):
        if not tries.take():
            return None
        found = chain.from_iterable(chosen)
        wanted = [(i, way.name, way.devices) for i, way in found for _ in range(way.count)]
        owners = _owners(wanted, shared, tries)
        if owners is not None:
            return wanted, owners
    return None


def _owners(
    wanted: Sequence[Wanted], shared: SharedUse, tries: Tries
) -> dict[DeviceId, int] | None:
    """Return a device for each slot; None where there are none, or none were found in so many
    tries. By augmenting paths, and where devices share counters by trying them in order, as
    kube-scheduler does.
    """
    if any(id_ in shared.uses for _, _, found in wanted for id_ in found):
        return shared.search(wanted, tries)
    owners: dict[DeviceId, int] = {}
    is_found = all(_augment(i, wanted, owners, set(), tries=tries) for i in range(len(wanted)))
    return owners if is_found else None


def allocations(
    count: int, wanted: Sequence[Wanted], owners: Mapping[DeviceId, int], node: str
) -> list[Allocation]:
    """Return the allocation of each of so many claims."""
    results: list[list[dict[str, str]]] = [[] for _ in range(count)]
    for id_, slot in sorted(owners.items(), key=lambda item: item[1]):
        claim_index, request_name, _ = wanted[slot]
        results[claim_index].append({
            "request": request_name, "driver": id_[0], "pool": id_[1], "device": id_[2]
        })  # fmt: skip
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    near = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    return [{"devices": {"results": each}, "nodeSelector": near} for each in results]


class SharedUse:
    """Counters of which devices consume."""

    def __init__(
        self,
        left: dict[CounterKey, Fraction],
        uses: Mapping[DeviceId, Mapping[CounterKey, Fraction]],
    ) -> None:
        self.left, self.uses = left, uses

    def take(self, id_: DeviceId, sign: int) -> bool:
        """Count a device as had (1), or no more (-1); False where there is not enough for it."""
        for key, amount in self.uses.get(id_, {}).items():
            self.left[key] = self.left.get(key, Fraction()) - sign * amount
        return all(self.left[key] >= 0 for key in self.uses.get(id_, ()))

    def search(self, wanted: Sequence[Wanted], tries: Tries) -> dict[DeviceId, int] | None:
        """Return a device for each slot, the first ones that do; None where there are none, or
        none were found in so many tries.
        """
        owners: dict[DeviceId, int] = {}

        def find(slot: int) -> bool:
            if slot == len(wanted):
                return True
            for id_ in wanted[slot][2]:
                if not tries.take():
                    return False
                if id_ in owners:
                    continue
                owners[id_] = slot
                if self.take(id_, 1) and find(slot + 1):
                    return True
                del owners[id_]
                self.take(id_, -1)
            return False

        return owners if find(0) else None


def _augment(
    slot: int,
    wanted: Sequence[Wanted],
    owners: dict[DeviceId, int],
    seen: set[DeviceId],
    *,
    tries: Tries,
) -> bool:
    """Find a device for a slot, moving others where that helps."""
    for id_ in wanted[slot][2]:
        if id_ in seen:
            continue
        if not tries.take():
            return False
        seen.add(id_)
        if id_ not in owners or _augment(owners[id_], wanted, owners, seen, tries=tries):
            owners[id_] = slot
            return True
    return False
