"""Short ways to make claims, volumes and storage classes for tests; see `builders`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.api import names
from fairlead.api.kubernetes.core import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    ObjectReference,
    ResourceRequirements,
)
from fairlead.api.kubernetes.volumes import (
    BIND_COMPLETED,
    WAIT_FOR_CONSUMER,
    CSINode,
    CSINodeDriver,
    CSINodeSpec,
    DriverSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    StorageClass,
    TopologySelectorLabelRequirement,
    TopologySelectorTerm,
    VolumeAttachment,
    VolumeAttachmentSource,
    VolumeAttachmentSpec,
    VolumeNodeAffinity,
    VolumeNodeResources,
)
from fairlead.api.meta import ObjectMeta
from fairlead.api.values.times import format_time
from fairlead.testing.builders import EPOCH

ZONE = "topology.kubernetes.io/zone"


def make_claim(
    name: str,
    *,
    namespace: str = names.DEFAULT_NAMESPACE,
    volume: str = "",
    storage_class: str = "",
    modes: Sequence[str] = ("ReadWriteMany",),
    size: str = "1Gi",
    phase: str = "",
    node: str = "",
    is_deleted: bool = False,
) -> PersistentVolumeClaim:
    """Return a claim, bound to `volume` where one is named; `node` was selected for it."""
    annotations = {BIND_COMPLETED: "yes"} if volume else {}
    if node:
        annotations["volume.kubernetes.io/selected-node"] = node
    metadata = ObjectMeta(
        name=name, namespace=namespace, uid=f"claim-{namespace}-{name}", resource_version="1",
        annotations=annotations, deletion_timestamp=format_time(EPOCH) if is_deleted else None,
    )  # fmt: skip
    spec = PersistentVolumeClaimSpec(
        tuple(modes), resources=ResourceRequirements({"storage": size}), volume_name=volume,
        storage_class_name=storage_class,
    )  # fmt: skip
    status = PersistentVolumeClaimStatus(phase or ("Bound" if volume else "Pending"))
    return PersistentVolumeClaim(metadata, spec, status)


def make_volume(
    name: str,
    *,
    zones: Sequence[str] = (),
    nodes: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    claim: str = "",
    storage_class: str = "",
    modes: Sequence[str] = ("ReadWriteMany",),
    size: str = "1Gi",
    phase: str = "",
    driver: str = "",
    handle: str = "",
) -> PersistentVolume:
    """Return a volume that is in these zones, or on these nodes; `claim` has it, and a `driver`
    attaches it.
    """
    key, values = (ZONE, zones) if zones else (names.HOSTNAME, nodes)
    term = NodeSelectorTerm((NodeSelectorRequirement(key, "In", tuple(values)),))
    owner = ObjectReference("PersistentVolumeClaim", names.DEFAULT_NAMESPACE, claim)
    spec = PersistentVolumeSpec(
        {"storage": size}, tuple(modes), claim_ref=owner if claim else None,
        storage_class_name=storage_class,
        node_affinity=VolumeNodeAffinity(NodeSelector((term,))) if values else None,
        csi=DriverSource(driver, handle or name) if driver else None,
    )  # fmt: skip
    metadata = ObjectMeta(name=name, uid=f"volume-{name}", resource_version="1",
                          labels=dict(labels or {}))  # fmt: skip
    status = PersistentVolumeStatus(phase or ("Bound" if claim else "Available"))
    return PersistentVolume(metadata, spec, status)


def make_storage_class(
    name: str,
    *,
    waits: bool = True,
    makes: bool = True,
    zones: Sequence[str] = (),
) -> StorageClass:
    """Return a class that makes volumes in these zones, once a pod waits for one."""
    term = TopologySelectorTerm((TopologySelectorLabelRequirement(ZONE, tuple(zones)),))
    return StorageClass(
        ObjectMeta(name=name, resource_version="1"),
        provisioner="disk.test" if makes else "kubernetes.io/no-provisioner",
        volume_binding_mode=WAIT_FOR_CONSUMER if waits else "Immediate",
        allowed_topologies=(term,) if zones else (),
    )


def make_csi_node(name: str, **limits: int | None) -> CSINode:
    """Return what drivers say of a node: how many volumes each attaches; None: no limit.

    The driver is the keyword with dots for underscores.
    """
    drivers = tuple(
        CSINodeDriver(driver.replace("_", "."), VolumeNodeResources(count))
        for driver, count in limits.items()
    )
    return CSINode(ObjectMeta(name=name, resource_version="1"), CSINodeSpec(drivers))


def make_attachment(volume: str, node: str, driver: str) -> VolumeAttachment:
    """Return the attachment of a volume to a node."""
    source = VolumeAttachmentSource(volume)
    metadata = ObjectMeta(name=f"{volume}-{node}", resource_version="1")
    return VolumeAttachment(metadata, VolumeAttachmentSpec(driver, node, source))
