"""Paths, media types and small objects that the scenarios share."""

from __future__ import annotations

from typing import Any

from tests.conformance.http_server import config

NS = "/api/v1/namespaces/default"
MAPS, PODS, SERVICES = f"{NS}/configmaps", f"{NS}/pods", f"{NS}/services"
SECRETS, CLAIMS, EVENTS = f"{NS}/secrets", f"{NS}/persistentvolumeclaims", f"{NS}/events"
NAMESPACES, NODES = "/api/v1/namespaces", "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.dev/v1/namespaces/default/widgets"
MERGE, JSON_PATCH, STRATEGIC = (
    f"application/{kind}+json" for kind in ("merge-patch", "json-patch", "strategic-merge-patch")
)
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
HOLD = "example.dev/hold"


def node(name: str, **spec: Any) -> dict[str, Any]:
    """A small node."""
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec,
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip


def held(name: str) -> dict[str, Any]:
    """A ConfigMap with a finalizer."""
    body = config(name)
    body["metadata"]["finalizers"] = [HOLD]
    return body
