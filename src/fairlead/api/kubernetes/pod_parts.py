"""Parts of a pod: variables, ports, volumes, rules about other pods; see `api.kubernetes.core`."""

from __future__ import annotations

import msgspec

from fairlead.api.meta import Amount, LabelSelector, Wire

# Where the variables and ports of a container come from


class FieldSelector(Wire, frozen=True):
    """A field of the pod, such as `status.podIP`."""

    field_path: str
    api_version: str = "v1"


class ResourceFieldSelector(Wire, frozen=True):
    """A request or limit of a container, such as `limits.cpu`."""

    resource: str = ""
    container_name: str = ""
    divisor: Amount | None = None


class ResourceClaimUse(Wire, frozen=True):
    """A claim of the pod that the container uses."""

    name: str
    request: str = ""


class SchedulingGate(Wire, frozen=True):
    """A gate that keeps a pod from being scheduled."""

    name: str


class PodSchedulingGroup(Wire, frozen=True):
    """The PodGroup that a pod is placed with."""

    pod_group_name: str = ""


class ExtendedResourceClaim(Wire, frozen=True):
    """The claim for devices that serves resources of a pod's containers."""

    resource_claim_name: str = ""


class PodResourceClaim(Wire, frozen=True):
    """A claim for devices of the pod; one of the two is set."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class FileKeySelector(Wire, frozen=True):
    """A key of a file of variables in a volume."""

    key: str = ""
    path: str = ""
    volume_name: str = ""
    optional: bool | None = None


class EnvironmentReference(Wire, frozen=True):
    """A ConfigMap or Secret of the pod's namespace, all of whose keys become variables."""

    name: str = ""
    optional: bool = False


class EnvFromSource(Wire, frozen=True):
    """Variables from a ConfigMap or a Secret, their names after `prefix`; one source is set."""

    prefix: str = ""
    config_map_ref: EnvironmentReference | None = None
    secret_ref: EnvironmentReference | None = None


class ContainerResizePolicy(Wire, frozen=True):
    """What a change of a resource does to the container: NotRequired or RestartContainer."""

    resource_name: str = ""
    restart_policy: str = ""


class ContainerPort(Wire, frozen=True):
    """A port that a container listens on; for information."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"
    host_port: int | None = None
    host_ip: str = msgspec.field(name="hostIP", default="")


# What a volume of a pod is made of


class ConfigMapVolumeSource(Wire, frozen=True):
    """A ConfigMap as files."""

    name: str = ""
    optional: bool = False


class SecretVolumeSource(Wire, frozen=True):
    """A Secret as files."""

    secret_name: str = ""
    optional: bool = False


class HostPathVolumeSource(Wire, frozen=True):
    """A path of the host."""

    path: str
    type: str = ""


class EmptyDirVolumeSource(Wire, frozen=True):
    """A directory that lives as long as the pod."""

    medium: str = ""


class ClaimVolumeSource(Wire, frozen=True):
    """A persistent volume claim of the pod's namespace."""

    claim_name: str
    read_only: bool = False


class EphemeralVolumeSource(Wire, frozen=True):
    """A claim that is made for the pod, named after it and the volume."""


class DownwardFile(Wire, frozen=True):
    """A file with a field of the pod: a label, an annotation, its name, namespace or uid."""

    path: str
    field_ref: FieldSelector | None = None


class DownwardVolumeSource(Wire, frozen=True):
    """Fields of the pod as files."""

    items: tuple[DownwardFile, ...] = ()


# What a pod says about the pods beside it: anti-affinity and spread.
#
# Source: core/v1 `types.go`. Preferences about other pods are not read.


class PodAffinityTerm(Wire, frozen=True):
    """The pods that match, and the label of the nodes that tells domains apart."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


class PodAntiAffinity(Wire, frozen=True):
    """Only the required part is read."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )


class TopologySpreadConstraint(Wire, frozen=True):
    """How to spread pods over domains."""

    topology_key: str
    max_skew: int = 0
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    min_domains: int | None = None
    node_affinity_policy: str = ""
    node_taints_policy: str = ""
