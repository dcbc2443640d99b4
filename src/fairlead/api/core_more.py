"""The parts of the core kinds that are served but that nothing in Fairlead reads.

These types are never decoded: schemas are generated from them, so that the API knows the names,
types and list keys of fields that it stores for others. `MORE[T]` holds the further fields of the
struct T of `api.core`; the remaining types are kinds, or parts of kinds, that only pass through.
Field names follow Kubernetes 1.34 (`staging/src/k8s.io/api/core/v1/types.go`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from fairlead.api import core
from fairlead.api.meta import Amount, Instant, ObjectMeta, Wire

Object = dict[str, Any]
IntOrString = Annotated[
    int | str, msgspec.Meta(extra_json_schema={"x-kubernetes-int-or-string": True})
]


class ObjectMetaMore(Wire, frozen=True):
    """Further metadata."""

    self_link: str = ""
    managed_fields: tuple[Object, ...] = ()


class LocalObjectReference(Wire, frozen=True):
    """Names an object of the same namespace."""

    name: str = ""


class VolumeDevice(Wire, frozen=True):
    """A block device of a volume."""

    name: str
    device_path: str


class ResourceClaimUse(Wire, frozen=True):
    """A claim of the pod that the container uses."""

    name: str
    request: str = ""


class ResourceRequirementsMore(Wire, frozen=True):
    """Further requirements."""

    claims: tuple[ResourceClaimUse, ...] = ()


class VolumeMountMore(Wire, frozen=True):
    """Further options of a mount."""

    mount_propagation: str = ""
    sub_path_expr: str = ""
    recursive_read_only: str = ""


class ContainerMore(Wire, frozen=True):
    """Further fields of a container."""

    volume_devices: tuple[VolumeDevice, ...] = ()
    resize_policy: tuple[Object, ...] = ()
    restart_policy_rules: tuple[Object, ...] = ()
    liveness_probe: Object | None = None
    readiness_probe: Object | None = None
    startup_probe: Object | None = None
    lifecycle: Object | None = None
    security_context: Object | None = None
    image_pull_policy: str = ""
    termination_message_path: str = ""
    termination_message_policy: str = ""
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False


class EphemeralContainer(Wire, frozen=True):
    """A container added to a running pod, to look into it."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[core.EnvVar, ...] = ()
    target_container_name: str = ""


class ConfigMapVolumeSourceMore(Wire, frozen=True):
    """Further options."""

    items: tuple[Object, ...] = ()
    default_mode: int | None = None


class EmptyDirVolumeSourceMore(Wire, frozen=True):
    """Further options."""

    size_limit: Amount | None = None


class VolumeMore(Wire, frozen=True):
    """Further sources of volumes."""

    secret: Object | None = None
    projected: Object | None = None
    downward_api: Object | None = msgspec.field(name="downwardAPI", default=None)
    ephemeral: Object | None = None
    csi: Object | None = None
    nfs: Object | None = None
    iscsi: Object | None = None
    fc: Object | None = None
    image: Object | None = None
    cephfs: Object | None = None
    rbd: Object | None = None
    glusterfs: Object | None = None
    cinder: Object | None = None
    git_repo: Object | None = None
    flex_volume: Object | None = None
    flocker: Object | None = None
    quobyte: Object | None = None
    storageos: Object | None = None
    scale_io: Object | None = msgspec.field(name="scaleIO", default=None)
    portworx_volume: Object | None = None
    photon_persistent_disk: Object | None = None
    vsphere_volume: Object | None = None
    azure_file: Object | None = None
    azure_disk: Object | None = None
    gce_persistent_disk: Object | None = None
    aws_elastic_block_store: Object | None = None


class HostAlias(Wire, frozen=True):
    """A line for the pod's hosts file."""

    ip: str
    hostnames: tuple[str, ...] = ()


class TopologySpreadConstraint(Wire, frozen=True):
    """How to spread pods over domains."""

    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: str = ""
    label_selector: Object | None = None
    match_label_keys: tuple[str, ...] = ()
    min_domains: int | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""


