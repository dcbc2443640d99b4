"""Machines of managed instance groups of Google Cloud (docs/howto/node-pools.md).

A pool is one zonal group of the same name in each zone that it names as a domain.

    list       listManagedInstances of each group, page by page, and its label every few minutes;
               once a minute the instances of the group, for maintenance ahead
    launch     createInstances or a resize request (`gcp_launch.py`), one step for each call
    maintain   performMaintenance, for a machine that nothing uses
    report     reportHostAsFaulty, for a machine that is out of service for a fault
    terminate  deleteInstances by name, which lowers the target size; never a resize, which would
               let the cloud choose

No call waits for an operation: the controller asks again. A deletion is not sent again while its
operation is under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.cloud.google.gcp_api import Gcp
from fairlead.cloud.google.gcp_group import InstanceGroup
from fairlead.cloud.google.gcp_launch import GcpLaunch, machine_names
from fairlead.cloud.provider import CloudError, LaunchPending, LaunchRequest, RefusedByProvider
from fairlead.model.health.machines import HostReport, Instance, Inventory

SCHEME = "gce://"
#: Launches of one pool that are under way at once, as in the pool's status.
_LAUNCHES_MAX = 64


class GcpProvider:
    """The machines of one pool."""

    def __init__(
        self, gcp: Gcp, group: str, zones: Sequence[str], options: Mapping[str, str]
    ) -> None:
        """`zones` are listed: those of the pool's domains, in order of preference."""
        self._gcp = gcp
        self._project = options.get("project", "")
        self._name = group
        self._zones = tuple(zones)
        self._groups: dict[str, InstanceGroup] = {}
        self._options = options
        self._launches: dict[str, GcpLaunch] = {}

    async def instances(self) -> Inventory:
        """Return the machines of the groups, with one list for each.

        Machines of a launch that has no answer yet are not listed: the launch counts them.
        """
        under_way = self._under_way()
        found: list[Instance] = []
        failed: list[CloudError] = []
        is_complete, warnings = True, list[str]()
        for zone in self._zones:
            group = self._group(zone)
            try:
                machines, is_whole = await group.machines()
                pool = await group.pool()
                ahead, warning = await group.announced.get()
            except RefusedByProvider:
                raise
            except CloudError as error:  # one zone of several
                failed.append(error)
                continue
            is_complete = is_complete and is_whole
            warnings += [warning] if warning else []
            for each in machines.values():
                never_was = each.action == "DELETING" and not each.status
                if not never_was:
                    id_ = self._id(group, each.name)
                    maintenance = ahead.get(each.name, "")
                    may_begin = bool(maintenance) and each.name in group.may_begin
                    found.append(
                        Instance(id_, pool, each.state, zone, maintenance=maintenance,
                                 may_begin=may_begin)
                    )  # fmt: skip
        if failed and len(failed) == len(self._zones):
            raise failed[0]
        under_way |= self._under_way()
        listed = tuple(each for each in found if each.id not in under_way)
        return Inventory(listed, is_complete and not failed, "; ".join(warnings))

    def _under_way(self) -> set[str]:
        return {
            self._id(launch.group, name)
            for launch in self._launches.values()
            for name in launch.machines
        }

    async def launch(self, request: LaunchRequest) -> tuple[str, ...]:
        """Take the next step of a launch. Without resize requests, a part may be launched."""
        zone = request.domain or next(iter(self._zones), "")
        if not zone:
            raise RefusedByProvider("GCP: the pool names no zones: list them in spec.domains")
        group = self._group(zone)
        launch = self._launches.get(request.token)
        if launch is None:
            if len(self._launches) >= _LAUNCHES_MAX:
                raise CloudError(f"{_LAUNCHES_MAX} launches are under way")
            machines = machine_names(group.name, request.token, request.count)
            launch = GcpLaunch(group, request.token, machines, self._options)
            self._launches[request.token] = launch
        try:
            made = await launch.step()
        except LaunchPending:
            raise
        except CloudError as error:
            if type(error) is not CloudError:  # it is over
                del self._launches[request.token]
            raise
        del self._launches[request.token]
        return tuple(self._id(group, name) for name in made)

    async def terminate(self, ids: tuple[str, ...]) -> None:
        """Delete machines by name, also in zones that the pool no longer names."""
        by_zone: dict[str, list[str]] = {}
        for id_ in ids:
            if place := self._place(id_):
                by_zone.setdefault(place[0], []).append(place[1])
        for zone, machines in sorted(by_zone.items()):
            await self._group(zone).delete(machines)

    async def begin_maintenance(self, id_: str) -> None:
        """Begin the announced maintenance of a machine (performMaintenance)."""
        if place := self._place(id_):
            await self._group(place[0]).begin_maintenance(place[1])

    async def report_host(self, report: HostReport) -> bool:
        """Report the host of a machine as faulty (reportHostAsFaulty); Google then moves it."""
        place = self._place(report.machine)
        if place is None or report.is_over:
            return False
        await self._group(place[0]).report_host(place[1], report)
        return True

    def _place(self, id_: str) -> tuple[str, str] | None:
        """Return the zone and the name of a machine; None for one of another project."""
        parts = id_.removeprefix(SCHEME).split("/")
        is_own = id_.startswith(SCHEME) and len(parts) == 3 and parts[0] == self._project
        return (parts[1], parts[2]) if is_own else None

    def _group(self, zone: str) -> InstanceGroup:
        found = self._groups.get(zone)
        if found is None:
            found = self._groups[zone] = InstanceGroup(self._gcp, self._project, zone, self._name)
        return found

    @staticmethod
    def _id(group: InstanceGroup, machine: str) -> str:
        return f"{SCHEME}{group.project}/{group.zone}/{machine}"
