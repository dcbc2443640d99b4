"""What `fairlead install` puts on a cluster: the one source of these manifests.

`deploy/kubernetes/fairlead.yaml` is written from here, and a test says when it is not up to date.
The rights are exactly those that the controllers use; another test runs them under these rights on
a real API server and compares what they asked for with what they were given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead import __version__
from fairlead.api import crd, names

Manifest = dict[str, Any]

NAME = "fairlead-controller"
PORT = 8080
#: What a controller may run as: nobody's account, with nothing of its own.
USER_ID = 65532
_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class InstallValues:
    """What a person may choose."""

    namespace: str = "fairlead-system"
    image: str = f"fairlead:{__version__}"
    replicas: int = 2
    lease: str = NAME


@dataclass(frozen=True, slots=True)
class Place:
    """Where a kind lives in the API."""

    prefix: str
    plural: str
    is_namespaced: bool = True


PLACES: Mapping[str, Place] = {
    "Namespace": Place("/api/v1", "namespaces", is_namespaced=False),
    "CustomResourceDefinition": Place(
        "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", is_namespaced=False
    ),
    "ServiceAccount": Place("/api/v1", "serviceaccounts"),
    "ClusterRole": Place(f"/apis/{_RBAC}/v1", "clusterroles", is_namespaced=False),
    "ClusterRoleBinding": Place(f"/apis/{_RBAC}/v1", "clusterrolebindings", is_namespaced=False),
    "Role": Place(f"/apis/{_RBAC}/v1", "roles"),
    "RoleBinding": Place(f"/apis/{_RBAC}/v1", "rolebindings"),
    "Service": Place("/api/v1", "services"),
    "Deployment": Place("/apis/apps/v1", "deployments"),
    "PodDisruptionBudget": Place("/apis/policy/v1", "poddisruptionbudgets"),
}


def path_of(manifest: Manifest) -> str:
    """Return the URL path of a manifest's object."""
    place, metadata = PLACES[manifest["kind"]], manifest["metadata"]
    middle = f"/namespaces/{metadata['namespace']}" if place.is_namespaced else ""
    return f"{place.prefix}{middle}/{place.plural}/{metadata['name']}"


def label_of(manifest: Manifest) -> str:
    """Return `kind namespace/name`, for people."""
    metadata = manifest["metadata"]
    space = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{manifest['kind']} {space}{metadata['name']}"


def manifests(values: InstallValues) -> list[Manifest]:
    """Return everything, in the order in which it can be created."""
    return [
        _namespace(values),
        *crd.manifests(),
        *users_roles(),
        _object("ServiceAccount", "v1", NAME, values),
        _object("ClusterRole", f"{_RBAC}/v1", NAME, rules=cluster_rules()),
        _binding("ClusterRoleBinding", "ClusterRole", values),
        _object("Role", f"{_RBAC}/v1", NAME, values, rules=namespace_rules(values)),
        _binding("RoleBinding", "Role", values),
        _service(values),
        _budget(values),
        _deployment(values),
    ]


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str], **more: Any) -> Manifest:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs), **more}


def cluster_rules() -> list[Manifest]:
    """Return what the controllers may do in the whole cluster, and nothing more."""
    return [
        _rule(names.GROUP, ["jobs"], ["get", "list", "watch", "patch", "delete"]),
        _rule(names.GROUP, ["jobs/status"], ["patch"]),
        # Pods name their job as an owner whose deletion waits for them; where the plug-in
        # OwnerReferencesPermissionEnforcement is on, that takes this right.
        _rule(names.GROUP, ["jobs/finalizers"], ["update"]),
        _rule("", ["pods", "configmaps", "services"], ["get", "list", "watch", "create", "delete"]),
        _rule("", ["nodes"], ["list", "watch"]),
        _rule("", ["events"], ["get", "create", "patch"]),
    ]


def namespace_rules(values: InstallValues) -> list[Manifest]:
    """Return what the controllers may do in their own namespace: elect a leader."""
    group = "coordination.k8s.io"
    return [
        _rule(group, ["leases"], ["create"]),  # the API knows no name yet when it asks
        _rule(group, ["leases"], ["get", "patch"], resourceNames=[values.lease]),
    ]


def users_roles() -> list[Manifest]:
    """Return what the cluster's own roles view, edit and admin may do with jobs."""
    read = ["get", "list", "watch"]
    write = [*read, "create", "update", "patch", "delete", "deletecollection"]
    return [
        _aggregated("fairlead-view", ["view", "edit", "admin"], read),
        _aggregated("fairlead-edit", ["edit", "admin"], write),
    ]


def _aggregated(name: str, roles: Sequence[str], verbs: Sequence[str]) -> Manifest:
    role = _object("ClusterRole", f"{_RBAC}/v1", name, rules=[_rule(names.GROUP, ["jobs"], verbs)])
    role["metadata"]["labels"] |= {f"{_RBAC}/aggregate-to-{each}": "true" for each in roles}
    return role


def _labels() -> dict[str, str]:
    return {
        **_selector(),
        "app.kubernetes.io/version": __version__,
        "app.kubernetes.io/part-of": "fairlead",
    }


def _selector() -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "fairlead",
        "app.kubernetes.io/instance": "fairlead",
        "app.kubernetes.io/component": "controller",
    }


def _object(
    kind: str, api_version: str, name: str, values: InstallValues | None = None, **body: Any
) -> Manifest:
    metadata: Manifest = {"name": name, "labels": _labels()}
    if values is not None:
        metadata = {"name": name, "namespace": values.namespace, "labels": _labels()}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def _namespace(values: InstallValues) -> Manifest:
    manifest = _object("Namespace", "v1", values.namespace)
    manifest["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    return manifest


def _binding(kind: str, role: str, values: InstallValues) -> Manifest:
    return _object(
        kind,
        f"{_RBAC}/v1",
        NAME,
        values if kind == "RoleBinding" else None,
        roleRef={"apiGroup": _RBAC, "kind": role, "name": NAME},
        subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": values.namespace}],
    )


def _service(values: InstallValues) -> Manifest:
    manifest = _object(
        "Service",
        "v1",
        "fairlead-metrics",
        values,
        spec={
            "selector": _selector(),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    )
    manifest["metadata"]["annotations"] = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(PORT),
    }
    return manifest


def _budget(values: InstallValues) -> Manifest:
    return _object(
        "PodDisruptionBudget",
        "policy/v1",
        NAME,
        values,
        spec={"maxUnavailable": 1, "selector": {"matchLabels": _selector()}},
    )


def _deployment(values: InstallValues) -> Manifest:
    return _object(
        "Deployment",
        "apps/v1",
        NAME,
        values,
        spec={
            "replicas": values.replicas,
            "selector": {"matchLabels": _selector()},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": {"metadata": {"labels": _labels()}, "spec": _pod(values)},
        },
    )


def _pod(values: InstallValues) -> Manifest:
    spread = {
        "maxSkew": 1,
        "topologyKey": names.HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _selector()},
    }
    return {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 30,
        "topologySpreadConstraints": [spread],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(values)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def _container(values: InstallValues) -> Manifest:
    return {
        "name": "controller",
        "image": values.image,
        "args": ["controller", "--listen", f"0.0.0.0:{PORT}", "--lease", values.lease],
        "env": [
            _from_field("POD_NAME", "metadata.name"),
            _from_field("POD_NAMESPACE", "metadata.namespace"),
        ],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "http"},
            "initialDelaySeconds": 10,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
        },
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "http"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "resources": {
            "requests": {"cpu": "500m", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
