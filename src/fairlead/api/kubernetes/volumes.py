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
WAIT_FOR_CONSUMER = "WaitForFirstConsumer"
ONE_POD = "ReadWriteOncePod"


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


class PersistentVolumeSpec(Wire, frozen=True):
    """What a volume offers, and to which claim."""

    capacity: dict[str, Amount] = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ObjectReference | None = None
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    node_affinity: VolumeNodeAffinity | None = None
    persistent_volume_reclaim_policy: str = "Retain"


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
    def waits_for_consumer(self) -> bool:
        """True when a claim gets its volume once a pod that uses it has a node."""
        return self.volume_binding_mode == WAIT_FOR_CONSUMER

    @property
    def makes_volumes(self) -> bool:
        """True when a volume is made for a claim for which there is none."""
        return bool(self.provisioner) and self.provisioner != NO_PROVISIONER
