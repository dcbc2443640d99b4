"""The mirrors that several parts of one process read: one list and one watch per kind.

Each is a service of its own and outlives its readers, which come and go with their crashes. A full
cluster's pods are decoded, listed and kept once instead of once per reader.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from fairlead.api.cluster.cluster_report import ClusterReport
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes.core import PriorityClass
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.kubernetes.volumes import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from fairlead.api.resources import (
    CLAIMS,
    CLUSTER_REPORTS,
    CSI_NODES,
    DEVICE_CLASSES,
    FLEETS,
    JOB_ARRAYS,
    JOBS,
    NODE_POOLS,
    NODE_REPORTS,
    NODE_TESTS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    STORAGE_CLASSES,
    TEAMS,
    VOLUME_ATTACHMENTS,
    VOLUMES,
    Resource,
)
from fairlead.app.context import ProcessContext
from fairlead.controllers.cluster_world import ClusterMirrors, DeviceMirrors
from fairlead.runtime.client import Client
from fairlead.runtime.events import EventSink
from fairlead.runtime.supervisor import SupervisedService
from fairlead.runtime.watching.mirror import HasMetadata, Mirror, MirrorOptions
from fairlead.runtime.watching.set_aside import SetAside

T = TypeVar("T", bound=HasMetadata)


class SharedMirrors:
    """The mirrors that several controllers read; these register through a `MirrorReader`."""

    def __init__(
        self,
        client: Client,
        events: EventSink,
        *,
        context: ProcessContext,
        priority_classes: Mirror[PriorityClass] | None = None,
        teams: Mirror[Team] | None = None,
        has_reports: bool = False,
        has_health: bool = False,
    ) -> None:
        """`priority_classes` and `teams`: where another part of the process runs those mirrors."""
        #: Objects that cannot be decoded, of these kinds and of those that a reader has alone.
        self.set_aside = SetAside("mirrors", events=events, log=context.log)
        self._metrics = context.metrics
        self._metrics.watch_set_aside(self.set_aside)

        def make(resource: Resource[T], *, is_dormant: bool = False) -> Mirror[T]:
            rng = context.streams(f"mirrors/{resource.plural}")
            return Mirror(
                client, resource, clock=context.clock, rng=rng, log=context.log,
                set_aside=self.set_aside, options=MirrorOptions(is_dormant=is_dormant),
            )  # fmt: skip

        self.nodes, self.jobs, self.pods = make(NODES), make(JOBS), make(PODS)
        self.pools = make(NODE_POOLS)
        self._own: list[Mirror[Any]] = [self.nodes, self.jobs, self.pods, self.pools]
        if priority_classes is None:
            priority_classes = make(PRIORITY_CLASSES)
            self._own.append(priority_classes)
        self.priority_classes = priority_classes
        if teams is None:
            teams = make(TEAMS)
            self._own.append(teams)
        self.teams = teams
        self.quotas: Mirror[ResourceQuota] = make(RESOURCE_QUOTAS)
        self.arrays: Mirror[JobArray] = make(JOB_ARRAYS)
        self._own += [self.quotas, self.arrays]
        #: Until some job asks for a claim.
        self.claims: Mirror[PersistentVolumeClaim] = make(CLAIMS, is_dormant=True)
        self.volumes: Mirror[PersistentVolume] = make(VOLUMES, is_dormant=True)
        self.storage_classes: Mirror[StorageClass] = make(STORAGE_CLASSES, is_dormant=True)
        self.csi_nodes: Mirror[CSINode] = make(CSI_NODES, is_dormant=True)
        self.attachments: Mirror[VolumeAttachment] = make(VOLUME_ATTACHMENTS, is_dormant=True)
        self._own += [self.claims, self.volumes, self.storage_classes]
        self._own += [self.csi_nodes, self.attachments]
        #: All but the classes: until some job asks for devices.
        self.devices = DeviceMirrors.make(partial(make, is_dormant=True), make(DEVICE_CLASSES))
        self._own += self.devices.all
        self.reports: Mirror[ClusterReport] | None = None
        if has_reports:
            self.reports = make(CLUSTER_REPORTS)
            self._own.append(self.reports)
        self.node_reports: Mirror[NodeReport] | None = None
        self.node_tests: Mirror[NodeTest] | None = None
        self.fleets: Mirror[Fleet] | None = None  # else the fleet controller has its own
        if has_health:
            self.node_reports, self.fleets = make(NODE_REPORTS), make(FLEETS)
            self.node_tests = make(NODE_TESTS)
            self._own += [self.node_reports, self.fleets, self.node_tests]

    def cluster(self) -> ClusterMirrors:
        """Return those that the cluster is taken in from."""
        return ClusterMirrors(
            self.jobs, self.pods, self.nodes, self.priority_classes, self.teams, self.pools,
            self.quotas, self.arrays, self.claims, self.volumes, self.storage_classes,
            self.csi_nodes, self.attachments, self.devices, self.node_reports,
        )  # fmt: skip

    def services(self) -> list[SupervisedService]:
        """Return what runs the mirrors; put it before the readers, to be stopped after them."""
        return [
            SupervisedService(
                f"mirror-{mirror.resource.plural}",
                partial(self._run, mirror),
                is_ready=partial(_is_synced, mirror),
            )
            for mirror in self._own
        ]

    async def _run(self, mirror: Mirror[Any]) -> None:
        self._metrics.watch_mirror(mirror)
        try:
            await mirror.run()
        finally:
            self._metrics.forget_mirrors([mirror])


def _is_synced(mirror: Mirror[Any]) -> bool:
    return mirror.synced
