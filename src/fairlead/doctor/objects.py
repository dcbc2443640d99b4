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


class Metadata(Object, frozen=True):
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


class Resources(Object, frozen=True):
    """Limits of a container."""

    limits: dict[str, str | int | float] = {}


class Container(Object, frozen=True):
    """Image, command and limits of a container."""

    name: str = ""
    image: str = ""
    image_pull_policy: str = ""
    command: list[str] = []
    args: list[str] = []
    resources: Resources = Resources()


class Affinity(Object, frozen=True):
    """Only whether there is anti-affinity between pods."""

    pod_anti_affinity: dict[str, object] | None = None


class PodSpec(Object, frozen=True):
    """What checks read of a pod or of a template."""

    node_name: str = ""
    host_network: bool = False
    dns_policy: str = "ClusterFirst"
    priority_class_name: str = ""
    affinity: Affinity | None = None
    topology_spread_constraints: list[dict[str, object]] = []
    containers: list[Container] = []
    resources: Resources = Resources()


class PodStatus(Object, frozen=True):
    """Phase of a pod."""

    phase: str = ""


class Pod(Object, frozen=True):
    """A pod."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Template(Object, frozen=True):
    """A pod template."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class WorkloadSpec(Object, frozen=True):
    """What checks read of a Deployment, a DaemonSet or a StatefulSet."""

    replicas: int | None = None
    template: Template = Template()
    update_strategy: dict[str, object] = {}


class Workload(Object, frozen=True):
    """A Deployment, DaemonSet or StatefulSet."""

    metadata: Metadata = Metadata()
    spec: WorkloadSpec = WorkloadSpec()


class Image(Object, frozen=True):
    """An image on a node."""

    names: list[str] | None = None
    size_bytes: int = 0


class NodeInfo(Object, frozen=True):
    """Versions of a node."""

    kernel_version: str = ""
    kubelet_version: str = ""
    container_runtime_version: str = ""


class Taint(Object, frozen=True):
    """A taint of a node."""

    key: str = ""
    effect: str = ""


class NodeSpec(Object, frozen=True):
    """What checks read of what a node is asked to be."""

    taints: list[Taint] = []


class NodeStatus(Object, frozen=True):
    """What checks read of a node."""

    capacity: dict[str, str | int | float] = {}
    images: list[Image] = []
    node_info: NodeInfo = NodeInfo()


class Node(Object, frozen=True):
    """A node."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class WebhookRule(Object, frozen=True):
    """Operations and resources that a webhook is called for."""

    api_groups: list[str] = []
    operations: list[str] = []
    resources: list[str] = []


class Webhook(Object, frozen=True):
    """One webhook of a configuration; the API's defaults where a field is absent."""

    name: str = ""
    failure_policy: str = "Fail"
    timeout_seconds: int = 10
    rules: list[WebhookRule] = []
    namespace_selector: dict[str, object] | None = None
    object_selector: dict[str, object] | None = None


class WebhookConfiguration(Object, frozen=True):
    """A mutating or validating configuration."""

    metadata: Metadata = Metadata()
    webhooks: list[Webhook] = []


class FlowSchema(Object, frozen=True):
    """A FlowSchema."""

    metadata: Metadata = Metadata()


class Condition(Object, frozen=True):
    """A condition of an object."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ApiServiceStatus(Object, frozen=True):
    """Conditions of an APIService."""

    conditions: list[Condition] = []


class ApiService(Object, frozen=True):
    """An aggregated API."""

    metadata: Metadata = Metadata()
    status: ApiServiceStatus = ApiServiceStatus()


class ConfigMap(Object, frozen=True):
    """Data of a ConfigMap."""

    metadata: Metadata = Metadata()
    data: dict[str, str] = {}


class Objects(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the Kubernetes API; None for what the API did not hand out.

    `counts` are objects per resource (`pods`, `services` ...). `nodes` is a sample of the nodes,
    `control_plane_nodes` are those with the role control-plane.
    `config_maps` are those of kube-system that were asked for, by name.
    """

    version: str = ""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    nodes: tuple[Node, ...] | None = None
    control_plane_nodes: tuple[Node, ...] | None = None
    dns_pods: tuple[Pod, ...] | None = None
    control_plane_pods: tuple[Pod, ...] | None = None
    deployments: tuple[Workload, ...] | None = None
    daemonsets: tuple[Workload, ...] | None = None
    webhooks: tuple[WebhookConfiguration, ...] | None = None
    flow_schemas: tuple[FlowSchema, ...] | None = None
    api_services: tuple[ApiService, ...] | None = None
    config_maps: Mapping[str, ConfigMap] = field(default_factory=dict[str, ConfigMap])
