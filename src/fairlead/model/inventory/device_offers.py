"""What nodes offer of the rows of devices that claims ask for, and of resources that these serve.

A member that asks for a resource of containers takes of its row, and where a class of devices
serves it of rows of devices as well. On a node without the resource its devices are the limit, and
it offers as much of the resource as it has of them. A node that has the resource by itself serves
no member by devices: there the resource is the limit, and the node offers as much of the rows of
devices beyond its devices.

Beside them are the rows of drivers, of which members take for each volume (`volume_limits.py`): all
nodes offer these, those without a limit more than can be asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.api.values.quantity import ATTACHED, CLAIMED

#: Of each resource at most this much of a node counts: sums over 100,000 nodes stay below 2**63
#: then (92 billion milli-CPU, or 83 TiB). A request for more is one too many for every node.
NODE_AMOUNT_MAX = (2**63 - 1) // 100_000 - 1
#: By resource of containers that devices serve: the rows of which a member takes for one of it, and
#: how much of each.
ServedResources: TypeAlias = Mapping[str, tuple[tuple[str, int], ...]]
_Amounts: TypeAlias = Mapping[str, int]
#: What a node without a limit offers of the row of a driver.
UNLIMITED = 1_000_000


def is_row(resource: str) -> bool:
    """True for what claims ask for: devices, and volumes of drivers with limits."""
    return resource.startswith((CLAIMED, ATTACHED))


@dataclass(frozen=True, slots=True)
class NodeVolumes:
    """How many volumes a node attaches at most, by row, and how many of them pods there share."""

    limits: _Amounts
    surplus: _Amounts


NO_VOLUMES = NodeVolumes({}, {})


@dataclass(frozen=True, slots=True)
class VolumeOffers:
    """The rows of drivers, and what nodes state of them, each that states a limit or did before."""

    rows: tuple[str, ...] = ()
    nodes: dict[str, NodeVolumes] = field(default_factory=dict[str, NodeVolumes])


class DeviceOffers:
    """What nodes offer, known or not yet."""

    def __init__(self) -> None:
        #: By node: what its devices offer; and what serves which resource. Read both only.
        self.devices: dict[str, _Amounts] = {}
        self.served: ServedResources = {}
        #: What nodes can attach. Read it only.
        self.volumes = VolumeOffers()
        #: What `put_volumes` has changed since the last `set`.
        self._has_other_rows = False
        self._changed: dict[str, None] = {}
        #: What nodes have of other devices by themselves.
        self._own: dict[str, _Amounts] = {}
        #: The resources that devices serve, or served before the last `set`. Read it only.
        self.resources: dict[str, None] = {}

    def are_of(self, resource: str) -> bool:
        """True for a row of devices or of a driver, and for a resource that devices serve."""
        return is_row(resource) or resource in self.resources

    def put_own(self, name: str, amounts: _Amounts) -> None:
        """Set what a node has of devices by itself."""
        self._own.pop(name, None)
        if amounts:
            self._own[name] = amounts

    def put_volumes(self, volumes: VolumeOffers) -> None:
        """Take in what nodes can attach, for the next `set`: of those that have changed; of all
        that state a limit, where drivers have other rows.
        """
        if volumes.rows != self.volumes.rows:
            self.volumes = VolumeOffers(volumes.rows)
            self._has_other_rows = True
        self.volumes.nodes.update(volumes.nodes)
        self._changed |= dict.fromkeys(volumes.nodes)

    def set(
        self, offered: Mapping[str, _Amounts], served: ServedResources | None, nodes: Iterable[str]
    ) -> dict[str, _Amounts]:
        """Set what some nodes offer, and return of each node for which something may have changed
        what it offers of all rows of devices and drivers, and of `resources`.

        `served` None: as before. `nodes` change, all of them, where drivers have other rows.
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
        if self._has_other_rows:
            changed |= dict.fromkeys(nodes)
        changed |= self._changed
        self._has_other_rows = False
        self._changed.clear()
        return {name: self._all_of(name) for name in changed}

    def _all_of(self, name: str) -> _Amounts:
        own = self._own.get(name) if self.resources else None
        kept = {r: own[r] for r in self.resources if r in own} if own else {}
        return self.of(name) | kept

    def of(self, name: str, *, like: str = "") -> dict[str, int]:
        """Return what a node offers of rows of devices and drivers, and of resources that it lacks
        itself.

        `like`: the node whose devices and limits it has, by default its own.
        """
        own = self._own.get(name, {}) if self.served else {}
        found = {r: n for r, n in self.devices.get(like or name, {}).items() if r not in own}
        for resource, rows in self.served.items() if own else ():
            for row, weight in rows:
                if amount := weight * own.get(resource, 0):
                    found[row] = min(found.get(row, 0) + amount, NODE_AMOUNT_MAX)
        if self.volumes.rows:
            there = self.volumes.nodes.get(like or name, NO_VOLUMES)
            surplus = {} if like else there.surplus
            for row in self.volumes.rows:
                if amount := there.limits.get(row, UNLIMITED) + surplus.get(row, 0):
                    found[row] = min(amount, NODE_AMOUNT_MAX)
        return found
