"""The Kubernetes objects that checks look at, with the few fields that they look at.

Fields are optional and of the loosest type that the checks can work with, so that an object with an
unexpected field never hides the others.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import field


class Object(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Base: camel-case names, unknown fields ignored."""


class SeenMetadata(Object, frozen=True):
    """Name, namespace, labels and age of an object."""

    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, or the name."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class SeenResources(Object, frozen=True):
    """Limits of a container."""

    limits: dict[str, str | int | float] = {}


class SeenContainer(Object, frozen=True):
    """Image, command and limits of a container."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    resources: SeenResources = SeenResources()


class SeenAffinity(Object, frozen=True):
    """Only whether there is anti-affinity between pods."""

    pod_anti_affinity: dict[str, object] | None = None


class SeenPodSpec(Object, frozen=True):
    """What checks read of a pod or of a template."""

    node_name: str = ""
    host_network: bool = False
    dns_policy: str = "ClusterFirst"
    priority_class_name: str = ""
    affinity: SeenAffinity | None = None
    topology_spread_constraints: list[dict[str, object]] = []
    containers: list[SeenContainer] = []
    resources: SeenResources = SeenResources()


class SeenPodStatus(Object, frozen=True):
    """Phase of a pod."""

    phase: str = ""


class SeenPod(Object, frozen=True):
    """A pod."""

    metadata: SeenMetadata = SeenMetadata()
    spec: SeenPodSpec = SeenPodSpec()
    status: SeenPodStatus = SeenPodStatus()


class SeenTemplate(Object, frozen=True):
    """A pod template."""

    metadata: SeenMetadata = SeenMetadata()
    spec: SeenPodSpec = SeenPodSpec()


class SeenWorkloadSpec(Object, frozen=True):
    """What checks read of a Deployment, a DaemonSet or a StatefulSet."""

    replicas: int | None = None
    template: SeenTemplate = SeenTemplate()
    update_strategy: dict[str, object] = {}


class SeenWorkload(Object, frozen=True):
    """A Deployment, DaemonSet or StatefulSet."""

    metadata: SeenMetadata = SeenMetadata()
    spec: SeenWorkloadSpec = SeenWorkloadSpec()


class SeenImage(Object, frozen=True):
    """An image on a node."""

    names: list[str] | None = None
    size_bytes: int = 0


class SeenNodeInfo(Object, frozen=True):
    """Versions of a node."""

    kernel_version: str = ""
    kubelet_version: str = ""
    container_runtime_version: str = ""


class SeenTaint(Object, frozen=True):
    """A taint of a node."""

    key: str = ""
    effect: str = ""


class SeenNodeSpec(Object, frozen=True):
    """What checks read of what a node is asked to be."""

    taints: list[SeenTaint] = []


class SeenNodeStatus(Object, frozen=True):
    """What checks read of a node."""

    capacity: dict[str, str | int | float] = {}
    images: list[SeenImage] = []
    node_info: SeenNodeInfo = SeenNodeInfo()


class SeenNode(Object, frozen=True):
    """A node."""

    metadata: SeenMetadata = SeenMetadata()
    spec: SeenNodeSpec = SeenNodeSpec()
    status: SeenNodeStatus = SeenNodeStatus()


class SeenWebhookRule(Object, frozen=True):
    """Operations and resources that a webhook is called for."""

    api_groups: list[str] = []
    operations: list[str] = []
    resources: list[str] = []


class SeenWebhook(Object, frozen=True):
    """One webhook of a configuration; the API's defaults where a field is absent."""

    name: str = ""
    failure_policy: str = "Fail"
    timeout_seconds: int = 10
    rules: list[SeenWebhookRule] = []
    namespace_selector: dict[str, object] | None = None
    object_selector: dict[str, object] | None = None


class SeenWebhookConfiguration(Object, frozen=True):
    """A mutating or validating configuration."""

    metadata: SeenMetadata = SeenMetadata()
    webhooks: list[SeenWebhook] = []


class SeenFlowSchema(Object, frozen=True):
    """A FlowSchema."""

    metadata: SeenMetadata = SeenMetadata()


class SeenCondition(Object, frozen=True):
    """A condition of an object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class SeenApiServiceStatus(Object, frozen=True):
    """Conditions of an APIService."""

    conditions: list[SeenCondition] = []


class SeenApiService(Object, frozen=True):
    """An aggregated API."""

    metadata: SeenMetadata = SeenMetadata()
    status: SeenApiServiceStatus = SeenApiServiceStatus()


class SeenConfigMap(Object, frozen=True):
    """Data of a ConfigMap."""

    metadata: SeenMetadata = SeenMetadata()
    data: dict[str, str] = {}


class SeenObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the Kubernetes API; None for what the API did not hand out.

    `counts` are objects per resource (`pods`, `services` ...). `nodes` is a sample of the nodes,
    `control_plane_nodes` are those with the role control-plane.
    `config_maps` are those of kube-system that were asked for, by name.
    """

    version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    nodes: tuple[SeenNode, ...] | None = None
    control_plane_nodes: tuple[SeenNode, ...] | None = None
    dns_pods: tuple[SeenPod, ...] | None = None
    control_plane_pods: tuple[SeenPod, ...] | None = None
    deployments: tuple[SeenWorkload, ...] | None = None
    daemonsets: tuple[SeenWorkload, ...] | None = None
    webhooks: tuple[SeenWebhookConfiguration, ...] | None = None
    flow_schemas: tuple[SeenFlowSchema, ...] | None = None
    api_services: tuple[SeenApiService, ...] | None = None
    config_maps: Mapping[str, SeenConfigMap] = field(default_factory=dict[str, SeenConfigMap])
