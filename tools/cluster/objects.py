"""The objects of the API that a fresh cluster needs before its nodes are useful."""

from __future__ import annotations

from typing import Any

from tools.cluster.layout import CONTROL_PLANE, Layout

_RBAC = "rbac.authorization.k8s.io"
_DNS_PORTS = (("dns", "UDP"), ("dns-tcp", "TCP"))


def bootstrap_objects(layout: Layout) -> dict[str, Any]:
    """Return CoreDNS's rights and Service, and the right of `user` to edit `default`."""
    service = {
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {
            "clusterIP": layout.dns,
            "ports": [{"name": name, "port": 53, "protocol": p} for name, p in _DNS_PORTS],
        },
    }  # fmt: skip
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns", "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": [layout.address(CONTROL_PLANE)], "conditions": {"ready": True}}
        ],
        "ports": [{"name": name, "port": 53, "protocol": p} for name, p in _DNS_PORTS],
    }  # fmt: skip
    rights = {
        "apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole",
        "metadata": {"name": "system:coredns"},
        "rules": [
            {"apiGroups": [""], "resources": ["services", "pods", "namespaces"],
             "verbs": ["list", "watch"]},
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
             "verbs": ["list", "watch"]},
        ],
    }  # fmt: skip
    coredns = {
        "apiVersion": f"{_RBAC}/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "system:coredns"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "system:coredns"},
        "subjects": [{"kind": "User", "name": "system:coredns", "apiGroup": _RBAC}],
    }  # fmt: skip
    user = {
        "apiVersion": f"{_RBAC}/v1", "kind": "RoleBinding",
        "metadata": {"name": "user", "namespace": "default"},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "User", "name": "user", "apiGroup": _RBAC}],
    }  # fmt: skip
    items = [service, endpoints, rights, coredns, user]
    return {"apiVersion": "v1", "kind": "List", "items": items}
