"""Reads the Kubernetes API: few requests, none of which grows with nodes or pods.

Numbers of objects come from `remainingItemCount` of a page of one; nodes are a sample of one page;
pods are those of two labels in kube-system. What is listed whole (workloads, webhooks ...) is read
in pages up to a bound; a list that is longer counts as not seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from fairlead.api.status import ApiError
from fairlead.doctor.facts import Source
from fairlead.doctor.objects import (
    ApiService,
    ConfigMap,
    FlowSchema,
    Node,
    Objects,
    Pod,
    WebhookConfiguration,
    Workload,
)
from fairlead.doctor.readers.budget import Ask, Asking

T = TypeVar("T")
PAGE, PAGES_MAX = 500, 10
NODE_SAMPLE = 50
COUNTED: dict[str, str] = {
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "services": "/api/v1/services",
    "events": "/api/v1/events",
}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
FLOWCONTROL = "/apis/flowcontrol.apiserver.k8s.io/v1"
AGGREGATION = "/apis/apiregistration.k8s.io/v1"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
SYSTEM = "/api/v1/namespaces/kube-system"
WEBHOOK_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
CONFIG_MAPS = ("coredns", "kube-proxy")


class ClusterReader:
    """Reads one cluster; `problems` collects what could not be read."""

    def __init__(self, counted: Mapping[str, int] | None = None) -> None:
        """`counted` are numbers of objects that are known already, by plural."""
        self._counted = counted or {}
        self.problems: list[str] = []
        self.nodes: int | None = None

    def read(self) -> Asking[Objects]:
        """Return the objects; what the server refuses is None, and its reason a problem."""
        version = ((yield from self._try(_page("/version", {}))) or {}).get("gitVersion", "")
        nodes = yield from self._nodes()
        counts = dict(self._counted)
        for name, path in COUNTED.items():
            if name not in counts:
                count = yield from self._try(_count(path))
                if count is not None:
                    counts[name] = count
        if self.nodes is not None:
            counts["nodes"] = self.nodes
        control_plane_nodes = yield from self._control_plane_nodes()
        webhooks: tuple[WebhookConfiguration, ...] | None = ()
        for kind in WEBHOOK_KINDS:
            hooks = yield from self._all(f"{ADMISSION}/{kind}", WebhookConfiguration)
            webhooks = None if webhooks is None or hooks is None else (*webhooks, *hooks)
        dns_pods = yield from self._pods("k8s-app=kube-dns")
        control_plane_pods = yield from self._pods("tier=control-plane")
        deployments = yield from self._all("/apis/apps/v1/deployments", Workload)
        daemonsets = yield from self._all("/apis/apps/v1/daemonsets", Workload)
        flow_schemas = yield from self._all(f"{FLOWCONTROL}/flowschemas", FlowSchema)
        api_services = yield from self._all(f"{AGGREGATION}/apiservices", ApiService)
        config_maps = yield from self._config_maps()
        return Objects(
            version=str(version), counts=counts, nodes=nodes,
            control_plane_nodes=control_plane_nodes, webhooks=webhooks,
            dns_pods=dns_pods, control_plane_pods=control_plane_pods, deployments=deployments,
            daemonsets=daemonsets, flow_schemas=flow_schemas, api_services=api_services,
            config_maps=config_maps,
        )  # fmt: skip

    def _try(self, asking: Asking[T]) -> Asking[T | None]:
        try:
            return (yield from asking)
        except (ApiError, ValueError) as error:
            self.problems.append(str(error)[:300])
            return None

    def _nodes(self) -> Asking[tuple[Node, ...] | None]:
        page = yield from self._try(_page("/api/v1/nodes", {"limit": str(NODE_SAMPLE)}))
        if page is None:
            return None
        items: list[Any] = page.get("items") or []
        self.nodes = len(items) + _remaining(page)
        try:
            return tuple(msgspec.convert(item, Node) for item in items)
        except ValueError as error:
            self.problems.append(str(error)[:300])
            return None

    def _control_plane_nodes(self) -> Asking[tuple[Node, ...] | None]:
        return self._try(_list("/api/v1/nodes", Node, CONTROL_PLANE, NODE_SAMPLE))

    def _all(self, path: str, type_: type[T]) -> Asking[tuple[T, ...] | None]:
        return self._try(_list(path, type_))

    def _pods(self, selector: str) -> Asking[tuple[Pod, ...] | None]:
        return self._try(_list(f"{SYSTEM}/pods", Pod, selector))

    def _config_maps(self) -> Asking[dict[str, ConfigMap]]:
        found: dict[str, ConfigMap] = {}
        for name in CONFIG_MAPS:
            value = yield from self._try(_config_map(f"{SYSTEM}/configmaps/{name}"))
            if value is not None:
                found[name] = value
        return found

    def kubelet_configs(
        self, nodes: tuple[Node, ...] | None
    ) -> Asking[dict[str, dict[str, object]]]:
        """Return the configuration of up to three sampled kubelets, through the API server."""
        found: dict[str, dict[str, object]] = {}
        for node in (nodes or ())[:3]:
            path = f"/api/v1/nodes/{node.metadata.name}/proxy/configz"
            page = yield from self._try(_page(path, {}))
            if page is None:
                break  # the others will refuse for the same reason
            config = page.get("kubeletconfig")
            if isinstance(config, dict):
                found[node.metadata.name] = config
        return found

    def absent(self) -> dict[Source, str]:
        """Return why parts of the API were not seen."""
        if not self.problems:
            return {}
        return {Source.API: f"{Source.API.value}: {self.problems[0]}"}


def _page(path: str, query: Mapping[str, str]) -> Asking[dict[str, Any]]:
    value = json.loads((yield Ask(path, dict(query))))
    if not isinstance(value, dict):
        raise ValueError(f"{path}: the answer is not an object")  # noqa: TRY004 # from the world
    return value  # pyright: ignore[reportUnknownVariableType] # JSON objects have text keys


def _count(path: str) -> Asking[int]:
    page = yield from _page(path, {"limit": "1"})
    return len(page.get("items") or []) + _remaining(page)


def _list(path: str, type_: type[T], selector: str = "", page: int = PAGE) -> Asking[tuple[T, ...]]:
    """Return all objects; ValueError when there are more pages than the bound."""
    query = {"limit": str(page)}
    if selector:
        query["labelSelector"] = selector
    found: list[T] = []
    for _ in range(PAGES_MAX):
        answer = yield from _page(path, query)
        found += [msgspec.convert(item, type_) for item in answer.get("items") or []]
        query["continue"] = str((answer.get("metadata") or {}).get("continue") or "")
        if not query["continue"]:
            return tuple(found)
    raise ValueError(f"{path}: more than {page * PAGES_MAX:,} objects")


def _config_map(path: str) -> Asking[ConfigMap]:
    return msgspec.convert((yield from _page(path, {})), ConfigMap)


def _remaining(page: Mapping[str, Any]) -> int:
    value = (page.get("metadata") or {}).get("remainingItemCount") or 0
    return value if isinstance(value, int) else 0