class PodResourceClaim(Wire, frozen=True):
    """A claim for devices."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class NodeAffinityMore(Wire, frozen=True):
    """The preferred part."""

    preferred_during_scheduling_ignored_during_execution: tuple[Object, ...] = ()


class AffinityMore(Wire, frozen=True):
    """Affinity to other pods."""

    pod_affinity: Object | None = None
    pod_anti_affinity: Object | None = None


class PodSpecMore(Wire, frozen=True):
    """Further wishes for a pod."""

    ephemeral_containers: tuple[EphemeralContainer, ...] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    host_aliases: tuple[HostAlias, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    readiness_gates: tuple[Object, ...] = ()
    security_context: Object | None = None
    service_account_name: str = ""
    service_account: str = ""
    automount_service_account_token: bool | None = None
    dns_policy: str = ""
    dns_config: Object | None = None
    host_network: bool = False
    host_pid: bool = msgspec.field(name="hostPID", default=False)
    host_ipc: bool = msgspec.field(name="hostIPC", default=False)
    host_users: bool | None = None
    share_process_namespace: bool | None = None
    set_hostname_as_fqdn: bool | None = msgspec.field(name="setHostnameAsFQDN", default=None)
    hostname_override: str = ""
    enable_service_links: bool | None = None
    preemption_policy: str = ""
    runtime_class_name: str = ""
    os: Object | None = None
    resources: core.ResourceRequirements | None = None
    workload_ref: Object | None = None


class PodConditionMore(Wire, frozen=True):
    """Further fields of a pod condition."""

    observed_generation: int | None = None


class PodIP(Wire, frozen=True):
    """One address of a pod."""

    ip: str


class ContainerStateTerminatedMore(Wire, frozen=True):
    """Further facts about the end."""

    container_id: str = msgspec.field(name="containerID", default="")


class ContainerStatusMore(Wire, frozen=True):
    """Further facts about a container."""

    allocated_resources: dict[str, Amount] = {}
    allocated_resources_status: tuple[Object, ...] = ()
    resources: core.ResourceRequirements | None = None
    volume_mounts: tuple[Object, ...] = ()
    user: Object | None = None
    stop_signal: str = ""


class PodStatusMore(Wire, frozen=True):
    """Further facts about a pod."""

    observed_generation: int | None = None
    nominated_node_name: str = ""
    pod_ips: tuple[PodIP, ...] = msgspec.field(name="podIPs", default=())
    host_ips: tuple[PodIP, ...] = msgspec.field(name="hostIPs", default=())
    qos_class: str = ""
    resize: str = ""
    ephemeral_container_statuses: tuple[core.ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[Object, ...] = ()
    extended_resource_claim_status: Object | None = None
    allocated_resources: dict[str, Amount] = {}
    resources: core.ResourceRequirements | None = None


class NodeSpecMore(Wire, frozen=True):
    """Further wishes for a node."""

    pod_cidrs: tuple[str, ...] = msgspec.field(name="podCIDRs", default=())
    config_source: Object | None = None
    external_id: str = msgspec.field(name="externalID", default="")


class NodeSystemInfoMore(Wire, frozen=True):
    """Further facts that the node gives."""

    swap: Object | None = None


class NodeStatusMore(Wire, frozen=True):
    """Further facts about a node."""

    phase: str = ""
    daemon_endpoints: Object | None = None
    images: tuple[Object, ...] = ()
    volumes_in_use: tuple[str, ...] = ()
    volumes_attached: tuple[Object, ...] = ()
    config: Object | None = None
    runtime_handlers: tuple[Object, ...] = ()
    features: Object | None = None
    declared_features: tuple[str, ...] = ()


class ConfigMapMore(Wire, frozen=True):
    """Further fields of a ConfigMap."""

    binary_data: dict[str, str] = {}
    immutable: bool | None = None


class NamespaceMore(Wire, frozen=True):
    """Further fields of a namespace."""

    spec: Object | None = None


class NamespaceStatusMore(Wire, frozen=True):
    """Further facts about a namespace."""

    conditions: tuple[core.PodCondition, ...] = ()


class ServicePortMore(Wire, frozen=True):
    """Further fields of a port."""

    target_port: IntOrString | None = None
    node_port: int | None = None
    app_protocol: str = ""


class ServiceSpecMore(Wire, frozen=True):
    """Further wishes for a service."""

    type: str = ""
    cluster_ips: tuple[str, ...] = msgspec.field(name="clusterIPs", default=())
    external_ips: tuple[str, ...] = msgspec.field(name="externalIPs", default=())
    external_name: str = ""
    external_traffic_policy: str = ""
    internal_traffic_policy: str = ""
    health_check_node_port: int | None = None
    ip_families: tuple[str, ...] = ()
    ip_family_policy: str = ""
    load_balancer_ip: str = msgspec.field(name="loadBalancerIP", default="")
    load_balancer_class: str = ""
    load_balancer_source_ranges: tuple[str, ...] = ()
    allocate_load_balancer_node_ports: bool | None = None
    session_affinity: str = ""
    session_affinity_config: Object | None = None
    traffic_distribution: str = ""


class ServiceMore(Wire, frozen=True):
    """Further fields of a service."""

    status: Object | None = None


class EventMore(Wire, frozen=True):
    """Further fields of an event."""

    series: Object | None = None
    related: core.ObjectReference | None = None


class LeaseSpecMore(Wire, frozen=True):
    """Further fields of a lease."""

    strategy: str = ""
    preferred_holder: str = ""


class SecretMore(Wire, frozen=True):
    """Further fields of a secret."""

    string_data: dict[str, str] = {}
    type: str = ""
    immutable: bool | None = None


class ServiceAccount(Wire, frozen=True):
    """An identity for pods."""

    metadata: ObjectMeta = ObjectMeta()
    secrets: tuple[core.ObjectReference, ...] = ()
    image_pull_secrets: tuple[LocalObjectReference, ...] = ()
    automount_service_account_token: bool | None = None


class EndpointSlice(Wire, frozen=True):
    """Addresses behind a service."""

    address_type: str
    metadata: ObjectMeta = ObjectMeta()
    endpoints: tuple[Object, ...] = ()
    ports: tuple[Object, ...] = ()


class PersistentVolumeClaim(Wire, frozen=True):
    """A wish for storage."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Object | None = None
    status: Object | None = None


