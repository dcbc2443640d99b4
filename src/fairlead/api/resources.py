"""Where each kind lives in the API: group, version, plural, scope, and the type it decodes into."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, TypeVar

from fairlead.api import names
from fairlead.api.cluster.cluster_report import ClusterReport
from fairlead.api.cluster.fleet import Fleet
from fairlead.api.cluster.image_set import ImageSet
from fairlead.api.cluster.node_pool import NodePool
from fairlead.api.cluster.node_report import NodeReport
from fairlead.api.cluster.node_test import NodeTest
from fairlead.api.cluster.team import Team
from fairlead.api.jobs.job import Job
from fairlead.api.jobs.job_array import JobArray
from fairlead.api.kubernetes import core
from fairlead.api.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from fairlead.api.kubernetes.metrics import PodMetrics
from fairlead.api.kubernetes.resource_quota import ResourceQuota
from fairlead.api.kubernetes.volumes import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from fairlead.api.meta import OnlyMetadata

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A resource type. Hashable; equal when group, version and plural are."""

    group: str
    version: str
    plural: str
    kind: str = field(compare=False)
    type: type[T] = field(compare=False)
    namespaced: bool = field(default=True, compare=False)
    #: A cluster may lack the definition; then there are no such objects.
    is_optional: bool = field(default=False, compare=False)
    #: `pods`, `jobs.fairlead.dev`. Stored, as it is compared at every call and every write.
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = f"{self.plural}.{self.group}" if self.group else self.plural
        object.__setattr__(self, "name", name)

    @property
    def api_version(self) -> str:
        """`v1` for the core group, else `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def only_metadata(self) -> Resource[OnlyMetadata]:
        """The same resource, but answers carry metadata only; servers then send no more."""
        return _only_metadata(self)

    @property
    def raw(self) -> Resource[dict[str, Any]]:
        """The same resource as plain objects, with all fields that the server has."""
        return _raw(self)

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path; an empty namespace means all (or cluster scope)."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            root += f"/namespaces/{namespace}"
        root += f"/{self.plural}"
        if name:
            root += f"/{name}"
        return f"{root}/{subresource}" if subresource else root


@cache
def _raw(resource: Resource[Any]) -> Resource[dict[str, Any]]:
    return replace(resource, type=dict)


@cache
def _only_metadata(resource: Resource[Any]) -> Resource[OnlyMetadata]:
    return replace(resource, type=OnlyMetadata)


#: Served from Kubernetes 1.34 on.
_DRA = "resource.k8s.io"

PODS = Resource("", "v1", "pods", "Pod", core.Pod)
NODES = Resource("", "v1", "nodes", "Node", core.Node, namespaced=False)
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", core.ConfigMap)
SECRETS = Resource("", "v1", "secrets", "Secret", core.Secret)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", core.Namespace, namespaced=False)
SERVICES = Resource("", "v1", "services", "Service", core.Service)
EVENTS = Resource("", "v1", "events", "Event", core.Event)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", core.Lease)
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", core.PriorityClass,
    namespaced=False,
)  # fmt: skip
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", ResourceQuota)
CLAIMS = Resource(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", PersistentVolumeClaim
)
VOLUMES = Resource(
    "", "v1", "persistentvolumes", "PersistentVolume", PersistentVolume, namespaced=False
)
STORAGE_CLASSES = Resource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", StorageClass, namespaced=False
)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", CSINode, namespaced=False)
VOLUME_ATTACHMENTS = Resource(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", VolumeAttachment,
    namespaced=False,
)  # fmt: skip
RESOURCE_CLAIMS = Resource(
    _DRA, "v1", "resourceclaims", "ResourceClaim", ResourceClaim, is_optional=True
)
RESOURCE_CLAIM_TEMPLATES = Resource(
    _DRA, "v1", "resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplate,
    is_optional=True,
)  # fmt: skip
DEVICE_CLASSES = Resource(
    _DRA, "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False, is_optional=True
)
RESOURCE_SLICES = Resource(
    _DRA, "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False,
    is_optional=True,
)  # fmt: skip
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
    core.CustomResourceDefinition, namespaced=False,
)  # fmt: skip
JOBS = Resource(names.GROUP, names.VERSION, "jobs", "Job", Job)
JOB_ARRAYS = Resource(
    names.GROUP, names.VERSION, "jobarrays", "JobArray", JobArray, is_optional=True
)
TEAMS = Resource(
    names.GROUP, names.VERSION, "teams", "Team", Team, namespaced=False, is_optional=True
)
NODE_POOLS = Resource(
    names.GROUP, names.VERSION, "nodepools", "NodePool", NodePool, namespaced=False,
    is_optional=True,
)  # fmt: skip
FLEETS = Resource(
    names.GROUP, names.VERSION, "fleets", "Fleet", Fleet, namespaced=False, is_optional=True
)
CLUSTER_REPORTS = Resource(
    names.GROUP, names.VERSION, "clusterreports", "ClusterReport", ClusterReport, namespaced=False,
    is_optional=True,
)  # fmt: skip
NODE_REPORTS = Resource(
    names.GROUP, names.VERSION, "nodereports", "NodeReport", NodeReport, namespaced=False,
    is_optional=True,
)  # fmt: skip
NODE_TESTS = Resource(
    names.GROUP, names.VERSION, "nodetests", "NodeTest", NodeTest, namespaced=False,
    is_optional=True,
)  # fmt: skip
IMAGE_SETS = Resource(
    names.GROUP, names.VERSION, "imagesets", "ImageSet", ImageSet, namespaced=False,
    is_optional=True,
)  # fmt: skip
#: What pods use now. Computed, never stored: it can be read, and not watched.
POD_METRICS = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", PodMetrics)

ALL: tuple[Resource[object], ...] = (
    PODS, NODES, CONFIG_MAPS, SECRETS, NAMESPACES, SERVICES, EVENTS, LEASES, PRIORITY_CLASSES,
    RESOURCE_QUOTAS, CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES, VOLUME_ATTACHMENTS,
    RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, RESOURCE_SLICES, CRDS,
    JOBS, JOB_ARRAYS, TEAMS, NODE_POOLS, FLEETS, CLUSTER_REPORTS,
    NODE_REPORTS, NODE_TESTS, IMAGE_SETS,
)  # type: ignore[assignment] # Resource is invariant; a tuple of all kinds has no tighter type  # fmt: skip
