"""The parts of claims, volumes and storage classes that Fairlead reads: where a volume can be.

Source: core/v1 and storage/v1 `types.go`. What a volume is made of is not read.
"""

from __future__ import annotations

from fairlead.api.kubernetes.core import NodeSelector, ObjectReference, ResourceRequirements
from fairlead.api.meta import Amount, LabelSelector, ObjectMeta, Wire

#: On a claim: its volume is bound to it, too; for which node its volume is made.
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
#: Where classes stood before they had a field; it still comes first (`GetPersistentVolumeClass`).
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
#: Of a class whose volumes are made by hand.
NO_PROVISIONER = "kubernetes.io/no-provisioner"
#: On the class of claims that name none.
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
WAIT_FOR_CONSUMER = "WaitForFirstConsumer"
ONE_POD = "ReadWriteOncePod"
#: The CSI drivers that do the work of provisioners that were part of Kubernetes.
#: Source: csi-translation-lib `plugins/`; those of which kube-scheduler counts the volumes.
MIGRATED = {
    "kubernetes.io/aws-ebs": "ebs.csi.aws.com",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}


def own_claim_name(template: str, job: str, role: str, index: int) -> str:
    """Return the name of the claim that a member has of its own; the same in all attempts."""
    return f"{template}-{job}-{role}-{index}"


class PersistentVolumeClaimSpec(Wire, frozen=True):
    """What volume is asked for, and which one it is once one was found."""

    access_modes: tuple[str, ...] = ()
    selector: LabelSelector | None = None
    resources: ResourceRequirements = ResourceRequirements()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str = "Filesystem"


class PersistentVolumeClaimStatus(Wire, frozen=True):
    """How far a claim is."""

    phase: str = "Pending"


class PersistentVolumeClaim(Wire, frozen=True):
    """A wish for storage."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()

    @property
    def storage_class(self) -> str:
        """The name of its class; "" for none."""
        old = self.metadata.annotations.get(CLASS_ANNOTATION)
        return old if old is not None else self.spec.storage_class_name or ""

    @property
    def is_bound(self) -> bool:
        """True once claim and volume are bound to each other."""
        return bool(self.spec.volume_name) and BIND_COMPLETED in self.metadata.annotations

    @property
    def is_for_one_pod(self) -> bool:
        """True when one pod of the whole cluster may use it at a time."""
        return ONE_POD in self.spec.access_modes


class VolumeNodeAffinity(Wire, frozen=True):
    """The nodes from which a volume can be reached."""

    required: NodeSelector | None = None


class DriverSource(Wire, frozen=True):
    """A volume of a CSI driver, and its name there."""

    driver: str = ""
    volume_handle: str = ""


class FormerSource(Wire, frozen=True):
    """A volume of a kind that was part of Kubernetes; what it is made of is not read."""


class PersistentVolumeSpec(Wire, frozen=True):
    """What a volume offers, and to which claim."""

    capacity: dict[str, Amount] = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    node_affinity: VolumeNodeAffinity | None = None
    persistent_volume_reclaim_policy: str = "Retain"
    csi: DriverSource | None = None
    aws_elastic_block_store: FormerSource | None = None
    azure_disk: FormerSource | None = None
    cinder: FormerSource | None = None
    gce_persistent_disk: FormerSource | None = None
    portworx_volume: FormerSource | None = None

    @property
    def former_plugin(self) -> str:
        """The plugin of Kubernetes that it was of, where a CSI driver does its work; else ""."""
        sources = (
            (self.aws_elastic_block_store, "kubernetes.io/aws-ebs"),
            (self.azure_disk, "kubernetes.io/azure-disk"),
            (self.cinder, "kubernetes.io/cinder"),
            (self.gce_persistent_disk, "kubernetes.io/gce-pd"),
            (self.portworx_volume, "kubernetes.io/portworx-volume"),
        )
        return next((plugin for source, plugin in sources if source is not None), "")


class PersistentVolumeStatus(Wire, frozen=True):
    """How far a volume is."""

    phase: str = "Pending"


class PersistentVolume(Wire, frozen=True):
    """A volume of the cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()

    @property
    def storage_class(self) -> str:
        """The name of its class; "" for none."""
        old = self.metadata.annotations.get(CLASS_ANNOTATION)
        return old if old is not None else self.spec.storage_class_name

    @property
    def handle(self) -> tuple[str, str] | None:
        """The driver that attaches it and its name there; None where no driver does.

        One of a former plugin has the name of the volume here, not that of its disk.
        """
        if (csi := self.spec.csi) is not None:
            return (csi.driver, csi.volume_handle) if csi.driver and csi.volume_handle else None
        plugin = self.spec.former_plugin
        return (MIGRATED[plugin], self.metadata.name) if plugin else None


class TopologySelectorLabelRequirement(Wire, frozen=True):
    """A label of nodes and the values that it may have."""

    key: str
    values: tuple[str, ...]


class TopologySelectorTerm(Wire, frozen=True):
    """Nodes for which all of it holds."""

    match_label_expressions: tuple[TopologySelectorLabelRequirement, ...] = ()


class StorageClass(Wire, frozen=True):
    """How volumes of a class come to be, when, and for which nodes."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()

    @property
    def driver(self) -> str:
        """The driver that attaches its volumes; "" where they are made by hand."""
        if self.provisioner == NO_PROVISIONER:
            return ""
        return MIGRATED.get(self.provisioner, self.provisioner)

    @property
    def is_default(self) -> bool:
        """True for the class of claims that name none."""
        return self.metadata.annotations.get(DEFAULT_CLASS) == "true"

    @property
    def waits_for_consumer(self) -> bool:
        """True when a claim gets its volume once a pod that uses it has a node."""
        return self.volume_binding_mode == WAIT_FOR_CONSUMER

    @property
    def makes_volumes(self) -> bool:
        """True when a volume is made for a claim for which there is none."""
        return bool(self.provisioner) and self.provisioner != NO_PROVISIONER


# What nodes can attach, and what is attached.
# Source: storage/v1 `types.go`.


class VolumeNodeResources(Wire, frozen=True):
    """How many volumes of a driver a node can attach; without a count as many as there are."""

    count: int | None = None


class CSINodeDriver(Wire, frozen=True):
    """A driver of a node."""

    name: str
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(Wire, frozen=True):
    """The drivers of a node."""

    #: API servers write null for none.
    drivers: tuple[CSINodeDriver, ...] | None = ()


class CSINode(Wire, frozen=True):
    """What the drivers of a node say of it; it has the name of the node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()

    @property
    def limits(self) -> dict[str, int]:
        """How many volumes of each driver it can attach; drivers without a limit are left out."""
        return {
            each.name: max(0, each.allocatable.count)
            for each in self.spec.drivers or ()
            if each.allocatable is not None and each.allocatable.count is not None
        }


class VolumeAttachmentSource(Wire, frozen=True):
    """What is attached: a volume by its name, else one that no claim has."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Wire, frozen=True):
    """What a driver attaches to a node."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = VolumeAttachmentSource()


class VolumeAttachment(Wire, frozen=True):
    """A volume that is attached to a node, or is to be."""

    metadata: ObjectMeta = ObjectMeta()
    spec: VolumeAttachmentSpec = VolumeAttachmentSpec()