class PodDisruptionBudgetSpec(Wire, frozen=True):
    """How many pods may be away at once."""

    selector: Object | None = None
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(Wire, frozen=True):
    """What the budget allows now."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    disrupted_pods: dict[str, Instant] = {}
    conditions: tuple[core.PodCondition, ...] = ()


class PodDisruptionBudget(Wire, frozen=True):
    """Limits how many pods of a set are evicted at once."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


#: Further fields of the structs that Fairlead reads.
MORE: dict[type, type] = {
    ObjectMeta: ObjectMetaMore,
    core.ResourceRequirements: ResourceRequirementsMore,
    core.VolumeMount: VolumeMountMore,
    core.Secret: SecretMore,
    core.Container: ContainerMore,
    core.ConfigMapVolumeSource: ConfigMapVolumeSourceMore,
    core.EmptyDirVolumeSource: EmptyDirVolumeSourceMore,
    core.Volume: VolumeMore,
    core.NodeAffinity: NodeAffinityMore,
    core.Affinity: AffinityMore,
    core.PodSpec: PodSpecMore,
    core.PodCondition: PodConditionMore,
    core.ContainerStateTerminated: ContainerStateTerminatedMore,
    core.ContainerStatus: ContainerStatusMore,
    core.PodStatus: PodStatusMore,
    core.NodeSpec: NodeSpecMore,
    core.NodeSystemInfo: NodeSystemInfoMore,
    core.NodeStatus: NodeStatusMore,
    core.ConfigMap: ConfigMapMore,
    core.Namespace: NamespaceMore,
    core.NamespaceStatus: NamespaceStatusMore,
    core.ServicePort: ServicePortMore,
    core.ServiceSpec: ServiceSpecMore,
    core.Service: ServiceMore,
    core.Event: EventMore,
    core.LeaseSpec: LeaseSpecMore,
}
