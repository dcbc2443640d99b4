"""The objects that the planner reads, and the cluster state that they make.

A process takes objects in one after the other (`controllers/cluster_world.py`). Who has them as
lists, such as a client that explains a stopped cluster, a plan of other shares, or the replay of a
decision, gets the same state here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.kubernetes.core import Node, Pod, PriorityClass
from fairlead.api.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.kubernetes.volumes import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from fairlead.model.asks.priorities import PriorityTable
from fairlead.model.asks.topology import Level
from fairlead.model.claimed.devices import DeviceTable
from fairlead.model.cluster import ClusterState
from fairlead.model.inventory.volume_limits import StatedLimits


@dataclass(frozen=True, slots=True)
class Objects:
    """All objects of a cluster that decisions depend on."""

    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    pods: tuple[Pod, ...] = ()
    #: None: they are not known, and jobs have the priority that they state.
    priority_classes: tuple[PriorityClass, ...] | None = ()
    teams: tuple[Team, ...] = ()
    quotas: tuple[ResourceQuota, ...] = ()
    pools: tuple[NodePool, ...] = ()
    claims: tuple[PersistentVolumeClaim, ...] = ()
    volumes: tuple[PersistentVolume, ...] = ()
    storage_classes: tuple[StorageClass, ...] = ()
    csi_nodes: tuple[CSINode, ...] = ()
    attachments: tuple[VolumeAttachment, ...] = ()
    device_claims: tuple[ResourceClaim, ...] = ()
    device_templates: tuple[ResourceClaimTemplate, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()
    #: Where balloons are; see `model/pools/balloons.py`.
    balloon_namespace: str = ""

    def state(self, levels: Sequence[Level], *, contains: bool = False) -> ClusterState:
        """Return the cluster that these objects are; see `ClusterState.of`."""
        classes = self.priority_classes
        return ClusterState.of(
            self.nodes, self.jobs, self.pods,
            None if classes is None else PriorityTable(classes),
            teams=self.teams, pools=self.pools, quotas=self.quotas, levels=levels,
            balloon_namespace=self.balloon_namespace, contains=contains,
            devices=DeviceTable(
                self.slices, self.device_classes, self.device_templates, self.device_claims
            ),
            claims=self.claims, volumes=self.volumes, storage_classes=self.storage_classes,
            limits=StatedLimits(self.csi_nodes, self.attachments),
        )  # fmt: skip
