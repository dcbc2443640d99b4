"""What nodes offer of the rows of devices that claims ask for, and of resources that these serve.

A member that asks for a resource of containers takes of its row, and where a class of devices
serves it of rows of devices as well. On a node without the resource its devices are the limit, and
it offers as much of the resource as it has of them. A node that has the resource by itself serves
no member by devices: there the resource is the limit, and the node offers as much of the rows of
devices beyond its devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from fairlead.api.values.quantity import CLAIMED

#: Of each resource at most this much of a node counts: sums over 100,000 nodes stay below 2**63
#: then (92 billion milli-CPU, or 83 TiB). A request for more is one too many for every node.
NODE_AMOUNT_MAX = (2**63 - 1) // 100_000 - 1
#: By resource of containers that devices serve: the rows of which a member takes for one of it, and
#: how much of each.
ServedResources: TypeAlias = Mapping[str, tuple[tuple[str, int], ...]]
_Amounts: TypeAlias = Mapping[str, int]


def is_claimed(resource: str) -> bool:
    """True for devices that claims ask for (`model/claimed/devices.py`)."""
    return resource.startswith(CLAIMED)


class DeviceOffers:
    """What nodes offer, known or not yet."""

    def __init__(self) -> None:
        #: By node: what its devices offer; and what serves which resource. Read both only.
        self.devices: dict[str, _Amounts] = {}
        self.served: ServedResources = {}
        #: What nodes have of other devices by themselves.
        self._own: dict[str, _Amounts] = {}
        #: The resources that devices serve, or served before the last `set`. Read it only.
        self.resources: dict[str, None] = {}

    def are_of(self, resource: str) -> bool:
        """True for a row of devices and for a resource that these serve."""
        return is_claimed(resource) or resource in self.resources

    def put_own(self, name: str, amounts: _Amounts) -> None:
        """Set what a node has of devices by itself."""
        self._own.pop(name, None)
        if amounts:
            self._own[name] = amounts

    def set(
        self, offered: Mapping[str, _Amounts], served: ServedResources | None
    ) -> dict[str, _Amounts]:
        """Set what some nodes offer, and return of each node for which something may have changed
        what it offers of all rows of devices and of `resources`.

        `served` None: as before.
        """
        self.resources = dict.fromkeys(self.served)
        changed = dict.fromkeys(offered)
        if served is not None and served != self.served:
            self.resources |= dict.fromkeys(served)
            self.served = dict(served)
            changed |= dict.fromkeys((*self.devices, *self._own))
        for name, amounts in offered.items():
            self.devices.pop(name, None)
            if amounts:
                self.devices[name] = dict(amounts)
        return {name: self._all_of(name) for name in changed}

    def _all_of(self, name: str) -> _Amounts:
        own = self._own.get(name) if self.resources else None
        kept = {r: own[r] for r in self.resources if r in own} if own else {}
        return self.of(name) | kept

    def of(self, name: str, *, like: str = "") -> dict[str, int]:
        """Return what a node offers of rows of devices, and of resources that it lacks itself.

        `like`: the node whose devices it has, by default its own.
        """
        own = self._own.get(name, {}) if self.served else {}
        found = {r: n for r, n in self.devices.get(like or name, {}).items() if r not in own}
        for resource, rows in self.served.items() if own else ():
            for row, weight in rows:
                if amount := weight * own.get(resource, 0):
                    found[row] = min(found.get(row, 0) + amount, NODE_AMOUNT_MAX)
        return found
