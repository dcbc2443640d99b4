"""The parts of core/v1 (and a few neighbours) that Fairlead reads: Node, Pod, ConfigMap, Event ...

Read models: unknown fields are dropped on decoding, so write by patch, never by putting one back.
`kind` and `apiVersion` are not fields: the client adds them from the `Resource`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlead.api.kubernetes.pod_parts import (
    ClaimVolumeSource,
    ConfigMapVolumeSource,
    ContainerPort,
    ContainerResizePolicy,
    DownwardVolumeSource,
    EmptyDirVolumeSource,
    EnvFromSource,
    EphemeralVolumeSource,
    ExtendedResourceClaim,
    FieldSelector,
    FileKeySelector,
    HostPathVolumeSource,
    PodAntiAffinity,
    PodResourceClaim,
    PodSchedulingGroup,
    ResourceClaimUse,
    ResourceFieldSelector,
    SchedulingGate,
    SecretVolumeSource,
    TopologySpreadConstraint,
)
from fairlead.api.meta import Amount, Instant, ObjectMeta, Wire

#: How long a pod may take to end unless it says otherwise.
GRACE_SECONDS_DEFAULT = 30
#: A timer of the event loop cannot be set beyond the calendar.
GRACE_SECONDS_MAX = 2**31 - 1


class Taint(Wire, frozen=True):
    """A node taint; `effect` is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    effect: str
    value: str = ""
    time_added: Instant | None = None


class Toleration(Wire, frozen=True):
    """A pod toleration; an empty key with operator Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSpec(Wire, frozen=True):
    """Wished state of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()
    provider_id: str = msgspec.field(name="providerID", default="")
    pod_cidr: str = msgspec.field(name="podCIDR", default="")


class NodeAddress(Wire, frozen=True):
    """One address; `type` is InternalIP, Hostname ..."""

    type: str
    address: str


class NodeCondition(Wire, frozen=True):
    """A node condition with its heartbeat."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_heartbeat_time: Instant | None = None
    last_transition_time: Instant | None = None


class NodeSystemInfo(Wire, frozen=True):
    """What the node says of itself."""

    machine_id: str = msgspec.field(name="machineID", default="")
    system_uuid: str = msgspec.field(name="systemUUID", default="")
    boot_id: str = msgspec.field(name="bootID", default="")
    kernel_version: str = ""
    os_image: str = ""
    container_runtime_version: str = ""
    kubelet_version: str = ""
    kube_proxy_version: str = ""
    operating_system: str = "linux"
    architecture: str = "amd64"


class ContainerImage(Wire, frozen=True):
    """An image on a node, by its names: digests and tags; null where it has none."""

    names: tuple[str, ...] | None = None
    size_bytes: int = 0  # with containerd, of the compressed layers


class NodeStatus(Wire, frozen=True):
    """Observed state of a node; quantities are wire texts."""

    capacity: dict[str, Amount] = {}
    allocatable: dict[str, Amount] = {}
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()
    images: tuple[ContainerImage, ...] = ()


class Node(Wire, frozen=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ResourceRequirements(Wire, frozen=True):
    """Requests and limits; a missing request equals the limit."""

    requests: dict[str, Amount] = {}
    limits: dict[str, Amount] = {}
    claims: tuple[ResourceClaimUse, ...] = ()


class KeySelector(Wire, frozen=True):
    """A key of a ConfigMap or Secret in the pod's namespace."""

    name: str = ""
    key: str = ""
    optional: bool = False


class EnvVarSource(Wire, frozen=True):
    """Where a variable's value comes from."""

    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None
    field_ref: FieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    file_key_ref: FileKeySelector | None = None


class EnvVar(Wire, frozen=True):
    """An environment variable."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class VolumeMount(Wire, frozen=True):
    """Where a volume appears in a container."""

    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class Container(Wire, frozen=True):
    """A container."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    volume_mounts: tuple[VolumeMount, ...] = ()
    restart_policy: str | None = None
    termination_message_path: str = ""
    resize_policy: tuple[ContainerResizePolicy, ...] = ()


class Volume(Wire, frozen=True):
    """A volume; exactly one source is set."""

    name: str
    config_map: ConfigMapVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    persistent_volume_claim: ClaimVolumeSource | None = None
    downward_api: DownwardVolumeSource | None = msgspec.field(name="downwardAPI", default=None)
    secret: SecretVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None


