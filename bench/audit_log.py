"""Audit logs as kube-apiserver writes them on the level Metadata, for benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

NODES = 1_000
#: A user has so many resources that it lists.
RESOURCES = 100


def cluster_lines(count: int) -> Iterator[bytes]:
    """Yield events: half heartbeats, a quarter pod writes of 5,000 pods, a quarter an agent."""
    for number in range(count):
        node = f"node-{number * 7_919 % NODES:04d}"
        kind = number % 4
        user, agent = f"system:node:{node}", "kubelet/v1.36.3 (linux/amd64) kubernetes/b8dbe55"
        extra: dict[str, list[str]] = {}
        if kind < 2:
            verb = "update"
            uri = (
                f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}?timeout=10s"
            )
        elif kind == 2:
            verb = "patch"
            uri = f"/api/v1/namespaces/team-{number % 50}/pods/train-{number % 5_000}/status"
        else:
            verb, uri = "list", "/api/v1/events"
            user, agent = "system:serviceaccount:monitoring:agent", "agent/2.3.1 (linux/amd64)"
            name = "authentication.kubernetes.io"
            extra = {f"{name}/node-name": [node], f"{name}/pod-name": [f"agent-{node[-4:]}x"],
                     f"{name}/credential-id": [f"JTI={number:036d}"]}  # fmt: skip
        yield _line(number, uri, verb, {"username": user, "groups": ["system:nodes"],
                                        "extra": extra}, agent)  # fmt: skip


def key_lines(count: int, keys: int) -> Iterator[bytes]:
    """Yield LISTs of so many callers and resources, each with an id of its own."""
    for number in range(count):
        user, resource = divmod(number % keys, RESOURCES)
        uri = f"/apis/example.com/v1/things{resource}?limit=500&labelSelector=app%3D{number}"
        name = {"username": f"system:serviceaccount:team:user-{user}", "groups": ["g"]}
        yield _line(number, uri, "list", name, f"tool-{user}/1.0 (linux/amd64)")


def _line(number: int, uri: str, verb: str, user: Mapping[str, object], agent: str) -> bytes:
    second, fraction = divmod(number, 1_000)
    started = f"2026-11-21T10:{second // 60:02d}:{second % 60:02d}.{fraction:03d}000Z"
    latency = 900 if verb == "list" else 300
    event = {
        "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
        "auditID": f"{number:08x}-0000-4000-8000-000000000000", "stage": "ResponseComplete",
        "requestURI": uri, "verb": verb, "user": user,
        "sourceIPs": [f"10.0.{number % 4}.{number % 250}"], "userAgent": agent,
        "objectRef": {"resource": "x", "namespace": "team", "name": "y", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 200}, "requestReceivedTimestamp": started,
        "stageTimestamp": started.replace("000Z", f"{latency:03d}Z"),
        "annotations": {
            "authorization.k8s.io/decision": "allow",
            "authorization.k8s.io/reason": 'RBAC: allowed by ClusterRoleBinding "agents" of '
            'ClusterRole "view" to ServiceAccount "agent/monitoring"',
        },
    }  # fmt: skip
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
