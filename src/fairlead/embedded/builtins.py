"""The built-in kinds that the embedded API serves.

Names, scopes, short names and selectable fields are those of Kubernetes (`pkg/registry/*` and
`pkg/apis/*/v1/conversion.go`). Kinds whose objects make something act (deployments, batch jobs,
...) are left out: nothing here would act on them.
"""

from __future__ import annotations

from fairlead.embedded.resource_info import NameRule, ResourceInfo, SelectableField

_ALL = ("all",)
_META = {
    "metadata.name": SelectableField(("metadata", "name")),
    "metadata.namespace": SelectableField(("metadata", "namespace")),
}
_CLUSTER_META = {"metadata.name": SelectableField(("metadata", "name"))}


def _fields(*texts: str, **defaults: str) -> dict[str, SelectableField]:
    fields = {text: SelectableField(tuple(text.split("."))) for text in texts}
    return {**_META, **fields} | {
        text.replace("__", "."): SelectableField(tuple(text.split("__")), default)
        for text, default in defaults.items()
    }


PODS = ResourceInfo(
    "", "v1", "pods", "Pod",
    short_names=("po",), categories=_ALL,
    subresources=(
        "status", "log", "exec", "attach", "portforward", "binding", "eviction", "resize"
    ),
    selectable=_fields(
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "status.phase", "status.podIP", "status.nominatedNodeName",
        spec__hostNetwork="false",
    ),
    tracks_generation=True,
)  # fmt: skip
NODES = ResourceInfo(
    "", "v1", "nodes", "Node",
    namespaced=False, short_names=("no",), subresources=("status",),
    selectable={
        **_CLUSTER_META,
        "spec.unschedulable": SelectableField(("spec", "unschedulable"), "false"),
    },
    keeps_status_on_create=True,
)  # fmt: skip
CONFIG_MAPS = ResourceInfo(
    "", "v1", "configmaps", "ConfigMap", short_names=("cm",), selectable=_META
)
SECRETS = ResourceInfo("", "v1", "secrets", "Secret", selectable=_fields("type"))
NAMESPACES = ResourceInfo(
    "", "v1", "namespaces", "Namespace",
    namespaced=False, short_names=("ns",), subresources=("status", "finalize"),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
    name_rule=NameRule.LABEL,
    selectable={**_CLUSTER_META, "status.phase": SelectableField(("status", "phase"))},
)  # fmt: skip
SERVICES = ResourceInfo(
    "", "v1", "services", "Service",
    short_names=("svc",), categories=_ALL, subresources=("status",),
    name_rule=NameRule.LABEL, selectable=_fields("spec.clusterIP", "spec.type"),
)  # fmt: skip
SERVICE_ACCOUNTS = ResourceInfo(
    "", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",), selectable=_META
)
#: Nothing here makes any but the server's own.
ENDPOINT_SLICES = ResourceInfo(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", selectable=_META,
    tracks_generation=True,
)  # fmt: skip
EVENTS = ResourceInfo(
    "", "v1", "events", "Event",
    short_names=("ev",),
    selectable=_fields(
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion",
        "involvedObject.fieldPath", "reason", "reportingComponent", "type",
    ) | {"source": SelectableField(("source", "component"))},
    create_on_update_allowed=True,
)  # fmt: skip
LEASES = ResourceInfo(
    "coordination.k8s.io", "v1", "leases", "Lease",
    selectable=_META, unconditional_update_allowed=False, create_on_update_allowed=True,
)  # fmt: skip
PRIORITY_CLASSES = ResourceInfo(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass",
    namespaced=False, short_names=("pc",), selectable=_CLUSTER_META, tracks_generation=True,
)  # fmt: skip
CLAIMS = ResourceInfo(
    "", "v1", "persistentvolumeclaims", "PersistentVolumeClaim",
    short_names=("pvc",), subresources=("status",), selectable=_META,
)  # fmt: skip
VOLUMES = ResourceInfo(
    "", "v1", "persistentvolumes", "PersistentVolume",
    namespaced=False, short_names=("pv",), subresources=("status",), selectable=_CLUSTER_META,
)  # fmt: skip
STORAGE_CLASSES = ResourceInfo(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass",
    namespaced=False, short_names=("sc",), selectable=_CLUSTER_META,
)  # fmt: skip
CSI_NODES = ResourceInfo(
    "storage.k8s.io", "v1", "csinodes", "CSINode", namespaced=False, selectable=_CLUSTER_META
)
VOLUME_ATTACHMENTS = ResourceInfo(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment",
    namespaced=False, subresources=("status",), selectable=_CLUSTER_META,
)  # fmt: skip
RESOURCE_CLAIMS = ResourceInfo(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim",
    subresources=("status",), selectable=_META,
)  # fmt: skip
RESOURCE_CLAIM_TEMPLATES = ResourceInfo(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", selectable=_META
)
DEVICE_CLASSES = ResourceInfo(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass",
    namespaced=False, selectable=_CLUSTER_META, tracks_generation=True,
)  # fmt: skip
RESOURCE_SLICES = ResourceInfo(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice",
    namespaced=False, selectable=_CLUSTER_META, tracks_generation=True,
)  # fmt: skip
RESOURCE_QUOTAS = ResourceInfo(
    "", "v1", "resourcequotas", "ResourceQuota",
    short_names=("quota",), subresources=("status",), selectable=_META,
)  # fmt: skip
LIMIT_RANGES = ResourceInfo(
    "", "v1", "limitranges", "LimitRange", short_names=("limits",), selectable=_META
)
BUDGETS = ResourceInfo(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget",
    short_names=("pdb",), subresources=("status",), selectable=_META,
    unconditional_update_allowed=False, tracks_generation=True,
)  # fmt: skip
CRDS = ResourceInfo(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition",
    namespaced=False, short_names=("crd", "crds"), categories=("api-extensions",),
    subresources=("status",), selectable=_CLUSTER_META,
    unconditional_update_allowed=False, tracks_generation=True,
)  # fmt: skip
#: Which admission webhooks are called; their own objects are never sent to one.
MUTATING_WEBHOOKS = ResourceInfo(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False, categories=("api-extensions",), selectable=_CLUSTER_META,
    unconditional_update_allowed=False, tracks_generation=True,
)  # fmt: skip
VALIDATING_WEBHOOKS = ResourceInfo(
    "admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False, categories=("api-extensions",), selectable=_CLUSTER_META,
    unconditional_update_allowed=False, tracks_generation=True,
)  # fmt: skip
WEBHOOK_KINDS = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)

BUILTINS = (
    PODS, NODES, CONFIG_MAPS, SECRETS, NAMESPACES, SERVICES, SERVICE_ACCOUNTS, ENDPOINT_SLICES,
    EVENTS, LEASES, PRIORITY_CLASSES, CLAIMS, VOLUMES, STORAGE_CLASSES,
    CSI_NODES, VOLUME_ATTACHMENTS,
    RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, RESOURCE_SLICES,
    RESOURCE_QUOTAS, LIMIT_RANGES, BUDGETS,
    CRDS, MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS,
)  # fmt: skip
