"""Machines of virtual machine scale sets of Azure (docs/operations/clouds.md).

A pool is one scale set for each of its domains, named REFERENCE-DOMAIN, or a single one.

    list       the machines of each scale set, page by page, and its tag every few minutes
    launch     a higher capacity and an entry in the ledger of the scale set, in one write that
               takes effect at most once (`azure_launch.py`); one step for each call
    terminate  deletion by instance id, which lowers the capacity; never a lower capacity, which
               would let Azure choose

No call waits for an operation: the controller asks again. A deletion is not sent again while its
operation is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.cloud.microsoft.azure_api import Azure, Place
from fairlead.cloud.microsoft.azure_health import report_host
from fairlead.cloud.microsoft.azure_launch import Launches
from fairlead.cloud.microsoft.azure_scale_set import ScaleSet, ScaleSetMachine
from fairlead.cloud.provider import CloudError, LaunchRequest, OutOfCapacity, RefusedByProvider
from fairlead.model.health.machines import HostReport, Instance, Inventory

_ID = (
    "azure:///subscriptions/{}/resourceGroups/{}/providers/Microsoft.Compute/"
    "virtualMachineScaleSets/{}/virtualMachines/"
)
#: Launches of one pool that are under way at once, as in the pool's status.
_LAUNCHES_MAX = 64


@dataclass(frozen=True, slots=True)
class _Group:
    """A scale set of the pool, and its launches."""

    scale_set: ScaleSet
    launches: Launches

    def id(self, instance: str) -> str:
        """Return the id of a machine as its node states it."""
        place = self.scale_set.place
        # Kubernetes writes the name of the resource group in lower case.
        group = place.resource_group.lower()
        return _ID.format(place.subscription, group, place.scale_set) + instance


class AzureProvider:
    """The machines of one pool."""

    def __init__(
        self, azure: Azure, reference: str, domains: Sequence[str], options: Mapping[str, str]
    ) -> None:
        """`domains` are listed, in order of preference; without one, `reference` is a scale set."""
        self._azure = azure
        self._reference = reference
        self._subscription = options.get("subscription", "")
        self._resource_group = options.get("resourceGroup", "")
        self._domains = tuple(domains) or ("",)
        self._groups: dict[str, _Group] = {}
        #: Tokens of launches without an answer.
        self._pending: set[str] = set()

    async def instances(self) -> Inventory:
        """Return the machines of the scale sets, with one list for each.

        Machines of a launch that has no answer yet are not listed: the launch counts them.
        """
        found: list[Instance] = []
        failed: list[CloudError] = []
        is_complete = True
        for domain in self._domains:
            group = self._group(self._name(domain))
            try:
                machines, is_whole = await group.scale_set.machines()
                pool = await group.scale_set.pool()
            except RefusedByProvider:
                raise
            except CloudError as error:  # one scale set of several
                failed.append(error)
                continue
            is_complete = is_complete and is_whole
            for each in machines.values():
                is_hidden = group.scale_set.is_reused(each.id)
                if not is_hidden and not group.launches.has(each.id):
                    where = domain or _zone(group.scale_set, each)
                    id_, ahead = group.id(each.id), each.maintenance
                    may_begin = bool(ahead) and each.may_begin
                    found.append(
                        Instance(id_, pool, each.state, where, maintenance=ahead,
                                 may_begin=may_begin)
                    )  # fmt: skip
        if failed and len(failed) == len(self._domains):
            raise failed[0]
        return Inventory(tuple(found), is_complete and not failed)

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Take the next step of a launch. A part of it may be launched."""
        group = self._group(self._name(request.domain or self._domains[0]))
        if request.token not in self._pending and len(self._pending) >= _LAUNCHES_MAX:
            raise CloudError(f"{_LAUNCHES_MAX} launches are under way")
        self._pending.add(request.token)
        try:
            made = await group.launches.step(request.token, request.count)
        except (OutOfCapacity, RefusedByProvider):
            self._pending.discard(request.token)  # it is over
            raise
        self._pending.discard(request.token)
        return tuple(group.id(instance) for instance in made)

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """Delete machines by instance id, also of domains that the pool no longer names."""
        by_name: dict[str, list[str]] = {}
        for id_ in ids:
            if place := self._place(id_):
                by_name.setdefault(place[0], []).append(place[1])
        for name, instances in sorted(by_name.items()):
            await self._group(name).scale_set.delete(instances)

    async def begin_maintenance(self, id_: str) -> None:
        """Begin the planned maintenance of a machine (performMaintenance)."""
        if place := self._place(id_):
            await self._group(place[0]).scale_set.begin_maintenance(place[1])

    async def report_host(self, report: HostReport) -> bool:
        """Report the host of a machine (Guest Health Reporting); RefusedByProvider: it is gone."""
        place = self._place(report.machine)
        if place is None:
            return False
        scale_set = self._group(place[0]).scale_set
        machines, _ = await scale_set.machines()
        if place[1] not in machines:
            raise RefusedByProvider(f"Azure: there is no machine {report.machine}")
        await report_host(self._azure, scale_set.place, report, machines[place[1]].vm_id)
        return True

    def _place(self, id_: str) -> tuple[str, str] | None:
        """Return the scale set and the instance id of a machine; None for one of another pool."""
        start, _, instance = id_.rpartition("/")
        name = start.removesuffix("/virtualMachines").rpartition("/")[2]
        is_own = name == self._reference or name.startswith(f"{self._reference}-")
        is_own = is_own and instance.isdecimal() and self._group(name).id(instance) == id_
        return (name, instance) if is_own else None

    def _name(self, domain: str) -> str:
        return f"{self._reference}-{domain}" if domain else self._reference

    def _group(self, name: str) -> _Group:
        found = self._groups.get(name)
        if found is None:
            place = Place(self._subscription, self._resource_group, name)
            domain = name.removeprefix(self._reference).removeprefix("-")
            scale_set = ScaleSet(self._azure, place, domain)
            found = self._groups[name] = _Group(scale_set, Launches(scale_set))
        return found


def _zone(scale_set: ScaleSet, machine: ScaleSetMachine) -> str:
    """Return the zone as Kubernetes calls it; the region for a machine without one."""
    return f"{scale_set.location}-{machine.zone}" if machine.zone else scale_set.location