class NodeSelectorRequirement(Wire, frozen=True):
    """`operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Wire, frozen=True):
    """All expressions must hold."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Wire, frozen=True):
    """Any term may hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(Wire, frozen=True):
    """Nodes that a pod would rather have; weight is 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    """Which nodes a pod may go to, and which of those it would rather have."""

    required: NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )
    preferred: tuple[PreferredSchedulingTerm, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class Affinity(Wire, frozen=True):
    """Affinity of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None


class PodSpec(Wire, frozen=True):
    """Wished state of a pod."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    priority_class_name: str = ""
    priority: int | None = None
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: PodSchedulingGroup | None = None
    hostname: str = ""
    subdomain: str = ""
    overhead: dict[str, Amount] = {}
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    host_network: bool = False
    #: What all containers together may ask for and have (`pods/pod_asks.py`); None: their sum.
    resources: ResourceRequirements | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()


class ContainerStateRunning(Wire, frozen=True):
    """Since when."""

    started_at: Instant | None = None


class ContainerStateTerminated(Wire, frozen=True):
    """How it ended; `signal` is set when a signal ended it, and `exit_code` is then 128 +
    signal.
    """

    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: Instant | None = None
    finished_at: Instant | None = None


class ContainerStateWaiting(Wire, frozen=True):
    """Why it does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerState(Wire, frozen=True):
    """At most one is set."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(Wire, frozen=True):
    """Observed state of a container."""

    name: str
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(name="imageID", default="")
    container_id: str = msgspec.field(name="containerID", default="")
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    started: bool | None = None
    #: What it has, and what the node has allocated to it: other than the spec during a resize.
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, Amount] | None = None


class PodCondition(Wire, frozen=True):
    """A pod condition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_probe_time: Instant | None = None
    last_transition_time: Instant | None = None


class PodStatus(Wire, frozen=True):
    """Observed state of a pod. `phase`: Pending, Running, Succeeded, Failed, Unknown."""

    phase: str = "Pending"
    conditions: tuple[PodCondition, ...] = ()
    reason: str = ""
    message: str = ""
    host_ip: str = msgspec.field(name="hostIP", default="")
    pod_ip: str = msgspec.field(name="podIP", default="")
    start_time: Instant | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: ResourceRequirements | None = None  # as of a container, of the pod as a whole
    allocated_resources: dict[str, Amount] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None


class Pod(Wire, frozen=True):
    """A pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_terminal(self) -> bool:
        """True once every container has ended for good."""
        return self.status.phase in ("Succeeded", "Failed")


class PodTemplate(Wire, frozen=True):
    """Metadata (labels, annotations) and spec of the pods to make."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class ConfigMap(Wire, frozen=True):
    """Small data as files or variables; `binaryData`, in base64, is for files only."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
    binary_data: dict[str, str] = {}


class Secret(Wire, frozen=True):
    """Small data that is not for everybody; the values are base64."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}


class NamespaceStatus(Wire, frozen=True):
    """`phase` is Active or Terminating."""

    phase: str = "Active"


class Namespace(Wire, frozen=True):
    """A namespace."""

    metadata: ObjectMeta = ObjectMeta()
    status: NamespaceStatus = NamespaceStatus()


class ServicePort(Wire, frozen=True):
    """A port of a service."""

    port: int
    name: str = ""
    protocol: str = "TCP"


class ServiceSpec(Wire, frozen=True):
    """Only what a headless service needs."""

    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    selector: dict[str, str] = {}
    ports: tuple[ServicePort, ...] = ()
    publish_not_ready_addresses: bool = False


class Service(Wire, frozen=True):
    """A service; Fairlead makes headless ones so that members have names."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class ObjectReference(Wire, frozen=True):
    """Points at any object."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(Wire, frozen=True):
    """Who reports."""

    component: str = ""
    host: str = ""


class Event(Wire, frozen=True):
    """A core/v1 event; `type` is Normal or Warning, `reason` CamelCase, `message` for people."""

    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    first_timestamp: Instant | None = None
    last_timestamp: Instant | None = None
    count: int = 0
    type: str = "Normal"
    event_time: Instant | None = None
    reporting_component: str = ""
    reporting_instance: str = ""
    action: str = ""


class PriorityClass(Wire, frozen=True):
    """A named priority."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"
    description: str = ""


class LeaseSpec(Wire, frozen=True):
    """A lock with a lifetime; instants are MicroTime."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: Instant | None = None
    renew_time: Instant | None = None
    lease_transitions: int = 0


class Lease(Wire, frozen=True):
    """A lease, for leader election."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


class CustomResourceDefinition(Wire, frozen=True):
    """A CRD; its schema is kept as plain JSON values."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
